"""The cache of generate(): keys and gated values of every layer, and indexer keys of those that have an indexer, in the
pages that gsa::decode reads.

Sequence n owns the pages n blocks .. (n + 1) blocks - 1, so its rows lie in a row. Padding never enters: a sequence's
rows are its true tokens, and `lengths` says how many there are. `tokens` says which columns of the input they were; a
later mask may call the last of them padding, as generate() appends to texts that have ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import Cache

from .._errors import bad_argument
from ..functional import PagedCache

_WHERE = "GatedSparseCache"
PAGE = 64


@dataclass
class LayerPages:
    """[sequences, capacity, ...] each; index_k None where the layer has no indexer, or none was at work."""

    k: Tensor
    v: Tensor
    index_k: Tensor | None

    def map(self, f) -> "LayerPages":
        return LayerPages(f(self.k), f(self.v), None if self.index_k is None else f(self.index_k))


class GatedSparseCache(Cache):
    """Made by the model where use_cache asks for one; batches of any padding."""

    def __init__(self):
        super().__init__(layers=[])
        self.pages: list[LayerPages] = []
        self.lengths: list[int] = []  # of each sequence, its true tokens
        self.tokens: Tensor | None = None  # bool [sequences, columns of input so far]: False for padding
        self.capacity = 0

    def __len__(self) -> int:
        return len(self.pages)

    @property
    def seen(self) -> int:
        """Columns of input so far, padding included."""
        return 0 if self.tokens is None else self.tokens.size(1)

    # ---- What the model asks

    def require_batch(self, sequences: int) -> None:
        if self.tokens is not None and sequences != len(self.lengths):
            bad_argument(_WHERE, "input_ids", f"{len(self.lengths)} sequences, as in the cache", sequences)

    def retain(self, mask: Tensor) -> None:
        """mask: bool [sequences, seen]. The last tokens of a sequence go where it says padding; others have been seen
        by those behind them, and padding has no keys: such a mask is refused."""
        if self.tokens is None or torch.equal(mask, self.tokens):
            return
        kept = self.tokens & mask
        seen_by_later = kept.flip(1).cumsum(1).flip(1) > 0
        for wrong, expected, got in (
            (mask & ~self.tokens, "0 for what was padding when it entered the cache", 1),
            (self.tokens & ~mask & seen_by_later, "1 for cached tokens that later ones in the cache have seen", 0),
        ):
            places = wrong.nonzero()
            if len(places) > 0:
                row, column = places[0].tolist()
                bad_argument(_WHERE, "attention_mask", f"{expected} (or no cache)", f"{got} in row {row}, column {column}")
        self.tokens, self.lengths = kept, kept.sum(1).tolist()

    def advance(self, new: list[int], valid: Tensor) -> None:
        """Makes room for so many new tokens of each sequence; valid: bool [sequences, new columns], which they are."""
        if self.tokens is None:
            self.lengths, self.tokens = [0] * len(new), valid[:, :0]
        self.lengths = [length + more for length, more in zip(self.lengths, new)]
        self.tokens = torch.cat([self.tokens, valid], 1)
        needed = max(self.lengths, default=0)
        if needed > self.capacity:
            # A quarter more than is needed: the token after a long prompt is not the one that pays for a copy of it.
            capacity = -(-(needed + max(needed // 4, 4 * PAGE)) // PAGE) * PAGE
            self.pages = [layer.map(partial(self._grown, capacity)) for layer in self.pages]
            self.capacity = capacity

    @staticmethod
    def _grown(capacity: int, x: Tensor) -> Tensor:
        grown = x.new_zeros(x.size(0), capacity, *x.shape[2:])
        grown[:, : x.size(1)] = x
        return grown

    @contextmanager
    def unchanged_by_failure(self) -> Iterator[None]:
        """Takes the new tokens of a pass back where it fails or is interrupted: of some layers they have no keys."""
        tokens, lengths = self.tokens, self.lengths
        try:
            yield
        except BaseException:
            if tokens is None:
                self.reset()
            else:
                self.tokens, self.lengths = tokens, lengths
            raise

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor, index_k: Tensor | None) -> None:
        """Rows k, v, index_k [T, ...] into the places `slots` (sequence * capacity + position, int64 [T])."""
        if layer == len(self.pages):
            def empty(x: Tensor) -> Tensor:
                return x.new_zeros(len(self.lengths), self.capacity, *x.shape[1:])

            self.pages.append(LayerPages(empty(k), empty(v), None if index_k is None else empty(index_k)))
        pages = self.pages[layer]
        if (pages.index_k is None) != (index_k is None):
            bad_argument(_WHERE, "phase", "that of the cache's first pass", "another")
        for target, rows in ((pages.k, k), (pages.v, v), (pages.index_k, index_k)):
            if target is not None:
                target.flatten(0, 1).index_copy_(0, slots, rows.detach().to(target.dtype))

    def rows(self, layer: int, slots: Tensor) -> LayerPages:
        """The rows at these places, packed."""
        return self.pages[layer].map(lambda x: x.flatten(0, 1).index_select(0, slots))

    def table(self, sequences: Tensor) -> Tensor:
        """The pages of some of the sequences, int32 [sequences, blocks]."""
        blocks = self.capacity // PAGE
        table = sequences.unsqueeze(1) * blocks + torch.arange(blocks, device=sequences.device)
        return table.to(torch.int32)

    def paged(self, layer: int, table: Tensor, lengths: Tensor, max_length: int, sparse: bool) -> PagedCache:
        """As gsa::decode reads it; sparse: with the indexer's keys."""
        pages = self.pages[layer].map(lambda x: x.view(-1, PAGE, *x.shape[2:]))
        return PagedCache(pages.k, pages.v, table, lengths, max_length, pages.index_k if sparse else None)

    # ---- What transformers asks

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.seen + query_length, 0

    @property
    def batch_size(self) -> int:
        return len(self.lengths) if self.lengths else -1

    @property
    def is_initialized(self) -> bool:
        return bool(self.pages)

    def reset(self) -> None:
        self.__init__()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.pages = [layer.map(lambda x: x.index_select(0, indices.to(x.device))) for layer in self.pages]
        self.tokens = self.tokens.index_select(0, indices.to(self.tokens.device))
        self.lengths = [self.lengths[i] for i in indices.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.pages = [layer.map(lambda x: x.repeat_interleave(repeats, 0)) for layer in self.pages]
        self.tokens = self.tokens.repeat_interleave(repeats, 0)
        self.lengths = [length for length in self.lengths for _ in range(repeats)]

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last columns of input away; their number is negative, as transformers of any version read it."""
        if not -self.seen <= tokens_to_remove <= 0:
            bad_argument(_WHERE, "tokens_to_remove", f"0 .. {-self.seen}", tokens_to_remove)
        if tokens_to_remove < 0:
            self.tokens = self.tokens[:, :tokens_to_remove]
            self.lengths = self.tokens.sum(1).tolist()

"""The cache of generate(): keys and gated values of every layer, and indexer keys of those that have an indexer, in the
pages that gsa::decode reads.

Sequence n owns the pages n blocks .. (n + 1) blocks - 1, so its rows lie in a row. Padding never enters: a sequence's
rows are its true tokens, and `lengths` says how many there are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

from ..functional import PagedCache

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
        self.seen = 0  # columns of input so far, padding included
        self.capacity = 0

    def __len__(self) -> int:
        return len(self.pages)

    # ---- What the model asks

    def advance(self, new: list[int], columns: int) -> None:
        """Makes room for so many new tokens of each sequence, which came in so many columns."""
        if not self.lengths:
            self.lengths = [0] * len(new)
        if len(new) != len(self.lengths):
            raise ValueError(
                f"GatedSparseCache: argument 'input_ids': expected {len(self.lengths)} sequences, as in the cache, got {len(new)}"
            )
        self.lengths = [length + more for length, more in zip(self.lengths, new)]
        self.seen += columns
        needed = max(self.lengths, default=0)
        if needed > self.capacity:
            # A quarter more than is needed: the token after a long prompt is not the one that pays for a copy of it.
            self.capacity = -(-(needed + max(needed // 4, 4 * PAGE)) // PAGE) * PAGE
            self.pages = [layer.map(self._grown) for layer in self.pages]

    def _grown(self, x: Tensor) -> Tensor:
        grown = x.new_zeros(x.size(0), self.capacity, *x.shape[2:])
        grown[:, : x.size(1)] = x
        return grown

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor, index_k: Tensor | None) -> None:
        """Rows k, v, index_k [T, ...] into the places `slots` (sequence * capacity + position, int64 [T])."""
        if layer == len(self.pages):
            def empty(x: Tensor) -> Tensor:
                return x.new_zeros(len(self.lengths), self.capacity, *x.shape[1:])

            self.pages.append(LayerPages(empty(k), empty(v), None if index_k is None else empty(index_k)))
        pages = self.pages[layer]
        if (pages.index_k is None) != (index_k is None):
            raise ValueError("GatedSparseCache: argument 'phase': expected that of the cache's first pass, got another")
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
        self.lengths = [self.lengths[i] for i in indices.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.pages = [layer.map(lambda x: x.repeat_interleave(repeats, 0)) for layer in self.pages]
        self.lengths = [length for length in self.lengths for _ in range(repeats)]

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last tokens away; their number is negative, as every version of transformers understands it."""
        if tokens_to_remove > 0 or -tokens_to_remove > min(self.lengths, default=0):
            raise ValueError(
                f"GatedSparseCache: argument 'tokens_to_remove': expected 0 .. {-min(self.lengths, default=0)}, "
                f"got {tokens_to_remove}"
            )
        self.lengths = [length + tokens_to_remove for length in self.lengths]
        self.seen += tokens_to_remove

"""What a forward pass knows of its sequences before it has read a number, and what is asked of it: the same for every
layer of a model, so a model makes it once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from ._errors import bad_argument, require_one_of, shown
from .config import PHASES, SUPPORTS, AttentionConfig
from .context_parallel import ContextShard
from .functional import IndexerInputs, Layout
from .indexer_kl_sample import KlSample
from .rope import Rope

_WHERE = "GatedSparseAttention"
Tables = tuple[Tensor, Tensor]


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments of a forward pass, of a layer and of a model.

    cu_seqlens: for packed input, int64 [sequences + 1], cumulative, from 0 to the number of tokens; on the CPU, where
    the operators read it (from a GPU, where DDP and FSDP move it, a pass brings it back once, which waits).
    max_length: of packed input, no sequence is longer; absent: read from cu_seqlens, which a compiled graph cannot.
    positions: for RoPE, integers [B, L] or packed [T]; absent: 0, 1, 2, ... in each sequence.
    phase: dense, warmup or sparse; absent: sparse where the configuration is, else dense.
    want_kl: the indexer's loss; needs an indexer, and phase warmup or sparse.
    kl_support: of the loss in the sparse phase, selected or all. kl_sample: a share of the queries, over all keys only.
    deterministic: gradients are the same bits every time; False is faster on a GPU.
    context: where sequences are sharded over ranks; the input is this rank's part. Losses are of its own tokens.
    """

    cu_seqlens: Tensor | None
    max_length: int | None
    positions: Tensor | None
    phase: str | None
    want_kl: bool
    kl_support: str
    kl_sample: KlSample | None
    deterministic: bool
    context: ContextShard | None


@dataclass(frozen=True)
class SequenceGroup:
    """Sequences that are attended to in the same way, and the rows that they occupy of all tokens in a row."""

    sparse: bool
    shape: tuple[int, ...]  # of the group's tokens: [B, L], packed [T]
    layout: Layout | None = None  # of packed tokens
    rows: Tensor | None = None  # int64; None: all of them
    lengths: list[int] | None = None  # of its sequences; None where packed and not looked at
    longest: int | None = None

    def take(self, x: Tensor) -> Tensor:
        """Of x [T, ...] the group's rows, in its shape."""
        x = x if self.rows is None else x.index_select(0, self.rows)
        return x if len(self.shape) == 1 else x.unflatten(0, self.shape)

    def take_keys(self, x: Tensor) -> Tensor:
        return self.take(x)

    def take_indexer(self, inputs: IndexerInputs) -> IndexerInputs:
        return IndexerInputs(self.take(inputs.q), self.take_keys(inputs.k), self.take(inputs.w), inputs.bias,
                             inputs.scale, inputs.form)  # fmt: skip

    def flat(self, x: Tensor) -> Tensor:
        """The other way: [T of the group, ...]."""
        return x if len(self.shape) == 1 else x.flatten(0, 1)


class ChunkGroup(SequenceGroup):
    """Queries of one chunk of sharded sequences; keys have been gathered and are whole."""

    def take_keys(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class SequencePlan:
    phase: str
    tokens: int
    packed: bool
    visible: Tensor  # int64 [tokens]: how many keys a query sees
    rope: Tables
    indexer_rope: Tables | None  # None where the indexer is frozen
    groups: tuple[SequenceGroup, ...]  # one, unless dense_below parts short sequences from long ones
    want_kl: bool
    kl_support: str
    kl_sample: KlSample | None
    deterministic: bool
    context: ContextShard | None = None

    def gather(self, parts: list[Tensor]) -> Tensor:
        """The rows of all groups, back in the order of the input."""
        if len(parts) == 1:
            return parts[0]
        rows = torch.cat([group.rows for group in self.groups])
        return torch.cat(parts).index_select(0, rows.argsort())


def _checked_phase(config: AttentionConfig, phase: str | None) -> str:
    if phase is None:
        return "sparse" if config.sparse else "dense"
    require_one_of(_WHERE, "phase", phase, PHASES)
    if phase != "dense" and not config.sparse:
        bad_argument(_WHERE, "phase", "dense for a layer without an indexer", phase)
    return phase


def _check_kl(phase: str, want_kl: bool, kl_support: str, kl_sample: KlSample | None) -> None:
    if want_kl and phase == "dense":
        bad_argument(_WHERE, "want_kl", "False in the dense phase, where the indexer is frozen", "True")
    require_one_of(_WHERE, "kl_support", kl_support, SUPPORTS)
    if not want_kl and kl_support != "selected":
        bad_argument(_WHERE, "kl_support", "selected, the default, without want_kl", kl_support)
    if not want_kl and kl_sample is not None:
        bad_argument(_WHERE, "kl_sample", "None without want_kl", f"a share of {kl_sample.share}")
    if kl_sample is None or kl_sample.parts() == 1:
        return
    if phase == "sparse" and kl_support == "selected":
        bad_argument(_WHERE, "kl_sample", "none beside kl_support selected, whose loss is of every query",
                     f"a share of {kl_sample.share}")  # fmt: skip


def _on_cpu(cu_seqlens: Tensor) -> Tensor:
    """cu_seqlens, which the hooks of DDP and FSDP move to the model's device as they do every tensor."""
    if not isinstance(cu_seqlens, Tensor):
        bad_argument(_WHERE, "cu_seqlens", "int64 [sequences + 1]", f"a {type(cu_seqlens).__name__}")
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() == 0 or cu_seqlens.dtype != torch.int64:
        bad_argument(_WHERE, "cu_seqlens", "int64 [sequences + 1]", shown(cu_seqlens))
    return cu_seqlens.cpu()


def _starts(cu_seqlens: Tensor, tokens: int) -> list[int]:
    starts = cu_seqlens.tolist()
    if starts[0] != 0 or starts[-1] != tokens or any(b < a for a, b in zip(starts, starts[1:])):
        bad_argument(_WHERE, "cu_seqlens", f"numbers from 0 to the number of tokens ({tokens}) that never fall", starts)
    return starts


def _parted(starts: list[int], dense_below: int, device: torch.device) -> tuple[SequenceGroup, ...]:
    """Packed sequences, the long ones sparse and the short ones dense."""
    groups = []
    for sparse in (True, False):
        chosen = [(a, b) for a, b in zip(starts, starts[1:]) if (b - a >= dense_below) == sparse]
        if not chosen:
            continue
        lengths = [b - a for a, b in chosen]
        cumulative = torch.tensor([0, *lengths]).cumsum(0)
        rows = torch.cat([torch.arange(a, b) for a, b in chosen]).to(device)
        rows = None if len(lengths) == len(starts) - 1 else rows
        groups.append(SequenceGroup(sparse, (sum(lengths),), Layout.packed(cumulative, max(lengths)), rows, lengths,
                                    max(lengths)))  # fmt: skip
    return tuple(groups)


def _packed_groups(
    config: AttentionConfig, phase: str, cu_seqlens: Tensor, max_length: int | None, tokens: int, device: torch.device
) -> tuple[SequenceGroup, ...]:
    if torch.compiler.is_compiling():
        # Numbers in a tensor are not known to a graph; the operators check them when it runs.
        if phase == "sparse" and (max_length is None or config.dense_below > 0):
            bad_argument(_WHERE, "max_length", "a number, and dense_below 0, for packed input that is compiled",
                         f"{max_length} and {config.dense_below}")  # fmt: skip
        return (SequenceGroup(phase == "sparse", (tokens,), Layout.packed(cu_seqlens, max_length), None, None, max_length),)
    starts = _starts(cu_seqlens, tokens)
    lengths = [b - a for a, b in zip(starts, starts[1:])]
    longest = max(lengths, default=0)
    if max_length is not None and longest > max_length:
        bad_argument(_WHERE, "max_length", f"at least the longest sequence ({longest})", max_length)
    if phase == "sparse" and config.dense_below > 0 and lengths:
        return _parted(starts, config.dense_below, device)
    return (SequenceGroup(phase == "sparse", (tokens,), Layout.packed(cu_seqlens, longest), None, lengths, longest),)


def _chunk_groups(
    context: ContextShard, sparse: bool, leading: Sequence[int], device: torch.device
) -> tuple[SequenceGroup, ...]:
    batch, chunk = leading[0], context.chunk
    rows = torch.arange(batch * 2 * chunk, device=device).view(batch, 2, chunk)
    return tuple(
        ChunkGroup(sparse, (batch, chunk), Layout(q_position=torch.full((batch,), start)), rows[:, n].reshape(-1),
                   None, context.length)
        for n, start in enumerate(context.starts())
    )  # fmt: skip


def _check_context(
    context: ContextShard, leading: Sequence[int], cu_seqlens: Tensor | None, kl_sample: KlSample | None
) -> None:
    if cu_seqlens is not None:
        bad_argument(_WHERE, "cu_seqlens", "none beside a context, whose sequences are of one length", "one")
    if leading[1] != context.length // context.ranks:
        bad_argument(_WHERE, "context", f"a shard of {leading[1]} tokens, as the input has", context.length // context.ranks)
    if kl_sample is not None and kl_sample.parts() > 1:
        bad_argument(_WHERE, "kl_sample", "none beside a context, whose chunks are no sequences", f"a share of {kl_sample.share}")


def _index_in_sequence(leading: Sequence[int], cu_seqlens: Tensor | None, device: torch.device) -> Tensor:
    """0, 1, 2, ... from the start of each sequence, [tokens]."""
    if cu_seqlens is None:
        return torch.arange(leading[1], device=device).expand(leading[0], -1).reshape(-1)
    tokens, begin = leading[0], cu_seqlens[:-1]
    starts = torch.repeat_interleave(begin, cu_seqlens.diff(), output_size=tokens)
    return (torch.arange(tokens) - starts).to(device)


def make_plan(
    config: AttentionConfig, rope: Rope, indexer_rope: Rope | None, leading: Sequence[int], dtype: torch.dtype,
    device: torch.device, *, cu_seqlens: Tensor | None = None, max_length: int | None = None,
    positions: Tensor | None = None, phase: str | None = None, want_kl: bool = False, kl_support: str = "selected",
    kl_sample: KlSample | None = None, deterministic: bool = True, context: ContextShard | None = None,
) -> SequencePlan:  # fmt: skip
    """leading: of the tokens, [B, L], packed [T]; dtype: of the hidden states. Options: ForwardOptions."""
    phase = _checked_phase(config, phase)
    _check_kl(phase, want_kl, kl_support, kl_sample)
    if max_length is not None and cu_seqlens is None:
        bad_argument(_WHERE, "max_length", "None without cu_seqlens, where all sequences are as long as the input", max_length)
    groups: tuple[SequenceGroup, ...]
    if context is not None:
        _check_context(context, leading, cu_seqlens, kl_sample)
        tokens = leading[0] * leading[1]
        groups = _chunk_groups(context, phase == "sparse" and context.length >= config.dense_below, leading, device)
    elif cu_seqlens is None:
        batch, length = leading
        tokens = batch * length
        sparse = phase == "sparse" and length >= config.dense_below
        lengths = None if torch.compiler.is_compiling() else [length] * batch
        groups = (SequenceGroup(sparse, (batch, length), None, None, lengths, length),)
    else:
        tokens, cu_seqlens = leading[0], _on_cpu(cu_seqlens)
        groups = _packed_groups(config, phase, cu_seqlens, max_length, tokens, device)
    if context is None:
        index = _index_in_sequence(leading, cu_seqlens, device)
    else:
        index = context.positions(device).repeat(leading[0])
    at = index
    if positions is not None:
        if positions.is_floating_point() or positions.dtype == torch.bool or tuple(positions.shape) != tuple(leading):
            bad_argument(_WHERE, "positions", f"integers {list(leading)}", shown(positions))
        at = positions.reshape(-1).to(device)
    learns = indexer_rope is not None and phase != "dense"
    return SequencePlan(
        phase, tokens, cu_seqlens is not None, index + 1, rope.tables(at, dtype),
        indexer_rope.tables(at, dtype) if learns else None, groups, want_kl, kl_support, kl_sample, deterministic,
        context,
    )  # fmt: skip

"""Context parallelism: the tokens of a sequence lie on several ranks, and each layer gathers the keys of all of them.

    shard = ContextShard.of(length)                              # over the default process group
    loss = model.loss(shard.take(tokens), shard.take(targets), context=shard)

A rank projects its own tokens, scores, selects and attends for its own queries, at their positions (q_position), over
keys, gated values and indexer keys that one all-gather a layer brings; the backward pass hands their gradients back by
a reduce-scatter. Memory of a rank is linear in the length: the keys of one layer at a time, and activations of its own
tokens.

Later queries see more keys. The sequence is therefore cut into 2 W chunks for W ranks, and rank r has chunks r and
2 W - 1 - r: every rank has as many pairs of query and visible key.
"""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._errors import bad_argument
from .functional import IndexerInputs

_WHERE = "ContextShard"


class _AllGather(torch.autograd.Function):
    """[...] -> [ranks, ...]."""

    @staticmethod
    def forward(ctx, x: Tensor, group) -> Tensor:
        ctx.group = group
        gathered = x.new_empty(dist.get_world_size(group) * x.size(0), *x.shape[1:])
        dist.all_gather_into_tensor(gathered, x.contiguous(), group=group)
        return gathered.unflatten(0, (-1, x.size(0)))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        gradient = gradient.flatten(0, 1).contiguous()
        own = gradient.new_empty(gradient.size(0) // dist.get_world_size(ctx.group), *gradient.shape[1:])
        dist.reduce_scatter_tensor(own, gradient, group=ctx.group)
        return own, None


@dataclass(frozen=True)
class ContextShard:
    """Which tokens of sequences of `length` this rank has; make it by :meth:`of`. group None: the default one."""

    length: int
    rank: int
    ranks: int
    group: "dist.ProcessGroup | None" = None

    @classmethod
    def of(cls, length: int, group: "dist.ProcessGroup | None" = None) -> "ContextShard":
        return cls(length, dist.get_rank(group), dist.get_world_size(group), group)

    def __post_init__(self):
        if not 0 <= self.rank < self.ranks:  # torch says -1 to a process that is not in the group
            bad_argument(_WHERE, "rank", f"one of the group's {max(self.ranks, 0)} ranks, from 0 on", self.rank)
        if self.length <= 0 or self.length % (2 * self.ranks):
            bad_argument(_WHERE, "length", f"a multiple of 2 ranks ({2 * self.ranks})", self.length)

    @property
    def chunk(self) -> int:
        """Tokens of a chunk."""
        return self.length // (2 * self.ranks)

    def starts(self) -> tuple[int, int]:
        """The positions at which this rank's two chunks begin."""
        return self.rank * self.chunk, (2 * self.ranks - 1 - self.rank) * self.chunk

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """int64 [length / ranks], of this rank's tokens."""
        return torch.cat([torch.arange(start, start + self.chunk, device=device) for start in self.starts()])

    def take(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of whole sequences, [B, length, ...] -> [B, length / ranks, ...]."""
        if x.size(dim) != self.length:
            bad_argument(_WHERE, "x", f"{self.length} tokens in dimension {dim}", list(x.shape))
        return torch.cat([x.narrow(dim, start, self.chunk) for start in self.starts()], dim)

    def gather(self, x: Tensor) -> Tensor:
        """The other way, on every rank: [B, length / ranks, ...] -> [B, length, ...]. Differentiable: each rank gets
        the sum of all ranks' gradients for its part."""
        early, late = _AllGather.apply(x, self.group).split(self.chunk, 2)  # [ranks, B, chunk, ...] each
        return torch.cat([*early.unbind(0), *late.flip(0).unbind(0)], 1)

    def gather_keys(
        self, k: Tensor, v: Tensor, indexer: IndexerInputs | None
    ) -> tuple[Tensor, Tensor, IndexerInputs | None]:
        """Of a layer's own rows [B length / ranks, ...] the keys of whole sequences, [B, length, ...], in one go."""
        rows = [k.flatten(1), v.flatten(1)] + ([] if indexer is None else [indexer.k])
        whole = self.gather(torch.cat(rows, 1).unflatten(0, (-1, self.length // self.ranks)))
        parts = whole.split([x.size(1) for x in rows], -1)
        k, v = (part.unflatten(-1, x.shape[1:]) for part, x in zip(parts, (k, v)))
        return k, v, None if indexer is None else replace(indexer, k=parts[2])

    def add_up(self, totals: Tensor) -> Tensor:
        """The sum over ranks, without gradient."""
        totals = totals.detach().clone()
        dist.all_reduce(totals, group=self.group)
        return totals

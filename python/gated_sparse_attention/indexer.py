"""The indexer: small projections whose scores say which keys a query attends to.

    sigmoid (GSA)  w = sigmoid(h W_w),                scores sigmoid(q . k / sqrt(d_I) + bias_j)
    relu (DSA)     w = h W_w / sqrt(H_I), no bias,    scores ReLU(q . k / sqrt(d_I))

Its input is detached: it learns from its own loss, and that loss reaches nothing else.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .config import AttentionConfig
from .functional import BudgetOptions, IndexerInputs, rotary
from .plan import Tables
from .selection import budget_options, indexer_inputs


def make_linear(size_in: int, size_out: int, std: float, bias: float | None = None) -> nn.Linear:
    """bias: what it starts at; None: there is none."""
    linear = nn.Linear(size_in, size_out, bias=bias is not None)
    linear.init_std, linear.init_bias = std, bias  # for who draws it again
    nn.init.normal_(linear.weight, 0.0, std)
    if bias is not None:
        nn.init.constant_(linear.bias, bias)
    return linear


def _rotate(x: Tensor, tables: Tables) -> Tensor:
    """x [T, heads, d], the first dimensions rotated."""
    cos, sin = tables
    if cos.size(1) == 0:
        return x
    return rotary(x.flatten(1), cos, sin, x.size(1)).q


class Indexer(nn.Module):
    """Parameters wq, wk, weights_proj, bias (sigmoid form), log_temperature (where learned); buffer mean_variance."""

    def __init__(self, config: AttentionConfig):
        super().__init__()
        self.config, self.budget_config = config.indexer, config.budget
        heads, size = self.config.heads, self.config.head_size
        self.wq = make_linear(config.d_model, heads * size, config.init_std)
        self.wk = make_linear(config.d_model, size, config.init_std)
        self.weights_proj = make_linear(config.d_model, heads, config.init_std)
        if self.config.form == "sigmoid":
            self.bias = nn.Parameter(torch.zeros(heads))
        if self.config.temperature.learned:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(self.config.temperature.value)))
        self.register_buffer("mean_variance", torch.tensor(-1.0, dtype=torch.float64))
        self.mean_variance: Tensor
        # Where set, adds up the totals over all ranks in place; every rank calls it once a training batch.
        self.reduce_totals: Callable[[Tensor], None] | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Indexer":
        # The running mean stays in float64 whatever type the weights take: in bfloat16 a momentum of 0.99 would
        # never move it.
        kept = self.mean_variance
        super()._apply(fn, recurse)
        if self.mean_variance.dtype != torch.float64:
            self.mean_variance = kept.to(self.mean_variance.device)
        return self

    def project(self, h: Tensor, tables: Tables) -> IndexerInputs:
        """h [T, d_model] -> inputs of the operators, packed."""
        x, heads = h.detach(), self.config.heads
        q = _rotate(self.wq(x).unflatten(1, (heads, self.config.head_size)), tables)
        k = _rotate(self.wk(x).unsqueeze(1), tables).squeeze(1)
        w, bias = self.weights_proj(x), None
        if self.config.form == "sigmoid":
            w = torch.sigmoid(w)
            bias = self.bias.to(w.dtype)  # autocast leaves parameters as they are
        else:
            w = w * (1 / math.sqrt(heads))
        return indexer_inputs(self.config, q, k, w, bias)

    def budget(self, mean_variance: Tensor) -> BudgetOptions:
        return budget_options(self.budget_config, mean_variance)

    def variance_totals(self, variance: Tensor, visible: Tensor) -> Tensor:
        """{sum of Var_t, number of queries} as float64 [2], over queries that see at least k_min tokens."""
        counts = visible >= self.budget_config.min
        total = torch.where(counts, variance.to(torch.float64), 0.0).sum()
        return torch.stack([total, counts.sum().to(torch.float64)])

    @torch.no_grad()
    def update_mean_variance(self, totals: Tensor) -> None:
        """Moves the running mean, after the batch was selected; not where no query counts or it is not finite."""
        if self.reduce_totals is not None:
            self.reduce_totals(totals)
        mean, momentum = totals[0] / totals[1], self.config.mean_variance_momentum
        moved = torch.where(self.mean_variance < 0, mean, momentum * self.mean_variance + (1 - momentum) * mean)
        moved = torch.where(mean.isfinite(), moved, self.mean_variance)
        if torch.compiler.is_compiling():
            # A new tensor: a compiled backward pass that computes a block again reads the old one where it lies. And
            # torch 2.13 takes a 0-dim float64 tensor on the CPU for a Python number and loses what is written into it.
            self.mean_variance = moved
        else:
            self.mean_variance.copy_(moved)

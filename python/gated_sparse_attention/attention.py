"""Gated sparse attention as one module: the four systems (standard, sparse-only, gated-only, gsa) and their ablations
are configurations of this one forward pass, which is that of src/nn/attention.cc; docs/specification.md defines it.

    layer = GatedSparseAttention(AttentionConfig(d_model=256, heads=8, kv_heads=2, head_size=32))
    result = layer(h, want_kl=True)      # h [B, L, d_model]
    (result.out.square().mean() + result.kl).backward()

Parameters carry the names that a checkpoint gives them: q_proj.weight, k_proj.weight, v_proj.weight, o_proj.weight,
indexer.{wq,wk,weights_proj}.weight, indexer.bias, {value_gate,output_gate}.{weight,bias}; with qkv_bias
{q,k,v}_proj.bias, with qk_norm {q,k}_norm.weight. A layer with shares_selection has no indexer: it is handed the
selection of a layer that has one.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from ._errors import bad_argument, shown
from .config import AttentionConfig
from .functional import (
    Attention, IndexerInputs, SparseAttention, attend, attend_lse, gate, indexer_kl, rotary, select_mask,
    sparse_attention,
)  # fmt: skip
from .indexer import Indexer, make_linear
from .plan import ForwardOptions, SequenceGroup, SequencePlan, make_plan
from .rms_norm import RmsNorm
from .rope import Rope
from .selection import SharedSelection, at_temperature, budget_options, mask_is_affordable

_WHERE = "GatedSparseAttention"
_FEW_ROWS = 16  # for so few the copy of weights into one matrix would cost more than it saves


@dataclass(frozen=True)
class AttentionResult:
    """out as h. kl: 0-dim, the indexer's loss, mean over queries, where wanted. kept: 0-dim, of a loss over all keys
    in the sparse phase, the share of dense attention's mass on the selected keys. k_t: int32 as h without d_model,
    how many keys each query attended to, in the sparse phase. variance_totals: float64 [2], what moves the running
    mean of the variance. selection: for followers, in the sparse phase, and for the loss in warm-up."""

    out: Tensor
    kl: Tensor | None = None
    kept: Tensor | None = None
    k_t: Tensor | None = None
    variance_totals: Tensor | None = None
    selection: SharedSelection | None = None


# (layer, q, k, v, the indexer's inputs), as project() gives them -> attended [T, heads, head_size].
AttendCached = Callable[["GatedSparseAttention", Tensor, Tensor, Tensor, IndexerInputs | None], Tensor]


@dataclass
class _GroupResult:
    out: Tensor
    lse: Tensor
    k_t: Tensor | None = None
    mask: Tensor | None = None
    variance: Tensor | None = None
    kl: Tensor | None = None
    lost: Tensor | None = None


def _plain(layer: nn.Module) -> bool:
    """Whether calling it is the product with its weight and no more: no other class in its place (LoRA), no hook, no
    forward of its own (accelerate), no weight that computes in its own way (quantised)."""
    hooked = (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
              or "forward" in layer.__dict__)  # fmt: skip
    return type(layer) is nn.Linear and not hooked and type(layer.weight) in (nn.Parameter, Tensor)


def joint_linear(x: Tensor, *layers: nn.Module) -> Tensor:
    """Several projections of one input x [T, d] side by side, as one product where there are rows enough and the
    layers are plain ones."""
    if x.size(0) <= _FEW_ROWS or not all(_plain(layer) for layer in layers):
        return torch.cat([layer(x) for layer in layers], 1)
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return nn.functional.linear(x, torch.cat([layer.weight for layer in layers]), bias)


def in_backward() -> bool:
    """Whether a backward pass is running: a forward pass then is one that is computed again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class GatedSparseAttention(nn.Module):
    """One layer. ``layer.config`` is a validated copy of the configuration it was made with."""

    def __init__(self, config: AttentionConfig, norm_eps: float = 1e-5):
        """norm_eps: of the norms of q and k, in a model that of all its norms."""
        super().__init__()
        config.validate()
        self.config = config = deepcopy(config)
        d, size, std = config.d_model, config.head_size, config.init_std
        bias = 0.0 if config.qkv_bias else None
        self.q_proj = make_linear(d, config.heads * size, std, bias=bias)
        self.k_proj = make_linear(d, config.kv_heads * size, std, bias=bias)
        self.v_proj = make_linear(d, config.kv_heads * size, std, bias=bias)
        self.o_proj = make_linear(config.heads * size, d, std)
        self.q_norm = RmsNorm(size, norm_eps) if config.qk_norm else None
        self.k_norm = RmsNorm(size, norm_eps) if config.qk_norm else None
        self.value_gate = self._make_gate(config.value_gate, config.kv_heads)
        self.output_gate = self._make_gate(config.output_gate, config.heads)
        self.indexer = Indexer(config) if config.has_indexer() else None
        self.rope = Rope(size, config.rope, with_attention_factor=True)
        self.indexer_rope = None
        if config.has_indexer():
            self.indexer_rope = Rope(config.indexer_rope_size(), config.rope, with_attention_factor=False)
        # Of the last training pass: the running mean it selected with, and the totals it moved it by.
        self._last_move: tuple[Tensor, Tensor] | None = None

    def _make_gate(self, kind: str, heads: int) -> nn.Linear | None:
        if kind == "none":
            return None
        width = heads * self.config.head_size if kind == "elementwise" else heads
        start = self.config.gate_init
        return make_linear(self.config.d_model, width, self.config.gate_init_std, bias=math.log(start / (1 - start)))

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_last_move": None}

    def plan(
        self, leading: Sequence[int], dtype: torch.dtype, device: torch.device, **options: Unpack[ForwardOptions]
    ) -> SequencePlan:
        """For several layers that share one. leading: h's shape but for d_model."""
        return make_plan(self.config, self.rope, self.indexer_rope, leading, dtype, device, **options)

    def forward(
        self, h: Tensor, *, plan: SequencePlan | None = None, mean_variance: Tensor | None = None,
        attend_cached: AttendCached | None = None, selection: SharedSelection | None = None, followers: int = 0,
        **options: Unpack[ForwardOptions],
    ) -> AttentionResult:  # fmt: skip
        """h [B, L, d_model], or [T, d_model] with cu_seqlens; options: ForwardOptions, or the plan made of them.

        In training mode the sparse phase moves indexer.mean_variance, after this batch has used it. With
        mean_variance given, the pass selects with that and moves nothing: for who computes a pass again, or moves the
        mean by AttentionResult.variance_totals when it likes.

        attend_cached: attends in this pass's place, to the keys of a cache; beside a plan, with packed h.

        selection: for a layer without an indexer, what the layer that selects returned, by a pass with the same options
        over the same sequences, in which `followers` said how many layers will share it.
        """
        if plan is None:
            self._check_input(h, options.get("cu_seqlens") is not None)
            plan = self.plan(h.shape[:-1], h.dtype, h.device, **options)
        elif options:
            bad_argument(_WHERE, next(iter(options)), "no option beside a plan, which has them all", "one")
        else:
            self._check_input(h, plan.packed)
        if attend_cached is not None:
            if selection is not None or followers:
                bad_argument(_WHERE, "selection", "none beside attend_cached, which has its own", "one")
            return AttentionResult(self.output(h, attend_cached(self, *self.project(h, plan))))
        self._check_selection(plan, selection, followers)
        if mean_variance is not None and self.config.shares_selection:
            bad_argument(_WHERE, "mean_variance", "None for a layer that shares another's selection", "one")
        if plan.phase != "sparse" or mean_variance is not None or self.indexer is None:
            return self._attend(h, plan, mean_variance, selection, followers)
        if in_backward():
            return self._recompute(h, plan, followers)
        before = self.indexer.mean_variance.clone()
        result = self._attend(h, plan, before, None, followers)
        if self.training:
            self.indexer.update_mean_variance(result.variance_totals.clone())
            self._last_move = None if torch.compiler.is_compiling() else (before, result.variance_totals)
        return result

    def _recompute(self, h: Tensor, plan: SequencePlan, followers: int) -> AttentionResult:
        """Inside a checkpointed function of the user's own: as the last pass was, and without moving the mean."""
        before, totals = self._last_move or (self.indexer.mean_variance, None)  # evaluation mode never moves it
        return self._attend(h, plan, before, None, followers, totals)

    def _check_selection(self, plan: SequencePlan, selection: SharedSelection | None, followers: int) -> None:
        if followers and self.indexer is None:
            bad_argument(_WHERE, "followers", "0 for a layer without an indexer", followers)
        if not self.config.shares_selection:
            if selection is not None:
                bad_argument(_WHERE, "selection", "None for a layer that does not share one", "one")
            return
        sparse = plan.phase == "sparse"
        if (sparse or plan.want_kl) != (selection is not None):
            expected = "None in this phase" if selection is not None else "that of the layer whose selection is shared"
            bad_argument(_WHERE, "selection", expected, "None" if selection is None else "one")
        if selection is None:
            return
        asks = plan.want_kl or any(g.sparse and mask is None for g, mask in zip(plan.groups, selection.masks))
        fits = len(selection.masks) == len(plan.groups) and (selection.k_t is not None) == sparse
        fits = fits and not (asks and selection.indexer is None)
        fits = fits and all(g.sparse or mask is None for g, mask in zip(plan.groups, selection.masks))
        if not fits or (sparse and selection.k_t.numel() != plan.tokens):
            bad_argument(_WHERE, "selection", "one of a pass with the same options over the same sequences", "another")

    def _check_input(self, h: Tensor, packed: bool) -> None:
        if h.dim() != (2 if packed else 3) or h.size(-1) != self.config.d_model or not h.is_floating_point():
            leading, word = ("T", "with") if packed else ("B, L", "without")
            bad_argument(_WHERE, "h", f"floating point [{leading}, {self.config.d_model}] {word} cu_seqlens", shown(h))
        if not _plain(self.q_proj):  # which may take other types than its weight's
            return
        dtype = self.q_proj.weight.dtype
        if h.dtype != dtype and not torch.is_autocast_enabled(h.device.type):
            bad_argument(_WHERE, "h", f"{str(dtype).removeprefix('torch.')}, the type of the weights", shown(h))

    def project(self, x: Tensor, plan: SequencePlan) -> tuple[Tensor, Tensor, Tensor, IndexerInputs | None]:
        """x [T, d_model] -> q and k rotated, v gated, [T, heads, head_size] each, and the indexer's inputs."""
        config = self.config
        product = joint_linear(x, self.q_proj, self.k_proj, self.v_proj)
        if config.qk_norm:
            widths = [config.heads * config.head_size] + [config.kv_heads * config.head_size] * 2
            q, k, v = product.split(widths, 1)
            q, k = (norm(y.reshape(-1, config.head_size)).view(y.shape) for norm, y in ((self.q_norm, q), (self.k_norm, k)))
            product = torch.cat([q, k, v], 1)
        rotated = rotary(product, *plan.rope, config.heads, config.kv_heads, config.kv_heads)
        v = self._gated(self.value_gate, config.value_gate, x, rotated.v)
        indexer = None
        if self.indexer is not None and (plan.phase == "sparse" or (plan.phase == "warmup" and plan.want_kl)):
            indexer = self.indexer.project(x, plan.indexer_rope)
        return rotated.q, rotated.k, v, indexer

    def output(self, x: Tensor, attended: Tensor) -> Tensor:
        """attended [T, heads, head_size] gated and projected, [T, d_model]."""
        return self.o_proj(self._gated(self.output_gate, self.config.output_gate, x, attended).flatten(1))

    @staticmethod
    def _gated(projection: nn.Linear | None, kind: str, x: Tensor, y: Tensor) -> Tensor:
        if projection is None:
            return y
        z = projection(x)
        return gate(y, z.view(y.shape) if kind == "elementwise" else z)

    def _attend(
        self, h: Tensor, plan: SequencePlan, mean_variance: Tensor | None, shared: SharedSelection | None,
        followers: int, known_totals: Tensor | None = None,
    ) -> AttentionResult:  # fmt: skip
        """known_totals: of the pass that this one has to repeat."""
        x = h.reshape(plan.tokens, self.config.d_model)
        q, k, v, indexer = self.project(x, plan)
        if plan.context is not None:
            k, v, indexer = plan.context.gather_keys(k, v, indexer)
        asked = self._asked(indexer, mean_variance, len(plan.groups)) if shared is None else shared.apart()
        results, totals = [], None
        for group, mask in zip(plan.groups, asked.masks):
            results.append(self._attend_group(group, q, k, v, asked, mask, plan, followers))
            if results[-1].variance is not None:
                visible = plan.visible if group.rows is None else plan.visible.index_select(0, group.rows)
                more = self.indexer.variance_totals(results[-1].variance, visible)
                totals = more if totals is None else totals + more
        if plan.phase == "sparse" and shared is None and totals is None:
            totals = torch.zeros(2, dtype=torch.float64, device=h.device)  # every rank takes part in a sum
        if plan.context is not None and totals is not None:
            totals = plan.context.add_up(totals)
        # Here and not at the end, which a checkpoint does not come to once it has all it wants.
        if known_totals is not None and not torch.equal(totals, known_totals):
            bad_argument(_WHERE, "mean_variance",
                         "a copy of indexer.mean_variance from before the pass, as this pass is computed again after "
                         "others had moved it", "None")  # fmt: skip
        out = self.output(x, plan.gather([result.out for result in results])).view(h.shape)
        k_t = None if shared is None else shared.k_t
        if plan.phase == "sparse" and shared is None:
            k_t = plan.gather([result.k_t for result in results]).view(h.shape[:-1])
        selection = None
        if followers and indexer is not None:
            selection = self._for_followers(asked, results, k_t, plan)
        if not plan.want_kl:
            return AttentionResult(out, k_t=k_t, variance_totals=totals, selection=selection)
        parts = 1 if plan.kl_sample is None else plan.kl_sample.parts()
        queries = max(plan.tokens, 1)  # the mean over no query at all is 0
        kl = plan.gather([result.kl for result in results]).sum() / queries * parts
        kept = None
        if plan.phase == "sparse" and plan.kl_support == "all":
            lost = torch.zeros((), dtype=kl.dtype, device=kl.device)
            lost = sum((result.lost for result in results if result.lost is not None), lost)
            kept = 1 - lost / queries * parts
        return AttentionResult(out, kl, kept, k_t, totals, selection)

    def _asked(self, indexer: IndexerInputs | None, mean_variance: Tensor | None, groups: int) -> SharedSelection:
        """The layer's own indexer, before it has selected."""
        learned = self.indexer is not None and self.config.indexer.temperature.learned
        log = self.indexer.log_temperature if learned else None
        return SharedSelection((None,) * groups, None, indexer, log, mean_variance)

    def _for_followers(
        self, asked: SharedSelection, results: list[_GroupResult], k_t: Tensor | None, plan: SequencePlan
    ) -> SharedSelection:
        masks = tuple(result.mask for result in results)
        again = any(group.sparse and mask is None for group, mask in zip(plan.groups, masks))
        if not plan.want_kl:
            inputs = asked.indexer.detach() if again else None
            return SharedSelection(masks, k_t, inputs, None, asked.mean_variance if again else None)
        # Parameters become tensors of their own, as they are no results of a function that is computed again.
        bias, log = (None if x is None else x.clone() for x in (asked.indexer.bias, asked.log_temperature))
        mean = asked.mean_variance if again else None
        return SharedSelection(masks, k_t, replace(asked.indexer, bias=bias), log, mean)

    def _attend_group(
        self, group: SequenceGroup, q: Tensor, k: Tensor, v: Tensor, asked: SharedSelection, mask: Tensor | None,
        plan: SequencePlan, followers: int,
    ) -> _GroupResult:  # fmt: skip
        """mask: what another layer selected."""
        q, k, v = group.take(q), group.take_keys(k), group.take_keys(v)
        inputs = None if asked.indexer is None else group.take_indexer(asked.indexer)
        accumulation = "ordered" if plan.deterministic else "atomic"
        over_all = not group.sparse or plan.kl_support == "all"
        found: Attention | SparseAttention
        if group.sparse and mask is None:
            own = self.indexer is not None
            keeps = own and self._keeps_mask(group, q, k, v, plan.want_kl and not over_all, followers)
            found = sparse_attention(q, k, v, inputs.detach(), budget_options(self.config.budget, asked.mean_variance),
                                     layout=group.layout, accumulation=accumulation, return_mask=keeps)  # fmt: skip
            result = _GroupResult(group.flat(found.out), found.lse, group.flat(found.k_t))
            if own:
                result.variance, result.mask = group.flat(found.variance), found.mask if followers else None
            mask = found.mask
        else:
            found = attend(q, k, v, mask, layout=group.layout, accumulation=accumulation)
            result = _GroupResult(group.flat(found.out), found.lse)
            if plan.phase == "sparse" and not group.sparse:
                visible = plan.visible if group.rows is None else plan.visible.index_select(0, group.rows)
                result.k_t = visible.to(torch.int32)
        if not plan.want_kl:
            return result

        support, tiles, lse = {}, None, found.lse
        if not over_all:
            support = self._support(inputs, mask, found, group)
        elif plan.kl_sample is not None and plan.kl_sample.parts() > 1:
            if group.lengths is None:
                bad_argument(_WHERE, "kl_sample", "none in a compiled pass, as every call has draws of its own", "one")
            tiles = plan.kl_sample.derive(1, int(group.sparse)).tiles(group.lengths)
        if over_all and group.sparse:
            lse = attend_lse(q.detach(), k.detach(), query_tiles=tiles, layout=group.layout)
            # Queries outside the sample have a dense lse of 0.
            lost = torch.where(lse == 0, 0.0, 1 - (found.lse - lse).exp())
            result.lost = lost.mean(-1).sum()
        # The target is a constant: neither q nor k learns from it.
        inputs = at_temperature(self.config.indexer.temperature, asked.log_temperature, inputs)
        loss = indexer_kl(q.detach(), k.detach(), lse, inputs, **support, query_tiles=tiles, layout=group.layout)
        result.kl = group.flat(loss.loss)
        return result

    def _support(self, inputs: IndexerInputs, mask: Tensor | None, found, group: SequenceGroup) -> dict[str, Tensor]:
        """The selected keys, over which the indexer's loss runs."""
        if mask is not None:
            return {"mask": mask}
        temperature = self.config.indexer.temperature
        if not temperature.learned and temperature.value == 1:
            return {"threshold": found.threshold, "tie_cut": found.tie_cut}
        # A threshold speaks of the scores that were selected by, and the loss sees others: their mask then.
        return {"mask": select_mask(inputs.detach(), found.threshold, found.tie_cut, group.layout)}

    @staticmethod
    def _keeps_mask(group: SequenceGroup, q: Tensor, k: Tensor, v: Tensor, for_loss: bool, followers: int) -> bool:
        """Whether somebody wants the mask once more, and it is worth its memory; that of several layers may take what
        each may."""
        backward = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        return (backward or for_loss or followers > 0) and mask_is_affordable(group.longest, q, 1 + followers)

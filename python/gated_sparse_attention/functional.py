"""Every operator of the library as a typed function.

Shapes, throughout: B sequences of L queries and S keys (L <= S), n_h query heads and n_kv key/value heads of size d;
an indexer of H_I heads of size d_I. *Real* is float32, and float64 where the inputs are float64. Tensors of a call
share one type (float32, bfloat16, float16, float64 on the CPU; bfloat16, float16 on a GPU) and one device; they may
be strided. Autocast changes nothing here: types are those of the arguments.

Packed sequences: with a :class:`Layout` that has cu_seqlens, the two dimensions [B, L] (or [B, S]) are one, [T].

What arguments mean is checked by the operators, whose messages use their own names: ``index_q`` for
:attr:`IndexerInputs.q` beside attention, ``k_base`` for :attr:`BudgetOptions.base`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from . import _library  # noqa: F401, registers torch.ops.gsa
from ._errors import bad_argument, shown

__all__ = [
    "AdamWStep", "Appended", "Attention", "AttentionGradients", "BudgetOptions", "Decoded", "IndexerInputs", "KlLoss",
    "Layout", "Normed", "PagedCache", "QuantizedKeys", "Rotated", "SelectedPositions", "Selection", "SparseAttention",
    "adamw_", "append", "attend", "attend_backward", "attend_lse", "built_with_cuda", "cross_entropy_", "decode",
    "gate", "index_scores", "indexer_kl", "pack_mask", "quantize_index_keys", "rms_norm", "rotary", "select",
    "select_mask", "skinny_linear", "sparse_attention", "swiglu",
]  # fmt: skip

_ops = torch.ops.gsa


# ---- What operators share


@dataclass(frozen=True)
class Layout:
    """Where sequences begin, for packed tensors. Without cu_seqlens tensors are [B, L, ...].

    cu_seqlens_q, cu_seqlens_k: int64 or int32 [sequences + 1] on the CPU, cumulative, given both or not at all.
    q_position: int64 or int32 [sequences] on the CPU, the position of each sequence's first query; None: the last
    query stands at the last key. max_keys: no sequence has more keys, for the width of a packed mask; None: the
    longest (torch.compile needs it given).
    """

    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    q_position: Tensor | None = None
    max_keys: int | None = None

    @classmethod
    def packed(cls, cu_seqlens: Tensor, max_keys: int | None = None) -> "Layout":
        """Queries and keys are the same tokens."""
        return cls(cu_seqlens, cu_seqlens, None, max_keys)


@dataclass(frozen=True)
class IndexerInputs:
    """q [B, L, H_I, d_I], k [B, S, d_I], w [B, L, H_I], bias [H_I] or None for zeros; form sigmoid or relu.

    The score of key s for query t is sum_j w_tj f(scale q_tj . k_s + bias_j).
    """

    q: Tensor
    k: Tensor
    w: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    form: str = "sigmoid"

    def detach(self) -> "IndexerInputs":
        bias = None if self.bias is None else self.bias.detach()
        return IndexerInputs(self.q.detach(), self.k.detach(), self.w.detach(), bias, self.scale, self.form)


@dataclass(frozen=True)
class BudgetOptions:
    """How many keys a query selects: k_t = min(clamp(floor(base r), min, max), visible).

    mode inverse (r = mean_variance / variance), proportional (its inverse) or fixed (r = 1). mean_variance: one
    element, float64 or float32; None or negative: not known, r = 1.
    """

    mode: str = "inverse"
    base: int = 2048
    min: int = 256
    max: int = 4096
    mean_variance: Tensor | None = None


@dataclass(frozen=True)
class Selection:
    """mask int32 [B, L, ceil(S / 32)]; k_t int32 [B, L]; variance Real [B, L].

    Position s is selected iff its score is above threshold (Real [B, L]), or equal to it with s <= tie_cut (int32).
    """

    mask: Tensor
    k_t: Tensor
    variance: Tensor
    threshold: Tensor
    tie_cut: Tensor


@dataclass(frozen=True)
class Attention:
    """out [B, L, n_h, d]; lse Real [B, L, n_h], the log-sum-exp of a query's logits, not differentiable."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class AttentionGradients:
    """As q, k and v."""

    dq: Tensor
    dk: Tensor
    dv: Tensor


@dataclass(frozen=True)
class SparseAttention:
    """Attention and Selection in one; mask None unless it was asked for."""

    out: Tensor
    lse: Tensor
    k_t: Tensor
    variance: Tensor
    threshold: Tensor
    tie_cut: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class KlLoss:
    """loss Real [B, L], one divergence a query, differentiable in the indexer's inputs; index_lse Real [B, L]."""

    loss: Tensor
    index_lse: Tensor


def _scores(indexer: IndexerInputs) -> dict:
    return {"scale": indexer.scale, "form": indexer.form}


def _index_tensors(indexer: IndexerInputs) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    return indexer.q, indexer.k, indexer.w, indexer.bias


def _budget(budget: BudgetOptions) -> dict:
    return {"budget": budget.mode, "k_base": budget.base, "k_min": budget.min, "k_max": budget.max,
            "mean_variance": budget.mean_variance}  # fmt: skip


def _layout(layout: Layout | None) -> dict:
    if layout is None:
        return {}
    return {"cu_seqlens_q": layout.cu_seqlens_q, "cu_seqlens_k": layout.cu_seqlens_k, "q_position": layout.q_position}


def _width(layout: Layout | None) -> dict:
    return _layout(layout) | {"max_keys": None if layout is None else layout.max_keys}


# ---- Selection


def select(indexer: IndexerInputs, budget: BudgetOptions = BudgetOptions(), layout: Layout | None = None) -> Selection:
    """Which keys each query attends to. No gradient."""
    return Selection(*_ops.select(*_index_tensors(indexer), **_scores(indexer), **_budget(budget), **_width(layout)))


def select_mask(indexer: IndexerInputs, threshold: Tensor, tie_cut: Tensor, layout: Layout | None = None) -> Tensor:
    """The mask of :func:`select` again, bit for bit, from its threshold and tie_cut."""
    return _ops.select_mask(*_index_tensors(indexer), threshold, tie_cut, **_scores(indexer), **_width(layout))


def index_scores(indexer: IndexerInputs, layout: Layout | None = None) -> Tensor:
    """The scores that select() compares, Real [B, L, S], -inf where a key is not visible. Quadratic: for looking."""
    return _ops.index_scores(*_index_tensors(indexer), **_scores(indexer), **_width(layout))


def pack_mask(mask: Tensor) -> Tensor:
    """Bool [..., S] -> int32 [..., ceil(S / 32)]: position s is bit s % 32 of word s / 32."""
    return _ops.pack_mask(mask)


# ---- Attention


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None,
    layout: Layout | None = None, accumulation: str = "ordered",
) -> Attention:  # fmt: skip
    """Causal softmax attention over a packed mask, over every visible key for None. Differentiable in q, k, v.

    q [B, L, n_h, d], k and v [B, S, n_kv, d]. scale None: 1 / sqrt(d). accumulation, of the backward pass:
    'ordered' (deterministic), or 'atomic', which is faster on a GPU and not reproducible.
    """
    return Attention(*_ops.attend(q, k, v, mask, scale=scale, accumulation=accumulation, **_layout(layout)))


def attend_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, attention: Attention, mask: Tensor | None = None, *,
    scale: float | None = None, layout: Layout | None = None, accumulation: str = "ordered",
) -> AttentionGradients:  # fmt: skip
    """The gradients of :func:`attend`, for who computes `out` and `lse` elsewhere."""
    return AttentionGradients(*_ops.attend_backward(dout, q, k, v, mask, attention.out, attention.lse, scale=scale,
                                                    accumulation=accumulation, **_layout(layout)))  # fmt: skip


def attend_lse(
    q: Tensor, k: Tensor, *, query_tiles: Tensor | None = None, scale: float | None = None,
    layout: Layout | None = None,
) -> Tensor:  # fmt: skip
    """The lse of dense attention alone, Real [B, L, n_h]. No gradient: detach q and k.

    query_tiles: int64 or int32 [n] on the CPU, ascending numbers of tiles of 64 positions; queries outside them get
    0. None: every query.
    """
    return _ops.attend_lse(q, k, query_tiles=query_tiles, scale=scale, **_layout(layout))


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, indexer: IndexerInputs, budget: BudgetOptions = BudgetOptions(), *,
    scale: float | None = None, layout: Layout | None = None, accumulation: str = "ordered",
    return_mask: bool = False,
) -> SparseAttention:  # fmt: skip
    """select() and attend() in chunks of queries: memory is linear in the length, forward and backward.

    Differentiable in q, k, v; the selection passes no gradient. return_mask: the whole mask comes too, and the
    backward pass reads it instead of rebuilding it.
    """
    options = {"scale": scale, "index_scale": indexer.scale, "form": indexer.form, "accumulation": accumulation}
    tensors = (q, k, v, *_index_tensors(indexer))
    if return_mask:
        return SparseAttention(*_ops.sparse_attend_with_mask(*tensors, **options, **_budget(budget), **_width(layout)))
    return SparseAttention(*_ops.sparse_attend(*tensors, **options, **_budget(budget), **_layout(layout)))


def gate(x: Tensor, z: Tensor) -> Tensor:
    """x * sigmoid(z). x [..., heads, d]; z as x, or [..., heads] for one gate a head. Differentiable in both."""
    return _ops.gate(x, z)


def indexer_kl(
    q: Tensor, k: Tensor, lse: Tensor, indexer: IndexerInputs, *, mask: Tensor | None = None,
    threshold: Tensor | None = None, tie_cut: Tensor | None = None, query_tiles: Tensor | None = None,
    scale: float | None = None, layout: Layout | None = None,
) -> KlLoss:  # fmt: skip
    """KL(attention averaged over heads || softmax of the indexer's scores), for each query.

    Support: threshold and tie_cut of a selection, or a mask, or (neither) every visible key; lse is that of the
    attention over the same support. query_tiles, as of attend_lse, go with the latter. Differentiable in the
    indexer's tensors; the attention is a constant.
    """
    return KlLoss(*_ops.indexer_kl(
        q, k, lse, *_index_tensors(indexer), mask, threshold, tie_cut, query_tiles=query_tiles, scale=scale,
        index_scale=indexer.scale, form=indexer.form, **_layout(layout)))  # fmt: skip


# ---- Decoding


@dataclass(frozen=True)
class PagedCache:
    """k, v [pages, page_size, n_kv, d], page_size a power of two in 8 .. 1024; index_k [pages, page_size, d_I].

    Position s of sequence n lies in row s % page_size of page block_table[n, s / page_size]. block_table int32
    [B, blocks]; lengths int32 [B]: keys, those of the queries included; no sequence is longer than max_length.
    index_k_scale float32 [pages, page_size], where index_k is int8: the key is index_k * scale.
    """

    k: Tensor
    v: Tensor
    block_table: Tensor
    lengths: Tensor
    max_length: int
    index_k: Tensor | None = None
    index_k_scale: Tensor | None = None


@dataclass(frozen=True)
class SelectedPositions:
    """positions int32 [B, L, W], ascending, then -1; k_t int32 [B, L], how many."""

    positions: Tensor
    k_t: Tensor


@dataclass(frozen=True)
class Decoded:
    """out [B, L, n_h, d], gated; lse Real [B, L, n_h]; k_t int32 [B, L]; selected None unless it was asked for."""

    out: Tensor
    lse: Tensor
    k_t: Tensor
    selected: SelectedPositions | None = None


def decode(
    q: Tensor, cache: PagedCache, index_q: Tensor | None = None, index_w: Tensor | None = None,
    index_bias: Tensor | None = None, *, index_scale: float = 1.0, form: str = "sigmoid",
    budget: BudgetOptions = BudgetOptions(), gate: Tensor | None = None, scale: float | None = None,
    selected: SelectedPositions | None = None, return_selected: bool = False,
) -> Decoded:  # fmt: skip
    """The newest L queries of each sequence against a paged cache: score, select, attend, gate. No gradient.

    q [B, L, n_h, d], L any number on the CPU and 1 .. 16 on a GPU; query i of sequence n stands at position
    lengths[n] - L + i, and one at a negative position gets NaN. The indexer's tensors as in :class:`IndexerInputs`,
    its keys those of the cache; without index_q every visible key is attended to. gate: as z of :func:`gate`.

    For layers that share a selection: one call with an indexer gives out the positions (return_selected), the others
    take them (selected) and score nothing. What belongs to an indexer, index_w to budget, is refused without index_q.
    """
    tensors = (q, cache.k, cache.v, cache.block_table, cache.lengths)
    options = {"max_length": cache.max_length, "scale": scale}
    if selected is not None and (index_q is not None or return_selected):
        bad_argument("decode", "selected", "None beside index_q and return_selected", "positions")
    if index_q is None:
        for name, given in (("index_w", index_w), ("index_bias", index_bias)):
            if given is not None:
                bad_argument("decode", name, "None without index_q", shown(given))
        for name, given, default in (("index_scale", index_scale, 1.0), ("form", form, "sigmoid"),
                                     ("budget", budget, BudgetOptions())):  # fmt: skip
            if given != default:
                bad_argument("decode", name, "its default without index_q", given)
    if selected is not None:
        return Decoded(*_ops.decode(*tensors, gate=gate, **options, selected=selected.positions,
                                    selected_k=selected.k_t))  # fmt: skip
    tensors += (index_q, cache.index_k, index_w, index_bias, gate)
    options |= {"index_scale": index_scale, "form": form, "index_k_scale": cache.index_k_scale, **_budget(budget)}
    if not return_selected:
        return Decoded(*_ops.decode(*tensors, **options))
    if index_q is None:
        bad_argument("decode", "return_selected", "False without index_q", "True")
    out, lse, k_t, positions = _ops.decode_with_selection(*tensors, **options)
    return Decoded(out, lse, k_t, SelectedPositions(positions, k_t))


@dataclass(frozen=True)
class QuantizedKeys:
    """values int8 as the keys, scale float32 [...]: a key is values * scale."""

    values: Tensor
    scale: Tensor


def quantize_index_keys(keys: Tensor) -> QuantizedKeys:
    """Indexer keys [..., d_I] in eight bits, for the cache."""
    return QuantizedKeys(*_ops.quantize_index_keys(keys))


@dataclass(frozen=True)
class Appended:
    """q [T, n_h, d]; index_q [T, H_I, d_I] and index_w [T, H_I], without elements where there is no indexer."""

    q: Tensor
    index_q: Tensor
    index_w: Tensor


def append(
    x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, k: Tensor, v: Tensor, *, q_heads: int,
    index_cos: Tensor | None = None, index_sin: Tensor | None = None, index_k: Tensor | None = None,
    index_k_scale: Tensor | None = None, index_heads: int = 0, value_gate: int = 0, index_w_column: int = 0,
    sigmoid_w: bool = True,
) -> Appended:  # fmt: skip
    """Writes new rows of a paged cache, from the product of a layer's input with every matrix that reads it.

    x [T, columns], in the order [q | k | v | index_q | index_k | value gate | ... | index_w from index_w_column on].
    Keys (rotated), values (gated) and indexer keys (rotated) go to the rows `slots` (int64 [T], page * page_size +
    row) of k, v and index_k; queries come back rotated. cos, sin Real [T, pairs]. value_gate: columns of the gate,
    0, n_kv or n_kv d. sigmoid_w: of the indexer's weights; False: divided by sqrt(H_I). No gradient.
    """
    return Appended(*_ops.append(
        x, cos, sin, index_cos, index_sin, slots, k, v, index_k, index_k_scale, q_heads=q_heads,
        index_heads=index_heads, value_gate=value_gate, index_w_column=index_w_column, sigmoid_w=sigmoid_w))  # fmt: skip


# ---- What stands between the matrix products


@dataclass(frozen=True)
class Normed:
    """y, normalised; sum, the residual stream x + branch (x itself where there is no branch)."""

    y: Tensor
    sum: Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, branch: Tensor | None = None) -> Normed:
    """s = x + branch, y = s / sqrt(mean(s^2) + eps) * weight over the last dimension. Differentiable in all three."""
    y, total, _ = _ops.rms_norm(x, branch, weight, eps)
    return Normed(y, x if branch is None else total)


@dataclass(frozen=True)
class Rotated:
    """[T, heads, d] each; k and v without heads where k_heads or v_heads is 0."""

    q: Tensor
    k: Tensor
    v: Tensor


def rotary(x: Tensor, cos: Tensor, sin: Tensor, q_heads: int, k_heads: int = 0, v_heads: int = 0) -> Rotated:
    """x [T, (q_heads + k_heads + v_heads) d] parted into heads, queries and keys rotated (half-split layout).

    cos, sin Real [T, pairs]: the first 2 pairs dimensions rotate. Differentiable in x.
    """
    return Rotated(*_ops.rotary(x, cos, sin, q_heads, k_heads, v_heads))


def swiglu(x: Tensor) -> Tensor:
    """silu(g) u for x = [g | u], [..., 2 n] -> [..., n]. Differentiable."""
    return _ops.swiglu(x)


def cross_entropy_(logits: Tensor, targets: Tensor, ignored: int = -100, gradient: bool = False) -> Tensor:
    """The loss of each row of logits [T, classes], Real [T]; 0 where the target is `ignored`.

    With gradient, logits become softmax(logits) minus one at the target. No gradient of its own.
    """
    return _ops.cross_entropy_(logits, targets, ignored, gradient)


@dataclass(frozen=True)
class AdamWStep:
    """number counts a parameter's steps from 1; factor multiplies its gradient."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    decay: float = 0.0
    factor: float = 1.0
    number: int = 1


def adamw_(
    master: Tensor, mean: Tensor, square: Tensor, weight: Tensor | None, gradient: Tensor, step: AdamWStep
) -> None:
    """One step of AdamW in one pass: master, mean and square (float32) in place; weight gets the result rounded."""
    _ops.adamw_(master, mean, square, weight, gradient, lr=step.lr, beta1=step.beta1, beta2=step.beta2, eps=step.eps,
                decay=step.decay, factor=step.factor, step=step.number)  # fmt: skip


def skinny_linear(
    x: Tensor, weight: Tensor, *, norm: Tensor | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, eps: float = 0.0, swiglu: bool = False, settled: bool = False,
) -> Tensor:  # fmt: skip
    """A product of a few rows and what stands around it: [norm,] x weight^T [+ bias] [, swiglu] [+ residual].

    On a GPU: compute capability 9.0, at most 16 rows. settled: norm, weight and bias were complete before the last
    kernels on the stream began. No gradient.
    """
    if norm is None and eps != 0:
        bad_argument("skinny_linear", "eps", "0 where there is no norm", eps)
    return _ops.skinny_linear(x, weight, norm, bias, residual, eps=eps, swiglu=swiglu, settled=settled)


def built_with_cuda() -> bool:
    """Whether the library holds the operators for CUDA tensors."""
    return _ops.built_with_cuda()

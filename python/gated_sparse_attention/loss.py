"""The output projection and its cross-entropy in one, so that logits exist for a chunk of tokens at a time; each
chunk's gradient is formed while its logits are at hand (src/nn/cross_entropy.h).

In float16 that is before the scale of a GradScaler is known. The gradient is that of a sum, whose entries are
probabilities and not a mean's, which are smaller by the number of targets: what a scale is for is there already. Those
below 2^-24 are lost, and below 2^-14 they lose bits, which bfloat16 does not."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._errors import bad_argument, shown
from .functional import cross_entropy_

IGNORED = -100  # a target of this value does not count


def _rows_of_chunk(hidden: Tensor, vocabulary: int) -> int:
    return max(16, (1 << 30 if hidden.is_cuda else 1 << 26) // (hidden.element_size() * vocabulary))


def _run(
    hidden: Tensor, weight: Tensor, targets: Tensor, want_hidden: bool, want_weight: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    real = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    hidden_gradients = []
    weight_gradient = torch.zeros(weight.shape, dtype=real, device=weight.device) if want_weight else None
    for h, t in zip(*(x.split(_rows_of_chunk(hidden, weight.size(0))) for x in (hidden, targets))):
        gradient = h.mm(weight.t())  # still the logits
        losses = cross_entropy_(gradient, t, IGNORED, want_hidden or want_weight)
        total = total + losses.sum(dtype=torch.float64)
        if want_hidden:
            hidden_gradients.append(gradient.mm(weight))
        if weight_gradient is not None:
            if gradient.dtype == real:
                weight_gradient.addmm_(gradient.t(), h)
            else:
                weight_gradient.add_(gradient.t().mm(h))
    return total, torch.cat(hidden_gradients) if want_hidden else None, weight_gradient


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        total, *gradients = _run(hidden.to(dtype), weight.to(dtype), targets, *ctx.needs_input_grad[:2])
        ctx.save_for_backward(*gradients)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total.to(torch.float64 if dtype == torch.float64 else torch.float32)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        # Under create_graph: what was saved depends on the inputs, which autograd does not see. As if it did, so that a
        # second derivative is refused; without this it would be 0.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            gradient = gradient.detach().requires_grad_()
        return _CrossEntropySum._scaled(ctx, gradient)

    @staticmethod
    @once_differentiable
    def _scaled(ctx, gradient: Tensor):
        saved = zip(ctx.saved_tensors, ctx.dtypes)
        return *(None if x is None else (x * gradient).to(dtype) for x, dtype in saved), None, None


def cross_entropy_sum(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """hidden [T, d], weight [V, d], targets int64 [T], each 0 .. V - 1 or -100, which does not count.

    The sum over t of logsumexp(W h_t) - (W h_t)[target_t], 0-dim float32 (float64 for float64). Under autocast
    products are in autocast's type.
    """
    where = "cross_entropy_sum"
    if hidden.dim() != 2 or not hidden.is_floating_point():
        bad_argument(where, "hidden", "floating point [T, d]", shown(hidden))
    if weight.dim() != 2 or weight.size(1) != hidden.size(1):
        bad_argument(where, "weight", f"[V, {hidden.size(1)}]", list(weight.shape))
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        bad_argument(where, "targets", f"int64 [{hidden.size(0)}]", shown(targets))
    device, dtype = hidden.device.type, hidden.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    elif weight.dtype != dtype:
        bad_argument(where, "weight", f"{shown(hidden)}'s type", shown(weight))
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled():
            return _CrossEntropySum.apply(hidden, weight, targets, dtype)
        total = _run(hidden.to(dtype), weight.to(dtype), targets, False, False)[0]
        return total.to(torch.float64 if dtype == torch.float64 else torch.float32)

"""The operators as plain torch on L x L matrices: what the tests mean by right.

Call with float64 tensors for the reference, with the tensors as they are for what torch itself makes of
the same formula at the same precision. Tensors are batched: q [B, L, heads, d], k and v [B, S, kv_heads,
d]; indexer q [B, L, H, d], k [B, S, d], w [B, L, H], bias [H]. Query i stands at position S - L + i unless
told otherwise.
"""

import torch


def visible(queries, keys, position=None):
    """bool [L, S]: key s is visible to query i iff s is not after it."""
    first = keys - queries if position is None else position
    return torch.arange(keys) <= first + torch.arange(queries).unsqueeze(1)


def scores(q, k, w, bias=None, scale=1.0, form="sigmoid"):
    """I [B, L, S] = sum_j w_j act(scale q_j . k + bias_j), also where s is not visible."""
    x = torch.einsum("blhd,bsd->blhs", q, k) * scale
    if bias is not None:
        x = x + bias[:, None]
    x = x.sigmoid() if form == "sigmoid" else x.relu()
    return torch.einsum("blh,blhs->bls", w, x)


def variance(score, seen):
    """Population variance [B, L] of each query's visible scores."""
    count = seen.sum(-1)
    mean = score.masked_fill(~seen, 0).sum(-1) / count
    return (score - mean.unsqueeze(-1)).pow(2).masked_fill(~seen, 0).sum(-1) / count


def budget(var, seen, mode="inverse", k_base=2048, k_min=256, k_max=4096, mean_variance=None):
    """k_t [B, L]. A variance of 0 is an infinite ratio (inverse) or none at all (proportional)."""
    known = mean_variance is not None and mean_variance >= 0
    if mode == "fixed" or not known:
        ratio = torch.ones_like(var, dtype=torch.float64)
    elif mode == "inverse":
        ratio = torch.where(var > 0, mean_variance / var.double(), float("inf"))
    else:
        ratio = torch.where(var > 0, var.double() / mean_variance, 0.0)
    k = (k_base * ratio).floor().clamp(k_min, k_max)
    return torch.minimum(k, seen.sum(-1).to(k.dtype)).to(torch.int32)


def select(score, k_t, seen):
    """bool [B, L, S]: the k_t visible positions of highest score. The sort is stable: lower first."""
    order = score.masked_fill(~seen, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
    chosen = torch.arange(score.size(-1)) < k_t.unsqueeze(-1)
    return torch.zeros_like(chosen.expand_as(order)).scatter(-1, order, chosen.expand_as(order)) & seen


def logits(q, k, scale=None):
    """[B, heads, L, S]; a group of heads shares a key head."""
    k = k.repeat_interleave(q.size(2) // k.size(2), dim=2)
    return torch.einsum("blhd,bshd->bhls", q, k) * (q.size(-1) ** -0.5 if scale is None else scale)


def attend(q, k, v, mask, scale=None):
    """out [B, L, heads, d] and lse [B, L, heads] of attention over mask (bool [B, L, S] or [L, S])."""
    mask = mask.unsqueeze(-3)
    a = logits(q, k, scale).masked_fill(~mask, float("-inf"))
    v = v.repeat_interleave(q.size(2) // v.size(2), dim=2)
    return torch.einsum("bhls,bshd->blhd", a.softmax(-1), v), a.logsumexp(-1).transpose(1, 2)


def gate(x, z):
    """x * sigmoid(z), z as x or one number a head."""
    return x * (z if z.dim() == x.dim() else z.unsqueeze(-1)).sigmoid()


def target(q, k, lse, mask, scale=None):
    """p [B, L, S], a constant: attention over mask, averaged over heads, from its lse [B, L, heads]."""
    p = (logits(q, k, scale) - lse.transpose(1, 2).unsqueeze(-1)).exp().mean(1)
    return p.masked_fill(~mask, 0).detach()


def indexer_kl(q, k, lse, score, mask, scale=None):
    """KL(p || softmax(I)) [B, L] over mask."""
    p = target(q, k, lse, mask, scale)
    log_index = score.masked_fill(~mask, float("-inf")).log_softmax(-1).masked_fill(~mask, 0)
    return (torch.xlogy(p, p) - p * log_index).sum(-1)

"""gsa::indexer_kl: the indexer's loss and its gradients, over all visible keys, a mask or a threshold."""

import pytest
import torch

import reference
from problems import FLOATS, assert_close_as, assert_same_bits, everywhere, make, rounding_of, unpack

gsa = torch.ops.gsa
BUDGET = dict(budget="fixed", k_base=20, k_min=1, k_max=64)
SUPPORTS = ["visible", "mask", "threshold"]
INDEXER = ("index_q", "index_k", "index_w", "index_bias")


def support_of(p, support, form):
    """The support's arguments for indexer_kl, and as bool [B, L, S]; the attention's lse over it."""
    with torch.no_grad():
        mask, _, _, threshold, tie_cut = gsa.select(*p.indexer(), scale=p.scale(), form=form, **BUDGET)
        if support == "visible":
            seen = reference.visible(p.q.size(1), p.k.size(1)).expand(p.q.size(0), -1, -1)
            return (None, None, None), seen, gsa.attend(*p.attention())[1]
        chosen = {"mask": (mask, None, None), "threshold": (None, threshold, tie_cut)}[support]
        return chosen, unpack(mask, p.k.size(1)), gsa.attend(*p.attention(), mask)[1]


def gradient_terms(p, lse, mask, weight, form):
    """The gradient is softmax(I) - p, and p, rebuilt from a rounded lse, does not quite sum to 1: how large
    the two are, each by itself, before they cancel."""
    total = {name: 0 for name in INDEXER}
    target = reference.target(p.q.double(), p.k.double(), lse.double(), mask)
    for part in (
        lambda score: (target * score).sum(-1),
        lambda score: score.masked_fill(~mask, float("-inf")).logsumexp(-1),
    ):
        leaves = p.double().leaves()
        score = reference.scores(*leaves.indexer(), scale=p.scale(), form=form)
        (weight.double() * part(score)).sum().backward()
        for name in INDEXER:
            tensor = getattr(leaves, name)
            total[name] += 0 if tensor is None else tensor.grad.abs()
    return total


SHAPES = {
    "plain": dict(batch=6, queries=97),
    "gqa59": dict(batch=4, queries=70, heads=6, kv_heads=2, size=59, index_heads=3, index_size=33),
    "offset": dict(batch=6, queries=33, keys=100, bias=False),
    "one": dict(batch=50, queries=1),
}


def forward_cases(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    p, layout = sample.p, sample.layout
    arguments = (p.q, p.k, sample.lse, *p.indexer())
    return {
        "indexer_kl": ((*arguments, None, sample.threshold, sample.tie_cut), layout),
        "indexer_kl-mask": ((*arguments, sample.mask), layout),
        "indexer_kl-nobias": (arguments[:-1], layout),
        "indexer_kl-tiles": (arguments, layout | sample.TILES),
    }


def cases_without_gradients(sample):
    p, layout = sample.p, sample.layout
    forward, by_threshold = (p.q, p.k, sample.lse, *p.indexer()), (None, sample.threshold, sample.tie_cut)
    dloss = torch.rand_like(sample.threshold)
    index_lse = gsa.indexer_kl(*forward, *by_threshold, **layout)[1]
    return {
        "indexer_kl_backward": ((dloss, *forward, *by_threshold, index_lse), layout),
        "indexer_kl_backward-tiles": ((dloss, *forward, None, None, None, index_lse), layout | sample.TILES),
        "indexer_kl_backward-nobias": ((dloss, *forward[:-1], None, *by_threshold, index_lse), layout),
    }


@pytest.mark.parametrize("form", ["sigmoid", "relu"])
@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_reference(shape, dtype, support, form):
    p = make(dtype=dtype, **SHAPES[shape])
    arguments, mask, lse = support_of(p, support, form)
    ours_p, torch_p, exact_p = p.leaves(), p.leaves(), p.double().leaves()
    loss, index_lse = gsa.indexer_kl(
        ours_p.q, ours_p.k, lse, *ours_p.indexer(), *arguments, index_scale=p.scale(), form=form
    )
    assert loss.dtype == torch.float32 and not index_lse.requires_grad
    score, exact_score = (
        reference.scores(*x.indexer(), scale=p.scale(), form=form) for x in (torch_p, exact_p)
    )
    baseline = reference.indexer_kl(torch_p.q, torch_p.k, lse, score, mask)
    exact = reference.indexer_kl(exact_p.q, exact_p.k, lse.double(), exact_score, mask)
    inherited = rounding_of(lse)
    assert_close_as(loss, baseline, exact, 2, "loss", inherited, terms=1 + exact)
    hide = lambda s: s.detach().masked_fill(~mask, float("-inf")).logsumexp(-1)
    assert_close_as(index_lse, hide(score), hide(exact_score), 2, "index_lse")

    weight = torch.rand_like(loss)
    loss.backward(weight), baseline.backward(weight.to(baseline.dtype)), exact.backward(weight.double())
    terms = gradient_terms(p, lse, mask, weight, form)
    for name in INDEXER:
        if getattr(p, name) is None:
            continue
        ours, torchs, right = (getattr(x, name).grad for x in (ours_p, torch_p, exact_p))
        assert ours.dtype == dtype
        assert_close_as(ours, torchs, right, 3, f"d{name}", inherited, terms=terms[name])
    assert ours_p.q.grad is None and ours_p.k.grad is None, "the attention is a constant"


@pytest.mark.parametrize("form", ["sigmoid", "relu"])
def test_threshold_is_the_mask_bit_for_bit(form):
    """Beyond a chunk of 2048 queries, too; there gradients of keys sum over chunks, equal up to rounding."""
    p = make(batch=1, queries=2200, heads=2, kv_heads=1, size=8, index_heads=2, index_size=8).leaves()
    by_mask, _, lse = support_of(p, "mask", form)
    by_threshold, _, _ = support_of(p, "threshold", form)
    results = []
    for arguments in (by_mask, by_threshold):
        loss, index_lse = gsa.indexer_kl(
            p.q, p.k, lse, *p.indexer(), *arguments, index_scale=p.scale(), form=form
        )
        results.append((loss, index_lse, *torch.autograd.grad(loss.sum(), p.indexer())))
    for name, a, b in zip(("loss", "index_lse", "dq", "dk", "dw", "dbias"), *results):
        if name in ("dk", "dbias"):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * b.abs().max().item())
        else:
            assert_same_bits(a, b, name)


def test_no_loss_where_the_indexer_agrees():
    """One head of attention whose logits are the indexer's scores: KL is 0 and so are the gradients."""
    p = make(heads=1, kv_heads=1, index_heads=1, bias=False, sharpness=1.0)
    index_q = p.q.abs()
    k = p.k.abs()
    w = torch.ones_like(p.index_w)
    lse = gsa.attend(p.q.abs(), k, p.v, scale=0.1)[1]
    leaves = [t.requires_grad_() for t in (index_q, k[:, :, 0].clone(), w)]
    loss, index_lse = gsa.indexer_kl(p.q.abs(), k, lse, *leaves, scale=0.1, index_scale=0.1, form="relu")
    assert loss.abs().max() < 1e-5
    torch.testing.assert_close(index_lse, lse[..., 0], rtol=1e-5, atol=1e-5)
    loss.sum().backward()
    for leaf in leaves:
        assert leaf.grad.abs().max() < 1e-4


def test_loss_is_not_negative():
    p = make(queries=200)
    for support in SUPPORTS:
        arguments, _, lse = support_of(p, support, "sigmoid")
        loss, _ = gsa.indexer_kl(p.q, p.k, lse, *p.indexer(), *arguments, index_scale=p.scale())
        assert (loss > -1e-5).all() and (loss[:, 1:] > 0).float().mean() > 0.95


@pytest.mark.parametrize("shape", [dict(batch=0, queries=5), dict(queries=0, keys=7)])
@pytest.mark.parametrize("support", SUPPORTS)
def test_empty(shape, support):
    p = make(**shape).leaves()
    arguments, _, lse = support_of(p, support, "sigmoid")
    loss, index_lse = gsa.indexer_kl(p.q, p.k, lse, *p.indexer(), *arguments)
    assert loss.shape == index_lse.shape == p.q.shape[:2]
    loss.sum().backward()
    for name in INDEXER:
        tensor = getattr(p, name)
        assert tensor.grad.shape == tensor.shape and (tensor.grad == 0).all()


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
def test_samples_add_up_to_all_queries(dtype):
    """Loss and gradients of the tiles 0, 2 and of 1, 3."""
    p = make(batch=2, queries=97, dtype=dtype)
    totals = {}
    for name, tiles in {"all": None, "even": [0, 2], "odd": [1, 3], "none": []}.items():
        leaves = p.leaves()
        sample = None if tiles is None else torch.tensor(tiles, dtype=torch.int64, device="cpu")
        target = gsa.attend_lse(p.q, p.k, query_tiles=sample)
        loss, _ = gsa.indexer_kl(p.q, p.k, target, *leaves.indexer(), query_tiles=sample, index_scale=p.scale())
        loss.sum().backward()
        totals[name] = [loss.detach(), *(getattr(leaves, n).grad for n in INDEXER)]
    assert all((t == 0).all() for t in totals["none"])
    eps = torch.finfo(dtype).eps
    for name, whole, even, odd in zip(("loss", *INDEXER), totals["all"], totals["even"], totals["odd"]):
        difference = (even.double() + odd.double() - whole.double()).abs().max().item()
        assert difference <= 4 * eps * whole.abs().max().item(), name
    assert (totals["even"][0][0, 64:] == 0).all() and (totals["even"][0][0, 1:64] != 0).any()


def test_only_wanted_gradients():
    p = make(queries=20)
    bias = p.index_bias.clone().requires_grad_()
    lse = gsa.attend(*p.attention())[1]
    loss, _ = gsa.indexer_kl(p.q, p.k, lse, p.index_q, p.index_k, p.index_w, bias)
    loss.sum().backward()
    assert bias.grad is not None and bias.grad.abs().max() > 0


def test_double_backward_names_the_operator():
    p = make(queries=5).leaves()
    lse = gsa.attend(*p.attention())[1]
    loss, _ = gsa.indexer_kl(p.q, p.k, lse, *p.indexer())
    (dw,) = torch.autograd.grad(loss.sum(), p.index_w, create_graph=True)
    with pytest.raises(RuntimeError, match="gsa::indexer_kl_backward"):
        dw.sum().backward()

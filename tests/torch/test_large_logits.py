"""Logits far from 0: weights rebuilt from a log-sum-exp stay weights, and lose no more than torch's."""

import pytest
import torch

import reference
from problems import assert_close_as, everywhere, make
from test_attend import sdpa

gsa = torch.ops.gsa
SIZES = [1e4, 1e6, 1e8, 1e9]


def problem(size, dtype=torch.float32):
    p = make(batch=1, queries=50, heads=4, kv_heads=2, dtype=dtype)
    return p.with_(q=p.q * size)


@pytest.mark.parametrize("size", SIZES)
def test_attend(size):
    """Where one key outweighs all others, its weight is 1 exactly: the gradient of v is torch's."""
    p, seen = problem(size), reference.visible(50, 50)
    ours, torchs, exact = p.leaves(), p.leaves(), p.double().leaves()
    direction = torch.randn(p.q.shape)
    gsa.attend(*ours.attention())[0].backward(direction)
    sdpa(*torchs.attention(), seen).backward(direction)
    reference.attend(*exact.attention(), seen)[0].backward(direction.double())
    assert_close_as(ours.v.grad, torchs.v.grad, exact.v.grad, 3, "dv")
    assert ours.q.grad.isfinite().all() and ours.k.grad.isfinite().all()


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
@pytest.mark.parametrize("size", SIZES)
def test_no_weight_is_above_one(size, dtype):
    """dv of a query is its weights times dout; weights add up to at most 1 a head and key."""
    p = problem(size, dtype).leaves()
    out, lse = gsa.attend(*p.attention())
    if not (out.isfinite().all() and lse.isfinite().all()):
        pytest.skip("the forward pass is not finite")
    out.backward(torch.ones_like(out))
    limit = 2 * (50 - torch.arange(50)).view(1, 50, 1, 1)  # queries that see the key, of two heads
    assert (p.v.grad <= limit * (1 + 2**-7)).all()
    loss, _ = gsa.indexer_kl(p.q.detach(), p.k.detach(), lse, *p.indexer(), index_scale=p.scale())
    loss.sum().backward()
    assert loss.isfinite().all()
    assert all(t.grad.isfinite().all() for t in p.indexer())


@pytest.mark.parametrize("size", SIZES)
def test_indexer_kl(size):
    p, seen = problem(size), reference.visible(50, 50).expand(1, -1, -1)
    ours, torchs, exact = p.leaves(), p.leaves(), p.double().leaves()
    lse = gsa.attend(*p.attention())[1]
    loss, _ = gsa.indexer_kl(p.q, p.k, lse, *ours.indexer(), index_scale=p.scale())
    losses = []
    for x in (torchs, exact):
        score = reference.scores(*x.indexer(), scale=p.scale())
        attention = [t.detach() for t in x.attention()]
        losses.append(reference.indexer_kl(*attention[:2], reference.attend(*attention, seen)[1], score, seen))
    assert_close_as(loss, *losses, 2, "loss")
    for value in (loss, *losses):
        value.sum().backward()
    for name in ("index_q", "index_k", "index_w"):  # the bias has too few values for statistics
        assert_close_as(*(getattr(x, name).grad for x in (ours, torchs, exact)), 3, name)


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
def test_a_divergence_is_never_negative(dtype):
    """Equal distributions: 0, or a rounding error above it."""
    p = make(batch=4, queries=300, heads=3, kv_heads=1, dtype=dtype)
    p = p.with_(q=p.q * 0, index_q=p.index_q * 0)
    lse = gsa.attend(*p.attention())[1]
    loss, _ = gsa.indexer_kl(p.q, p.k, lse, *p.indexer())
    assert (loss >= 0).all() and (loss < 1e-4).all()

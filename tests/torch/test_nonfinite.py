"""NaN and infinity: NaN comes out where it belongs and nowhere else; a selection never changes silently."""

import pytest
import torch

import reference
from problems import assert_same_bits, dtype_id, everywhere, make, unpack

gsa = torch.ops.gsa
BUDGET = dict(budget="fixed", k_base=10, k_min=1, k_max=40)
NAN, INF = float("nan"), float("inf")


def select(p, **options):
    return gsa.select(*p.indexer(), scale=p.scale(), **(BUDGET | options))


def check_broken_queries(p, broken, clean, form="sigmoid"):
    """Broken queries (bool [B, L]) select nothing and say so; all others keep every bit."""
    mask, k_t, variance, threshold, _ = results = select(p, form=form)
    expected = select(clean, form=form)
    assert (k_t[broken] == 0).all() and (mask[broken] == 0).all()
    assert variance[broken].isnan().all() and threshold[broken].isnan().all()
    for a, b in zip(results, expected):
        assert_same_bits(a[~broken], b[~broken])
    sparse = gsa.sparse_attend(*p.attention(), *p.indexer(), index_scale=p.scale(), form=form, **BUDGET)
    out, lse = sparse[:2]
    assert out[broken].isnan().all() and lse[broken].isnan().all()
    whole = gsa.sparse_attend(
        *clean.attention(), *clean.indexer(), index_scale=p.scale(), form=form, **BUDGET
    )
    assert_same_bits(out[~broken], whole[0][~broken])
    rebuilt = gsa.select_mask(*p.indexer(), threshold, results[4], scale=p.scale(), form=form)
    assert_same_bits(rebuilt, mask)
    loss, index_lse = gsa.indexer_kl(
        p.q, p.k, lse, *p.indexer(), None, threshold, sparse[5], index_scale=p.scale(), form=form
    )
    assert loss[broken].isnan().all() and loss[~broken].isfinite().all()


def broken_rows(where):
    broken = torch.zeros(2, 60, dtype=torch.bool)
    broken[where] = True
    return broken


@pytest.mark.parametrize("name", ["index_q", "index_w"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=dtype_id)
def test_in_a_query(name, value, dtype):
    """A query of infinities meets keys of both signs: infinity less infinity, NaN."""
    clean = make(queries=60, dtype=dtype)
    tensor = getattr(clean, name).clone()
    tensor[1, 20] = value
    p = clean.with_(**{name: tensor})
    check_broken_queries(p, broken_rows((1, 20)), clean)


@pytest.mark.parametrize("value", [NAN, INF])
def test_in_a_key(value):
    """A broken key breaks every query that sees it, and none before."""
    clean = make(queries=60)
    index_k = clean.index_k.clone()
    index_k[1, 20] = value
    p = clean.with_(index_k=index_k)
    check_broken_queries(p, broken_rows((1, slice(20, None))), clean)


def test_in_the_bias():
    clean = make(queries=60)
    bias = clean.index_bias.clone()
    bias[2] = NAN
    mask, k_t, variance, threshold, _ = select(clean.with_(index_bias=bias))
    assert (k_t == 0).all() and (mask == 0).all() and variance.isnan().all() and threshold.isnan().all()


def test_infinite_relu_scores():
    clean = make(queries=60)
    index_q, index_k = clean.index_q.clone(), clean.index_k.clone()
    index_q[1, 20] = 1e30
    index_k[1, :21] = 1e30  # finite numbers whose product is not
    p = clean.with_(index_q=index_q, index_k=index_k)
    _, k_t, _, threshold, _ = select(p, form="relu")
    assert k_t[1, 20] == 0 and threshold[1, 20].isnan()


def test_unselected_keys_are_never_read():
    p = make(queries=60)
    mask = select(p)[0]
    unused = ~unpack(mask, 60).any(1)  # [B, S]: keys that no query selected
    assert unused.any()
    k, v = p.k.clone(), p.v.clone()
    k[unused], v[unused] = NAN, INF
    for a, b in zip(gsa.attend(p.q, k, v, mask), gsa.attend(*p.attention(), mask)):
        assert_same_bits(a, b)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "mask"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_in_the_attention(name, masked):
    """NaN reaches the queries that read it, in the heads that read it."""
    clean = make(queries=60)
    tensor = getattr(clean, name).clone()
    tensor[1, 20, 0] = NAN
    p = clean.with_(**{name: tensor})
    mask = select(clean)[0] if masked else None
    chosen = unpack(mask, 60) if masked else reference.visible(60, 60).expand(2, -1, -1)
    out, lse = gsa.attend(*p.attention(), mask)
    expected, expected_lse = gsa.attend(*clean.attention(), mask)
    broken = torch.zeros(2, 60, 4, dtype=torch.bool)
    if name == "q":
        broken[1, 20, 0] = True
    else:
        broken[1, :, :2] = chosen[1, :, 20, None]  # the two heads of key head 0
    assert broken.any() and out[broken].isnan().all()
    assert_same_bits(out[~broken], expected[~broken])
    if name == "v":
        assert_same_bits(lse, expected_lse)
    else:
        assert lse[broken].isnan().all()
        assert_same_bits(lse[~broken], expected_lse[~broken])


def test_empty_selection_is_nan():
    p = make(queries=10)
    mask = select(p)[0].clone()
    mask[0, 5] = 0
    out, lse = gsa.attend(*p.attention(), mask)
    assert out[0, 5].isnan().all() and lse[0, 5].isnan().all()
    assert out.isnan().any(-1).any(-1).sum() == 1


def test_broken_query_breaks_the_gradients_it_feeds():
    """NaN in the forward pass is not lost in the backward pass."""
    p = make(queries=30)
    index_q = p.index_q.clone()
    index_q[0, 7] = NAN
    p = p.with_(index_q=index_q).leaves()
    out = gsa.sparse_attend(*p.attention(), *p.indexer(), index_scale=p.scale(), **BUDGET)[0]
    out.sum().backward()
    assert p.q.grad[0, 7].isnan().all()
    assert p.q.grad[1].isfinite().all() and p.v.grad[1].isfinite().all()


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16, torch.float64]), indirect=True)
@pytest.mark.parametrize("size", [64, 59])
def test_nobody_asks_for_the_gradient_of_an_empty_selection(size, dtype):
    """0 where dout is 0, so that a loss that leaves the query out can be differentiated; NaN elsewhere."""
    p = make(queries=40, size=size, dtype=dtype).leaves()
    mask = select(p)[0].clone()
    mask[0, 5] = 0
    mask[1, 7] = 0
    out, lse = gsa.attend(*p.attention(), mask)
    direction = torch.randn_like(out)
    direction[0, 5] = 0
    out.backward(direction)
    assert (p.q.grad[0, 5] == 0).all() and p.q.grad[1, 7].isnan().all()
    assert p.q.grad.isnan().flatten(2).any(-1).sum() == 1
    assert p.k.grad.isfinite().all() and p.v.grad.isfinite().all()

    loss, _ = gsa.indexer_kl(p.q.detach(), p.k.detach(), lse.detach(), *p.indexer(), mask)
    loss[~loss.isnan()].sum().backward()
    assert all(t.grad.isfinite().all() for t in p.indexer())
    assert (p.index_q.grad[0, 5] == 0).all()

"""Every gradient against finite differences, in float64."""

import pytest
import torch
from torch.autograd import gradcheck

import reference
from problems import make, pack

gsa = torch.ops.gsa
BUDGET = dict(budget="fixed", k_base=3, k_min=1, k_max=8)


def small(**shape):
    shape = dict(batch=2, queries=6, heads=4, kv_heads=2, size=3, index_heads=2, index_size=3) | shape
    return make(dtype=torch.float64, **shape).leaves()


@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (4, 2), (3, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("masked", [False, True], ids=["dense", "mask"])
def test_attend(masked, heads, kv_heads):
    p = small(queries=5, keys=7, heads=heads, kv_heads=kv_heads)
    mask = None
    if masked:
        seen = reference.visible(5, 7)
        own = seen & ~reference.visible(5, 7, 1)
        mask = pack((torch.rand(2, 5, 7) < 0.5) & seen | own)
    assert gradcheck(lambda q, k, v: gsa.attend(q, k, v, mask, scale=0.6)[0], p.attention())


@pytest.mark.parametrize("packed", [False, True], ids=["batched", "packed"])
@pytest.mark.parametrize("form", ["sigmoid", "relu"])
def test_sparse_attend(form, packed):
    p = small()
    layout = {}
    if packed:
        p = p.map(lambda t: t.detach().flatten(0, 1) if t.dim() > 1 else t.detach()).leaves()
        offsets = torch.tensor([0, 5, 12])
        layout = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets)
    indexer = [t.detach() for t in p.indexer()]
    f = lambda q, k, v: gsa.sparse_attend(q, k, v, *indexer, form=form, **BUDGET, **layout)[0]
    assert gradcheck(f, p.attention())


@pytest.mark.parametrize("head_wise", [False, True], ids=["element", "head"])
def test_gate(head_wise):
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    z = torch.randn(3, 4, *([] if head_wise else [5]), dtype=torch.float64, requires_grad=True)
    assert gradcheck(gsa.gate, (x, z))


@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("form", ["sigmoid", "relu"])
@pytest.mark.parametrize("support", ["visible", "mask", "threshold"])
def test_indexer_kl(support, form, bias):
    p = small(queries=5, keys=7, bias=bias)
    inputs = [t for t in p.indexer() if t is not None]
    q, k, v = (t.detach() for t in p.attention())

    def loss(index_q, index_k, index_w, index_bias=None):
        indexer = (index_q, index_k, index_w, index_bias)
        # Scores have gaps: a finite difference moves the threshold, not the selection.
        mask, _, _, threshold, tie_cut = gsa.select(*indexer, scale=0.7, form=form, **BUDGET)
        lse = gsa.attend(q, k, v, None if support == "visible" else mask, scale=0.8)[1]
        arguments = {
            "visible": (None, None, None),
            "mask": (mask, None, None),
            "threshold": (None, threshold, tie_cut),
        }[support]
        return gsa.indexer_kl(q, k, lse, *indexer, *arguments, scale=0.8, index_scale=0.7, form=form)[0]

    assert gradcheck(loss, inputs)

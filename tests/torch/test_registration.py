"""What torch asks of operators: schemas, fake kernels, autograd registration, tracing with dynamic shapes."""

import importlib
from pathlib import Path

import pytest
import torch
from torch.library import opcheck

from problems import assert_same_bits, has_kernel, make, operators

gsa = torch.ops.gsa
BUDGET = dict(budget="fixed", k_base=5, k_min=1, k_max=64)
TILES = dict(query_tiles=torch.tensor([1]))  # of two or more


def sample(packed=False, grad=True, dtype=torch.float32):
    p = make(
        batch=2, queries=9, keys=40, heads=4, kv_heads=2, size=8, index_heads=3, index_size=8, dtype=dtype
    )
    layout = {}
    if packed:
        p = p.map(lambda t: t.flatten(0, 1) if t.dim() > 1 else t)
        layout = dict(
            cu_seqlens_q=torch.tensor([0, 4, 18]),
            cu_seqlens_k=torch.tensor([0, 30, 80]),
            q_position=torch.tensor([3, 36]),
        )
    return (p.leaves() if grad else p), layout


def selection(p, layout):
    with torch.no_grad():
        return gsa.select(*p.indexer(), **BUDGET, **layout)


def decode_arguments(p):
    """Pages of 8 positions: 5 blocks for each of 2 sequences of 33 and 40 keys."""
    normal = lambda *shape: torch.randn(*shape)
    block_table = torch.randperm(12)[:10].view(2, 5).to(torch.int32)
    lengths = torch.tensor([33, 40], dtype=torch.int32)
    keys, index_keys = (normal(12, 8, 2, 8) for _ in range(2)), normal(12, 8, 8)
    queries = p.q.detach().reshape(-1, 4, 8)[:6].reshape(2, 3, 4, 8)
    return (queries, *keys, block_table, lengths, normal(2, 3, 3, 8), index_keys, normal(2, 3, 3), normal(3))


def decode_of_bytes(p):
    """The same with the indexer's keys in eight bits."""
    arguments = list(decode_arguments(p))
    arguments[6], scale = torch.ops.gsa.quantize_index_keys(arguments[6])
    return tuple(arguments), dict(BUDGET, max_length=40, index_k_scale=scale)


def decode_of_a_follower(p):
    """The same with positions that another call has selected."""
    arguments = decode_arguments(p)
    _, _, k_t, selected = gsa.decode_with_selection(*arguments, **BUDGET, max_length=40)
    return arguments[:5], dict(max_length=40, selected=selected, selected_k=k_t)


def width(layout):
    return dict(max_keys=50) if layout else {}


def handed_over(function, *arguments):
    """Cases of the operators' own files: a tests/torch/test_*.py may define forward_cases(grad) for operators
    with a gradient or none to give, and cases_without_gradients(), both name -> (arguments, keywords)."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if f"\ndef {function}(" in path.read_text():
            found |= getattr(importlib.import_module(path.stem), function)(*arguments)
    return found


def cases(packed, grad):
    """name -> (arguments, keywords), one for each operator and way of calling it."""
    p, layout = sample(packed, grad)
    mask, _, _, threshold, tie_cut = selection(p, layout)
    with torch.no_grad():
        out, lse = gsa.attend(*p.attention(), mask, **layout)
        dout, dloss = torch.randn_like(out), torch.rand_like(threshold)
        by_threshold = (None, threshold, tie_cut)
        index_lse = gsa.indexer_kl(p.q, p.k, lse, *p.indexer(), *by_threshold, **layout)[1]
    forward = {
        "select": (p.indexer(), dict(BUDGET, mean_variance=torch.tensor(0.1), **layout, **width(layout))),
        "select_mask": ((*p.indexer(), threshold, tie_cut), layout | width(layout)),
        "index_scores": (p.indexer(), layout | width(layout)),
        "attend": ((*p.attention(), mask), layout),
        "attend-dense": (p.attention(), layout),
        "sparse_attend": ((*p.attention(), *p.indexer()), BUDGET | layout),
        "sparse_attend_with_mask": ((*p.attention(), *p.indexer()), BUDGET | layout | width(layout)),
        "decode": (decode_arguments(p), dict(BUDGET, max_length=40)),
        "decode-bytes": decode_of_bytes(p),
        "decode-follower": decode_of_a_follower(p),
        "decode_with_selection": (decode_arguments(p), dict(BUDGET, max_length=40)),
        "decode_with_selection-bytes": decode_of_bytes(p),
        "quantize_index_keys": ((torch.randn(3, 4, 8),), {}),
        "pack_mask": ((torch.rand(2, 9, 40) < 0.5,), {}),
        "gate": ((p.q, p.q.detach().clone().requires_grad_(grad)), {}),
        "gate-head": ((p.q, p.q.detach()[..., 0].clone().requires_grad_(grad)), {}),
        "indexer_kl": ((p.q, p.k, lse, *p.indexer(), *by_threshold), layout),
        "indexer_kl-mask": ((p.q, p.k, lse, *p.indexer(), mask), layout),
        "indexer_kl-nobias": ((p.q, p.k, lse, *p.indexer()[:3]), layout),
        "indexer_kl-tiles": ((p.q, p.k, lse, *p.indexer()), layout | TILES),
        **handed_over("forward_cases", grad),
    }
    without_gradients = {
        **handed_over("cases_without_gradients"),
        "attend_lse": ((p.q, p.k), layout),
        "attend_lse-tiles": ((p.q, p.k), layout | TILES),
        "attend_backward": ((dout, *p.attention(), mask, out, lse), layout),
        "sparse_attend_backward": (
            (dout, *p.attention(), *p.indexer(), out, lse, threshold, tie_cut),
            layout,
        ),
        "sparse_attend_backward-mask": (
            (dout, *p.attention(), *p.indexer(), out, lse, threshold, tie_cut, mask),
            layout,
        ),
        "gate_backward": ((dout, p.q, p.q + 1), {}),
        "indexer_kl_backward": (
            (dloss, p.q, p.k, lse, *p.indexer(), *by_threshold, index_lse),
            layout,
        ),
        "indexer_kl_backward-tiles": (
            (dloss, p.q, p.k, lse, *p.indexer(), None, None, None, index_lse),
            layout | TILES,
        ),
        "indexer_kl_backward-nobias": (
            (dloss, p.q, p.k, lse, *p.indexer()[:3], None, *by_threshold, index_lse),
            layout,
        ),
    }
    return forward if grad else forward | without_gradients


FORWARD = list(cases(False, True))
WITHOUT_GRADIENTS = [name for name in cases(False, False) if name not in FORWARD]


def operator(name):
    return getattr(gsa, name.split("-")[0]).default


@pytest.mark.parametrize("packed", [False, True], ids=["batched", "packed"])
@pytest.mark.parametrize("name", FORWARD)
def test_opcheck_with_gradients(name, packed):
    arguments, keywords = cases(packed, True)[name]
    opcheck(operator(name), arguments, keywords)


@pytest.mark.parametrize("packed", [False, True], ids=["batched", "packed"])
@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_opcheck_without_gradients(name, packed):
    arguments, keywords = cases(packed, False)[name]
    opcheck(operator(name), arguments, keywords)


def test_every_operator_is_checked():
    listed = {name.split("-")[0] for name in FORWARD + WITHOUT_GRADIENTS}
    assert listed == set(operators())


@pytest.mark.parametrize("name", FORWARD + WITHOUT_GRADIENTS)
@pytest.mark.parametrize("packed", [False, True], ids=["batched", "packed"])
def test_meta_tensors(name, packed):
    """Shapes, types and strides without data."""
    arguments, keywords = cases(packed, False)[name]
    real = operator(name)(*arguments, **keywords)
    meta = lambda value: value.to("meta") if isinstance(value, torch.Tensor) else value
    shapes = operator(name)(*map(meta, arguments), **{key: meta(value) for key, value in keywords.items()})
    if real is None:  # an operator that works in place and returns nothing
        assert shapes is None
        return
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (real, shapes))):
        assert b.is_meta and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.parametrize("name", FORWARD + WITHOUT_GRADIENTS)
def test_autocast_changes_nothing(name):
    """Types are those of the arguments, and so are the bits, as the fake kernels say."""
    results = []
    for enabled in (False, True):
        torch.manual_seed(3)
        arguments, keywords = cases(False, False)[name]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            made = operator(name)(*arguments, **keywords)
        made = () if made is None else made if isinstance(made, tuple) else (made,)
        results.append([*made, *(a for a in arguments if isinstance(a, torch.Tensor))])  # written ones, too
    for a, b in zip(*results):
        assert a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(dynamic):
    """A whole layer's step in one graph, forward and backward, the same bits as eager."""

    def step(p, variance):
        out, lse, k_t, _, threshold, tie_cut = gsa.sparse_attend(
            *p.attention(),
            *p.indexer(),
            budget="inverse",
            k_base=5,
            k_min=2,
            k_max=20,
            mean_variance=variance,
        )
        y = gsa.gate(out, p.q)
        loss, _ = gsa.indexer_kl(p.q, p.k, lse, *p.indexer(), None, threshold, tie_cut)
        dense, _ = gsa.attend(*p.attention())
        return y.pow(2).sum() + loss.mean() + dense.sum(), k_t

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    variance = torch.tensor(0.01)
    for length in (12, 21):
        results = []
        p = make(batch=2, queries=length, heads=4, kv_heads=2, size=8, index_heads=2, index_size=8)
        for f in (step, compiled):
            leaves = p.leaves()
            total, k_t = f(leaves, variance)
            total.backward()
            gradients = (
                leaves.q.grad,
                leaves.k.grad,
                leaves.v.grad,
                leaves.index_q.grad,
                leaves.index_bias.grad,
            )
            results.append((total.detach(), k_t, *gradients))
        for a, b in zip(*results):
            if a.dtype == torch.int32:
                assert_same_bits(a, b)
            else:
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # torch's own ops may be reordered
    torch._dynamo.reset()


def test_cuda_says_that_it_is_not_built():
    """The kernels that CUDA tensors reach, called with the tensors at hand."""
    if gsa.built_with_cuda():
        pytest.skip("libgsa.so holds the CUDA operators")
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    on_any_device = [name for name in operators() if has_kernel(name, "CompositeExplicitAutograd")]
    assert sorted(on_any_device) == ["pack_mask", "quantize_index_keys"]  # torch's own operators
    for name in [name for name in FORWARD + WITHOUT_GRADIENTS if name not in on_any_device]:
        arguments, keywords = cases(False, False)[name]
        with pytest.raises(
            RuntimeError, match=f"gsa::{name.split('-')[0]}: argument .* CUDA operators are not built"
        ):
            operator(name).redispatch(cuda, *arguments, **keywords)

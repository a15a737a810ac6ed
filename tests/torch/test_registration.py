"""What torch asks of operators: schemas, fake kernels, autograd registration, tracing with dynamic shapes."""

import importlib
from pathlib import Path

import pytest
import torch
from torch.library import opcheck

from problems import Sample, assert_same_bits, has_kernel, make, operators

gsa = torch.ops.gsa
def handed_over(function, sample):
    """Cases of the operators' own files: a tests/torch/test_*.py may define forward_cases(sample) for operators with a
    gradient or none to give, and cases_without_gradients(sample), both name -> (arguments, keywords)."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if f"\ndef {function}(" in path.read_text():
            found |= getattr(importlib.import_module(path.stem), function)(sample)
    return found


def cases(packed, grad):
    """name -> (arguments, keywords), one for each operator and way of calling it."""
    sample = Sample(packed, grad)
    forward = handed_over("forward_cases", sample)
    return forward if grad else forward | handed_over("cases_without_gradients", sample)


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

"""skinny_linear against the operators that it stands for, one by one."""

import pytest
import torch

from problems import assert_same_bits, everywhere

skinny_linear = torch.ops.gsa.skinny_linear
TYPES = (torch.bfloat16, torch.float16)


def make(dtype, rows=5, size=96, outputs=40, swiglu=False):
    """x, weight, norm, bias and residual."""
    spread = size**-0.5
    weight = (torch.randn(2 * outputs if swiglu else outputs, size) * spread).to(dtype)
    x, norm = torch.randn(rows, size).to(dtype), (1 + 0.3 * torch.randn(size)).to(dtype)
    return x, weight, norm, torch.randn(outputs).to(dtype), torch.randn(rows, outputs).to(dtype)


def cases_without_gradients(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    return {
        "skinny_linear": (make(torch.float32), dict(eps=1e-5)),
        "skinny_linear-swiglu": (make(torch.float32, swiglu=True)[:3], dict(eps=1e-5, swiglu=True)),
        "few_linear": (make(torch.float32), dict(eps=1e-5)),
    }


def expected(x, weight, norm=None, bias=None, residual=None, eps=0.0, swiglu=False):
    """In float64, rounded to the type where the operator rounds before its end."""
    wide, rounded = (lambda t: t.to(torch.float64)), (lambda t: t.to(x.dtype).to(torch.float64))
    h = wide(x)
    if norm is not None:
        h = rounded(h / (h.square().mean(-1, keepdim=True) + eps).sqrt() * wide(norm))
    z = h @ wide(weight).T + (0 if bias is None else wide(bias))
    if swiglu:
        g, u = rounded(z).chunk(2, -1)
        return torch.nn.functional.silu(g) * u
    return z if residual is None else rounded(z) + wide(residual)


def check(actual, wanted):
    """Two roundings of the type: one at the end, and one of a step between that fell to the other side."""
    unit = {torch.bfloat16: 2**-8, torch.float16: 2**-11}[actual.dtype]
    largest = wanted.abs().max().item()
    torch.testing.assert_close(actual.to(torch.float64), wanted, rtol=0, atol=2 * unit * largest)


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
@pytest.mark.parametrize("settled", [False, True])
def test_every_combination(dtype, settled):
    x, weight, norm, bias, residual = make(dtype)
    for chosen_norm in (None, norm):
        for chosen_bias in (None, bias):
            for chosen_residual in (None, residual):
                arguments = (x, weight, chosen_norm, chosen_bias, chosen_residual)
                check(skinny_linear(*arguments, eps=1e-5, settled=settled), expected(*arguments, eps=1e-5))


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_swiglu(dtype, rows):
    x, weight, norm, _, _ = make(dtype, rows=rows, outputs=50, swiglu=True)
    check(skinny_linear(x, weight, norm, eps=1e-5, swiglu=True), expected(x, weight, norm, eps=1e-5, swiglu=True))


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
def test_views_are_copied_and_no_rows_are_fine(dtype):
    x, weight, norm, bias, _ = make(dtype)
    transposed = weight.T.contiguous().T
    check(skinny_linear(x.T.contiguous().T, transposed, norm, bias, settled=True), expected(x, weight, norm, bias))
    assert skinny_linear(x[:0], weight, norm).shape == (0, 40)
    unaligned = [torch.cat((t.flatten()[:1], t.flatten()))[1:].view_as(t) for t in (x, weight, norm, bias)]
    assert all(t.data_ptr() % 16 for t in unaligned)
    check(skinny_linear(*unaligned, settled=True), expected(x, weight, norm, bias))


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
def test_has_no_gradient(dtype):
    x, weight, *_ = make(dtype)
    y = skinny_linear(x, weight.requires_grad_())
    with pytest.raises(RuntimeError, match="gsa::skinny_linear"):
        y.sum().backward()


def test_fake_tensors_are_checked():
    x, weight, _, bias, _ = (t.to("meta") for t in make(torch.bfloat16))
    assert skinny_linear(x, weight[:38], swiglu=True).shape == (5, 19)
    with pytest.raises(RuntimeError, match="skinny_linear: argument 'weight'"):
        skinny_linear(x, weight[:, :95])
    with pytest.raises(RuntimeError, match="skinny_linear: argument 'weight'.*an even number of rows"):
        skinny_linear(x, weight[:39], swiglu=True)
    with pytest.raises(RuntimeError, match="skinny_linear: argument 'swiglu'.*got a bias"):
        skinny_linear(x, weight, bias=bias, swiglu=True)


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
def test_messages(dtype):
    x, weight, norm, bias, residual = make(dtype)
    with pytest.raises(RuntimeError, match=r"skinny_linear: argument 'weight'.*\[40, 96\], got \[40, 95\]"):
        skinny_linear(x, weight[:, :95])
    with pytest.raises(RuntimeError, match="skinny_linear: argument 'bias'"):
        skinny_linear(x, weight, bias=bias[:-1])
    with pytest.raises(RuntimeError, match="skinny_linear: argument 'swiglu'.*got a residual"):
        skinny_linear(x, weight, residual=residual[:, :20], swiglu=True)
    with pytest.raises(RuntimeError, match="skinny_linear: argument 'weight'.*an even number of rows"):
        skinny_linear(x, weight[:39], swiglu=True)


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
def test_the_old_name_is_the_same_operator(dtype):
    arguments = make(dtype)
    assert_same_bits(torch.ops.gsa.few_linear(*arguments, eps=1e-5), skinny_linear(*arguments, eps=1e-5))

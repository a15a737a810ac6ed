"""rms_norm, rotary, swiglu, cross_entropy_: beside torch's own, gradients, layouts, what is refused."""

import re

import pytest
import torch
import torch.nn.functional as F

from problems import FLOATS, assert_close_as, assert_same_bits, everywhere, sizes_id

gsa = torch.ops.gsa
EPS = 1e-5


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (scale * torch.randn(*shape, dtype=torch.float64)).to(dtype)


def reference_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x, cos, sin):
    n = cos.size(-1)
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


def compare(op, reference, inputs, dtype, factor=2):
    """Forward within `factor`, gradients within 3 times the error of the same formula in torch."""
    runs = []
    for cast in (lambda t: t, lambda t: t, lambda t: t.double()):
        runs.append([cast(t.detach().clone()).requires_grad_() for t in inputs])
    ours, torchs, exact = runs
    results = op(*ours), reference(*torchs), reference(*exact)
    assert_close_as(*[r.detach() for r in results], factor, "result")
    direction = torch.randn(results[2].shape, dtype=torch.float64).to(dtype)
    for r in results:
        r.backward(direction.to(r.dtype))
    for i, leaves in enumerate(zip(*runs)):
        assert_close_as(*[t.grad for t in leaves], 3, f"gradient {i}")


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("shape", [(3, 17, 64), (97, 59), (5, 2048), (2, 3, 5, 8)], ids=sizes_id)
@pytest.mark.parametrize("branch", [False, True], ids=["alone", "branch"])
def test_rms_norm(shape, dtype, branch):
    x, weight = normal(*shape, dtype=dtype), 1 + normal(shape[-1], dtype=dtype, scale=0.2)
    if branch:
        other = normal(*shape, dtype=dtype)
        rounded = lambda x, b, w: reference_norm((x + b).to(dtype).to(x.dtype), w)
        compare(lambda x, b, w: gsa.rms_norm(x, b, w, EPS)[0], rounded, (x, other, weight), dtype)
        y, total, _ = gsa.rms_norm(x, other, weight, EPS)
        assert_same_bits(total, x + other)
    else:
        compare(lambda x, w: gsa.rms_norm(x, None, w, EPS)[0], reference_norm, (x, weight), dtype)


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("heads", [(4, 2, 2), (3, 1, 0), (2, 0, 0)], ids=sizes_id)
@pytest.mark.parametrize("pairs", [0, 4, 8])
def test_rotary(heads, pairs, dtype):
    tokens, size = 23, 16
    x = normal(tokens, sum(heads) * size, dtype=dtype)
    angles = 6 * torch.rand(tokens, pairs, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()

    def reference(x):
        wide = x.view(tokens, sum(heads), size)
        c, s = (t.to(torch.float32 if x.dtype in FLOATS else x.dtype) for t in (cos, sin))
        rotating = sum(heads[:2])
        return torch.cat([rotate(wide[:, :rotating], c, s).to(x.dtype), wide[:, rotating:]], 1)

    def ours(x):
        return torch.cat(gsa.rotary(x, cos.float(), sin.float(), *heads), 1)

    compare(ours, reference, (x,), dtype)


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("shape", [(97, 118), (4, 33, 256), (64, 2)], ids=sizes_id)
def test_swiglu(shape, dtype):
    def reference(x):
        g, u = x.chunk(2, -1)
        return F.silu(g) * u

    compare(gsa.swiglu, reference, (normal(*shape, dtype=dtype, scale=3),), dtype)


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("classes", [7, 64, 5000])
def test_cross_entropy(classes, dtype):
    logits = normal(31, classes, dtype=dtype, scale=3)
    targets = torch.randint(0, classes, (31,))
    targets[::4] = -100
    exact = logits.double().requires_grad_()
    plain = logits.float().clone().requires_grad_()
    losses = [F.cross_entropy(z, targets, reduction="none", ignore_index=-100) for z in (plain, exact)]
    for loss in losses:
        loss.sum().backward()
    work = logits.clone()
    loss = gsa.cross_entropy_(work, targets, gradient=True)
    assert_close_as(loss, losses[0].detach(), losses[1].detach(), 2, "loss")
    assert_close_as(work, plain.grad.to(dtype), exact.grad, 3, "gradient")
    again = logits.clone()
    assert_same_bits(gsa.cross_entropy_(again, targets), loss)
    assert_same_bits(again, logits)


def test_gradcheck():
    f64 = dict(dtype=torch.float64)
    x, b, w = (normal(*shape, **f64).requires_grad_() for shape in ((5, 6), (5, 6), (6,)))
    assert torch.autograd.gradcheck(lambda *t: gsa.rms_norm(*t, EPS)[:2], (x, b, w))
    assert torch.autograd.gradcheck(lambda x, w: gsa.rms_norm(x, None, w, EPS)[0], (x, w))
    cos, sin = normal(5, 2, **f64), normal(5, 2, **f64)
    joint = normal(5, 4 * 5, **f64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gsa.rotary(x, cos, sin, 2, 1, 1), (joint,))
    assert torch.autograd.gradcheck(gsa.swiglu, (joint,))


def forward_cases(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    leaf = lambda *shape: sample.leaf(torch.randn(*shape))
    tables = torch.randn(4, 2), torch.randn(4, 2)
    return {
        "rms_norm": ((leaf(4, 8), None, leaf(8), EPS), {}),
        "rms_norm-branch": ((leaf(4, 8), leaf(4, 8), leaf(8), EPS), {}),
        "rotary": ((leaf(4, 3 * 5), *tables, 1, 1, 1), {}),
        "swiglu": ((leaf(4, 8),), {}),
    }


def cases_without_gradients(sample):
    rows, rstd = torch.randn(4, 8), torch.rand(4)
    heads, tables = torch.randn(4, 2, 5), (torch.randn(4, 2), torch.randn(4, 2))
    step = dict(lr=0.1, beta1=0.9, beta2=0.95, eps=1e-8, decay=0.1, factor=0.5, step=2)
    return {
        "rms_norm_backward": ((rows, torch.randn(4, 8), torch.randn(4, 8), torch.randn(8), rstd), {}),
        "rotary_backward": ((heads, heads[:, :1].clone(), heads[:, 1:].clone(), *tables), {}),
        "swiglu_backward": ((rows, torch.randn(4, 16)), {}),
        "cross_entropy_": ((rows.clone(), torch.tensor([0, 7, -100, 3])), dict(gradient=True)),
        "adamw_": (
            (torch.randn(5), torch.randn(5), torch.rand(5), torch.randn(5).bfloat16(), torch.randn(5)),
            step,
        ),
    }


def test_strided_inputs_give_the_same_bits():
    x, w = torch.randn(6, 16), torch.randn(8)
    view = x[:, 4:12]
    assert_same_bits(gsa.rms_norm(view, None, w, EPS)[0], gsa.rms_norm(view.contiguous(), None, w, EPS)[0])
    assert_same_bits(gsa.swiglu(view), gsa.swiglu(view.contiguous()))


def rotary(columns=8, pairs=1, heads=(1, 1, 0)):
    return gsa.rotary(torch.randn(4, columns), torch.randn(4, pairs), torch.randn(4, pairs), *heads)


def step(**changes):
    state = [torch.zeros(5) for _ in range(3)]
    numbers = dict(lr=0.1, beta1=0.9, beta2=0.95, eps=1e-8, decay=0.1, factor=0.5, step=1)
    gradient = changes.pop("gradient", torch.zeros(5))
    return gsa.adamw_(*state, None, gradient, **(numbers | changes))


@pytest.mark.parametrize(
    "call, argument",
    [
        (lambda: gsa.rms_norm(torch.randn(4, 0), None, torch.randn(0), EPS), "x"),
        (lambda: gsa.rms_norm_backward(torch.randn(4, 0), None, torch.randn(4, 0), torch.randn(0), torch.rand(4)), "sum"),
        (lambda: rotary(heads=(3, -1, 0)), "k_heads"),
        (lambda: rotary(columns=2 * 257), "x"),
        (lambda: rotary(pairs=3), "cos"),
        (lambda: gsa.rotary_backward(*[torch.randn(4, 1, 4)] * 3, torch.randn(4, 3), torch.randn(4, 3)), "cos"),
        (lambda: gsa.cross_entropy_(torch.randn(4, 0), torch.zeros(4, dtype=torch.int64)), "logits"),
        (lambda: step(step=0), "step"),
        (lambda: gsa.rms_norm(torch.empty((), device="meta"), None, torch.empty(0, device="meta"), EPS), "x"),
        (lambda: gsa.rotary(*torch.empty(3, 8, device="meta"), 1, 1, 0), "x"),
        (lambda: gsa.rotary(*torch.empty(3, 4, 8, device="meta"), 1, -1, 0), "q_heads"),
        (lambda: gsa.rotary_backward(*torch.empty(5, 4, 8, device="meta")), "dq"),
        (lambda: gsa.swiglu(torch.empty((), device="meta")), "x"),
        (lambda: gsa.cross_entropy_(*torch.empty(2, 8, device="meta")), "logits"),
        (lambda: step(gradient=torch.zeros(5, dtype=torch.float64)), "gradient"),
        (lambda: gsa.rms_norm(torch.randn(4, 8), None, torch.randn(7), EPS), "weight"),
        (lambda: gsa.rms_norm(torch.randn(4, 8), torch.randn(4, 7), torch.randn(8), EPS), "branch"),
        (lambda: gsa.rms_norm(torch.randn(4, 8), None, torch.randn(8), -1.0), "eps"),
        (lambda: gsa.rotary(torch.randn(4, 9), torch.randn(4, 1), torch.randn(4, 1), 1, 1, 0), "x"),
        (lambda: gsa.rotary(torch.randn(4, 8), torch.randn(3, 1), torch.randn(4, 1), 1, 1, 0), "cos"),
        (lambda: gsa.rotary(torch.randn(4, 8), torch.randn(4, 3), torch.randn(4, 3), 1, 1, 0), "cos"),
        (lambda: gsa.swiglu(torch.randn(4, 9)), "x"),
        (lambda: gsa.cross_entropy_(torch.randn(4, 8), torch.full((4,), 8)), "targets"),
        (lambda: gsa.cross_entropy_(torch.randn(8, 4).t(), torch.zeros(4, dtype=torch.int64)), "logits"),
    ],
)
def test_refusals_name_the_argument(call, argument):
    with pytest.raises(RuntimeError, match=f"gsa::.*argument '{argument}': expected .*, got ") as info:
        call()
    name = re.match(r"gsa::(\w+): ", str(info.value)).group(1)
    assert argument in [a.name for a in getattr(gsa, name).default._schema.arguments]

"""gsa::gate: x * sigmoid(z), element-wise or one gate a head; and what the paper proves about gates."""

import pytest
import torch

import reference
from problems import FLOATS, assert_close_as, assert_same_bits, everywhere, pack, sizes_id

gsa = torch.ops.gsa


def inputs(shape, head_wise, dtype=torch.float32):
    x = torch.randn(shape, dtype=torch.float64).to(dtype)
    z = (3 * torch.randn(shape[:-1] if head_wise else shape, dtype=torch.float64)).to(dtype)
    return x, z


def forward_cases(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    x = sample.p.q
    return {"gate": ((x, sample.leaf(x)), {}), "gate-head": ((x, sample.leaf(x[..., 0])), {})}


def cases_without_gradients(sample):
    x = sample.p.q
    return {"gate_backward": ((sample.dout, x, x + 1), {})}


@pytest.mark.parametrize("head_wise", [False, True], ids=["element", "head"])
@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize(
    "shape", [(2, 97, 4, 59), (1025, 3, 64), (7, 256), (1, 1), (2, 3, 5, 4, 33)], ids=sizes_id
)
def test_against_reference(shape, dtype, head_wise):
    x, z = inputs(shape, head_wise, dtype)
    results = []
    for cast in (lambda t: t.clone(), lambda t: t.clone(), lambda t: t.double()):
        results.append(tuple(cast(t).requires_grad_() for t in (x, z)))
    ours, torchs, exact = results
    y, y_torch, y_exact = gsa.gate(*ours), reference.gate(*torchs), reference.gate(*exact)
    assert_close_as(y, y_torch, y_exact, 2, "y")
    direction = torch.randn(shape, dtype=torch.float64).to(dtype)
    y.backward(direction), y_torch.backward(direction), y_exact.backward(direction.double())
    for i, name in enumerate(("dx", "dz")):
        assert_close_as(ours[i].grad, torchs[i].grad, exact[i].grad, 3, name)


@pytest.mark.parametrize("head_wise", [False, True], ids=["element", "head"])
def test_strided_inputs(head_wise):
    """Views whose leading dimensions collapse are read in place; any other view gives the same bits."""
    x, z = inputs((2, 30, 4, 16), head_wise)
    fused = torch.randn(2, 30, 4, 48)
    fused[..., 16:32] = x
    wide = torch.randn(2, 64, *z.shape[2:])
    wide[:, :30] = z
    permuted = x.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    transposed = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    y = gsa.gate(x, z)
    for view in (fused[..., 16:32], permuted, transposed):
        assert_same_bits(gsa.gate(view, z), y)
        assert_same_bits(gsa.gate(view, wide[:, :30]), y)
    dy = torch.randn_like(x)
    expected = gsa.gate_backward(dy, x, z)
    ours = gsa.gate_backward(dy.transpose(1, 2).contiguous().transpose(1, 2), fused[..., 16:32], wide[:, :30])
    for a, b in zip(ours, expected):
        assert_same_bits(a, b)


@pytest.mark.parametrize("shape", [(0, 4, 8), (3, 0, 8), (3, 4, 0)], ids=sizes_id)
@pytest.mark.parametrize("head_wise", [False, True], ids=["element", "head"])
def test_empty(shape, head_wise):
    x, z = (t.requires_grad_() for t in inputs(shape, head_wise))
    y = gsa.gate(x, z)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.shape == x.shape and z.grad.shape == z.shape and (z.grad == 0).all()


def test_saturated_and_not_finite():
    x = torch.tensor([[2.0, 2.0, 2.0, float("nan"), float("inf"), 2.0]])
    z = torch.tensor([[100.0, -100.0, -1000.0, 0.0, 0.0, float("nan")]])
    y = gsa.gate(x, z)
    assert y[0, 0] == 2 and (y[0, 1:3] >= 0).all() and (y[0, 1:3] < 1e-37).all()  # shut: the smallest normals
    assert y[0, 3].isnan() and y[0, 4].isinf() and y[0, 5].isnan()


def test_double_backward_names_the_operator():
    x, z = (t.requires_grad_() for t in inputs((3, 2, 4), False))
    (dx,) = torch.autograd.grad(gsa.gate(x, z).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gsa::gate_backward"):
        dx.sum().backward()


@pytest.mark.parametrize("head_wise", [False, True], ids=["element", "head"])
@pytest.mark.parametrize("spread", [0.1, 1.0, 20.0])
def test_gradients_contract(head_wise, spread):
    """The paper's gradient theorem: |dL/dx| <= |dL/dy|, for the whole, each token and each element; and a
    gate's own gradient is at most a quarter of x dy."""
    x, z = inputs((2, 50, 4, 16), head_wise)
    z = spread * z
    dy = torch.randn_like(x)
    dx, dz = gsa.gate_backward(dy, x, z)
    assert dx.norm() <= dy.norm()
    assert (dx.norm(dim=-1) <= dy.norm(dim=-1)).all()
    assert (dx.abs() <= dy.abs()).all()
    bound = (x * dy).abs() / 4
    bound = bound.sum(-1) if head_wise else bound
    assert (dz.abs() <= bound * (1 + 1e-6)).all()


def test_gates_break_the_rank_bottleneck():
    """The paper's expressiveness argument, on one head. With the attention weights held fixed, a token's
    value reaches the output through W_V W_O: a linear map of rank d_k at most, the same for every token,
    so nothing but d_k directions of the input ever matters. With G2 and G1 the map is not linear, and the
    directions that matter to one token or another span more than d_k.

    (The outputs themselves stay in the row space of W_O, d_k dimensions, with gates or without.)
    """
    width, size, tokens = 24, 4, 12
    random = lambda *shape: torch.randn(*shape, dtype=torch.float64)
    w_v, w_o, w_gv, w_go = random(width, size), random(size, width), random(width, size), random(width, size)
    x = random(tokens, width)
    # Each token selects itself alone: attention weights are 1 whatever the queries and keys are.
    mask = pack(torch.eye(tokens, dtype=torch.bool).unsqueeze(0))
    fixed = random(1, tokens, 1, size)

    def layer(x, gated):
        v = (x @ w_v).view(1, tokens, 1, size)
        if gated:
            v = gsa.gate(v, (x @ w_gv).view_as(v))
        o, _ = gsa.attend(fixed, fixed, v, mask)
        if gated:
            o = gsa.gate(o, (x @ w_go).view_as(o))
        return o.view(tokens, size) @ w_o

    def sensitive_directions(gated):
        jacobian = torch.autograd.functional.jacobian(lambda t: layer(t, gated), x)
        own = torch.stack([jacobian[t, :, t] for t in range(tokens)])  # [tokens, outputs, inputs]
        return torch.linalg.matrix_rank(own.reshape(-1, width)).item()

    torch.testing.assert_close(layer(x, False), x @ w_v @ w_o)
    assert torch.linalg.matrix_rank(layer(x, False)).item() == size
    assert sensitive_directions(gated=False) == size
    assert sensitive_directions(gated=True) > size

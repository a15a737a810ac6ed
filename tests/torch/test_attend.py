"""gsa::attend: softmax attention over a mask or over everything visible, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import reference
from problems import FLOATS, assert_close_as, assert_same_bits, everywhere, make, pack, rounding_of

gsa = torch.ops.gsa


def random_mask(batch, queries, keys, share=0.3):
    """Selections of all sizes; every query has itself."""
    seen = reference.visible(queries, keys)
    mask = (torch.rand(batch, queries, keys) < share * 2 * torch.rand(batch, queries, 1)) & seen
    mask |= seen & ~reference.visible(queries, keys, keys - queries - 1)
    return mask


def sdpa(q, k, v, mask):
    """torch's attention at the tensors' precision; the one that, as ours, keeps lse and no matrix. That of the
    CPU for the GPU too, where torch's takes neither masks nor odd head sizes."""
    device = q.device
    q, k, v, mask = (t.cpu() for t in (q, k, v, mask))
    mask = mask.unsqueeze(-3) if mask.dim() == 3 else mask
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=True
        )
    return out.transpose(1, 2).to(device)


SHAPES = {
    "mha": dict(heads=4, kv_heads=4, queries=97),
    "gqa": dict(heads=6, kv_heads=2, queries=97, size=59),
    "mqa": dict(heads=8, kv_heads=1, queries=64, size=64),
    "offset": dict(queries=33, keys=130, size=128),
    "wide": dict(heads=2, kv_heads=2, queries=70, size=256),
    "narrow": dict(batch=8, heads=3, kv_heads=1, queries=40, size=1),
    "long": dict(batch=1, heads=2, kv_heads=1, queries=1025, size=32),
    "large-group": dict(batch=1, heads=16, kv_heads=1, queries=256, size=64),
    "decode": dict(batch=10, heads=8, kv_heads=2, queries=1, keys=1025, size=64),
    "one": dict(batch=50, queries=1),
}


def check(p, words, mask, dtype):
    leaves, exact_leaves, torch_leaves = p.leaves(), p.double().leaves(), p.leaves()
    out, lse = gsa.attend(*leaves.attention(), words)
    exact, exact_lse = reference.attend(*exact_leaves.attention(), mask)
    baseline = sdpa(*torch_leaves.attention(), mask)
    with torch.no_grad():
        baseline_lse = reference.attend(*p.attention(), mask)[1]
    assert out.dtype == dtype and lse.dtype == torch.float32 and not lse.requires_grad
    assert_close_as(out, baseline, exact, 2, "out")
    assert_close_as(lse, baseline_lse, exact_lse, 2, "lse")
    direction = torch.randn_like(exact).to(dtype)
    out.backward(direction)
    exact.backward(direction.double())
    baseline.backward(direction)
    terms, inherited = {}, rounding_of(lse)
    if mask.size(-1) == 1:
        # dq and dk are 0: the difference of one product of direction and v that is added up twice, in orders
        # that need not agree. torch's may, so its error is no measure.
        groups = p.q.size(-2) // p.k.size(-2)
        k, v = (x.double().repeat_interleave(groups, -2).cpu() for x in (p.k, p.v))
        product = p.q.size(-1) ** -0.5 * (direction.double().cpu() * v).abs().sum(-1, keepdim=True)
        of_k = (product * p.q.double().cpu().abs()).unflatten(-2, (-1, groups)).sum(-2)
        terms = {"q": (product * k.abs()).to(p.q.device), "k": of_k.to(p.q.device)}
        inherited = max(inherited, torch.finfo(lse.dtype).eps)
    for name in ("q", "k", "v"):
        ours, torchs, right = (getattr(x, name).grad for x in (leaves, torch_leaves, exact_leaves))
        assert ours.dtype == dtype
        assert_close_as(ours, torchs, right, 3, f"d{name}", inherited, terms.get(name))


def forward_cases(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    attention = sample.p.attention()
    return {
        "attend": ((*attention, sample.mask), sample.layout),
        "attend-dense": (attention, sample.layout),
        "pack_mask": ((torch.rand(2, 9, 40) < 0.5,), {}),
    }


def cases_without_gradients(sample):
    arguments = (sample.dout, *sample.p.attention(), sample.mask, sample.out, sample.lse)
    return {"attend_backward": (arguments, sample.layout)}


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_masked(shape, dtype):
    p = make(dtype=dtype, **SHAPES[shape])
    mask = random_mask(p.q.size(0), p.q.size(1), p.k.size(1))
    check(p, pack(mask), mask, dtype)


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_dense(shape, dtype):
    p = make(dtype=dtype, **SHAPES[shape])
    check(p, None, reference.visible(p.q.size(1), p.k.size(1)), dtype)


def test_dense_is_the_full_mask_bit_for_bit():
    p = make(queries=150)
    words = pack(reference.visible(150, 150).expand(2, -1, -1))
    for dense, masked in zip(gsa.attend(*p.attention()), gsa.attend(*p.attention(), words)):
        assert_same_bits(dense, masked)


def test_scale():
    p = make(queries=20)
    out, lse = gsa.attend(*p.attention(), scale=0.7)
    exact, exact_lse = reference.attend(*p.double().attention(), reference.visible(20, 20), scale=0.7)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-6)
    default = gsa.attend(*p.attention(), scale=16**-0.5)
    assert_same_bits(default[0], gsa.attend(*p.attention())[0])


@pytest.mark.parametrize(
    "shape", [dict(batch=0, queries=5), dict(queries=0, keys=7), dict(batch=0, queries=0)]
)
def test_empty(shape):
    p = make(**shape).leaves()
    out, lse = gsa.attend(*p.attention())
    assert out.shape == p.q.shape and lse.shape == p.q.shape[:-1]
    out.sum().backward()
    for tensor in p.attention():
        assert tensor.grad.shape == tensor.shape and (tensor.grad == 0).all()


def test_only_wanted_gradients():
    p = make(queries=20)
    v = p.v.clone().requires_grad_()
    out, _ = gsa.attend(p.q, p.k, v)
    out.sum().backward()
    assert v.grad is not None and p.q.grad is None
    assert not gsa.attend(*p.attention())[0].requires_grad


def test_large_logits_do_not_overflow():
    p = make(queries=50, dtype=torch.float16)
    q = p.q * 200
    mask = reference.visible(50, 50)
    out, lse = gsa.attend(q, p.k, p.v)
    exact, exact_lse = reference.attend(q.double(), p.k.double(), p.v.double(), mask)
    assert out.isfinite().all() and exact_lse.abs().max() > 1000
    assert_close_as(out, sdpa(q, p.k, p.v, mask), exact, 2, "out")
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-6, atol=1e-3)


def test_double_backward_names_the_operator():
    p = make(queries=5).leaves()
    out, _ = gsa.attend(*p.attention())
    (dq,) = torch.autograd.grad(out.sum(), p.q, create_graph=True)
    with pytest.raises(RuntimeError, match="gsa::attend_backward"):
        dq.sum().backward()

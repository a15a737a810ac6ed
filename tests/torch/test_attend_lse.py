"""gsa::attend_lse: the log-sum-exp of dense attention, of every query or of a sample."""

import pytest
import torch

import reference
from problems import FLOATS, assert_close_as, assert_same_bits, everywhere, make

gsa = torch.ops.gsa


def exact_lse(p):
    logits = torch.einsum("blhd,bshd->blhs", p.q, p.k.repeat_interleave(p.q.size(2) // p.k.size(2), 2))
    seen = reference.visible(p.q.size(1), p.k.size(1)).to(p.q.device)
    return (logits * p.q.size(-1) ** -0.5).masked_fill(~seen[:, None], float("-inf")).logsumexp(-1)


SHAPES = {
    "plain": dict(batch=3, queries=97),
    "gqa59": dict(batch=2, queries=150, heads=6, kv_heads=2, size=59),
    "offset": dict(batch=2, queries=33, keys=100),
    "one": dict(batch=5, queries=1),
}


def cases_without_gradients(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    arguments = (sample.p.q, sample.p.k)
    return {
        "attend_lse": (arguments, sample.layout),
        "attend_lse-tiles": (arguments, sample.layout | sample.TILES),
    }


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_torch(shape, dtype):
    p = make(dtype=dtype, **SHAPES[shape])
    lse = gsa.attend_lse(p.q, p.k)
    assert lse.dtype == torch.float32 and lse.shape == p.q.shape[:3]
    assert_close_as(lse, exact_lse(p.map(lambda t: t.float())), exact_lse(p.double()), 2, "lse")


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16, torch.float64]), indirect=True)
def test_a_sample_is_what_it_is_among_all(dtype):
    """Tiles of 64 positions: 90 .. 127, 128 .. 191 and 192 .. 199 of each of two sequences."""
    p = make(batch=2, queries=110, keys=200, dtype=dtype)
    every = gsa.attend_lse(p.q, p.k)
    some = gsa.attend_lse(p.q, p.k, query_tiles=torch.tensor([1, 3, 5], device="cpu"))
    inside = torch.zeros(2, 110, dtype=torch.bool)
    inside[0, 38:102] = inside[1, :38] = inside[1, 102:] = True
    assert_same_bits(some, torch.where(inside[..., None].to(every.device), every, 0))


def test_packed_and_scale():
    p = make(batch=1, queries=150)
    starts = torch.tensor([0, 70, 70, 150])
    layout = dict(cu_seqlens_q=starts, cu_seqlens_k=starts)
    lse = gsa.attend_lse(p.q[0], p.k[0], query_tiles=torch.tensor([1, 2], dtype=torch.int32, device="cpu"), scale=0.3, **layout)
    expected = gsa.attend(p.q[0], p.k[0], p.v[0], scale=0.3, **layout)[1]
    expected[:64] = expected[134:] = 0
    assert_same_bits(lse, expected)


def test_no_tile_gives_zeros():
    p = make(batch=2, queries=70)
    assert (gsa.attend_lse(p.q, p.k, query_tiles=torch.tensor([], dtype=torch.int64, device="cpu")) == 0).all()


@pytest.mark.parametrize("shape", [dict(batch=0, queries=5), dict(queries=0, keys=7)])
def test_empty(shape):
    p = make(**shape)
    assert gsa.attend_lse(p.q, p.k).shape == p.q.shape[:3]


def test_its_gradient_is_an_error():
    p = make(queries=5).leaves()
    with pytest.raises(RuntimeError, match="gsa::attend_lse"):
        gsa.attend_lse(p.q, p.k).sum().backward()

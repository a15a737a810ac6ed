"""gsa::sparse_attend: select and attend together, a mask kept only where it is small."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import reference
from problems import FLOATS, assert_close_as, assert_same_bits, everywhere, make, unpack

gsa = torch.ops.gsa
OPTIONS = dict(budget="fixed", k_base=24, k_min=1, k_max=64)


def sparse(p, **options):
    return gsa.sparse_attend(*p.attention(), *p.indexer(), index_scale=p.scale(), **{**OPTIONS, **options})


def in_steps(p, **options):
    mask, *selection = gsa.select(*p.indexer(), scale=p.scale(), **{**OPTIONS, **options})
    return (*gsa.attend(*p.attention(), mask), *selection), mask


def forward_cases(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    arguments = (*sample.p.attention(), *sample.p.indexer())
    return {
        "sparse_attend": (arguments, sample.BUDGET | sample.layout),
        "sparse_attend_with_mask": (arguments, sample.BUDGET | sample.layout | sample.width),
    }


def cases_without_gradients(sample):
    forward = (*sample.p.attention(), *sample.p.indexer(), sample.out, sample.lse)
    arguments = (sample.dout, *forward, sample.threshold, sample.tie_cut)
    return {
        "sparse_attend_backward": (arguments, sample.layout),
        "sparse_attend_backward-mask": ((*arguments, sample.mask), sample.layout),
    }


@pytest.mark.parametrize("form", ["sigmoid", "relu"])
@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
def test_against_reference(dtype, form):
    p = make(queries=130, size=59, dtype=dtype).leaves()
    out, lse, k_t, variance, threshold, tie_cut = sparse(p, form=form)
    assert out.requires_grad
    assert not any(t.requires_grad for t in (lse, k_t, variance, threshold, tie_cut))
    # The selection is select()'s (tested there); attention over it is compared with float64 and with torch.
    mask = unpack(gsa.select(*p.indexer(), scale=p.scale(), form=form, **OPTIONS)[0], 130)
    exact_p, torch_p = p.double().leaves(), p.leaves()
    exact, _ = reference.attend(*exact_p.attention(), mask)
    baseline, _ = reference.attend(*torch_p.attention(), mask)
    assert_close_as(out, baseline, exact, 2, "out")
    direction = torch.randn_like(exact).to(dtype)
    out.backward(direction), exact.backward(direction.double()), baseline.backward(direction)
    for name in ("q", "k", "v"):
        ours, torchs, right = (getattr(x, name).grad for x in (p, torch_p, exact_p))
        assert_close_as(ours, torchs, right, 3, f"d{name}")
    assert all(tensor.grad is None for tensor in p.indexer()), "the selection passes no gradient"


@pytest.mark.parametrize(
    "options", [{}, dict(budget="inverse", mean_variance=torch.tensor(0.02))], ids=["fixed", "inverse"]
)
def test_equals_its_two_steps(options):
    p = make(queries=300)
    expected, _ = in_steps(p, **options)
    for ours, theirs in zip(sparse(p, **options), expected):
        assert_same_bits(ours, theirs)


def test_everything_selected_is_torchs_attention():
    p = make(queries=97, size=64)
    out = sparse(p, k_base=97, k_max=97)[0]
    q, k, v = (t.transpose(1, 2) for t in p.attention())
    dense = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    exact, _ = reference.attend(*p.double().attention(), reference.visible(97, 97))
    assert_close_as(out, dense, exact, 2, "out")


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
def test_longer_than_a_chunk(dtype):
    """More than 2048 queries run in chunks: the forward pass does not show it in a single bit."""
    p = make(
        batch=2, queries=2500, heads=2, kv_heads=1, size=16, index_heads=2, index_size=8, dtype=dtype
    ).leaves()
    expected, mask = in_steps(p)
    ours = sparse(p)
    for name, a, b in zip(("out", "lse", "k_t", "variance", "threshold", "tie_cut"), ours, expected):
        assert_same_bits(a, b, name)
    # The backward pass sums over queries chunk by chunk: equal up to rounding.
    direction = torch.randn_like(ours[0])
    chunks = torch.autograd.grad(ours[0], p.attention(), direction)
    whole = torch.autograd.grad(expected[0], p.attention(), direction)
    assert_same_bits(chunks[0], whole[0], "dq")
    tolerance = 4 * torch.finfo(dtype).eps
    for a, b in zip(chunks[1:], whole[1:]):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * b.abs().max().item())


# One sequence a chunk, and one that is cut into chunks; a mask's row is no longer than a row of q.
KEPT = [dict(batch=2, queries=300, size=64), dict(queries=2500, heads=4, kv_heads=1, size=48, index_heads=2)]


def sparse_and_kept(p):
    """Its results, and the masks that autograd keeps."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        results = sparse(p)
    return results, [t for t in saved if t.dtype == torch.int32 and t.dim() == 3]


@pytest.mark.parametrize("shape", KEPT, ids=["whole", "cut"])
@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
def test_kept_mask_changes_no_bit(dtype, shape):
    p = make(dtype=dtype, **shape).leaves()
    (out, lse, _, _, threshold, tie_cut), (mask,) = sparse_and_kept(p)
    selected, *_ = gsa.select(*p.indexer(), scale=p.scale(), **OPTIONS)
    assert_same_bits(mask, selected, "mask")
    direction = torch.randn_like(out)
    with torch.no_grad():
        rebuilt = gsa.sparse_attend_backward(
            direction, *p.attention(), *p.indexer(), out, lse, threshold, tie_cut, index_scale=p.scale()
        )
    for name, a, b in zip("qkv", torch.autograd.grad(out, p.attention(), direction), rebuilt):
        assert_same_bits(a, b, f"d{name}")


def test_large_mask_is_not_kept():
    p = make(queries=2100, heads=2, kv_heads=1, size=8).leaves()  # 264 bytes a query, four times q: 256
    assert sparse_and_kept(p)[1] == []
    with torch.no_grad():
        assert sparse_and_kept(make(queries=300, size=64))[1] == [], "nobody asks for gradients"


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
def test_with_mask_is_the_same(dtype):
    """Of packed sequences sparse_attend keeps no mask; who asks for it gets it, and the same gradients."""
    packed = make(queries=300, size=64, dtype=dtype).map(lambda t: t[0] if t.dim() > 1 else t).leaves()
    bounds = torch.tensor([0, 110, 300], device="cpu")
    results, kept = [], []
    for op in (gsa.sparse_attend, gsa.sparse_attend_with_mask):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            ours = op(
                *packed.attention(),
                *packed.indexer(),
                index_scale=packed.scale(),
                cu_seqlens_q=bounds,
                cu_seqlens_k=bounds,
                **OPTIONS,
            )
        kept.append([t for t in saved if t.dtype == torch.int32 and t.dim() == 2])
        torch.manual_seed(3)
        direction = torch.randn_like(ours[0])
        results.append((*ours[:6], *torch.autograd.grad(ours[0], packed.attention(), direction)))
    for a, b in zip(*results):
        assert_same_bits(a, b)
    assert kept[0] == [] and len(kept[1]) == 1
    mask = ours[6]
    selected = gsa.select(
        *packed.indexer(), scale=packed.scale(), cu_seqlens_q=bounds, cu_seqlens_k=bounds, **OPTIONS
    )[0]
    assert not mask.requires_grad
    assert_same_bits(mask, selected, "mask")
    assert_same_bits(kept[1][0], mask, "kept")


@pytest.mark.parametrize("shape", [dict(batch=0, queries=5), dict(queries=0, keys=7)])
def test_empty(shape):
    p = make(**shape).leaves()
    out, lse, *selection = sparse(p)
    assert out.shape == p.q.shape and lse.shape == p.q.shape[:-1]
    assert all(t.shape == p.q.shape[:2] for t in selection)
    out.sum().backward()
    assert p.k.grad.shape == p.k.shape and (p.k.grad == 0).all()


def test_double_backward_names_the_operator():
    p = make(queries=5).leaves()
    (dv,) = torch.autograd.grad(sparse(p)[0].sum(), p.v, create_graph=True)
    with pytest.raises(RuntimeError, match="gsa::sparse_attend_backward"):
        dv.sum().backward()


MEMORY = """
import resource, sys, torch
torch.ops.load_library(sys.argv[1])
sys.path.insert(0, sys.argv[2])
from problems import make
p = make(batch=1, queries=32768, heads=2, kv_heads=1, size=8, index_heads=1, index_size=8).leaves()
def step(p):
    out, lse, k_t, variance, threshold, tie_cut = torch.ops.gsa.sparse_attend(
        *p.attention(), *p.indexer(), budget="fixed", k_base=64, k_min=1)
    out.sum().backward()
    loss, _ = torch.ops.gsa.indexer_kl(p.q, p.k, lse, *p.indexer(), None, threshold, tie_cut)
    loss.sum().backward()
step(p.map(lambda t: t.detach()[:, :2048] if t.dim() > 1 else t.detach()).leaves())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(p)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_linear():
    """At 32K tokens, forward, backward and the indexer's loss: a mask would take 128 MiB, scores 4 GiB.
    Inputs, gradients and results take 10 MiB, a chunk's mask 8 MiB; the rest is scratch. Seen: 49 MiB, and
    168 MiB with a mask."""
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, os.environ["GSA_LIBRARY"], os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    grown = int(result.stdout) / 1024
    assert grown < 96, f"{grown:.0f} MiB more at the peak"

"""Inputs, bit masks and error bounds that the tests share."""

from dataclasses import dataclass, fields, replace

import pytest
import torch

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}


def dtype_id(value):
    return NAMES.get(value) if isinstance(value, torch.dtype) else None


def operators():
    """Names of the operators, as registered; but built_with_cuda(), which takes and makes no tensor."""
    schemas = torch._C._jit_get_all_schemas()
    return [s.name.split("::")[1] for s in schemas if s.name.startswith("gsa::") and s.arguments]


def has_kernel(name, key):
    """Whether an operator is registered for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"gsa::{name}", key)


def everywhere(dtypes):
    """Parameters for the fixture dtype (indirect=True): these types on the CPU, and those among them that the
    GPU's kernels take on the GPU."""
    parameters = [pytest.param(("cpu", dtype), id=NAMES[dtype]) for dtype in dtypes]
    for dtype in (torch.bfloat16, torch.float16):
        if dtype in dtypes:
            parameters.append(pytest.param(("cuda", dtype), id=f"cuda_{NAMES[dtype]}"))
    return parameters


def sizes_id(sizes):
    """Without punctuation: a name that pytest -k can replay."""
    return "x".join(map(str, sizes))


@dataclass
class Problem:
    """One layer's worth of tensors, named as the operators name them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    index_q: torch.Tensor
    index_k: torch.Tensor
    index_w: torch.Tensor
    index_bias: torch.Tensor | None

    def map(self, f):
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Problem(**{name: None if value is None else f(value) for name, value in values.items()})

    def double(self):
        return self.map(lambda t: t.detach().double())

    def leaves(self):
        return self.map(lambda t: t.detach().clone().requires_grad_())

    def attention(self):
        return self.q, self.k, self.v

    def indexer(self):
        return self.index_q, self.index_k, self.index_w, self.index_bias

    def with_(self, **changes):
        return replace(self, **changes)

    def scale(self):
        """1/sqrt(d_I): sigmoids start in their linear range."""
        return self.index_q.size(-1) ** -0.5


def make(
    batch=2,
    queries=97,
    keys=None,
    heads=4,
    kv_heads=2,
    size=16,
    index_heads=4,
    index_size=16,
    dtype=torch.float32,
    bias=True,
    sharpness=2.0,
):
    keys = queries if keys is None else keys
    normal = lambda *shape: (torch.randn(*shape, dtype=torch.float64)).to(dtype)
    return Problem(
        q=(sharpness * normal(batch, queries, heads, size)).to(dtype),
        k=normal(batch, keys, kv_heads, size),
        v=normal(batch, keys, kv_heads, size),
        index_q=(sharpness * normal(batch, queries, index_heads, index_size)).to(dtype),
        index_k=normal(batch, keys, index_size),
        index_w=normal(batch, queries, index_heads).sigmoid(),
        index_bias=(normal(index_heads) / 2).to(dtype) if bias else None,
    )


def unpack(mask, keys):
    """int32 words [..., ceil(S/32)] as bool [..., S]."""
    bits = (mask.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)) & 1
    bits = bits.flatten(-2).bool()
    assert not bits[..., keys:].any(), "bits beyond the last key"
    return bits[..., :keys]


def pack(selected):
    """bool [..., S] as int32 words."""
    pad = -selected.size(-1) % 32
    bits = torch.nn.functional.pad(selected, (0, pad)).unflatten(-1, (-1, 32)).long()
    words = (bits << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def assert_same_bits(a, b, what="results"):
    """Equal as bits: NaN equals NaN, 0 does not equal -0."""
    assert a.shape == b.shape and a.dtype == b.dtype, f"{what}: {a.shape} {a.dtype}, {b.shape} {b.dtype}"
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    same = a.contiguous().view(integer) == b.contiguous().view(integer)
    assert same.all(), f"{what}: {(~same).sum().item()} of {same.numel()} elements differ"


def rounding_of(lse):
    """The relative error of attention weights that are rebuilt from a log-sum-exp rounded to its type."""
    return torch.finfo(lse.dtype).eps / 2 * lse.detach().abs().max().item()


def assert_close_as(ours, torchs, exact, factor, what, inherited=0.0, terms=None):
    """Our error is at most factor times the error that torch makes at the same precision.

    Both the largest and the mean error. Nothing can be asked to be better than correctly rounded, so half
    a unit in the last place is always granted: torch's error can be 0 by luck (a single key, a sum of one
    term). So is a relative error that an input brings along, `inherited`, of the terms (the result, unless
    given) that it enters. Infinities and NaN are compared apart, by position.
    """
    ours, torchs, exact = ours.detach(), torchs.detach(), exact.detach()
    assert ours.shape == exact.shape, f"{what}: shape {tuple(ours.shape)}, expected {tuple(exact.shape)}"
    finite = exact.isfinite()
    assert (ours.isfinite() == finite).all(), f"{what}: positions of inf and nan"
    half_ulp = torch.finfo(ours.dtype).eps / 2
    # Where torch overflows at this precision it sets no bound; ours was just found finite there.
    usable = finite & torchs.isfinite()
    if not usable.any():
        return
    error = (ours.double() - exact).abs()[usable]
    base = (torchs.double() - exact).abs()[usable]
    size = exact.abs()[usable]
    terms = size if terms is None else terms.detach().abs()[usable]
    for name, statistic in [("largest", torch.max), ("mean", torch.mean)]:
        bound = max(factor * statistic(base).item(), half_ulp * statistic(size).item())
        bound = max(bound, inherited * statistic(terms).item())
        value = statistic(error).item()
        assert (
            value <= bound
        ), f"{what}: {name} error {value:.3g}, torch's {statistic(base).item():.3g}, allowed {bound:.3g}"


class Sample:
    """What the cases of test_registration.py are made of: a small layer, batched or packed, and results of it."""

    BUDGET = dict(budget="fixed", k_base=5, k_min=1, k_max=64)
    TILES = dict(query_tiles=torch.tensor([1]))  # of two or more

    def __init__(self, packed, grad):
        self.grad = grad
        p = make(batch=2, queries=9, keys=40, heads=4, kv_heads=2, size=8, index_heads=3, index_size=8)
        self.layout = {}
        if packed:
            p = p.map(lambda t: t.flatten(0, 1) if t.dim() > 1 else t)
            self.layout = dict(
                cu_seqlens_q=torch.tensor([0, 4, 18]),
                cu_seqlens_k=torch.tensor([0, 30, 80]),
                q_position=torch.tensor([3, 36]),
            )
        self.width = dict(max_keys=50) if packed else {}  # of masks and scores
        self.p = p.leaves() if grad else p
        gsa = torch.ops.gsa
        with torch.no_grad():
            self.mask, _, _, self.threshold, self.tie_cut = gsa.select(
                *self.p.indexer(), **self.BUDGET, **self.layout
            )
            self.out, self.lse = gsa.attend(*self.p.attention(), self.mask, **self.layout)
            self.dout = torch.randn_like(self.out)

    def leaf(self, tensor):
        """A tensor of its own, that wants a gradient where the layer's do."""
        return tensor.detach().clone().requires_grad_(self.grad)

"""Results do not depend, bit for bit, on the future, batch neighbours, packing, threads, strides or time."""

import pytest
import torch

from problems import assert_same_bits, dtype_id, make, sizes_id

gsa = torch.ops.gsa
BUDGET = dict(budget="inverse", k_base=20, k_min=4, k_max=40, mean_variance=torch.tensor(0.02))


def run(p, backward=True, **layout):
    """Everything the operators make of a problem, by name; gradients too."""
    p = p.leaves()
    results = {}
    names = ("out", "lse", "k_t", "variance", "threshold", "tie_cut")
    sparse = gsa.sparse_attend(*p.attention(), *p.indexer(), index_scale=p.scale(), **BUDGET, **layout)
    results.update(zip(names, sparse))
    mask = gsa.select(*p.indexer(), scale=p.scale(), **BUDGET, **layout)[0]
    results["dense"], dense_lse = gsa.attend(*p.attention(), **layout)
    results["masked"], _ = gsa.attend(*p.attention(), mask, **layout)
    support = (None, results["threshold"], results["tie_cut"])
    kl = lambda lse, *support: gsa.indexer_kl(
        p.q, p.k, lse, *p.indexer(), *support, index_scale=p.scale(), **layout
    )
    results["kl"], results["index_lse"] = kl(results["lse"], *support)
    results["kl dense"], _ = kl(dense_lse)
    results["gate"] = gsa.gate(p.q, p.q[..., 0])
    if backward:
        for name in ("out", "dense", "masked", "gate"):
            wanted = [p.q] if name == "gate" else p.attention()
            grads = torch.autograd.grad(results[name], wanted, torch.ones_like(results[name]))
            results.update(zip((f"d{name}/dq", f"d{name}/dk", f"d{name}/dv"), grads))
        # The bias is shared by the batch: its gradient is a sum over neighbours, and left out.
        for name in ("kl", "kl dense"):
            grads = torch.autograd.grad(results[name].sum(), p.indexer()[:3])
            results.update(zip((f"d{name}/dq", f"d{name}/dk", f"d{name}/dw"), grads))
    return {name: tensor.detach() for name, tensor in results.items()}


def assert_same(a, b, rows=lambda t: t, names=None):
    for name in names or a:
        assert_same_bits(rows(a[name]), rows(b[name]), name)


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=dtype_id)
@pytest.mark.parametrize("cut", [1, 31, 64, 90])
def test_causality(dtype, value, cut):
    """The future changes, to whatever it likes: nothing of the past moves."""
    p = make(queries=97, dtype=dtype)

    def change(tensor):
        if tensor.dim() == 1:
            return tensor
        return torch.cat([tensor[:, :cut], torch.full_like(tensor[:, cut:], value)], 1)

    before, after = run(p, backward=False), run(p.map(change), backward=False)
    assert_same(before, after, rows=lambda t: t[:, :cut])


def test_causality_beyond_a_chunk():
    p = make(batch=1, queries=2300, heads=2, kv_heads=1, size=8, index_heads=1, index_size=8)
    change = lambda t: t if t.dim() == 1 else torch.cat([t[:, :2100], -t[:, 2100:]], 1)
    before, after = run(p, backward=False), run(p.map(change), backward=False)
    assert_same(before, after, rows=lambda t: t[:, :2100])


def test_gradients_of_the_future_do_not_reach_back():
    """A query's gradient reads nothing that comes after it."""
    p = make(queries=97)
    change = lambda t: t if t.dim() == 1 else torch.cat([t[:, :50], -t[:, 50:]], 1)
    before, after = run(p), run(p.map(change))
    assert_same(
        before, after, rows=lambda t: t[:, :50], names=[name for name in before if name.endswith("/dq")]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=dtype_id)
def test_batch_neighbours(dtype):
    p = make(batch=3, queries=97, dtype=dtype)
    together = run(p)
    for n in range(3):
        alone = run(p.map(lambda t: t[n : n + 1] if t.dim() > 1 else t))
        for name, tensor in alone.items():
            assert_same_bits(tensor, together[name][n : n + 1], name)


LENGTHS = [5, 97, 1, 33, 64]


def packed_problem(**shape):
    total = sum(LENGTHS)
    p = make(batch=1, queries=total, **shape).map(lambda t: t[0] if t.dim() > 1 else t)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    return p, offsets


@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=dtype_id)
def test_packed_is_alone(dtype, integer):
    """Each of the packed sequences gives what it gives alone, forward and backward."""
    p, offsets = packed_problem(dtype=dtype)
    together = run(p, cu_seqlens_q=offsets.to(integer), cu_seqlens_k=offsets.to(integer))
    for begin, end in zip(offsets[:-1], offsets[1:]):
        alone = run(p.map(lambda t: t[begin:end].unsqueeze(0) if t.dim() > 1 else t))
        for name, tensor in alone.items():
            assert_same_bits(tensor[0], together[name][begin:end], name)


def test_packed_is_padded():
    """Padding after the end of a sequence is future: the forward pass does not see it."""
    p, offsets = packed_problem()
    together = run(p, backward=False, cu_seqlens_q=offsets, cu_seqlens_k=offsets)
    longest = max(LENGTHS)
    rows = [torch.arange(begin, begin + longest).clamp(max=sum(LENGTHS) - 1) for begin in offsets[:-1]]
    padded = run(p.map(lambda t: torch.stack([t[r] for r in rows]) if t.dim() > 1 else t), backward=False)
    for n, length in enumerate(LENGTHS):
        for name, tensor in padded.items():
            assert_same_bits(tensor[n, :length], together[name][offsets[n] : offsets[n + 1]], name)


def test_long_sequences_among_short_ones():
    """Where a long sequence is cut does not depend on what it is packed with, in the backward pass either."""
    lengths = [70, 2200, 3, 2050, 600]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    p = make(batch=1, queries=sum(lengths), heads=2, kv_heads=1, size=8, index_heads=1, index_size=8)
    p = p.map(lambda t: t[0] if t.dim() > 1 else t)
    together = run(p, cu_seqlens_q=offsets, cu_seqlens_k=offsets)
    for begin, end in zip(offsets[:-1], offsets[1:]):
        own = torch.tensor([0, end - begin])
        alone = run(p.map(lambda t: t[begin:end] if t.dim() > 1 else t), cu_seqlens_q=own, cu_seqlens_k=own)
        for name, tensor in alone.items():
            assert_same_bits(tensor, together[name][begin:end], name)


@pytest.mark.parametrize("cuts", [[0, 97], [0, 1, 97], [0, 40, 64, 96, 97]], ids=sizes_id)
def test_queries_in_chunks(cuts):
    """Prefill in chunks against a cache of keys: q_position says where a chunk stands."""
    p = make(queries=97)
    whole = run(p, backward=False)
    for begin, end in zip(cuts[:-1], cuts[1:]):
        part = p.with_(q=p.q[:, begin:end], index_q=p.index_q[:, begin:end], index_w=p.index_w[:, begin:end])
        chunk = run(part, backward=False, q_position=torch.full((2,), begin))
        for name, tensor in chunk.items():
            assert_same_bits(tensor, whole[name][:, begin:end], name)
        # The same with only the keys that exist by then: the last query stands at the last key.
        cache = part.with_(k=p.k[:, :end], v=p.v[:, :end], index_k=p.index_k[:, :end])
        for name, tensor in run(cache, backward=False).items():
            assert_same_bits(tensor, whole[name][:, begin:end], name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=dtype_id)
def test_threads(dtype):
    p = make(batch=2, queries=300, dtype=dtype)
    torch.set_num_threads(1)
    one = run(p)
    torch.set_num_threads(2)
    assert_same(one, run(p))
    torch.set_num_threads(5)
    assert_same(one, run(p))


def test_a_thousand_repeats():
    torch.set_num_threads(2)
    p = make(batch=2, queries=33, heads=2, kv_heads=1, size=8, index_heads=2, index_size=8).leaves()

    def step():
        out, lse, k_t, variance, threshold, tie_cut = gsa.sparse_attend(
            *p.attention(), *p.indexer(), index_scale=p.scale(), **BUDGET
        )
        loss, index_lse = gsa.indexer_kl(p.q, p.k, lse, *p.indexer(), None, threshold, tie_cut)
        gradients = torch.autograd.grad((out * out).sum() + loss.sum(), (*p.attention(), *p.indexer()))
        results = (out.detach(), lse, k_t, variance, threshold, tie_cut, loss.detach(), index_lse, *gradients)
        return torch.cat([result.flatten().view(torch.int32) for result in results])

    first = step()
    for repeat in range(1000):
        assert torch.equal(first, step()), f"repeat {repeat} differs"


def strided(tensor, kind):
    """The same values in another place: padded rows, a wider batch, another order of dimensions."""
    if tensor.dim() == 1:
        return tensor.repeat_interleave(2)[::2]
    if kind == "rows":
        wide = tensor.new_full((*tensor.shape[:-1], tensor.size(-1) + 5), 7)
        wide[..., 2:-3] = tensor
        return wide[..., 2:-3]
    if kind == "cache":
        wide = tensor.new_full((tensor.size(0), tensor.size(1) + 7, *tensor.shape[2:]), 7)
        wide[:, :-7] = tensor
        return wide[:, :-7]
    if kind == "heads-first":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("kind", ["rows", "cache", "heads-first", "last-strided"])
def test_strides(kind):
    p = make(batch=2, queries=50)
    moved = p.map(lambda t: strided(t, kind))
    assert not moved.q.is_contiguous() and not moved.index_k.is_contiguous()
    detached = lambda p: (*p.attention(), *p.indexer())
    ours = gsa.sparse_attend(*detached(moved), index_scale=p.scale(), **BUDGET)
    expected = gsa.sparse_attend(*detached(p), index_scale=p.scale(), **BUDGET)
    for a, b in zip(ours, expected):
        assert_same_bits(a, b)
    out, lse, _, _, threshold, tie_cut = expected
    dout = torch.randn_like(out)
    common = (strided(out, kind), strided(lse, kind), threshold, tie_cut)
    ours = gsa.sparse_attend_backward(strided(dout, kind), *detached(moved), *common, index_scale=p.scale())
    expected = gsa.sparse_attend_backward(
        dout, *detached(p), out, lse, threshold, tie_cut, index_scale=p.scale()
    )
    for a, b in zip(ours, expected):
        assert_same_bits(a, b)
    mask = gsa.select(*p.indexer(), scale=p.scale(), **BUDGET)[0]
    for a, b in zip(gsa.attend(*moved.attention(), strided(mask, kind)), gsa.attend(*p.attention(), mask)):
        assert_same_bits(a, b)
    kl = lambda p, lse: gsa.indexer_kl(
        p.q, p.k, lse, *p.indexer(), None, threshold, tie_cut, index_scale=p.scale()
    )
    for a, b in zip(kl(moved, strided(lse, kind)), kl(p, lse)):
        assert_same_bits(a, b)


def test_expanded_inputs():
    """Stride 0 is a stride: gradients of a sum arrive so."""
    p = make(queries=40).leaves()
    a = torch.autograd.grad(gsa.attend(*p.attention())[0].sum(), p.attention())
    ones = torch.ones_like(p.q)
    b = torch.autograd.grad(gsa.attend(*p.attention())[0], p.attention(), ones)
    for x, y in zip(a, b):
        assert_same_bits(x, y)

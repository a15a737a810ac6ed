"""What only a GPU has: streams, graphs, devices; and its promises of reproducibility. Accuracy is tested where the
operators are, on the CPU and the GPU alike."""

import pytest
import torch

import reference
from problems import assert_same_bits, make, pack, unpack

gsa = torch.ops.gsa
pytestmark = pytest.mark.usefixtures("cuda")
BUDGET = dict(budget="inverse", k_base=40, k_min=8, k_max=100)
TYPES = [torch.bfloat16, torch.float16]


def layer(dtype=torch.bfloat16, **shape):
    shape = {"batch": 2, "queries": 300, "heads": 8, "kv_heads": 2, "size": 128, "index_size": 64, **shape}
    return make(dtype=dtype, **shape)


def variance():
    return torch.tensor(0.02, dtype=torch.float64)


def forward(p, **options):
    return gsa.sparse_attend(
        *p.attention(), *p.indexer(), index_scale=p.scale(), mean_variance=variance(), **{**BUDGET, **options}
    )


def everything(p, **options):
    """Every operator on one layer: results and gradients."""
    leaves = p.leaves()
    out, lse, *selection = forward(leaves, **options)
    y = gsa.gate(out, leaves.q)
    threshold, tie_cut = selection[2:]
    loss, index_lse = gsa.indexer_kl(
        p.q, p.k, lse, *leaves.indexer(), None, threshold, tie_cut, index_scale=p.scale()
    )
    dense, dense_lse = gsa.attend(*leaves.attention())
    total = y.float().pow(2).sum() + loss.sum() + dense.float().sum()
    total.backward()
    gradients = [getattr(leaves, name).grad for name in vars(leaves) if getattr(leaves, name) is not None]
    return [t.detach() for t in (out, lse, *selection, y, loss, index_lse, dense, dense_lse, *gradients)]


def test_no_operator_waits_for_the_gpu():
    """CUDA's own watch: a synchronising call is an error."""
    p = layer()
    mean = variance()
    leaves = p.leaves()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out, lse, *_ = gsa.sparse_attend(
            *leaves.attention(), *leaves.indexer(), index_scale=p.scale(), mean_variance=mean, **BUDGET
        )
        gsa.gate(out, leaves.q).sum().backward()
        gsa.indexer_kl(p.q, p.k, lse, *leaves.indexer())[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_another_stream():
    """Work is enqueued on torch's current stream: what that stream does before it is seen, whatever others do."""
    p = layer()
    expected = forward(p)
    stream = torch.cuda.Stream()
    late = p.map(torch.zeros_like)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for name in vars(p):
            getattr(late, name).copy_(getattr(p, name))
        results = forward(late)
    stream.synchronize()
    for a, b in zip(results, expected):
        assert_same_bits(a, b)


def test_graph_replays_on_new_inputs():
    """Forward and backward are captured once and replayed on other numbers, another mean variance too."""
    p, other = layer(), layer()
    mean = variance()

    def step(x):
        out, lse, k_t, _, threshold, tie_cut = gsa.sparse_attend(
            *x.attention(), *x.indexer(), index_scale=x.scale(), mean_variance=mean, **BUDGET
        )
        gradients = gsa.sparse_attend_backward(
            out, *x.attention(), *x.indexer(), out, lse, threshold, tie_cut, index_scale=x.scale()
        )
        loss = gsa.indexer_kl(x.q, x.k, lse, *x.indexer(), index_scale=x.scale())[0]
        return (out, lse, k_t, gsa.gate(out, x.q), loss, *gradients)

    static = p.map(torch.clone)
    step(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(static)
    for x, value in ((p, 0.02), (other, 0.03)):
        for name in vars(static):
            getattr(static, name).copy_(getattr(x, name))
        mean.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(results, step(x)):
            assert_same_bits(a, b)


def test_graph_of_decode_replays_with_other_lengths():
    pages, page, blocks = 40, 16, 16
    normal = lambda *shape: torch.randn(*shape).bfloat16()
    k, v, index_k = normal(pages, page, 2, 128), normal(pages, page, 2, 128), normal(pages, page, 64)
    q, index_q, index_w, z = normal(2, 1, 8, 128), normal(2, 1, 4, 64), normal(2, 1, 4).sigmoid(), normal(2, 1, 8, 128)
    block_table = torch.randperm(pages)[: 2 * blocks].view(2, blocks).to(torch.int32)
    lengths = torch.tensor([100, 7], dtype=torch.int32)

    def step():  # of a layer with an indexer, and of one that shares its selection
        *leader, selected = gsa.decode_with_selection(
            q, k, v, block_table, lengths, index_q, index_k, index_w, None, z,
            max_length=256, index_scale=0.125, budget="fixed", k_base=32, k_min=1, k_max=64,
        )  # fmt: skip
        follower = gsa.decode(
            z, v, k, block_table, lengths, max_length=256, selected=selected, selected_k=leader[2]
        )
        return *leader, selected, *follower

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for new in ([100, 7], [256, 255], [1, 33]):
        lengths.copy_(torch.tensor(new, dtype=torch.int32))
        block_table.copy_(torch.randperm(pages)[: 2 * blocks].view(2, blocks).to(torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(results, step()):
            assert_same_bits(a, b)


def test_compile():
    p = layer(queries=100)
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(p), forward(p)):
        assert_same_bits(a, b)
    torch._dynamo.reset()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_runs_on_the_device_of_its_tensors():
    p = layer()
    expected = forward(p)
    there = p.map(lambda t: t.to("cuda:1"))
    results = forward(there)
    assert torch.cuda.current_device() == 0
    for a, b in zip(results, expected):
        assert a.device == torch.device("cuda:1")
        assert_same_bits(a.to("cuda:0"), b)


@pytest.mark.parametrize("dtype", TYPES, ids=["bf16", "f16"])
def test_a_thousand_times_the_same_bits(dtype):
    p = layer(dtype, batch=1, queries=130)
    first = everything(p)
    for _ in range(1000):
        for a, b in zip(everything(p), first):
            assert torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("dtype", TYPES, ids=["bf16", "f16"])
def test_batch_neighbours_do_not_matter(dtype):
    p = layer(dtype, batch=3)
    together = everything(p)
    shared = 1  # the bias's gradient sums over the batch, as the last result
    for n in range(3):
        alone = everything(p.map(lambda t: t[n : n + 1] if t.dim() > 1 else t))
        for a, b in zip(alone[:-shared], together[:-shared]):
            assert_same_bits(a, b[n : n + 1])


@pytest.mark.parametrize("dtype", TYPES, ids=["bf16", "f16"])
@pytest.mark.parametrize("cut", [1, 64, 100, 255])
def test_the_future_does_not_matter(dtype, cut):
    p = layer(dtype)
    changed = p.map(torch.clone)
    for name in vars(changed):
        tensor = getattr(changed, name)
        if tensor is not None and tensor.dim() > 1:
            tensor[:, cut:] = float("nan") if name in ("k", "v") else 3
    for a, b in zip(forward(p), forward(changed)):
        assert_same_bits(a[:, :cut], b[:, :cut])


def test_atomic_accumulation_is_close():
    p = layer()
    ordered, atomic = everything(p), everything(p, accumulation="atomic")
    for a, b in zip(ordered, atomic):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02, equal_nan=True)


def test_bits_beyond_the_position_are_passed_over():
    p = layer(queries=90)
    mask = torch.rand(2, 90, 90) < 0.3
    mask |= torch.eye(90, dtype=torch.bool)
    dirty = pack(mask) | (torch.ones(2, 90, 3, dtype=torch.int32) << 30)
    clean = pack(unpack(dirty, 96)[..., :90] & reference.visible(90, 90))
    for a, b in zip(gsa.attend(*p.attention(), dirty), gsa.attend(*p.attention(), clean)):
        assert_same_bits(a, b)


def test_agreement_with_the_cpu_selection():
    """Scores differ by tanh.approx, so a few keys near the threshold change places; no more than a few."""
    p = layer(queries=2000, batch=1)
    options = dict(scale=p.scale(), budget="fixed", k_base=256, k_min=1, k_max=256)
    ours = unpack(gsa.select(*p.indexer(), **options)[0], 2000)
    theirs = unpack(gsa.select(*(t.cpu() for t in p.indexer()), **options)[0].cuda(), 2000)
    agreement = (ours & theirs).sum() / theirs.sum()
    print(f"keys that the GPU and the CPU both select: {100 * agreement:.3f} %")
    assert agreement > 0.98


class TestMistakes:
    def test_types(self):
        for dtype in (torch.float32, torch.float64):
            p = layer(dtype, queries=10)
            with pytest.raises(RuntimeError, match="bfloat16 or float16 on a CUDA device"):
                gsa.attend(*p.attention())
            with pytest.raises(RuntimeError, match="bfloat16 or float16 on a CUDA device"):
                gsa.select(*p.indexer())
        with pytest.raises(RuntimeError, match="float32, bfloat16 or float16 on a CUDA device"):
            gsa.gate(p.q, p.q)

    def test_mixed_devices(self):
        p = layer(queries=10)
        with pytest.raises(RuntimeError, match="'k': expected a tensor on cuda:0, got cpu"):
            gsa.attend(p.q, p.k.cpu(), p.v)
        with pytest.raises(RuntimeError, match="'k': expected a tensor on cpu, got cuda:0"):
            gsa.attend(p.q.cpu(), p.k, p.v)
        with pytest.raises(RuntimeError, match="'index_w': expected a tensor on cuda:0, got cpu"):
            gsa.sparse_attend(*p.attention(), p.index_q, p.index_k, p.index_w.cpu())

    def test_layout_stays_on_the_cpu(self):
        p = layer(batch=1, queries=10).map(lambda t: t[0] if t.dim() > 1 else t)
        bounds = torch.tensor([0, 4, 10])
        gsa.attend(*p.attention(), cu_seqlens_q=bounds.cpu(), cu_seqlens_k=bounds.cpu())
        with pytest.raises(RuntimeError, match="'cu_seqlens_q': expected a tensor on cpu"):
            gsa.attend(*p.attention(), cu_seqlens_q=bounds, cu_seqlens_k=bounds)

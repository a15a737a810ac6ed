"""GatedSparseAttention against the formulas on whole matrices, its phases and losses, and the running mean."""

import copy

import pytest
import reference
import torch
from configs import CASES, attention
from torch.utils.checkpoint import checkpoint

import gated_sparse_attention as gsa

LENGTH = 96


def make(dtype=torch.float64, mean=0.02, **changes):
    layer = gsa.GatedSparseAttention(attention(**changes)).to(dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():  # not the start's
            if name.endswith("_norm.weight"):
                parameter.normal_(1, 0.2)
            elif name.endswith("_proj.bias"):
                parameter.normal_(0, 0.5)
    if layer.indexer is not None:
        layer.indexer.mean_variance.fill_(mean)
    return layer


def rotated(x, rope, positions):
    cos, sin = (t.unsqueeze(1) for t in rope.tables(positions, torch.float64))
    n = cos.size(-1)
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def by_formula(layer, h, phase, support):
    """Output, loss of each query and kept mass, with matrices of all pairs. float64."""
    c, positions, seen = layer.config, torch.arange(h.size(1)), reference.visible(h.size(1), h.size(1))
    heads = lambda x, n: x.unflatten(-1, (n, -1))
    normed = lambda x, norm: x if norm is None else torch.nn.functional.rms_norm(x, x.shape[-1:], norm.weight, 1e-5)
    q = rotated(normed(heads(layer.q_proj(h), c.heads), layer.q_norm), layer.rope, positions)
    k = rotated(normed(heads(layer.k_proj(h), c.kv_heads), layer.k_norm), layer.rope, positions)
    v = heads(layer.v_proj(h), c.kv_heads)
    gated = lambda y, z, kind: reference.gate(y, heads(z, y.size(2)) if kind == "elementwise" else z)
    if layer.value_gate is not None:
        v = gated(v, layer.value_gate(h), c.value_gate)
    mask, kl, kept = seen.expand(h.size(0), -1, -1), None, None
    if c.sparse and phase != "dense":
        ix, x = layer.indexer, h.detach()
        index_q = rotated(heads(ix.wq(x), c.indexer.heads), layer.indexer_rope, positions)
        index_k = rotated(ix.wk(x).unsqueeze(2), layer.indexer_rope, positions).squeeze(2)
        w = ix.weights_proj(x)
        w = w.sigmoid() if c.indexer.form == "sigmoid" else w * c.indexer.heads**-0.5
        bias = ix.bias if c.indexer.form == "sigmoid" else None
        score = reference.scores(index_q, index_k, w, bias, c.indexer.head_size**-0.5, c.indexer.form)
        if phase == "sparse" and h.size(1) >= c.dense_below:
            variance = reference.variance(score, seen)
            k_t = reference.budget(variance, seen, c.budget.mode, c.budget.base, c.budget.min, c.budget.max,
                                   ix.mean_variance)  # fmt: skip
            mask = reference.select(score, k_t, seen)
        over = mask if support == "selected" else seen
        lse = reference.attend(q, k, v, over)[1]
        kept = (reference.attend(q, k, v, mask)[1] - lse).exp().mean()
        temperature = ix.log_temperature.exp() if c.indexer.temperature.learned else c.indexer.temperature.value
        kl = reference.indexer_kl(q.detach(), k.detach(), lse.detach(), score / temperature, over.expand_as(mask))
    out = reference.attend(q, k, v, mask)[0]
    if layer.output_gate is not None:
        out = gated(out, layer.output_gate(h), c.output_gate)
    return layer.o_proj(out.flatten(2)), kl, kept


def cases():
    for name, case in CASES.items():
        if "index_layers" in case:  # test_shared_selection.py
            continue
        case = {key: value for key, value in case.items() if key not in ("tied", "extend")}
        sparse = case.get("system", "gsa") in ("gsa", "sparse-only")
        for phase in ("dense", "warmup", "sparse") if sparse else ("dense",):
            yield pytest.param(case, phase, id=f"{name}-{phase}")


@pytest.mark.parametrize("case, phase", list(cases()))
def test_output_and_loss_are_the_formulas(case, phase):
    layer, h = make(**case).eval(), torch.randn(2, LENGTH, 48, dtype=torch.float64, requires_grad=True)
    want_kl = phase != "dense"
    for support in ("selected", "all") if phase == "sparse" else ("selected",):
        layer.zero_grad()
        h.grad = None
        result = layer(h, phase=phase, want_kl=want_kl, kl_support=support)
        out, kl, kept = by_formula(layer, h, phase, support)
        torch.testing.assert_close(result.out, out)
        if want_kl:
            torch.testing.assert_close(result.kl, kl.mean())
        assert (result.kept is not None) == (support == "all")
        if support == "all":
            torch.testing.assert_close(result.kept, kept)
        weights = torch.randn_like(out)
        ours = (result.out * weights).sum() + (result.kl if want_kl else 0)
        theirs = (out * weights).sum() + (kl.mean() if want_kl else 0)
        parameters = [p for n, p in layer.named_parameters() if want_kl or "indexer" not in n]
        parameters = [h, *parameters]
        for a, b in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters)):
            torch.testing.assert_close(a, b)


def test_the_two_losses_reach_their_own_parameters():
    for options in (dict(phase="warmup"), dict(), dict(kl_support="all")):
        layer, h = make(), torch.randn(2, LENGTH, 48, dtype=torch.float64, requires_grad=True)
        result = layer(h, want_kl=True, **options)
        names, parameters = zip(*layer.named_parameters())
        of_kl = torch.autograd.grad(result.kl, (*parameters, h), retain_graph=True, allow_unused=True)
        of_out = torch.autograd.grad(result.out.sum(), (*parameters, h), allow_unused=True)
        for name, a, b in zip((*names, "h"), of_kl, of_out):
            assert (a is not None) == name.startswith("indexer.") and (b is not None) != name.startswith("indexer."), name


def test_a_sample_estimates_the_whole():
    layer, h = make(), torch.randn(1, 256, 48, dtype=torch.float64)
    with torch.no_grad():
        whole = layer(h, phase="warmup", want_kl=True).kl
        samples = [layer(h, phase="warmup", want_kl=True, kl_sample=gsa.KlSample(0.25, seed)).kl for seed in range(40)]
        assert len({s.item() for s in samples}) == 4  # tiles
        torch.testing.assert_close(sum(set(s.item() for s in samples)) / 4, whole.item())
        same = layer(h, phase="warmup", want_kl=True, kl_sample=gsa.KlSample(0.25, 0)).kl
        assert torch.equal(same, samples[0])


def test_draws_are_the_philox_of_the_other_side():
    # Known answers of Philox 4x32-10 (Random123's kat_vectors): all zeros, and all ones.
    from gated_sparse_attention.indexer_kl_sample import philox_bits

    assert philox_bits(0, 0, 0) == 0x6627E8D5E169C58D
    ones = 2**64 - 1
    assert philox_bits(ones, ones, ones) == 0x408F276D41C83B0E


def test_the_running_mean():
    layer = make(mean=-1.0, budget__min=8, budget__base=12).train()
    h = torch.randn(2, LENGTH, 48, dtype=torch.float64)
    totals = layer(h).variance_totals
    first = layer.indexer.mean_variance.clone()
    assert totals[1] == 2 * (LENGTH - 7) and torch.equal(first, totals[0] / totals[1])
    totals = layer(2 * h).variance_totals
    torch.testing.assert_close(layer.indexer.mean_variance, 0.99 * first + 0.01 * totals[0] / totals[1])
    before = layer.indexer.mean_variance.clone()
    layer(h, phase="dense"), layer(h, phase="warmup", want_kl=True), layer.eval()(h)
    layer.train()(h[:, :7])  # no query counts
    layer(h * float("nan"))
    layer(h, mean_variance=torch.tensor(0.5, dtype=torch.float64))
    assert torch.equal(layer.indexer.mean_variance, before)
    assert layer.to(torch.bfloat16).indexer.mean_variance.dtype == torch.float64
    assert torch.equal(layer.half().indexer.mean_variance, before)


@pytest.mark.parametrize("reentrant", [False, True], ids=["graph", "reentrant"])
def test_a_checkpointed_layer_moves_the_mean_once(reentrant):
    layer, h = make().train(), torch.randn(2, LENGTH, 48, dtype=torch.float64, requires_grad=True)
    twin = copy.deepcopy(layer)
    for scale in (1, 2):  # the second step selects with a mean that the first has moved
        layer(scale * h).out.sum().backward()
        expected, h.grad = h.grad, None
        checkpoint(lambda x: twin(x).out, scale * h, use_reentrant=reentrant).sum().backward()
        assert torch.equal(h.grad, expected)
        h.grad = None
        assert torch.equal(layer.indexer.mean_variance, twin.indexer.mean_variance)
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(layer.parameters(), twin.parameters()) if a.grad is not None)


def test_a_pass_that_cannot_be_repeated_says_so():
    layer, h = make().train(), torch.randn(2, LENGTH, 48, dtype=torch.float64, requires_grad=True)
    first = checkpoint(lambda x: layer(x).out, h, use_reentrant=False)
    layer(2 * h)
    with pytest.raises(ValueError, match="argument 'mean_variance'"):
        first.sum().backward()


def test_a_layer_compiles_as_one_graph():
    layer, h = make(torch.float32).train(), torch.randn(2, LENGTH, 48)
    twin = copy.deepcopy(layer)
    torch._dynamo.reset()
    run = lambda layer, h: (lambda r: (r.out, r.kl, r.k_t))(layer(h, want_kl=True))
    for ours, theirs in zip(torch.compile(run, backend="eager", fullgraph=True)(layer, h), run(twin, h)):
        assert torch.equal(ours, theirs)
    assert torch.equal(layer.indexer.mean_variance, twin.indexer.mean_variance)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="argument 'kv_heads': expected a positive divisor of heads"):
        gsa.GatedSparseAttention(attention(kv_heads=3))
    with pytest.raises(ValueError, match="argument 'output_gate': expected none, elementwise or headwise, got 'both'"):
        gsa.GatedSparseAttention(attention(output_gate="both"))
    layer = make(torch.float32)
    with pytest.raises(ValueError, match=r"argument 'h': expected floating point \[B, L, 48\] without cu_seqlens"):
        layer(torch.randn(4, 48))
    with pytest.raises(ValueError, match="argument 'h': expected float32, the type of the weights"):
        layer(torch.randn(1, 4, 48, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"argument 'cu_seqlens': expected int64 \[sequences \+ 1\], got a list"):
        layer(torch.randn(4, 48), cu_seqlens=[0, 4])
    with pytest.raises(ValueError, match="argument 'positions'"):
        layer(torch.randn(1, 4, 48), positions=torch.arange(4))
    with pytest.raises(ValueError, match="argument 'kl_sample'"):
        layer(torch.randn(1, 4, 48), want_kl=True, kl_sample=gsa.KlSample(0.5))
    with pytest.raises(ValueError, match="argument 'kl_sample.share'"):
        layer(torch.randn(1, 4, 48), phase="warmup", want_kl=True, kl_sample=gsa.KlSample(0.4))
    for options, message in (
        (dict(kl_sample=gsa.KlSample(0.5)), "'kl_sample': expected None without want_kl, got a share of 0.5"),
        (dict(kl_sample=gsa.KlSample()), "'kl_sample': expected None without want_kl, got a share of 1.0"),
        (dict(kl_support="all"), "'kl_support': expected selected, the default, without want_kl, got all"),
        (dict(max_length=4), "'max_length': expected None without cu_seqlens, .*, got 4"),
    ):
        with pytest.raises(ValueError, match="argument " + message):
            layer(torch.randn(1, 4, 48), **options)

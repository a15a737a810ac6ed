"""Layers that share the selection of one before them: whose they take, what they learn from it, and what is refused."""

import pytest
import reference
import torch
from configs import CASES, attention, model

import gated_sparse_attention as gsa
from gated_sparse_attention import functional as F
from gated_sparse_attention import _transformers
from gated_sparse_attention.config import every_nth_layer
from gated_sparse_attention.config_json import config_from_dict, config_to_dict

LENGTH = 96
needs_transformers = pytest.mark.skipif(not _transformers.usable(), reason="needs transformers 5.11 or newer")


# ---- Configuration


def test_every_nth_layer():
    assert every_nth_layer(8, 1) == every_nth_layer(1, 4) == []
    assert every_nth_layer(8, 3) == [0, 3, 6] and every_nth_layer(8, 100) == [0]
    with pytest.raises(ValueError, match="argument 'index_every': expected a positive number of layers, got 0"):
        every_nth_layer(8, 0)


def test_each_layer_has_a_leader():
    config = gsa.ModelConfig.preset("small")  # 8 layers
    assert config.indexers() == 8 and [config.leader_of(n) for n in range(8)] == list(range(8))
    config.set_index_layers([0, 3, 4]).validate()
    leaders = [0, 0, 0, 3, 4, 4, 4, 4]
    assert [config.leader_of(n) for n in range(8)] == leaders and config.indexers() == 3
    for n, leader in enumerate(leaders):
        own = config.attention_of(n)
        assert config.has_indexer(n) == own.has_indexer() == (n == leader) and own.shares_selection == (n != leader)
        own.validate()
    assert config.set_index_layers(list(range(8))).index_layers == []
    config.set_index_layers([0, 4]).apply("gated-only").validate()
    assert config.index_layers == [] and config.indexers() == 0 and not config.attention_of(3).shares_selection


@pytest.mark.parametrize("layers", [[1, 2], [-1, 0], [0, 2, 1], [0, 2, 2], [0, 4]], ids=str)
def test_lists_that_say_nothing_are_refused(layers):
    with pytest.raises(ValueError, match="argument 'index_layers': expected layers in 0 .. 3, ascending, each once, the first 0"):
        model(layers=4, index_layers=layers).validate()
    dense = model("gated-only", layers=4, index_layers=[0])
    with pytest.raises(ValueError, match="argument 'index_layers': expected none where attention is dense, got 0"):
        dense.validate()
    with pytest.raises(ValueError, match="argument 'attention.shares_selection': expected False"):
        model(shares_selection=True).validate()
    with pytest.raises(ValueError, match="argument 'shares_selection': expected False where sparse is false"):
        attention("standard", shares_selection=True).validate()


def test_the_key_stands_where_some_layers_have_no_indexer():
    config = model(layers=4)
    every = config_to_dict(config)
    assert "index_layers" not in every
    config.index_layers = [0, 1, 2, 3]
    assert config_to_dict(config) == every
    config.index_layers = [0, 2, 3]
    values = config_to_dict(config)
    assert values == every | {"index_layers": [0, 2, 3]} and config_to_dict(config_from_dict(values)) == values
    assert config_from_dict(values).index_layers == [0, 2, 3]
    for same in (None, [0, 1, 2, 3]):
        assert config_from_dict(values | {"index_layers": same}).index_layers == []
    for bad in (2, "0,2", [], [0, -1], [0, 1.5], [0, True], [0, "2"]):
        with pytest.raises(ValueError, match="'index_layers' to be a list of layers"):
            config_from_dict(values | {"index_layers": bad})
    dense = config_to_dict(model("gated-only", layers=4))
    with pytest.raises(ValueError, match="keys that are known here, got 'index_layers'"):
        config_from_dict(dense | {"index_layers": [0, 2]})


@needs_transformers
def test_the_configuration_of_transformers(tmp_path):
    make = gsa.huggingface.GatedSparseAttentionConfig
    config = make(num_hidden_layers=6, index_every=3)
    assert config.index_layers == [0, 3] and not hasattr(config, "index_every")
    assert config.model_config().index_layers == [0, 3]
    config.save_pretrained(tmp_path)
    again = make.from_pretrained(tmp_path)
    assert again.index_layers == [0, 3] and again.model_config() == config.model_config()
    for options in ({}, {"index_every": 1}, {"index_layers": list(range(6))}):
        plain = make(num_hidden_layers=6, **options)
        assert plain.index_layers is None and plain.model_config().index_layers == []
        assert "index_layers" not in plain.to_dict() and "index_layers" not in plain.to_json_string()
    for options, message in (
        (dict(index_every=2, index_layers=[0, 1]), "argument 'index_every': expected 1 beside index_layers, got 2"),
        (dict(index_every=0), "argument 'index_every'"),
        (dict(index_every=2, sparse_attention=False), "argument 'index_layers': expected None where sparse_attention is False"),
    ):
        with pytest.raises(ValueError, match=message):
            make(num_hidden_layers=6, **options)
    with pytest.raises(ValueError, match="argument 'index_layers': expected layers in 0 .. 5"):
        make(num_hidden_layers=6, index_layers=[0, 6]).model_config()
    with pytest.raises(ValueError, match="expected the key 'index_layers', a list, got 'index_every'"):
        make.from_dict({"model_type": "gated_sparse_attention", "index_every": 2})


# ---- Layers


def pair(dtype=torch.float64, **changes):
    """A layer with an indexer and one that shares its selection."""
    layers = [gsa.GatedSparseAttention(attention(shares_selection=shares, **changes)).to(dtype) for shares in (False, True)]
    layers[0].indexer.mean_variance.fill_(0.02)
    return layers


def hidden(*leading, dtype=torch.float64):
    return torch.randn(*leading, 48, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("changes", [{}, dict(indexer__form="relu"), dict(budget__mode="fixed")], ids=["gsa", "relu", "fixed"])
def test_it_attends_to_what_the_other_selected(changes, dtype):
    """To the bit: attention by the mask of that layer's own scores."""
    leader, follower = (layer.eval() for layer in pair(dtype, **changes))
    a, b = hidden(2, LENGTH, dtype=dtype), hidden(2, LENGTH, dtype=dtype)
    plan = leader.plan((2, LENGTH), dtype, a.device)
    with torch.no_grad():
        first = leader(a, plan=plan, followers=1)
        assert torch.equal(first.out, leader(a).out)
        found = follower(b, plan=plan, selection=first.selection)

        def batched(x):
            return x.unflatten(0, (2, LENGTH))

        q, k, v, nothing = follower.project(b.flatten(0, 1), plan)
        assert nothing is None and follower.indexer is None
        inputs = leader.project(a.flatten(0, 1), plan)[3]
        inputs = F.IndexerInputs(batched(inputs.q), batched(inputs.k), batched(inputs.w), inputs.bias, inputs.scale, inputs.form)
        selected = F.select(inputs, leader.indexer.budget(leader.indexer.mean_variance))
        out = F.attend(batched(q), batched(k), batched(v), selected.mask).out
        assert torch.equal(found.out, follower.output(b.flatten(0, 1), out.flatten(0, 1)).view(b.shape))
        assert torch.equal(found.k_t, selected.k_t) and found.k_t.max() < LENGTH
        assert found.variance_totals is None and found.selection is None
        other = leader(b, plan=plan, followers=1).selection
        assert not torch.equal(follower(b, plan=plan, selection=other).out, found.out)


def test_packed_sequences_of_which_some_run_dense():
    leader, follower = pair(dense_below=40)
    lengths, h = [50, 30, 64], hidden(144)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    plan = leader.plan((144,), h.dtype, h.device, cu_seqlens=starts, want_kl=True)
    first = leader.eval()(h, plan=plan, followers=1)
    found = follower.eval()(2 * h, plan=plan, selection=first.selection)
    assert [mask is None for mask in first.selection.masks] == [False, True]
    kl = []
    for a, b in zip(starts.tolist(), starts.tolist()[1:]):
        alone = leader(h[None, a:b], want_kl=True, followers=1)
        other = follower(2 * h[None, a:b], want_kl=True, selection=alone.selection)
        torch.testing.assert_close(found.out[a:b], other.out[0])
        assert torch.equal(found.k_t[a:b], other.k_t[0])
        kl.append(other.kl * (b - a))
    torch.testing.assert_close(found.kl, sum(kl) / 144)


def by_formula(leader, follower, a, b, mask):
    """The loss of the group as the divergence of one target, the mean attention of both layers, from what the indexer
    makes of a; matrices of all pairs, float64. And its constant part: what both targets are from their mean."""
    plan, temperature = leader.plan(a.shape[:2], a.dtype, a.device), leader.config.indexer.temperature.value
    inputs = leader.project(a.flatten(0, 1), plan)[3]
    batched = lambda x: x.unflatten(0, a.shape[:2])
    score = reference.scores(batched(inputs.q), batched(inputs.k), batched(inputs.w), inputs.bias, inputs.scale, inputs.form)
    targets = []
    for layer, h in ((leader, a), (follower, b)):
        q, k, v, _ = layer.project(h.flatten(0, 1), plan)
        q, k, v = batched(q), batched(k), batched(v)
        targets.append(reference.target(q, k, reference.attend(q, k, v, mask)[1], mask))
    mean = sum(targets) / 2
    log_index = (score / temperature).masked_fill(~mask, float("-inf")).log_softmax(-1).masked_fill(~mask, 0)
    loss = (torch.xlogy(mean, mean) - mean * log_index).sum(-1).mean()
    spread = sum((torch.xlogy(p, p) - torch.xlogy(p, mean)).sum(-1).mean() for p in targets) / 2
    return loss, spread


@pytest.mark.parametrize("phase, support", [("warmup", "selected"), ("sparse", "selected"), ("sparse", "all")])
def test_the_indexer_learns_from_the_mean_attention_of_its_group(phase, support):
    leader, follower = (layer.eval() for layer in pair())
    a, b = hidden(2, LENGTH), hidden(2, LENGTH)
    plan = leader.plan((2, LENGTH), a.dtype, a.device, phase=phase, want_kl=True, kl_support=support)
    first = leader(a, plan=plan, followers=1)
    found = follower(b, plan=plan, selection=first.selection)
    seen = mask = reference.visible(LENGTH, LENGTH).expand(2, -1, -1)
    if phase == "sparse" and support == "selected":
        bits = first.selection.masks[0].unsqueeze(-1) >> torch.arange(32)
        mask = (bits & 1).bool().flatten(2)[..., :LENGTH]
        assert mask.sum() < seen.sum()
    expected, spread = by_formula(leader, follower, a, b, mask)
    ours = (first.kl + found.kl) / 2
    torch.testing.assert_close(ours, expected + spread)
    assert (found.kept is not None) == (support == "all")
    learned = list(leader.indexer.parameters())
    for x, y in zip(torch.autograd.grad(ours, learned), torch.autograd.grad(expected, learned)):
        torch.testing.assert_close(x, y)


def test_the_two_losses_reach_their_own_parameters():
    for options in (dict(phase="warmup"), dict(), dict(kl_support="all")):
        leader, follower = pair(indexer__temperature__learned=True)
        a, b = (hidden(2, LENGTH).requires_grad_() for _ in range(2))
        plan = leader.plan((2, LENGTH), a.dtype, a.device, want_kl=True, **options)
        first = leader(a, plan=plan, followers=1)
        found = follower(b, plan=plan, selection=first.selection)
        named = {f"{n}.{name}": p for n, layer in enumerate((leader, follower)) for name, p in layer.named_parameters()}
        named |= {"a": a, "b": b}
        of_kl = torch.autograd.grad(found.kl, list(named.values()), retain_graph=True, allow_unused=True)
        of_out = torch.autograd.grad(found.out.sum(), list(named.values()), allow_unused=True)
        for name, x, y in zip(named, of_kl, of_out):
            assert (x is not None) == name.startswith("0.indexer."), name
            assert (y is not None) == (name.startswith("1.") or name == "b"), name


def test_mistakes_are_explained():
    leader, follower = pair()
    h, dense = hidden(1, 40), gsa.GatedSparseAttention(attention("gated-only")).double()
    selection = leader(h, followers=1).selection
    for call, message in (
        (lambda: follower(h), "argument 'selection': expected that of the layer whose selection is shared, got None"),
        (lambda: follower(h, phase="dense", selection=selection), "argument 'selection': expected None in this phase, got one"),
        (lambda: follower(h, want_kl=True, selection=selection), "argument 'selection': expected one of a pass with the same"),
        (lambda: follower(h[:, :30], selection=selection), "argument 'selection': expected one of a pass with the same"),
        (lambda: follower(h, selection=selection, followers=1), "argument 'followers'"),
        (lambda: follower(h, selection=selection, mean_variance=torch.tensor(1.0)), "argument 'mean_variance'"),
        (lambda: leader(h, selection=selection), "argument 'selection': expected None for a layer that does not share one"),
        (lambda: dense(h, followers=1), "argument 'followers': expected 0 for a layer without an indexer, got 1"),
    ):  # fmt: skip
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()
    assert follower(h, phase="dense").out.isfinite().all()


# ---- Models


def random_tokens(batch=2, length=LENGTH):
    return torch.randint(0, 131, (batch, length), generator=torch.Generator().manual_seed(3))


def make(case="shared", **changes):
    made = gsa.GatedSparseForCausalLM(model(**CASES[case] | changes)).double()
    for buffer in made.buffers():
        buffer.fill_(0.02)
    return made


def results_of(made):
    """What its attention layers give, from now on."""
    found = []
    for layer in made.model.layers:
        layer.self_attn.register_forward_hook(lambda layer, args, result: found.append(result))
    return found


def test_parameters_of_an_indexer_are_those_of_its_layer():
    made = make()
    for n, layer in enumerate(made.model.layers):
        names = {name for name in layer.state_dict() if ".indexer." in name}
        assert bool(names) == (n in (0, 2)), n
    assert len(list(made.buffers())) == 2
    indexers = [group for group in made.parameter_groups() if group["kind"] == "indexer"]
    assert {name.split(".")[2] for group in indexers for name in group["names"]} == {"0", "2"}


@pytest.mark.parametrize("options", [dict(), dict(phase="warmup"), dict(kl_support="all", kl_sample=gsa.KlSample(0.5, 7))],
                         ids=["sparse", "warmup", "sample"])  # fmt: skip
def test_the_loss_of_a_group_is_the_mean_of_its_layers(options):
    made, x = make("shared-relu-learned").train(), random_tokens()  # of 1 layer and of 3
    results = results_of(made)
    result = made.model(x, want_kl=True, **options)
    own = [layer.kl for layer in results]
    torch.testing.assert_close(result.kl, torch.stack([own[0], sum(own[1:]) / 3]))
    assert len({kl.item() for kl in own}) == 4
    assert (result.kept is None) if "kl_support" not in options else result.kept.shape == (4,)
    if options.get("phase") != "warmup":
        assert all(torch.equal(results[n].k_t, results[1].k_t) for n in (2, 3))
        assert not torch.equal(results[0].k_t, results[1].k_t)


def test_every_layers_own_selection_is_another_model():
    """With the same weights, where there are any."""
    shared, x = make(), random_tokens()
    every = make(index_layers=[])
    every.load_state_dict(shared.state_dict(), strict=False)
    with torch.no_grad():
        a, b = shared.eval()(x), every.eval()(x)
        assert not torch.allclose(a, b)
        torch.testing.assert_close(shared(x, phase="dense"), every(x, phase="dense"))
        # Where everything is selected, it does not matter who has done it.
        for made in (shared, every):
            for layer in made.model.layers:
                budget = layer.self_attn.config.budget
                budget.mode, budget.base, budget.min, budget.max = "fixed", 200, 200, 200
        torch.testing.assert_close(shared(x), every(x))


def test_the_running_means_are_the_leaders():
    made, x = make().train(), random_tokens()
    results = results_of(made)
    made.model(x, checkpoint_activations=True).hidden.sum().backward()
    first = results[:4]  # the rest was computed again
    assert len(results) == 8 and [r.variance_totals is not None for r in first] == [True, False, True, False]
    for layer, result in zip(list(made.model.layers)[::2], first[::2]):
        mean = result.variance_totals[0] / result.variance_totals[1]
        torch.testing.assert_close(layer.self_attn.indexer.mean_variance, 0.99 * 0.02 + 0.01 * mean)


@pytest.mark.parametrize("case", ["shared-relu-learned", "shared-dense-below"])
@pytest.mark.parametrize("again", [False, True], ids=["", "checkpointed"])
def test_masks_that_would_take_too_much_memory_are_made_again(case, again, monkeypatch):
    """To the bit: outputs, losses and gradients. The second of three sequences is short."""
    x, starts, found = random_tokens(1, 250).flatten(), torch.tensor([0, 96, 150, 250]), []
    torch.manual_seed(3)
    made = make(case)
    for affordable in (True, False):
        if not affordable:
            monkeypatch.setattr("gated_sparse_attention.attention.mask_is_affordable", lambda *sizes: False)
        results = results_of(made)
        made.zero_grad()
        loss = made.loss(x, x.roll(1), cu_seqlens=starts, want_kl=True, checkpoint_activations=again)
        (loss.sum / loss.count + loss.kl.sum()).backward()
        selections = [r.selection for r in results if r.selection is not None]
        assert all(any(mask is not None for mask in s.masks) == affordable for s in selections) and selections
        found.append([loss.sum, loss.kl, *(p.grad.clone() for p in made.parameters())])
        for buffer in made.buffers():
            buffer.fill_(0.02)
    assert all(map(torch.equal, *found))

"""The model against the C++ one (tests/probe/model_probe.cc): the same folder, the same logits, both ways."""

import contextlib
import copy
import json
import pickle

import pytest
import torch
from configs import CASES, model

import gated_sparse_attention as gsa
from gated_sparse_attention.config_json import config_to_dict
from gated_sparse_attention.loss import cross_entropy_sum

safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed: no model folders")
load_file, save_file = safetensors.load_file, safetensors.save_file

LENGTH = 96


def tokens(batch=2, length=LENGTH, vocabulary=131):
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


def make(case, dtype=torch.float32, **changes):
    """A model whose norms and running means are not the start's."""
    made = gsa.GatedSparseForCausalLM(model(**CASES[case] | changes))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.normal_(1, 0.2)
            elif name.endswith(("indexer.bias", "_proj.bias")):
                parameter.normal_(0, 0.5)
        for name, buffer in made.named_buffers():
            buffer.fill_(0.02)
    return made.to(dtype).eval()


def of_the_program(probe, folder, x):
    save_file({"tokens": x}, folder / "tokens.safetensors")
    probe("run", folder)
    found = load_file(folder / "logits.safetensors")
    return found["logits"], found["loss"]


@pytest.mark.parametrize("case", CASES)
def test_logits_and_loss_are_the_programs(case, probe, tmp_path):
    made, x = make(case), tokens()
    gsa.save_model(made, tmp_path)
    logits, loss = of_the_program(probe, tmp_path, x)
    assert logits.std() > 0.3  # they say something
    with torch.no_grad():
        assert torch.equal(made(x), logits)
        ours = made.loss(x[:, :-1].contiguous(), x[:, 1:].contiguous())
    assert torch.equal(ours.sum / ours.count, loss) and ours.count == 2 * (LENGTH - 1)


def test_few_rows(probe, tmp_path):
    """Their products are not joined: equal but for rounding."""
    made, x = make("gsa"), tokens(1, 9)
    gsa.save_model(made, tmp_path)
    logits, _ = of_the_program(probe, tmp_path, x)
    with torch.no_grad():
        torch.testing.assert_close(made(x), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", ["gsa", "shared"])
def test_other_types(case, dtype, probe, tmp_path):
    made, x = make(case, dtype), tokens()
    gsa.save_model(made, tmp_path)
    logits, _ = of_the_program(probe, tmp_path, x)
    with torch.no_grad():
        assert torch.equal(made(x).to(logits.dtype), logits)
    assert made.model.layers[0].self_attn.indexer.mean_variance.dtype == torch.float64


def test_another_rotation_would_show(probe, tmp_path):
    made, x = make("gsa"), tokens()
    gsa.save_model(made, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"rope_theta": 11000.0}))
    with torch.no_grad():
        assert (of_the_program(probe, tmp_path, x)[0] - made(x)).abs().max() > 0.01


@pytest.mark.parametrize("case", ["gsa", "standard-tied-yarn", "dense-below", "shared"])
def test_folders_come_back_as_they_went(case, tmp_path):
    made = make(case, torch.bfloat16)
    gsa.save_model(made, tmp_path)
    loaded = gsa.load_model(tmp_path)
    assert config_to_dict(loaded.config) == config_to_dict(made.config)
    assert loaded.state_dict().keys() == made.state_dict().keys()
    for name, tensor in made.state_dict().items():
        other = loaded.state_dict()[name]
        assert other.dtype == tensor.dtype and torch.equal(other, tensor), name
    assert all(p.requires_grad for p in loaded.parameters())
    assert gsa.load_model(tmp_path, torch.float32).output_weight().dtype == torch.float32


@pytest.mark.parametrize("part", ["", "model", "model.layers.1"])
def test_compiled_models_are_saved_under_their_own_names(part, tmp_path):
    made, x = make("gsa"), tokens()
    with torch.no_grad():
        expected = made(x)
    if part:
        parent, _, name = part.rpartition(".")
        setattr(made.get_submodule(parent), name, torch.compile(made.get_submodule(part), backend="eager"))
    gsa.save_model(made if part else torch.compile(made, backend="eager"), tmp_path)
    with torch.no_grad():
        assert torch.equal(gsa.load_model(tmp_path)(x), expected)


def adapt(made):
    made.model.layers[0].mlp.up_proj = Wrapped(made.model.layers[0].mlp.up_proj)


@contextlib.contextmanager
def one_process(store):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def shard(made):
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.fsdp.fully_shard(made, mesh=mesh)


def widen(made):
    made.model.norm.weight = torch.nn.Parameter(torch.ones(50))


@pytest.mark.parametrize("change, message", [
    (lambda made: made.model, "argument 'model': expected a GatedSparseForCausalLM, got GatedSparseModel"),
    (adapt, "argument 'model': expected no parameter 'model.layers.0.mlp.up_proj.base.weight', .* got one .adapters are"),
    (shard, "argument 'model': expected a plain, whole tensor 'model.embed_tokens.weight' of shape .* got a DTensor of"),
    (lambda made: made.to("meta"), "argument 'model': expected a plain, whole tensor .* got a meta of"),
    (widen, r"argument 'model': expected a plain, whole tensor 'model.norm.weight' of shape \[48\].* got a tensor of \[50\]"),
], ids=["inner", "adapter", "shards", "meta", "shape"])  # fmt: skip
def test_what_a_folder_cannot_hold_is_not_saved(change, message, tmp_path):
    """Refused before anything is written: the folder that is there stays."""
    gsa.save_model(make("gsa"), tmp_path / "folder")
    before = {file.name: file.read_bytes() for file in (tmp_path / "folder").iterdir()}
    made = make("standard")
    with one_process(tmp_path / "store"), pytest.raises(ValueError, match=f"^save_model: {message}"):
        gsa.save_model(change(made) or made, tmp_path / "folder")
    assert {file.name: file.read_bytes() for file in (tmp_path / "folder").iterdir()} == before


@pytest.mark.parametrize("dtype", ["bfloat16", torch.int8], ids=str)
def test_types_that_weights_cannot_have(dtype, tmp_path):
    expected = "argument 'dtype': expected torch.float32, torch.bfloat16, torch.float16, torch.float64 or None, got "
    with pytest.raises(ValueError, match=f"^save_model: {expected}"):
        gsa.save_model(make("gsa"), tmp_path, dtype)
    gsa.save_model(make("gsa"), tmp_path)
    with pytest.raises(ValueError, match=f"^load_model: {expected}"):
        gsa.load_model(tmp_path, dtype)


@pytest.mark.parametrize("options", [{}, {"index_every": 2}], ids=["", "shared"])
def test_folders_of_the_program(options, trained, probe):
    folder = trained("gsa", **options)
    loaded, x = gsa.load_model(folder).eval(), tokens(vocabulary=258)
    assert (loaded.config.layers, loaded.config.vocab_size, loaded.config.attention.budget.base) == (4, 258, 16)
    assert loaded.config.index_layers == ([0, 2] if options else [])
    assert all(buffer > 0 for buffer in loaded.buffers())
    with torch.no_grad():
        assert torch.equal(loaded(x), of_the_program(probe, folder, x)[0])


@pytest.mark.parametrize("change, message", [
    (lambda v, s: v.update(index_topl=3), "keys that are known here.*index_topl"),
    (lambda v, s: v.pop("index_topk"), "the key 'index_topk'"),
    (lambda v, s: v.update(value_gate="both"), "'value_gate' to be none, elementwise or headwise"),
    (lambda v, s: v.update(vocab_size=2.5), "'vocab_size' to be a whole number"),
    (lambda v, s: v.update(hidden_act="gelu"), "'hidden_act' to be \"silu\""),
    (lambda v, s: v.update(model_type="mamba"), "'model_type'"),
    (lambda v, s: v.update(num_key_value_heads=3), "argument 'kv_heads'"),
    (lambda v, s: v.update(index_layers=[0, 3]), "argument 'index_layers': expected layers in 0 .. 2, ascending"),
    (lambda v, s: v.update(index_layers=[0]), r"'model.layers.1.self_attn.indexer.bias' not, got one more"),
    (lambda v, s: s.pop("model.norm.weight"), "'model.norm.weight'"),
    (lambda v, s: s.update(more=torch.zeros(1)), "'more'"),
    (lambda v, s: s.update({"model.norm.weight": torch.zeros(3)}), r"'model.norm.weight' of shape \[48\]"),
    (lambda v, s: s.update({"model.norm.weight": torch.zeros(48, dtype=torch.float16)}), "one floating-point type"),
], ids=["unknown", "missing", "name", "whole", "activation", "type", "heads", "indexers", "fewer-indexers", "lacks",
        "more", "shape", "mixed"])  # fmt: skip
def test_bad_folders_are_refused(change, message, tmp_path):
    gsa.save_model(make("gsa"), tmp_path)
    values, state = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    change(values, state)
    (tmp_path / "config.json").write_text(json.dumps(values))
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        gsa.load_model(tmp_path)


def test_the_old_name_of_the_type_is_read(tmp_path):
    gsa.save_model(make("gsa"), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["model_type"] == "gated_sparse_attention"
    assert values["architectures"] == ["GatedSparseAttentionForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": "gsa"}))
    assert config_to_dict(gsa.load_model(tmp_path).config) == config_to_dict(model())


def backward(made, x, **options):
    made.zero_grad()
    loss = made.loss(x[:, :-1].contiguous(), x[:, 1:].contiguous(), want_kl=True, **options)
    (loss.sum / loss.count + loss.kl.sum()).backward()
    found = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    return loss, found, {name: b.clone() for name, b in made.named_buffers()}


@pytest.mark.parametrize("options", [
    dict(), dict(phase="warmup"), dict(kl_support="all"), dict(kl_support="all", kl_sample=gsa.KlSample(0.5, 7)),
], ids=["sparse", "warmup", "all", "sample"])  # fmt: skip
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("case", ["gsa", "shared", "shared-dense-below"])
def test_checkpointing_changes_no_bit(case, options, autocast):
    x, made = tokens(), make(case).train()
    twin = copy.deepcopy(made)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, gradients, buffers = backward(made, x, **options)
        loss2, gradients2, buffers2 = backward(twin, x, checkpoint_activations=True, **options)
    assert torch.equal(loss.sum, loss2.sum) and torch.equal(loss.kl, loss2.kl)
    assert gradients.keys() == gradients2.keys() == dict(made.named_parameters()).keys()
    assert all(torch.equal(gradients[name], gradients2[name]) for name in gradients)
    assert all(torch.equal(buffers[name], buffers2[name]) for name in buffers)
    moved = [value != 0.02 for value in buffers.values()]
    assert all(moved) if options.get("phase") != "warmup" else not any(moved)


@pytest.mark.parametrize("case", ["dense-below", "shared-dense-below"])
def test_packed_sequences_are_those_of_a_batch(case):
    made, x = make(case), tokens(3)
    starts = torch.arange(4) * LENGTH
    with torch.no_grad():
        whole = made(x)
        assert torch.equal(made(x.flatten(), cu_seqlens=starts), whole.flatten(0, 1))
        # 96 and more run sparse, fewer than 90 dense: each as it does alone, but for the rounding of products.
        parted = made(x.flatten(), cu_seqlens=torch.tensor([0, 192, 200, 288]))
        for a, b in ((0, 192), (192, 200), (200, 288)):
            torch.testing.assert_close(parted[a:b], made(x.flatten()[a:b].unsqueeze(0))[0], rtol=1e-4, atol=1e-4)


class OnGpu(torch.Tensor):
    """Numbers on another device, as far as a machine without a GPU can tell: they can be brought back, and no more."""

    device, is_cuda, brought = torch.device("cuda", 0), True, 0

    def cpu(self):
        OnGpu.brought += 1
        return torch.tensor(self.numbers)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", str(function))
        assert name in ("dim", "numel", "__get__"), f"{name} waits for the GPU"
        return super().__torch_function__(function, types, args, kwargs or {})


def test_cu_seqlens_that_a_hook_has_moved_are_brought_back_once():
    """DDP and FSDP2 move every tensor that they are called with to the model's device."""
    made, x, starts = make("gsa"), tokens(3).flatten(), [0, 50, 190, 288]

    def move(module, args, kwargs):
        moved = kwargs["cu_seqlens"].as_subclass(OnGpu)
        moved.numbers = starts
        return args, kwargs | {"cu_seqlens": moved}

    with torch.no_grad():
        expected = made(x, cu_seqlens=torch.tensor(starts))
        hook = made.register_forward_pre_hook(move, with_kwargs=True)
        assert torch.equal(made(x, cu_seqlens=torch.tensor(starts)), expected) and OnGpu.brought == 1
    hook.remove()
    for wrong in (torch.tensor(starts).int(), torch.tensor([starts]), torch.tensor([], dtype=torch.int64), starts):
        with pytest.raises(ValueError, match=r"argument 'cu_seqlens': expected int64 \[sequences \+ 1\], got "):
            made(x, cu_seqlens=wrong)


def compiled_steps(made, step, **options):
    """Two training steps of the compiled function and of itself: to the bit but for gradients, whose sums may run in
    another order. backend inductor rounds elsewhere."""
    twin, exact = copy.deepcopy(made), options.get("backend") != "inductor"
    close = dict(rtol=0, atol=0) if exact else dict(rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, **options)
    for _ in range(2):  # the second step selects with a mean that the first has moved
        ours, theirs = compiled(made), step(twin)
        torch.testing.assert_close(ours, theirs, **close)
        ours.backward(), theirs.backward()
    for (name, ours), theirs in zip(made.named_parameters(), twin.parameters()):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}")
    for (name, ours), theirs in zip(made.named_buffers(), twin.named_buffers()):
        torch.testing.assert_close(ours, theirs[1], **close, msg=lambda m: f"{name}: {m}")


def training_step(x, packed=False, **options):
    inputs, targets, layout = x[:, :-1].contiguous(), x[:, 1:].contiguous(), {}
    if packed:
        inputs, targets = inputs.flatten(), targets.flatten()
        layout = dict(cu_seqlens=torch.tensor([0, 50, 190]), max_length=140)

    def step(model):
        loss = model.loss(inputs, targets, **options, **layout)
        total = loss.sum / loss.count
        return total + loss.kl.sum() if loss.kl is not None else total

    return step


@pytest.mark.parametrize("packed, options", [
    (False, dict()), (False, dict(want_kl=True)), (True, dict(want_kl=True)), (True, dict(phase="warmup", want_kl=True)),
    (False, dict(want_kl=True, checkpoint_activations=True)),
], ids=["batch", "batch-kl", "packed-kl", "packed-warmup", "checkpointed"])  # fmt: skip
@pytest.mark.parametrize("changes", [dict(layers=1), dict(layers=2, index_layers=[0])], ids=["one", "shared"])
def test_training_compiles_as_one_graph(changes, packed, options):
    compiled_steps(make("gsa", **changes).train(), training_step(tokens(), packed, **options), backend="aot_eager")


COMPILED = ["standard", "sparse-only", "gated-only", "gsa-tied-yarn", "proportional", "fixed", "relu", "headwise",
            "output-gate-alone", "value-gate-alone", "half-rotated", "no-positions", "temperature-learned", "biases",
            "query-key-norms", "dense-below", "shared-relu-learned", "shared-dense-below"]  # fmt: skip


@pytest.mark.parametrize("case", COMPILED)  # scalings of positions differ in numbers, not in their graph
def test_training_of_every_system_compiles_as_one_graph(case):
    changes = {} if "shared" in case else dict(layers=1)
    made = make(case, **changes).train()
    options = dict(want_kl=True) if made.config.attention.sparse else {}
    compiled_steps(made, training_step(tokens(), **options), backend="aot_eager")


@pytest.mark.parametrize("options", [dict(), dict(checkpoint_activations=True)], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("case", ["gsa", "shared", "gated-only"])
def test_blocks_compile_one_by_one(case, options):
    """As regional compilation has it: a graph without breaks for each kind of layer, with an indexer and without."""
    made, x = make(case).train(), tokens()
    twin, graphs = copy.deepcopy(made), lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    before = graphs()
    for block in made.model.layers:
        block.compile(fullgraph=True, backend="aot_eager")
    more = dict(want_kl=True) if made.config.attention.sparse else {}
    step = training_step(x, **more, **options)
    for _ in range(2):  # the second step selects with a mean that the first has moved
        ours, theirs = step(made), step(twin)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        ours.backward(), theirs.backward()
    for (name, ours), theirs in zip(made.named_parameters(), twin.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}")
    for (name, ours), theirs in zip(made.named_buffers(), twin.buffers()):
        assert torch.equal(ours, theirs) and ours != 0.02, name
    assert graphs() - before == (2 if case == "shared" else 1)


def test_training_compiles_with_inductor():
    compiled_steps(make("gsa", layers=1).train(), training_step(tokens(), want_kl=True), backend="inductor")


@pytest.mark.parametrize("changes", [dict(layers=1), dict(layers=2, index_layers=[0])], ids=["one", "shared"])
def test_other_lengths_compile_as_one_graph(changes):
    made = make("gsa", **changes)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    torch._dynamo.reset()
    with torch.no_grad():
        for length in (96, 70, 81):
            assert torch.equal(compiled(tokens(length=length)), made(tokens(length=length)))


def test_groups_of_parameters():
    made = make("gsa")
    groups = made.parameter_groups()
    assert [(group["kind"], group["decay"]) for group in groups] == [
        (kind, decay) for kind in ("base", "indexer", "gate") for decay in (True, False)]  # fmt: skip
    assert sorted(name for group in groups for name in group["names"]) == sorted(dict(made.named_parameters()))
    torch.optim.AdamW(groups)
    made.set_learning("base", False)
    made.set_learning("gate", False)
    loss = made.loss(tokens(), tokens(), phase="warmup", want_kl=True)
    loss.kl.sum().backward()
    assert all((p.grad is not None) == ("indexer" in name) for name, p in made.named_parameters())
    with pytest.raises(ValueError, match="argument 'kind'"):
        made.set_learning("gates", True)


@pytest.mark.parametrize("case", ["gsa", "shared"])
def test_pickle_and_state_dict(case):
    made, x = make(case).train(), tokens()
    backward(made, x)
    again = pickle.loads(pickle.dumps(made))
    other = gsa.GatedSparseForCausalLM(made.config)
    other.load_state_dict(made.state_dict())
    with torch.no_grad():
        assert torch.equal(made.eval()(x), again.eval()(x))
        assert torch.equal(made(x), other.eval()(x))


@pytest.mark.parametrize("case", ["gsa", "shared"])
def test_autocast_computes_in_bfloat16(case):
    made, x = make(case), tokens()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cast = made(x)
    with torch.no_grad():
        exact, low = made.double()(x), made.to(torch.bfloat16)(x)
    assert cast.dtype == torch.bfloat16
    error = lambda y: (y.double() - exact).pow(2).mean().sqrt()
    assert 0 < error(cast) <= 2 * error(low)


def test_mistakes_are_explained():
    made, x = make("gsa"), tokens()
    for options, message in (
        (dict(phase="sprase"), "argument 'phase': expected dense, warmup or sparse"),
        (dict(want_kl=True), "argument 'want_kl'"),
        (dict(kl_support="some"), "argument 'kl_support'"),
        (dict(cu_seqlens=torch.tensor([0, 192])), "argument 'tokens'"),
    ):
        with pytest.raises(ValueError, match=message):
            made(x, **options)
    with pytest.raises(ValueError, match="argument 'cu_seqlens'"):
        made(x.flatten(), cu_seqlens=torch.tensor([0, 100]))
    with pytest.raises(ValueError, match="argument 'tokens': expected numbers in 0 .. 130, got 131"):
        made(x + 1 + (130 - x.max()))
    with pytest.raises(ValueError, match="argument 'targets'"):
        made.loss(x, x[:, 1:])
    with pytest.raises(ValueError, match="argument 'phase': expected dense for a layer without an indexer"):
        make("standard")(x, phase="sparse")
    with pytest.raises(TypeError, match="want_stats"):
        made(x, want_stats=True)


class Wrapped(torch.nn.Module):
    """As an adapter does it: a layer and something more."""

    def __init__(self, base):
        super().__init__()
        self.base, self.more = base, torch.nn.Linear(base.in_features, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.more(x)


PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")


@pytest.mark.parametrize("name", PROJECTIONS)
def test_wrapped_and_hooked_projections_take_part(name):
    """With as many rows as training has, too."""
    made = gsa.GatedSparseForCausalLM(model(layers=1)).double().eval()
    x, block = torch.randint(0, 131, (1, 40)), made.model.layers[0]
    parent, own = name.split(".")
    plain = block.get_submodule(name)
    wrapped = Wrapped(plain).double()
    merged = copy.deepcopy(plain)
    with torch.no_grad():
        merged.weight += wrapped.more.weight

        def logits(layer):
            setattr(block.get_submodule(parent), own, layer)
            return made(x)

        expected = logits(merged)
        torch.testing.assert_close(logits(wrapped), expected)
        hook = plain.register_forward_hook(lambda layer, args, y: y + wrapped.more(*args))
        torch.testing.assert_close(logits(plain), expected)
        hook.remove()
        plain.forward = lambda x: wrapped.more(x) + torch.nn.Linear.forward(plain, x)  # as accelerate does it
        torch.testing.assert_close(logits(plain), expected)
        del plain.forward
        assert not torch.allclose(logits(plain), expected)


def test_a_loaded_model_is_in_evaluation_mode(tmp_path):
    gsa.save_model(make("gsa"), tmp_path)
    loaded = gsa.load_model(tmp_path)
    before = [buffer.clone() for buffer in loaded.buffers()]
    with torch.no_grad():
        loaded(tokens())
        assert before and all(map(torch.equal, before, loaded.buffers()))
        loaded.train()(tokens())
        assert not any(map(torch.equal, before, loaded.buffers()))


@pytest.mark.parametrize("scale", [1, 2**16])
def test_float16_needs_no_scale_before_the_loss(scale):
    """Its gradients are as near as those of torch's cross-entropy in float32 by a GradScaler, of rare tokens too."""
    count, width, vocabulary = 500, 32, 8000
    hidden, weight = torch.randn(count, width).half(), (0.3 * torch.randn(vocabulary, width)).half()
    targets = torch.randint(0, 100, (count,))

    def gradients(loss, dtype, scale=1):
        inputs = [x.to(dtype, copy=True).requires_grad_() for x in (hidden, weight)]
        (loss(*inputs) / count * scale).backward()
        return [x.grad.double() / scale for x in inputs]

    plain = lambda h, w: torch.nn.functional.cross_entropy((h @ w.t()).float(), targets, reduction="sum")
    exact = gradients(lambda h, w: torch.nn.functional.cross_entropy(h @ w.t(), targets, reduction="sum"), torch.float64)
    ours = gradients(lambda h, w: cross_entropy_sum(h, w, targets), torch.float16, scale)
    theirs = gradients(plain, torch.float16, 2**16)
    for a, b, true in zip([*ours, ours[1][100:]], [*theirs, theirs[1][100:]], [*exact, exact[1][100:]]):
        assert (a - true).norm() <= 3 * (b - true).norm()
    assert not (ours[1] == 0).all(1).any()


def test_second_derivatives_are_refused():
    """The gradient of the loss is made in the forward pass, a constant."""
    hidden, weight = (torch.randn(n, 8, dtype=torch.float64, requires_grad=True) for n in (5, 11))
    total = cross_entropy_sum(hidden, weight, torch.arange(5))
    (gradient,) = torch.autograd.grad(total, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (total + gradient.square().sum()).backward()

"""The model for transformers: folders, tokenizers, training, gradient checkpointing, torch.compile. Its cache:
test_huggingface_cache.py."""

import copy
import json
import pickle
import sys

import pytest
import torch
from configs import CASES
from hf_models import load, random_tokens, stepwise

import gated_sparse_attention as gsa

transformers = pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")
hf = gsa.huggingface
from safetensors.torch import load_file, save_file  # noqa: E402, transformers needs it too

SELECTED = pytest.mark.parametrize("case", ["gsa", "shared"])


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("standard")])
def test_auto_classes_load_our_folders(case, folder):
    path, x = folder(case), random_tokens()
    loaded, info = load(path, output_loading_info=True)
    assert isinstance(loaded, hf.GatedSparseAttentionForCausalLM)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert loaded.config.model_config() == gsa.load_model(path).config
    with torch.no_grad():
        assert torch.equal(loaded(x, use_cache=False).logits, gsa.load_model(path).eval()(x))


def test_auto_classes_load_folders_of_the_older_name(folder):
    """As the program wrote them once; saved again they have today's."""
    path, x = folder("gsa"), random_tokens()
    expected = load(path)(x, use_cache=False).logits
    config = json.loads((path / "config.json").read_text())
    assert config["model_type"] == "gated_sparse_attention"
    (path / "config.json").write_text(json.dumps(config | {"model_type": "gsa"}))
    assert type(transformers.AutoConfig.from_pretrained(path)) is hf.GatedSparseAttentionConfig
    for kind, wanted in ((transformers.AutoModelForCausalLM, hf.GatedSparseAttentionForCausalLM),
                         (transformers.AutoModel, hf.GatedSparseAttentionModel)):  # fmt: skip
        loaded, info = kind.from_pretrained(path, output_loading_info=True)
        assert type(loaded) is wanted and not info["missing_keys"], info
        assert loaded.config.model_type == "gated_sparse_attention"
    loaded = load(path)
    assert torch.equal(loaded(x, use_cache=False).logits, expected)
    loaded.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["model_type"] == "gated_sparse_attention"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_running_mean_stays_float64(dtype, folder):
    path = folder("gsa", torch.bfloat16)
    state = load_file(path / "model.safetensors")
    exact = 0.012345678901234567
    state = {name: torch.tensor(exact, dtype=t.dtype) if "mean_variance" in name else t for name, t in state.items()}
    save_file(state, path / "model.safetensors")
    loaded = load(path, dtype=dtype)
    assert loaded.dtype == dtype
    for buffer in loaded.buffers():
        assert buffer.dtype == torch.float64 and buffer.item() == exact


@pytest.mark.parametrize("case", ["gsa-tied-yarn", "gated-only", "gsa-attention-factor", "biases-and-norms", "llama3", "shared"])
def test_save_pretrained_and_back(case, folder, probe, tmp_path):
    loaded = load(folder(case))
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert json.loads((again / "config.json").read_text())["model_type"] == "gated_sparse_attention"
    assert gsa.load_model(again).config == loaded.config.model_config()
    x = random_tokens()
    save_file({"tokens": x}, again / "tokens.safetensors")
    probe("run", again)  # the program reads it
    with torch.no_grad():
        logits = loaded(x, use_cache=False).logits
        assert torch.equal(load(again)(x, use_cache=False).logits, logits)
        assert torch.equal(gsa.load_model(again).eval()(x), logits)
        assert torch.equal(load_file(again / "logits.safetensors")["logits"], logits)


def test_new_models_start_as_they_should():
    config = hf.GatedSparseAttentionConfig(
        vocab_size=131, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, index_n_heads=3, index_head_dim=8, initializer_range=0.15)  # fmt: skip
    made = transformers.AutoModelForCausalLM.from_config(config)
    attention = made.model.layers[0].self_attn
    assert abs(attention.q_proj.weight.std() - 0.15) < 0.02 and abs(made.lm_head.weight.std() - 0.15) < 0.02
    gate = attention.output_gate
    assert abs(gate.weight.std() - 0.002) < 0.0005 and gate.bias.sigmoid().allclose(torch.tensor(config.gate_init))
    assert attention.indexer.mean_variance == -1 and not attention.indexer.bias.any()
    assert (made.model.norm.weight == 1).all()


@pytest.mark.parametrize("options", [{}, {"index_every": 2}], ids=["", "shared"])
def test_greedy_text_is_the_programs(options, trained, program):
    path = trained("gsa", **options)
    prompts = ["the keeper", "walks to the harbour\nthe keeper of the lamp walks to the har", "lamp"]
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    printed = program("generate", path, "-n", 60, "--temperature", 0, "--ignore-eos", "--json", *words)
    expected = {line["prompt"]: line["tokens"] for line in map(json.loads, filter(None, printed.splitlines())) if "tokens" in line}
    loaded, tokenizer = load(path), transformers.AutoTokenizer.from_pretrained(path)
    for number, prompt in enumerate(prompts):
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = inputs["input_ids"]
        assert ids.tolist() == [[256, *prompt.encode()]]
        found = loaded.generate(**inputs, max_new_tokens=60, min_new_tokens=60, do_sample=False, eos_token_id=-1)
        assert found[0, ids.size(1) :].tolist() == expected[number]


@pytest.mark.parametrize("case", ["gsa", "standard"])
def test_the_byte_tokenizer(case, folder, program, tmp_path):
    (tmp_path / "text.txt").write_text("lamp")
    program("tokenize", tmp_path / "text.txt", "--output", tmp_path / "data")
    path = folder(case)
    (path / "tokenizer_config.json").write_bytes((path / "data/tokenizer_config.json").read_bytes())
    text = "h\u00e9 <s> \U0001f600\n\0 x  y .</s>"
    made = transformers.AutoTokenizer.from_pretrained(path)
    made.save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again/tokenizer.json").exists()  # the program takes that for another tokenizer
    for tokenizer in (made, hf.GsaByteTokenizer.from_pretrained(tmp_path / "again")):
        assert tokenizer(text).input_ids == [256, *text.encode()] and len(tokenizer) == 258
        assert tokenizer(text, add_special_tokens=False).input_ids == list(text.encode())
        assert tokenizer.decode([256, *text.encode(), 257], skip_special_tokens=True) == text
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257)


def test_a_folder_with_tokenizer_json_has_the_class_of_transformers(folder):
    tokenizers = pytest.importorskip("tokenizers")
    path = folder("gsa")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"lamp": 0, "?": 1}, "?")).save(str(path / "tokenizer.json"))
    made = transformers.AutoTokenizer.from_pretrained(path)
    assert type(made) is transformers.TokenizersBackend and made("lamp").input_ids == [0]


@pytest.mark.parametrize("reentrant", [False, True], ids=["graph", "reentrant"])
@pytest.mark.parametrize("case, affordable", [("gsa", True), ("shared", True), ("shared-relu-learned", True),
                                              ("shared-dense-below", True), ("shared-dense-below", False)])  # fmt: skip
def test_training_with_and_without_gradient_checkpointing(case, affordable, reentrant, folder, monkeypatch):
    monkeypatch.setattr("gated_sparse_attention.attention.mask_is_affordable", lambda *sizes: affordable)
    plain, x = load(folder(case)).train(), random_tokens()
    mask = torch.ones_like(x)
    mask[0, :9] = 0
    again = copy.deepcopy(plain)
    again.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        again.enable_input_require_grads()
    losses = []
    for made in (plain, again):
        output = made(x, attention_mask=mask, labels=x.masked_fill(mask == 0, -100))
        assert output.indexer_loss > 0 and output.past_key_values is None
        output.loss.backward()
        losses.append(output.loss)
    assert torch.equal(*losses)
    for (name, a), b in zip(plain.named_parameters(), again.parameters()):
        assert a.grad is not None and torch.equal(a.grad, b.grad), name
    for a, b in zip(plain.buffers(), again.buffers()):
        assert torch.equal(a, b) and a != 0.02


@pytest.mark.parametrize("positions", [False, True])
def test_the_flattening_collator_with_lengths(positions, folder):
    """cu_seq_lens_q parts a row as position_ids do, which it may come without."""
    loaded, x = load(folder("gsa"), dtype=torch.float64).train(), random_tokens(1, 90)[0].tolist()
    texts = [{"input_ids": x[a:b]} for a, b in ((0, 30), (30, 31), (31, 90))]
    collate = lambda **options: transformers.DataCollatorWithFlattening(**options)(texts)
    twin = copy.deepcopy(loaded)
    expected = twin(**collate())
    batch = collate(return_flash_attn_kwargs=True, return_position_ids=positions)
    assert batch["cu_seq_lens_q"].tolist() == [0, 30, 31, 90] and ("position_ids" in batch) == positions
    found = loaded(**batch)
    assert torch.equal(found.loss, expected.loss) and torch.equal(found.logits, expected.logits)
    starts = batch["cu_seq_lens_q"]
    for wrong, message in (
        (dict(cu_seq_lens_k=starts - 1), "'cu_seq_lens_k': expected cu_seq_lens_q"),
        (dict(max_length_k=58), r"'max_length_k': expected at least the longest sequence \(59\), got 58"),
        (dict(cu_seq_lens_q=starts[:-1]), "'cu_seq_lens_q': expected numbers from 0 to 90 that never fall"),
        (dict(cu_seq_lens_q=starts.flip(0)), "'cu_seq_lens_q': expected numbers from 0 to 90 that never fall"),
        (dict(cu_seq_lens_q=None), "'cu_seq_lens_q': expected the lengths that .* got None"),
        (dict(attention_mask=torch.ones(1, 90)), "'attention_mask': expected None beside cu_seq_lens_q"),
        (dict(past_key_values=hf.GatedSparseCache(), want_kl=False), "'cu_seq_lens_q': expected growing ones"),
        (dict(input_ids=batch["input_ids"].expand(2, 90), labels=None, position_ids=None), "for one row of input, got .* for 2 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded(**batch | wrong)


@SELECTED
def test_gradients_in_evaluation_mode_do_not_ask_for_the_cache(case, folder):
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens()
    gradients = []
    for options in (dict(use_cache=False), dict(use_cache=True)):
        loaded.zero_grad()
        loaded(x, labels=x, **options).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in loaded.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize("first", [0, 7], ids=["whole", "from-the-middle"])
def test_positions_that_begin_anew_part_sequences(first, folder):
    """In every row, and where a row begins in the middle of a text."""
    loaded, x = load(folder("gsa"), dtype=torch.float64), random_tokens(2, 90)
    cuts = [(0, 50), (50, 90)], [(0, 20), (20, 21), (21, 90)]
    positions = torch.stack([torch.cat([torch.arange(b - a) for a, b in row]) for row in cuts])
    positions[0, :50] += first
    with torch.no_grad():
        packed = loaded(x, position_ids=positions, use_cache=False).logits
        for n, row in enumerate(cuts):
            for a, b in row:
                alone = loaded(x[n : n + 1, a:b], position_ids=positions[n : n + 1, a:b], use_cache=False).logits
                torch.testing.assert_close(packed[n : n + 1, a:b], alone)
        by_default = loaded(x, position_ids=positions)  # evaluation mode would have a cache otherwise
        assert by_default.past_key_values is None and torch.equal(by_default.logits, packed)
        for options in (dict(use_cache=True), dict(past_key_values=hf.GatedSparseCache())):
            with pytest.raises(ValueError, match="argument 'position_ids': expected growing ones .* got some that begin"):
                loaded(x, position_ids=positions, **options)


def test_the_indexers_loss_in_training_by_default_and_on_demand(folder):
    path, x = folder("gsa"), random_tokens()
    loaded, package = load(path), gsa.load_model(path)
    expected = package.eval().model(x, want_kl=True).kl.sum()
    plain = loaded.eval()(x, labels=x)
    assert plain.indexer_loss is None
    asked = loaded(x, labels=x, want_kl=True)  # evaluation mode would have a cache otherwise
    assert asked.past_key_values is None
    torch.testing.assert_close(asked.indexer_loss, expected)
    torch.testing.assert_close(asked.loss, plain.loss + expected)
    trained = loaded.train()(x, labels=x)
    torch.testing.assert_close(trained.loss, plain.loss + expected)
    for options in (dict(want_kl=False), dict(phase="dense")):
        assert loaded(x, labels=x, **options).indexer_loss is None
    with pytest.raises(ValueError, match="argument 'use_cache': expected False where want_kl is True"):
        loaded(x, want_kl=True, use_cache=True)


def test_shares_of_a_step_add_up_to_its_mean(folder):
    """Of micro-batches with unequal numbers of labels: cross-entropy and the indexer's loss."""
    loaded, x = load(folder("gsa"), dtype=torch.float64).train(), random_tokens(4, 40)
    labels = x.clone()
    labels[:2, 10:] = -100
    counts = [2 * 9, 2 * 39]
    means, shares = [], []
    for rows, count in zip((slice(0, 2), slice(2, 4)), counts):
        for buffer in loaded.buffers():
            buffer.fill_(0.02)
        means.append(loaded(x[rows], labels=labels[rows]))
        for buffer in loaded.buffers():
            buffer.fill_(0.02)
        shares.append(loaded(x[rows], labels=labels[rows], num_items_in_batch=torch.tensor(sum(counts))))
        assert torch.equal(shares[-1].indexer_loss, means[-1].indexer_loss) and means[-1].indexer_loss > 0
    expected = sum(count * mean.loss for count, mean in zip(counts, means)) / sum(counts)
    torch.testing.assert_close(sum(share.loss for share in shares), expected)
    with pytest.raises(ValueError, match="argument 'num_items_in_batch': expected None without labels, got 3"):
        loaded(x, num_items_in_batch=3)


@SELECTED
def test_autocast(case, folder):
    path, x = folder(case), random_tokens(2, 40)
    loaded, package = load(path), gsa.load_model(path).eval()
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            expected = package(x)
            assert torch.equal(loaded(x, use_cache=False).logits, expected) and expected.dtype == torch.bfloat16
            for logits in (loaded(x).logits, stepwise(loaded, x, 30, 1)):  # a key may be selected in another's place
                assert logits.dtype == torch.bfloat16 and (logits - expected).norm() < 0.3 * expected.norm()
        assert loaded.generate(x, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 43)
        loaded.train()(x, labels=x).loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in loaded.parameters())


@pytest.mark.parametrize("case", ["gsa", "shared", "gsa-tied-yarn"])
def test_pickle_and_state_dict_both_ways(case, folder):
    path, x = folder(case), random_tokens()
    loaded, package = load(path), gsa.load_model(path)
    torch.nn.init.normal_(loaded.model.norm.weight)
    loaded.model.layers[0].self_attn.indexer.mean_variance.fill_(0.03)
    package.load_state_dict(loaded.state_dict())
    other = hf.GatedSparseAttentionForCausalLM(loaded.config)
    other.load_state_dict(package.state_dict())
    again = pickle.loads(pickle.dumps(loaded))
    with torch.no_grad():
        expected = loaded(x, use_cache=False).logits
        assert torch.equal(package.eval()(x), expected)
        for made in (other.eval(), again):
            assert torch.equal(made(x, use_cache=False).logits, expected)
    cache = hf.GatedSparseCache()
    with torch.no_grad():
        loaded(x[:, :-1], past_key_values=cache)
        copied = pickle.loads(pickle.dumps(cache))
        assert torch.equal(*(loaded(x[:, -1:], past_key_values=c).logits for c in (cache, copied)))


@SELECTED
def test_training_compiles(case, folder):
    """As one graph, once: the running mean that a step moves is an input of the next."""
    loaded, x = load(folder(case)).train(), random_tokens()
    twin = copy.deepcopy(loaded)
    torch._dynamo.reset()
    step = lambda model, x: model.model(x, want_kl=True).indexer_loss
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in range(3):
            assert torch.equal(compiled(loaded, x.roll(n)), step(twin, x.roll(n)))
    for (name, a), b in zip(loaded.named_buffers(), twin.buffers()):
        assert torch.equal(a, b) and a != 0.02 and torch.equal(loaded.state_dict()[name], a), name


@pytest.mark.parametrize("case, labels", [("gsa", False), ("gsa", True), ("shared", True)])
def test_the_whole_model_compiles_as_one_graph(case, labels, folder):
    loaded, x = load(folder(case)).train(labels), random_tokens()
    twin, more = copy.deepcopy(loaded), dict(labels=x) if labels else dict(use_cache=False)
    torch._dynamo.reset()
    compiled = torch.compile(loaded, backend="aot_eager", fullgraph=True)
    with torch.set_grad_enabled(labels):
        ours, theirs = compiled(x, **more), twin(x, **more)
    assert torch.equal(ours.logits, theirs.logits)
    if labels:
        assert torch.equal(ours.loss, theirs.loss) and torch.equal(ours.indexer_loss, theirs.indexer_loss)
        ours.loss.backward(), theirs.loss.backward()
        for (name, a), b in zip(loaded.named_parameters(), twin.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}")


def test_padding_breaks_the_graph_and_nothing_else(folder):
    loaded, x = load(folder("gsa")), random_tokens(2, 40)
    mask = torch.ones_like(x)
    mask[1, :9] = 0
    torch._dynamo.reset()
    compiled = torch.compile(loaded, backend="aot_eager")
    with torch.no_grad():
        expected = loaded(x, attention_mask=mask, use_cache=False).logits
        assert torch.equal(compiled(x, attention_mask=mask, use_cache=False).logits, expected)


def test_a_model_over_several_devices_is_refused(folder):
    loaded, x = load(folder("gsa")), random_tokens()
    for made in (loaded, loaded.model):
        made.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": "cpu"}  # as accelerate notes it
        with pytest.raises(ValueError, match="argument 'device_map': expected one device for all layers, got cpu, cuda:0"):
            made(x)
        made.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": "disk"}
        with pytest.raises(ValueError, match="argument 'device_map': .*, got cuda:0, disk"):
            made(x)
        for same in ([0, "cuda:0", torch.device("cuda", 0)], ["cpu", torch.device("cpu")]):
            made.hf_device_map = dict(enumerate(same))
            made._require_one_device()
        made.hf_device_map = {"": "cpu"}
    assert loaded(x).logits.isfinite().all()


def test_hidden_states_and_logits_to_keep(folder):
    loaded, x = load(folder("gsa")), random_tokens()
    with torch.no_grad():
        output = loaded(x, output_hidden_states=True, use_cache=False)
        assert len(output.hidden_states) == 4 and torch.equal(loaded.lm_head(output.hidden_states[-1]), output.logits)
        torch.testing.assert_close(loaded(x, logits_to_keep=1, use_cache=False).logits, output.logits[:, -1:])
        embedded = loaded(inputs_embeds=loaded.get_input_embeddings()(x), use_cache=False).logits
        assert torch.equal(embedded, output.logits)
        loaded.config.output_hidden_states = True
        assert torch.equal(loaded(x, use_cache=False).hidden_states[1], output.hidden_states[1])
        assert loaded(x, output_hidden_states=False).hidden_states is None


@pytest.mark.parametrize("key, value, expected", [
    ("hidden_act", "gelu", "'hidden_act' to be \"silu\", got \"gelu\""),
    ("attention_bias", True, "'attention_bias' to be false, got true"),
    ("sliding_window", 16, "'sliding_window' to be null, got 16"),
    ("index_top_k", 16, "keys that are known here, got 'index_top_k'"),
    ("output_attentions", True, "False, as there are no attention matrices, got True"),
])  # fmt: skip
def test_keys_that_the_model_contradicts_are_refused(key, value, expected, folder):
    config = hf.GatedSparseAttentionConfig(num_hidden_layers=1, hidden_size=64, intermediate_size=88, vocab_size=131,
                                           **{key: value})  # fmt: skip
    with pytest.raises(ValueError, match=f"^GatedSparseAttentionConfig: .*{expected}"):
        hf.GatedSparseAttentionModel(config)
    path = folder("gsa")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ValueError, match=expected):
        load(path)


def test_mistakes_are_explained(folder):
    loaded, x = load(folder("gsa")), random_tokens()
    with pytest.raises(ValueError, match="argument 'past_key_values': expected a GatedSparseCache, got DynamicCache"):
        loaded(x, past_key_values=transformers.DynamicCache())
    with pytest.raises(ValueError, match="argument 'cache_implementation'"):
        loaded.generate(x, max_new_tokens=1, cache_implementation="static")
    for name, value in (("cache_config", {"nbits": 4}), ("max_cache_len", 200)):
        if not hasattr(loaded.generation_config, name):  # transformers 5.11 does not know the second
            continue
        with pytest.raises(ValueError, match=f"generate: argument '{name}': expected None, as the model has a cache of its own"):
            loaded.generate(x, max_new_tokens=1, **{name: value})
    with pytest.raises(ValueError, match="argument 'input_ids'"):
        loaded(x, inputs_embeds=torch.zeros(1))
    with pytest.raises(ValueError, match=r"argument 'input_ids': expected \[B, L\], got int64 \[96\]"):
        loaded(x[0])
    with pytest.raises(ValueError, match=r"argument 'inputs_embeds': expected \[B, L, d\], got float32 \[96, 48\]"):
        loaded(inputs_embeds=torch.zeros(96, 48))
    with pytest.raises(ValueError, match="argument 'attention_mask'"):
        loaded(x, attention_mask=torch.ones(2, 2, 96, 96))
    with pytest.raises(ValueError, match=r"argument 'attention_mask': expected \[2, 96\], 0 for padding, got float32 \[2, 100\]"):
        loaded(x, attention_mask=torch.ones(2, 100))
    with pytest.raises(ValueError, match="argument 'input_ids': expected numbers in 0 .. 130, got 131"):
        loaded(x.clamp(min=131))
    with pytest.raises(ValueError, match="argument 'input_ids': expected numbers in 0 .. 130, got -100"):
        loaded(x.masked_fill(x > 60, -100))
    for call in (loaded, loaded.model):
        assert call(x, output_attentions=False).hidden_states is None
        with pytest.raises(ValueError, match="argument 'output_attentions': expected False, as there are no attention matrices"):
            call(x, output_attentions=True)
    with pytest.raises(ValueError, match="argument 'value_gate'|'value_gate' to be"):
        hf.GatedSparseAttentionModel(hf.GatedSparseAttentionConfig(value_gate="both"))
    with pytest.raises(ValueError, match="^GatedSparseAttentionConfig: .*argument 'kv_heads'"):
        hf.GatedSparseAttentionModel(hf.GatedSparseAttentionConfig(num_key_value_heads=3))


def test_without_lm_eval_the_package_is_named(monkeypatch):
    from gated_sparse_attention.lm_eval import main

    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "lm_eval.__main__", raising=False)
    with pytest.raises(SystemExit, match="expected the package lm_eval .pip install 'lm-eval.hf.'., got none"):
        main()

"""The model for transformers: folders, generate() with its cache, padding, beams, gradient checkpointing."""

import copy
import json
import pickle
import sys

import pytest
import torch
from configs import CASES, model

import gated_sparse_attention as gsa

transformers = pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")
hf = gsa.huggingface
from safetensors.torch import load_file, save_file  # noqa: E402, transformers needs it too

GENERATED = ["sparse-only", "gated-only", "gsa", "gsa-tied-yarn", "relu", "headwise", "half-rotated", "dense-below",
             "biases", "query-key-norms", "llama3", "shared", "shared-relu-learned", "shared-dense-below"]  # fmt: skip
SELECTED = pytest.mark.parametrize("case", ["gsa", "shared"])


@pytest.fixture
def folder(tmp_path):
    """folder(case): a saved model whose running means are known."""

    def make(case, dtype=torch.float32):
        made = gsa.GatedSparseForCausalLM(model(**CASES[case]))
        for buffer in made.buffers():
            buffer.fill_(0.02)
        gsa.save_model(made.to(dtype), tmp_path)
        return tmp_path

    return make


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def random_tokens(batch=2, length=96, vocabulary=131):
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


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


def stepwise(model, x, prefix, step):
    """Logits of x by a prefix and then `step` tokens at a time over a cache."""
    cache, parts = hf.GatedSparseCache(), []
    with torch.no_grad():
        for a, b in [(0, prefix), *((i, min(i + step, x.size(1))) for i in range(prefix, x.size(1), step))]:
            parts.append(model(x[:, a:b], past_key_values=cache).logits)
    assert cache.get_seq_length() == x.size(1)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("case", GENERATED)
def test_a_cache_gives_the_logits_of_the_whole(case, folder):
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens()
    with torch.no_grad():
        whole = loaded(x, use_cache=False).logits
    # Where dense_below is 90, a text's beginning runs dense while it is short.
    for prefix, step in ((96, 1), (92, 3)) if loaded.config.dense_below else ((96, 1), (70, 1), (7, 20)):
        torch.testing.assert_close(stepwise(loaded, x, prefix, step), whole)


def test_masks_that_would_take_too_much_memory_are_made_again(folder, monkeypatch):
    loaded, x = load(folder("shared")), random_tokens()
    found = []
    for affordable in (True, False):
        monkeypatch.setattr("gated_sparse_attention.huggingface.modeling.mask_is_affordable", lambda *sizes: affordable)
        found.append(stepwise(loaded, x, 60, 20))
    assert torch.equal(*found)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("case", ["dense-below", "shared-dense-below"])
def test_padding_changes_nothing(case, side, use_cache, folder):
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens(3, 120)
    mask = torch.ones_like(x)
    if side != "right":
        mask[0, :30], mask[1, :7] = 0, 0
    if side != "left":
        mask[0, 100:], mask[2, 110:] = 0, 0
    padded = x.masked_fill(mask == 0, 5)
    with torch.no_grad():
        found = loaded(padded, attention_mask=mask, use_cache=use_cache).logits
        for row in range(3):
            kept = mask[row].bool()
            torch.testing.assert_close(found[row, kept], loaded(x[row : row + 1, kept], use_cache=False).logits[0])
    assert found.isfinite().all()


@pytest.mark.parametrize("case", ["gsa", "dense-below", "gated-only", "shared", "shared-dense-below"])
def test_generation_of_a_padded_batch(case, folder):
    loaded = load(folder(case), dtype=torch.float64)
    x, lengths = random_tokens(3, 85), [85, 60, 3]
    ids, mask = torch.zeros_like(x), torch.zeros_like(x)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = x[row, :length], 1
    options = dict(max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
    together = loaded.generate(ids, attention_mask=mask, **options)[:, 85:]
    for row, length in enumerate(lengths):
        prompt = x[row : row + 1, :length]
        alone = loaded.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, length:]
        assert torch.equal(together[row], alone), row
    if not loaded.config.sparse_attention or not loaded.config.dense_below:
        assert torch.equal(loaded.generate(ids, attention_mask=mask, use_cache=False, **options)[:, 85:], together)


def test_sampling(folder):
    """With a cache and without, one seed gives one text; another seed another."""
    loaded, x = load(folder("gsa"), dtype=torch.float64), random_tokens(2, 20)
    options = dict(attention_mask=torch.ones_like(x), max_new_tokens=12, min_new_tokens=12, do_sample=True, top_k=40,
                   temperature=0.8, pad_token_id=0)  # fmt: skip

    def sample(seed, **more):
        torch.manual_seed(seed)
        return loaded.generate(x, **options, **more)

    found = sample(1)
    assert found.shape == (2, 32) and torch.equal(found, sample(1)) and torch.equal(found, sample(1, use_cache=False))
    assert not torch.equal(found, sample(2))


@SELECTED
def test_generation_goes_on_from_a_cache(case, folder):
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens(2, 30)
    options = dict(min_new_tokens=5, max_new_tokens=5, do_sample=False, pad_token_id=0)
    whole = loaded.generate(x, attention_mask=torch.ones_like(x), **options)
    cache = hf.GatedSparseCache()
    with torch.no_grad():
        loaded(x[:, :20], past_key_values=cache)
    mask = torch.ones_like(x)
    assert torch.equal(loaded.generate(x, attention_mask=mask, past_key_values=cache, **options), whole)
    assert cache.get_seq_length() == 34  # all but the last token
    longer = torch.cat([whole, x[:, :3]], 1)  # a second turn
    mask = torch.ones_like(longer)
    found = loaded.generate(longer, attention_mask=mask, past_key_values=cache, **options)
    assert torch.equal(found, loaded.generate(longer, attention_mask=mask, **options))


@SELECTED
def test_a_second_turn_after_a_text_that_ended_early(case, folder):
    """generate() fills up an ended text and its cache with padding, which the mask of the next turn says."""
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens(3, 20).clamp(min=1)
    mask = torch.ones_like(x)
    mask[1, :6] = 0
    options = dict(do_sample=False, pad_token_id=0)
    first = loaded.generate(x, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, eos_token_id=-1, **options)
    end = int(first[0, 22])
    turn = loaded.generate(x, attention_mask=mask, max_new_tokens=8, eos_token_id=end, return_dict_in_generate=True, **options)
    cache, text = turn.past_key_values, turn.sequences
    said = (text[:, 20:] != 0).long()
    assert said[0].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    options |= dict(max_new_tokens=6, min_new_tokens=6, eos_token_id=-1)
    for _ in range(2):  # a third turn behind padding in the middle
        said = torch.cat([said, torch.ones(3, 5, dtype=torch.long)], 1)
        text, mask_now = torch.cat([text, random_tokens(3, 5)], 1), torch.cat([mask, said], 1)
        expected = loaded.generate(text, attention_mask=mask_now, **options)
        text = loaded.generate(text, attention_mask=mask_now, past_key_values=cache, **options)
        assert torch.equal(text, expected)
        assert cache.lengths == (mask_now.sum(1) + 5).tolist() and cache.seen == text.size(1) - 1
        said = torch.cat([said, torch.ones(3, 6, dtype=torch.long)], 1)


@pytest.mark.parametrize("case", GENERATED)
def test_cached_tokens_that_a_mask_calls_padding(case, folder):
    """At a sequence's end: of a padded batch, several new tokens and one, cropped, repeated and selected."""
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens(2, 130)
    mask = torch.ones_like(x)
    mask[0, :4], mask[1, 95:110], mask[0, 105:110] = 0, 0, 0
    before = mask.clone()
    before[:, 92:110] = 1  # as it entered the cache
    with torch.no_grad():
        expected = loaded(x, attention_mask=mask, use_cache=False).logits
        cache = loaded(x[:, :110], attention_mask=before[:, :110], use_cache=True).past_key_values
        assert cache.lengths == [106, 110]
        rows = torch.tensor([1, 0, 1])
        cache.batch_select_indices(rows)
        found = [loaded(x[rows, a:b], attention_mask=mask[rows, :b], past_key_values=cache).logits
                 for a, b in ((110, 121), (121, 122), (122, 130))]  # fmt: skip
        torch.testing.assert_close(torch.cat(found, 1), expected[rows, 110:])
        cache.crop(-25)  # into the padding
        assert cache.lengths == [95, 101, 95] and cache.seen == 105
        cache.batch_repeat_interleave(2)
        again = torch.cat([mask[:, :105], torch.ones(2, 1, dtype=torch.long)], 1)
        expected = loaded(x[:, :106], attention_mask=again, use_cache=False).logits
        rows = rows.repeat_interleave(2)
        found = loaded(x[rows, 105:106], attention_mask=again[rows], past_key_values=cache).logits
        torch.testing.assert_close(found, expected[rows, 105:])


def test_masks_that_contradict_the_cache_are_refused(folder):
    loaded, x = load(folder("gsa")), random_tokens(2, 12)
    mask = torch.ones_like(x)
    mask[1, :3] = 0
    with torch.no_grad():
        cache = loaded(x[:, :10], attention_mask=mask[:, :10], use_cache=True).past_key_values
        with pytest.raises(ValueError, match="GatedSparseCache: argument 'attention_mask': expected 0 for what was padding "
                           r"when it entered the cache .*, got 1 in row 1, column 0"):  # fmt: skip
            loaded(x[:, 10:], attention_mask=torch.ones_like(x), past_key_values=cache)
        early = mask.clone()
        early[0, 4] = 0
        with pytest.raises(ValueError, match="expected 1 for cached tokens that later ones in the cache have seen .*, got 0 in "
                           "row 0, column 4"):  # fmt: skip
            loaded(x[:, 10:], attention_mask=early, past_key_values=cache)
        assert cache.lengths == [10, 7] and cache.seen == 10  # as before
        expected = loaded(x, attention_mask=mask, use_cache=False).logits[:, 10:]
        found = loaded(x[:, 10:], attention_mask=mask[:, 10:], past_key_values=cache).logits  # of the new tokens alone
    torch.testing.assert_close(found, expected)


@SELECTED
def test_prompt_lookup_gives_the_greedy_text(case, folder):
    """Guesses are dropped by cropping the cache."""
    loaded = load(folder(case), dtype=torch.float64)
    x = random_tokens(1, 12).repeat(1, 3)
    options = dict(attention_mask=torch.ones_like(x), min_new_tokens=16, max_new_tokens=16, do_sample=False, pad_token_id=0)
    crops = []
    expected = loaded.generate(x, **options)
    crop = hf.GatedSparseCache.crop
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf.GatedSparseCache, "crop", lambda cache, n: (crops.append(n), crop(cache, n)))
        assert torch.equal(loaded.generate(x, prompt_lookup_num_tokens=4, **options), expected)
    assert crops


@SELECTED
def test_beam_search(case, folder):
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens(2, 20)
    mask = torch.ones_like(x)
    mask[0, :6] = 0
    options = dict(attention_mask=mask, num_beams=3, max_new_tokens=8, do_sample=False, pad_token_id=0)
    found = loaded.generate(x, **options)
    assert torch.equal(found, loaded.generate(x, use_cache=False, **options))
    alone = loaded.generate(x[:1, 6:], **options | {"attention_mask": mask[:1, 6:]})
    assert torch.equal(found[0, 20:], alone[0, 14:])
    greedy = loaded.generate(x, **options | {"num_beams": 1})
    assert not torch.equal(found, greedy)


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


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_generation_in_training_mode(checkpointing, folder):
    """As in evaluation mode; passes without gradients leave the running means alone."""
    loaded, x = load(folder("gsa"), dtype=torch.float64), random_tokens(2, 20)
    options = dict(attention_mask=torch.ones_like(x), max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    expected = loaded.generate(x, **options)
    loaded.train()
    if checkpointing:
        loaded.gradient_checkpointing_enable()
    for use_cache in (True, False, None):
        assert torch.equal(loaded.generate(x, use_cache=use_cache, **options), expected)
    with torch.no_grad():
        loaded(x, labels=x)
    assert all((buffer == 0.02).all() for buffer in loaded.buffers())
    loaded(x, labels=x).loss.backward()
    assert all((buffer != 0.02).all() for buffer in loaded.buffers())


def test_a_cache_beside_gradient_checkpointing(folder, monkeypatch):
    """Turned off with a warning, as in transformers' own models; one that is given is refused."""
    from gated_sparse_attention.huggingface import modeling

    said = []
    monkeypatch.setattr(modeling._logger, "warning_once", said.append)
    loaded, x = load(folder("gsa")).train(), random_tokens(2, 20)
    loaded.gradient_checkpointing_enable()
    assert loaded(x, use_cache=True).past_key_values is None
    assert said == ["`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`."]
    with pytest.raises(ValueError, match="argument 'past_key_values': expected None where activations are checkpointed"):
        loaded(x, past_key_values=hf.GatedSparseCache())


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


@SELECTED
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


@SELECTED
def test_the_cache_is_cut_and_repeated(case, folder):
    loaded, x = load(folder(case), dtype=torch.float64), random_tokens(2, 40)
    cache = hf.GatedSparseCache()
    with torch.no_grad():
        loaded(x, past_key_values=cache)
        expected = loaded(x, use_cache=False).logits
        cache.crop(-5)
        torch.testing.assert_close(loaded(x[:, 35:], past_key_values=cache).logits, expected[:, 35:])
        cache.crop(-1)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0]))
        torch.testing.assert_close(loaded(x[[1, 0], 39:], past_key_values=cache).logits, expected[[1, 0], 39:])
    with pytest.raises(ValueError, match="argument 'tokens_to_remove'"):
        cache.crop(-41)
    with pytest.raises(ValueError, match="argument 'input_ids': expected 2 sequences"):
        loaded(x[:1], past_key_values=cache)


def test_the_cache_holds_indexer_keys_of_layers_that_have_an_indexer(folder, monkeypatch):
    """And these alone score, once a token."""
    from gated_sparse_attention.huggingface import modeling

    loaded, x, calls, decode = load(folder("shared")), random_tokens(2, 40), [], modeling.decode

    def counted(q, pages, index_q=None, *args, **options):
        calls.append((index_q is not None, pages.index_k is not None, options.get("selected") is not None))
        return decode(q, pages, index_q, *args, **options)

    monkeypatch.setattr(modeling, "decode", counted)
    cache = hf.GatedSparseCache()
    with torch.no_grad():
        loaded(x[:, :39], past_key_values=cache)
        loaded(x[:, 39:], past_key_values=cache)
    assert [pages.index_k is not None for pages in cache.pages] == [True, False, True, False]
    assert calls == [(True, True, False), (False, False, True)] * 2


@pytest.mark.parametrize("name", ["model.layers.1", "model.layers.1.self_attn", "model.layers.1.mlp"])
def test_hooks_see_passes_with_a_cache(name, folder):
    """The layer's input and output, of the prompt and of every new token."""
    loaded, x, rows = load(folder("gsa")), random_tokens(2, 20), []
    loaded.get_submodule(name).register_forward_hook(lambda layer, args, out: rows.append(len(args[0].flatten(0, -2))))
    loaded.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0)
    assert rows == [40, 2, 2]


def test_a_model_over_several_devices_is_refused(folder):
    loaded, x = load(folder("gsa")), random_tokens()
    for made in (loaded, loaded.model):
        made.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": "cpu"}  # as accelerate notes it
        with pytest.raises(ValueError, match="argument 'device_map': expected one device for all layers, got 0, cpu"):
            made(x)
        made.hf_device_map = {"": "cpu"}
    assert loaded(x).logits.isfinite().all()


def test_the_cache_grows_seldom(folder):
    loaded, x = load(folder("gsa"), dtype=torch.float64), random_tokens(1, 700)
    cache, places = hf.GatedSparseCache(), []
    with torch.no_grad():
        parts = []
        for a, b in [(0, 300), *((n, n + 10) for n in range(300, 700, 10))]:
            parts.append(loaded(x[:, a:b], past_key_values=cache).logits)
            places.append(cache.pages[0].k.data_ptr())
        assert places[0] == places[10] and 1 < len(set(places)) < 4
        torch.testing.assert_close(torch.cat(parts, 1), loaded(x, use_cache=False).logits)


@pytest.mark.parametrize("use_cache", [False, True])
def test_a_batch_of_no_rows(use_cache, folder):
    loaded, x = load(folder("gsa")), random_tokens()[:0]
    with torch.no_grad():
        for options in ({}, dict(attention_mask=torch.ones_like(x))):
            assert loaded(x, use_cache=use_cache, **options).logits.shape == (0, 96, 131)


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
    with pytest.raises(ValueError, match="argument 'input_ids'"):
        loaded(x, inputs_embeds=torch.zeros(1))
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

"""generate() of the model for transformers: its cache, padding, beams, several turns."""

import pytest
import torch
from hf_models import load, random_tokens, stepwise

import gated_sparse_attention as gsa

transformers = pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")
hf = gsa.huggingface

GENERATED = ["sparse-only", "gated-only", "gsa", "gsa-tied-yarn", "relu", "headwise", "half-rotated", "dense-below",
             "biases", "query-key-norms", "llama3", "shared", "shared-relu-learned", "shared-dense-below"]  # fmt: skip
def since(version, reason):
    """What transformers itself does wrong, with its Llama too, before a version."""
    old = tuple(map(int, transformers.__version__.split(".")[:2])) < version
    return pytest.mark.skipif(old, reason=f"transformers before {version[0]}.{version[1]} {reason}")


SELECTED = pytest.mark.parametrize("case", ["gsa", "shared"])


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


@pytest.mark.parametrize("chunk", [
    None, pytest.param(4, marks=since((5, 21), "masks chunks over a cache as if it were empty")),
])  # fmt: skip
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [30, 34])
def test_a_cache_that_has_seen_the_whole_text_is_refused(length, padded, chunk, folder):
    """transformers would read the text from its middle, or once more. The prompt again, and all that was cached."""
    loaded, x = load(folder("gsa"), dtype=torch.float64), random_tokens(2, 30)
    options = dict(min_new_tokens=5, max_new_tokens=5, do_sample=False, pad_token_id=0, prefill_chunk_size=chunk)
    mask = torch.ones(2, 35, dtype=torch.long)
    mask[1, :3] = not padded
    made = loaded.generate(x, attention_mask=mask[:, :30], return_dict_in_generate=True, **options)
    cache, text, options["attention_mask"] = made.past_key_values, made.sequences[:, :length], mask[:, :length]
    with pytest.raises(ValueError, match=rf"^generate: argument 'past_key_values': expected a cache of fewer tokens than "
                       rf"the whole text \({length}, by the mask\), of which at least one is new; .*, got one of 34$"):  # fmt: skip
        loaded.generate(text, past_key_values=cache, **options)
    cache.crop(length - 1 - 34)
    assert torch.equal(loaded.generate(text, past_key_values=cache, **options), loaded.generate(text, **options))


@pytest.mark.parametrize("seen", [0, 20])
@pytest.mark.parametrize("case", ["gsa", "shared"])
def test_a_pass_that_fails_leaves_the_cache_as_it_was(case, seen, folder):
    """A mistake, or Ctrl-C in the middle of a pass for which the cache grew: the same pass is then made again."""
    loaded, x, cache = load(folder(case), dtype=torch.float64), random_tokens(2, 900), hf.GatedSparseCache()

    def interrupt(*_):
        raise KeyboardInterrupt

    with torch.no_grad():
        expected = loaded(x, use_cache=False).logits
        if seen:
            loaded(x[:, :seen], past_key_values=cache)
        with pytest.raises(ValueError, match="argument 'phase'"):
            loaded(x[:, seen:], past_key_values=cache, phase="sprase")
        hook = loaded.model.layers[1].mlp.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            loaded(x[:1] if not seen else x[:, seen:], past_key_values=cache)
        hook.remove()
        assert cache.get_seq_length() == seen and cache.lengths == ([seen] * 2 if seen else [])
        torch.testing.assert_close(loaded(x[:, seen:], past_key_values=cache).logits, expected[:, seen:])


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


@since((5, 14), "looks for an end of text where a model has none")
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
    loaded, x, seen = load(folder("gsa")), random_tokens(2, 20), []

    def look(layer, args, out):
        if name.endswith("self_attn"):
            out = out.out
        elif not name.endswith("mlp"):
            out = out[0]  # as who goes by transformers' own layers looks for hidden states
        seen.append((args[0].shape, out.shape))

    loaded.get_submodule(name).register_forward_hook(look)
    loaded.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0)
    assert seen == [((rows, 48), (rows, 48)) for rows in (40, 2, 2)]


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

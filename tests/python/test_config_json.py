"""config.json as published models have it, read as the program reads it and as transformers does."""

import json
import re
from pathlib import Path

import pytest

from gated_sparse_attention import _transformers, config_json
from gated_sparse_attention.config_json import config_from_dict

ROOT = Path(__file__).resolve().parents[2]
# Those of the program's test: {"name", parameters, head_size, kv_heads, R"json(text)json"}.
PUBLISHED = {
    name: (json.loads(text), int(head_size), int(kv_heads))
    for name, head_size, kv_heads, text in re.findall(
        r'\{"(\w+)",\s*\d+,\s*(\d+),\s*(\d+),\s*R"json\((.*?)\)json"\}',
        (ROOT / "tests/model/published_configs_test.cc").read_text(),
        re.DOTALL,
    )
}


def test_they_are_found():
    assert len(PUBLISHED) == 12


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read(name):
    values, head_size, kv_heads = PUBLISHED[name]
    attention = config_from_dict(values).attention
    assert (attention.head_size, attention.kv_heads) == (head_size, kv_heads)


@pytest.mark.skipif(not _transformers.usable(), reason="needs transformers 5.11 or newer")
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_is_left_out_is_what_transformers_takes(family):
    from transformers import AutoConfig

    values = next(v for v, *_ in PUBLISHED.values() if v["model_type"] == family and v["hidden_size"] > 900)
    values = {key: value for key, value in values.items() if key not in ("head_dim", "num_key_value_heads")}
    values |= dict(num_attention_heads=32, hidden_size=2048)
    for more in ({}, {"num_key_value_heads": None}):
        if more and family == "mistral":
            continue  # which transformers refuses
        theirs, ours = AutoConfig.for_model(**(values | more)), config_from_dict(values | more).attention
        assert ours.kv_heads == theirs.num_key_value_heads
        assert ours.head_size == (getattr(theirs, "head_dim", None) or 64)


def test_a_window_names_the_way_out():
    values, *_ = PUBLISHED["Mistral_7B_v0_3"]
    with pytest.raises(ValueError, match="with max_position_embeddings 4096 in config.json"):
        config_from_dict(values | {"sliding_window": 4096})
    config_from_dict(values | {"sliding_window": 4096, "max_position_embeddings": 4096})


@pytest.mark.parametrize("kind, got", [(None, "none"), ("mamba", '"mamba"'), (["llama"], '["llama"]')])
def test_unknown_architectures_are_refused_with_the_known_ones(kind, got):
    known = '"llama", "mistral", "qwen2", "qwen3", "gated_sparse_attention" or "gsa"'
    values, *_ = PUBLISHED["Llama_2_7b"]
    with pytest.raises(ValueError, match=re.escape(f"'model_type' to be an architecture that is known here: {known}, got {got}")):
        config_from_dict(values | {"model_type": kind})


def test_the_lists_are_the_programs():
    source = (ROOT / "src/model/config_json.cc").read_text()

    def keys(function, pattern):
        return set(re.findall(pattern, source[source.index(f"& {function}() {{") :].split("return keys;")[0]))

    assert keys("keys_without_meaning", r'"([^"]+)"') == config_json._WITHOUT_MEANING
    assert keys("keys_of_one_value", r'\{"([^"]+)",') == set(config_json._ONE_VALUE)

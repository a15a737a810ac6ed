"""A standard model of ours is a Llama: transformers loads it, we load theirs, and the logits agree."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

PROBE = Path(os.environ["GSA_LIBRARY"]).resolve().parent / "gsa_model_probe"
TOLERANCE = 1e-4  # of logits in float32
LENGTH = 96  # beyond the trained length of 64, where a wrong rotation would show

# Names of the cases are the arguments of the probe; see tests/probe/model_probe.cc.
CASES = {
    "gqa-untied": [],
    "gqa-tied": ["tied=1"],
    "mha": ["kv_heads=4"],
    "mqa": ["kv_heads=1", "tied=1"],
    "wide-heads": ["heads=3", "kv_heads=3", "head_size=24"],
    "yarn": ["extend=4"],
    "yarn-tied": ["extend=2.5", "tied=1"],
    "yarn-attention-factor": ["extend=8", "attention_factor=1.3"],
}


def probe(*arguments):
    result = subprocess.run([PROBE, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def random_tokens():
    return torch.randint(0, 131, (2, LENGTH))


def our_logits(folder, tokens):
    safetensors.save_file({"tokens": tokens}, folder / "tokens.safetensors")
    probe("run", folder)
    return safetensors.load_file(folder / "logits.safetensors")["logits"]


def their_logits(model, tokens):
    model.eval()
    with torch.no_grad():
        return model(tokens).logits.float()


@pytest.mark.parametrize("arguments", CASES.values(), ids=CASES.keys())
def test_transformers_loads_our_standard_model(arguments, tmp_path):
    probe("make", tmp_path, *arguments)
    tokens = random_tokens()
    ours = our_logits(tmp_path, tokens)
    model, info = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    theirs = their_logits(model, tokens)
    assert ours.shape == theirs.shape
    assert ours.std() > 0.5  # logits that say something
    assert (ours - theirs).abs().max() <= TOLERANCE


def test_a_wrong_rotation_would_show(tmp_path):
    """The comparison above is worth something: another base of the rotation moves logits a hundred times further."""
    probe("make", tmp_path)
    tokens = random_tokens()
    before = our_logits(tmp_path, tokens)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_theta"] *= 1.1
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (our_logits(tmp_path, tokens) - before).abs().max() > 100 * TOLERANCE


def test_auto_classes_take_the_folder(tmp_path):
    probe("make", tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == "llama"
    assert isinstance(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), transformers.LlamaForCausalLM)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("rope", [None, "yarn"], ids=["plain", "yarn"])
@pytest.mark.parametrize("shards", [False, True], ids=["one-file", "shards"])
def test_we_load_what_transformers_saves(tied, rope, shards, tmp_path):
    extra = {}
    if rope:
        extra["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = transformers.LlamaConfig(
        vocab_size=131, hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256 if rope else 64, initializer_range=0.15,
        tie_word_embeddings=tied, attn_implementation="eager", **extra)
    model = transformers.LlamaForCausalLM(config).to(torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="40KB" if shards else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == shards
    tokens = random_tokens()
    theirs = their_logits(model, tokens)
    assert theirs.std() > 0.5
    assert (our_logits(tmp_path, tokens) - theirs).abs().max() <= TOLERANCE


def test_bfloat16_weights_arrive_unchanged(tmp_path):
    probe("make", tmp_path, "bf16=1")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert model.dtype == torch.bfloat16
    stored = safetensors.load_file(tmp_path / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, stored[name]), name

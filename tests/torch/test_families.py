"""Folders of Llama, Mistral, Qwen2 and Qwen3 as transformers writes them: their logits, and back as themselves."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

BUILD = Path(os.environ["GSA_LIBRARY"]).resolve().parent
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
LENGTH = 96  # beyond the original lengths of the scalings

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=48)  # fmt: skip
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)

# family, and what it has beside the sizes below; shards: several files.
CASES = {
    "llama2": ("llama", dict(num_key_value_heads=4)),
    "llama3-tied": ("llama", dict(rope_scaling=LLAMA3, rope_theta=500000.0, tie_word_embeddings=True)),
    "llama3-shards": ("llama", dict(rope_scaling=LLAMA3, shards=True)),
    "llama-linear": ("llama", dict(rope_scaling=dict(rope_type="linear", factor=4.0))),
    "llama-yarn-mscale": ("llama", dict(rope_scaling=YARN | dict(mscale=0.9, mscale_all_dim=0.4))),
    "mistral": ("mistral", dict(sliding_window=None, rope_theta=1e6)),
    "mistral-window-of-all": ("mistral", dict(sliding_window=256, tie_word_embeddings=True)),
    "qwen2": ("qwen2", dict(rope_theta=1e6)),
    "qwen2-yarn-tied-shards": ("qwen2", dict(rope_scaling=YARN, tie_word_embeddings=True, shards=True)),
    "qwen3": ("qwen3", dict(head_dim=24)),
    "qwen3-tied-linear": ("qwen3", dict(tie_word_embeddings=True, rope_scaling=dict(rope_type="linear", factor=2.0))),
    "qwen3-yarn": ("qwen3", dict(rope_scaling=YARN | dict(truncate=False, attention_factor=1.3, beta_fast=16.0,
                                                           beta_slow=2.0), shards=True)),
    "qwen3-llama3": ("qwen3", dict(rope_scaling=LLAMA3)),
}  # fmt: skip
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


@contextlib.contextmanager
def everything_in_double():
    """transformers computes angles, norms and softmax in float32 whatever the weights are; here in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def make(case, dtype):
    family, extra = CASES[case]
    extra = {key: value for key, value in extra.items() if key != "shards"}
    config = getattr(transformers, CLASSES[family] + "Config")(**(dict(
        vocab_size=131, hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, initializer_range=0.15, rms_norm_eps=1e-5,
        bos_token_id=1, eos_token_id=2, attn_implementation="eager", dtype=dtype) | extra))  # fmt: skip
    model = getattr(transformers, CLASSES[family] + "ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1, 0.2)
            elif name.endswith(".bias"):
                parameter.normal_(0, 0.5)
    for parameter in model.parameters():  # model.to() would also round the tables of angles
        parameter.data = parameter.data.to(dtype)
    return model.eval()


def save(model, case, folder):
    shards = CASES[case][1].get("shards", False)
    model.save_pretrained(folder, max_shard_size="40KB" if shards else "1GB")
    assert (folder / "model.safetensors.index.json").exists() == shards


def exact_logits(model, tokens):
    """Of the same weights, in float64 throughout."""
    with everything_in_double(), torch.no_grad():
        twin = type(model)(model.config).double().eval()
        twin.load_state_dict(model.state_dict())
        return twin(tokens, use_cache=False).logits


def probe(*arguments):
    result = subprocess.run([BUILD / "gsa_model_probe", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def our_logits(folder, tokens):
    """Of the model, and of the inference engine."""
    safetensors.save_file({"tokens": tokens}, folder / "tokens.safetensors")
    probe("engine", folder)
    found = safetensors.load_file(folder / "logits.safetensors")
    return {"model": found["logits"], "engine": found["stepped"]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case, dtype, tmp_path):
    model, tokens = make(case, dtype), torch.randint(0, 131, (2, LENGTH))
    save(model, case, tmp_path)
    exact = exact_logits(model, tokens)
    assert exact.std() > 0.3  # they say something
    error = lambda logits: (logits.double() - exact).pow(2).mean().sqrt()
    with torch.no_grad():
        theirs = error(model(tokens, use_cache=False).logits)
    import gated_sparse_attention as gsa

    with torch.no_grad():
        found = {"package": gsa.load_model(tmp_path).eval()(tokens)}
    for name, logits in (found | our_logits(tmp_path, tokens)).items():
        if dtype == torch.float64:
            assert logits.dtype == torch.float64
            assert (logits - exact).abs().max() <= 1e-9, name
        else:
            assert error(logits) <= 2 * theirs, (name, error(logits), theirs)


@pytest.mark.parametrize("case", CASES)
def test_saved_folders_go_back_as_their_family(case, tmp_path):
    model = make(case, torch.bfloat16)
    save(model, case, tmp_path / "theirs")
    probe("copy", tmp_path / "theirs", tmp_path / "ours")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype="auto", attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert again.config.model_type == CASES[case][0]
    assert again.config.architectures == [CLASSES[CASES[case][0]] + "ForCausalLM"]
    tokens = torch.randint(0, 131, (2, LENGTH))
    with torch.no_grad():
        assert torch.equal(again.eval()(tokens).logits, model(tokens).logits)


def test_a_window_and_other_architectures_are_refused(tmp_path):
    import gated_sparse_attention as gsa

    make("mistral", torch.float32).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, parts in [
        (dict(sliding_window=32), ["no sliding window", "a window of 32"]),
        (dict(model_type="gemma3_text"), ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]),
        (dict(attention_bias=True), ["attention_bias"]),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError) as caught:
            gsa.load_model(tmp_path)
        safetensors.save_file({"tokens": torch.zeros(1, 4, dtype=torch.int64)}, tmp_path / "tokens.safetensors")
        result = subprocess.run([BUILD / "gsa_model_probe", "run", tmp_path], capture_output=True, text=True, check=False)
        for part in parts:
            assert part in str(caught.value) and part in result.stderr, (part, str(caught.value), result.stderr)

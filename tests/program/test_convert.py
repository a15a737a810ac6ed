"""gsa convert: a checkpoint of Hugging Face becomes a gsa model that is the same function, and then learns."""

import json
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("tokenizers")
from test_tokenizer_json import QWEN, Tokenizer, byte_level, normalizers  # noqa: E402

PROBE = Path(os.environ["GSA_PROGRAM"]).resolve().parent.parent / "gsa_model_probe"
LENGTH = 96

FAMILIES = {
    "qwen3": dict(head_dim=32, tie_word_embeddings=True),
    "qwen2": dict(),
    "llama": dict(rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                    original_max_position_embeddings=64)),
    "mistral": dict(sliding_window=None),
    "llama-linear": dict(rope_scaling=dict(rope_type="linear", factor=2.0)),
    "qwen2-yarn": dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
}  # fmt: skip


def make(folder, family="qwen3", dtype=torch.float32, vocab_size=131, **sizes):
    torch.manual_seed(5)
    name = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral"}[family.split("-")[0]]
    config = getattr(transformers, name + "Config")(**(dict(
        vocab_size=vocab_size, hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, initializer_range=0.15, bos_token_id=None,
        eos_token_id=None, dtype=dtype) | FAMILIES[family] | sizes))  # fmt: skip
    model = getattr(transformers, name + "ForCausalLM")(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.normal_(1, 0.2)
            elif key.endswith(".bias"):
                parameter.normal_(0, 0.5)
    model.to(dtype).save_pretrained(folder, max_shard_size="40KB")


def logits(folder, tokens):
    safetensors.save_file({"tokens": tokens}, folder / "tokens.safetensors")
    run = subprocess.run([PROBE, "run", folder], capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr
    (folder / "tokens.safetensors").unlink()
    return safetensors.load_file(folder / "logits.safetensors")["logits"].double()


def in_float64(folder, other):
    """The same weights, wider."""
    other.mkdir()
    state = {}
    for file in folder.glob("model*.safetensors"):
        state |= safetensors.load_file(file)
    safetensors.save_file({name: tensor.double() for name, tensor in state.items()}, other / "model.safetensors")
    (other / "config.json").write_text((folder / "config.json").read_text())


@pytest.mark.parametrize("system", ["gsa", "gated-only", "sparse-only"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_function_stays(gsa, family, system):
    make(gsa.folder / "hf", family, torch.bfloat16)
    gsa.run("convert", "hf", "--system", system, "--output", "new")  # k_base 128, an eighth of 1024
    config = json.loads((gsa.folder / "new" / "config.json").read_text())
    assert config["model_type"] == "gated_sparse_attention" and config["torch_dtype"] == "bfloat16"
    assert config.get("qkv_bias", False) == family.startswith("qwen2") and config.get("qk_norm", False) == (family == "qwen3")
    for name in ("hf", "new"):
        in_float64(gsa.folder / name, gsa.folder / f"{name}64")
    tokens = torch.randint(0, 131, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    exact = logits(gsa.folder / "hf64", tokens)
    assert (logits(gsa.folder / "new64", tokens) - exact).abs().max() <= 1e-9
    error = lambda name: (logits(gsa.folder / name, tokens) - exact).pow(2).mean().sqrt()
    assert error("new") <= 2 * error("hf")


def test_it_learns_and_speaks(gsa, words):
    tokenizer = byte_level(QWEN, normalizers.NFC())
    vocabulary = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    make(gsa.folder / "hf", dtype=torch.bfloat16, vocab_size=vocabulary + 7, max_position_embeddings=256)
    (gsa.folder / "hf" / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    marks = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (gsa.folder / "hf" / "tokenizer_config.json").write_text(json.dumps(marks))
    told = gsa.run("convert", "hf", "--output", "new", "--set", "model.k_base=16", "--set", "model.index_heads=2",
                   "--set", "model.index_head_size=8")  # fmt: skip
    # 3 layers of (2 x 8 + 8 + 2) x 48 and two biases
    assert "3,750 new parameters in 3 layers, 2 heads of 8" in told and "texts of up to 16 tokens" in told
    assert "gsa train --set model.from=new" in told
    assert (gsa.folder / "new" / "tokenizer.json").read_text() == (gsa.folder / "hf" / "tokenizer.json").read_text()
    gsa.run("tokenize", words, "--split", "blank-lines", "--tokenizer", "new", "--output", "data")
    steps = ["--set", "data.train=data", "--set", "data.length=128", "--set", "batch.tokens=256", "--set",
             "phases.warmup=1", "--set", "phases.sparse=1"]  # fmt: skip
    gsa.run("train", "--set", "model.from=new", *steps, "--set", "output.folder=run")
    gsa.run("train", "--set", "model.from=hf", "--set", "model.system=gsa", *steps, "--set", "output.folder=direct")
    # The folder of Hugging Face itself, the converted one, and what learned from it.
    for folder in ("hf", "new", "run/latest", "direct/latest"):
        said = gsa.run("generate", folder, "--prompt", "the keeper of", "--max-tokens", 5)
        assert said
    for folder in ("hf", "run/latest"):
        assert "perplexity" in gsa.run("eval", folder, "--data", "data", "--length", 128, "--measure", "perplexity")


@pytest.fixture
def qwen(gsa):
    """A folder `hf` as fine-tunes of Qwen are, with no begin mark anywhere; its tokenizer in the package."""
    tokenizer = byte_level(QWEN, normalizers.NFC())
    tokenizer["post_processor"] = None
    vocabulary = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    make(gsa.folder / "hf", dtype=torch.bfloat16, vocab_size=vocabulary, bos_token_id=-1)
    (gsa.folder / "hf" / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    marks = {"bos_token": None, "eos_token": "<|end|>", "add_bos_token": False}
    (gsa.folder / "hf" / "tokenizer_config.json").write_text(json.dumps(marks))
    return Tokenizer.from_str(json.dumps(tokenizer))


def generate(gsa, *arguments, status=0):
    output = gsa.run("generate", "hf", "--prompt", "the keeper of", "--temperature", 0, "--max-tokens", 8, "--json",
                     *arguments, status=status)  # fmt: skip
    return output if status else json.loads(output.splitlines()[-1])


def test_no_mark_stands_before_a_text_of_qwen(gsa, qwen, words):
    text = words.read_text(encoding="utf-8")[:2000]
    (gsa.folder / "text.txt").write_text(text, encoding="utf-8")
    assert generate(gsa)["prompt_tokens"] == len(qwen.encode("the keeper of").ids)
    gsa.run("eval", "hf", "--text", "text.txt", "--length", 1024, "--measure", "perplexity", "--json", "eval.json")
    (report,) = json.loads((gsa.folder / "eval.json").read_text())["reports"]
    assert report["perplexity"]["predictions"] == len(qwen.encode(text).ids)  # not the first, but the end mark
    gsa.run("ruler", "hf", "--tasks", "niah_single_1", "--lengths", 512, "--samples", 1, "--device", "cpu", "--output", "out")
    (cell,) = json.loads((gsa.folder / "out" / "ruler.json").read_text(encoding="utf-8"))["cells"]
    assert cell["samples"] == 1 and 256 < cell["longest_prompt_tokens"] + cell["new_tokens"] <= 512
    # The documents of a dataset have marks all the same, and a sample of training goes on from one.
    gsa.run("tokenize", words, "--split", "blank-lines", "--tokenizer", "hf", "--output", "data")
    gsa.run("train", "--set", "model.from=hf", "--set", "data.train=data", "--set", "data.length=64", "--set",
            "batch.tokens=128", "--set", "phases.dense=1", "--set", "output.sample_every=1", "--set",
            "output.sample_tokens=4", "--set", "output.folder=run")  # fmt: skip


def test_texts_end_at_the_marks_of_generation_config(gsa, qwen):
    tokens = generate(gsa)["tokens"]
    file = gsa.folder / "hf" / "generation_config.json"
    for value, ends in [([tokens[5], tokens[2]], tokens[2:6:3]), (tokens[3], [tokens[3]]), (-1, []), (None, [])]:
        file.write_text(json.dumps({"eos_token_id": value}))
        ended = generate(gsa)
        expected = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
        assert ended["tokens"] == tokens[:expected] and ended["ending"] == ("eos" if ends else "length")
    for value, got in [("<|end|>", '"<|end|>"'), ([1, 2.5], "[1,2.5]"), (10**6, "1000000")]:
        file.write_text(json.dumps({"eos_token_id": value}))
        output = generate(gsa, status=1)
        assert all(part in output for part in ("generation_config.json", "eos_token_id", f"got {got}")), output


def test_what_cannot_be_is_refused_and_leaves_nothing(gsa):
    make(gsa.folder / "hf")
    (gsa.folder / "full").mkdir()
    (gsa.folder / "full" / "note").write_text("mine")
    assert "has something in it" in gsa.run("convert", "hf", "--output", "full", status=2)
    assert [file.name for file in (gsa.folder / "full").iterdir()] == ["note"]
    for place in ("hf/new", "./hf/a/../b", gsa.folder / "link/new"):
        (gsa.folder / "link").unlink(missing_ok=True)
        (gsa.folder / "link").symlink_to("hf")
        said = gsa.run("convert", "hf", "--output", place, status=2)
        assert "--output: expected a folder outside of 'hf', got" in said
    (gsa.folder / "link").unlink()
    assert "options of the model" in gsa.run("convert", "hf", "--output", "x", "--set", "data.length=8", status=2)
    assert "another system" in gsa.run("convert", "hf", "--system", "standard", "--output", "x", status=2)
    assert "did you mean 'gsa'" in gsa.run("convert", "hf", "--system", "gas", "--output", "x", status=2)
    config = json.loads((gsa.folder / "hf" / "config.json").read_text())
    for change, parts in [
        (dict(model_type="gpt_neox"), ["llama", "mistral", "qwen2", "qwen3", "gpt_neox"]),
        (dict(model_type="mistral", sliding_window=64), ["no sliding window"]),
        (dict(model_type="llama", layer_types=None), ["layer_types"]),
        (dict(hidden_size=40), ["of shape"]),
        (dict(num_hidden_layers=4), ["none for 'model.layers.3."]),
    ]:
        (gsa.folder / "hf" / "config.json").write_text(json.dumps(config | change))
        output = gsa.run("convert", "hf", "--output", "x", status=1)
        assert all(part in output for part in parts), output
    assert sorted(file.name for file in gsa.folder.iterdir()) == ["full", "hf"]


def test_output_is_looked_at_first_and_leaves_no_parents(gsa):
    make(gsa.folder / "hf")
    (gsa.folder / "hf" / "config.json").write_text("{}")
    gsa.run("convert", "hf", "--output", "n1/n2/out", status=1)
    assert [file.name for file in gsa.folder.iterdir()] == ["hf"]
    (gsa.folder / "empty").mkdir()
    for output in (".", "./", "../empty"):
        done = subprocess.run([gsa.path, "convert", "../hf", "--output", output], cwd=gsa.folder / "empty",
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 2 and "--output: expected a folder" in done.stderr, done.stderr
        assert "is the working folder" in done.stderr


def test_parents_are_made_and_an_empty_folder_is_filled(gsa):
    make(gsa.folder / "hf")
    gsa.run("convert", "hf", "--output", "n1/n2/out/")
    (gsa.folder / "empty").mkdir()
    gsa.run("convert", "hf", "--output", "./x/../empty")
    said = gsa.run("convert", "hf", "--output=-new")  # which the printed commands must not take for an option
    assert "--tokenizer ./-new " in said and "--set model.from=./-new " in said
    for folder in ("n1/n2/out", "empty", "-new"):
        assert sorted(f.name for f in (gsa.folder / folder).iterdir() if "token" not in f.name) == [
            "config.json", "generation_config.json", "model.safetensors"]  # fmt: skip
    assert sorted(file.name for file in (gsa.folder / "n1" / "n2").iterdir()) == ["out"]


def test_parts_of_the_folder_stay(gsa):
    make(gsa.folder / "hf")
    gsa.run("convert", "hf", "--output", "new")
    said = gsa.run("convert", "new", "--system", "standard", "--output", "x", status=2)
    assert "--system: expected a system with the indexer that the folder has, got standard" in said
    gsa.run("convert", "hf", "--system", "gated-only", "--output", "gated")
    said = gsa.run("convert", "gated", "--system", "sparse-only", "--output", "x", status=2)
    assert "--system: expected a system with the value gate that the folder has, got sparse-only" in said
    said = gsa.run("convert", "gated", "--output", "x", "--set", "model.value_gate=headwise", status=2)
    assert "option 'model.value_gate': expected elementwise, as the folder 'gated' has it, got headwise" in said
    said = gsa.run("convert", "gated", "--output", "x", "--set", "model.output_gate=none", status=2)
    assert "option 'model.output_gate': expected elementwise" in said
    assert not (gsa.folder / "x").exists()


def test_it_says_what_became_of_the_function(gsa):
    make(gsa.folder / "hf")
    same = "The model is the function it was"
    said = gsa.run("convert", "hf", "--output", "x", "--set", "model.rope_theta=5", status=2)
    assert "option 'model.rope_theta': expected 10000, as the folder 'hf' has it, got 5" in said
    said = gsa.run("convert", "hf", "--output", "long", "--set", "model.extend=4")
    assert "model.extend stretches positions" in said and same not in said
    said = gsa.run("convert", "hf", "--output", "dense", "--set", "model.dense_below=512")
    assert f"{same} for texts of up to 511 tokens." in said
    said = gsa.run("convert", "hf", "--system", "gated-only", "--output", "gated")
    assert f"{same}.\n" in said and "new parameters, all 0: one half everywhere, folded" in said
    said = gsa.run("convert", "hf", "--system", "gated-only", "--output", "open", "--set", "model.gate_init=0.9")
    assert "new parameters, weights 0: 0.9 everywhere, folded" in said
    # An indexer that is there selects otherwise with other scores and budgets.
    assert f"{same} for texts of up to 128" in gsa.run("convert", "hf", "--system", "sparse-only", "--output", "sparse")
    said = gsa.run("convert", "sparse", "--output", "both")
    assert f"{same} for texts of up to 16 tokens. Of longer ones it selects other keys." in said
    # What is left behind is what the folder had: no biases, which sparse-only does not have.
    said = gsa.run("convert", "sparse", "--system", "gsa", "--index-every", 2, "--output", "grouped")
    had = safetensors.load_file(gsa.folder / "sparse" / "model.safetensors")
    left = sum(t.numel() for key, t in had.items() if "layers.1.self_attn.indexer." in key and "variance" not in key)
    assert left > 0 and f"indexer  in layers 0, 2; {left:,} parameters of 1 others were left behind" in said
    kept = ["--set", "model.score_form=relu", "--set", "model.budget=fixed"]
    assert f"{same}.\n" in gsa.run("convert", "sparse", "--output", "kept", *kept)


def test_extension_that_cannot_be_names_the_option(gsa):
    make(gsa.folder / "hf", "llama")
    said = gsa.run("convert", "hf", "--output", "x", "--set", "model.extend=4", status=2)
    assert "option 'model.extend': expected 1, as the model has llama3 scaling" in said and "rope.yarn" not in said
    said = gsa.run("inspect", "hf", "--extend", 4, status=2)
    assert "--extend: expected 1, as the model has llama3 scaling" in said and "rope.yarn" not in said

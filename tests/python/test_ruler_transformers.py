"""python -m gated_sparse_attention.ruler: any model of transformers answers the prompts of `gsa ruler`."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD, LIBRARY

from gated_sparse_attention import ruler

NOVEL = "The keeper lights the lamp. A boat comes in from the sea! Nobody is on the quay, and it is late. "


def lines_of(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_tokens_are_counted_line_by_line():
    out = io.StringIO()
    ruler.count(lambda text: {"input_ids": text.split()}, ['"a b c"\n', '"d"\n'], out)
    assert out.getvalue() == "3\n1\n"


def test_progress_says_the_time_left():
    out, times = io.StringIO(), iter([0.0, 10.0, 130.0])
    progress = ruler.Progress(400, out, lambda: next(times))
    progress.add("vt-4096", 100)
    progress.add("fwe-4096", 100)
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["ruler", "25", "%", "0:30", "left", "vt-4096"], ["ruler", "50", "%", "2:10", "left", "fwe-4096"]]  # fmt: skip


@pytest.fixture
def asked_for(tmp_path, program):
    """Prompts of two tasks, and an answered sample and a half of one of them; beside it the right answers."""
    program("ruler", "bytes", "--write", "w", "--tasks", "niah_single_1,fwe", "--lengths", 1024, "--samples", 3, cwd=tmp_path)
    folder = tmp_path / "w"
    samples = [sample for file in (folder / "prompts").iterdir() for sample in lines_of(file)]
    (folder / "predictions").mkdir()
    begun = json.dumps({"index": 0, "prediction": "an earlier run's"}) + '\n{"index": 1, "predic'
    (folder / "predictions" / "fwe-1024.jsonl").write_text(begun, encoding="utf-8")
    return folder, {sample["prompt"]: " ".join(sample["answers"]) for sample in samples}


@pytest.mark.parametrize("batch_tokens, batches", [(1, [1] * 5), (2048, [2, 2, 1]), (65536, [2, 3])])
def test_what_is_missing_is_answered_in_batches(batch_tokens, batches, asked_for, program, monkeypatch):
    folder, answers = asked_for
    first, asked = lines_of(folder / "prompts" / "fwe-1024.jsonl")[0]["prompt"], []

    def generate(prompts, max_new_tokens):
        assert max_new_tokens in (50, 128)
        asked.append(prompts)
        return [answers[prompt] for prompt in prompts]

    ruler.answer(generate, folder, batch_tokens, io.StringIO())
    assert [len(prompts) for prompts in asked] == batches and first not in sum(asked, [])
    program("ruler", "--score", folder)
    result = json.loads((folder / "ruler.json").read_text(encoding="utf-8"))
    assert {cell["task"]: cell["score"] for cell in result["cells"]} == {"niah_single_1": 100, "fwe": 66.67}

    def nothing_is_written(*_):
        raise AssertionError("answers that are there are left alone")

    monkeypatch.setattr(Path, "write_text", nothing_is_written)
    ruler.answer(generate, folder, batch_tokens, io.StringIO())
    assert len(asked) == len(batches)


def run(folder, *arguments, status=0, program=BUILD / "bin" / "gsa"):
    environment = {**os.environ, "GSA_PROGRAM": str(program), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    if LIBRARY:
        environment["GSA_LIBRARY"] = str(Path(LIBRARY).resolve())
    done = subprocess.run(
        [sys.executable, "-m", "gated_sparse_attention.ruler", *map(str, arguments)],
        cwd=folder, text=True, capture_output=True, timeout=600, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A tiny Llama with a tokenizer that knows no padding; its folder's parent."""
    transformers = pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: no tokenizer to make")
    fast = tokenizers.Tokenizer(tokenizers.models.BPE())
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    fast.train_from_iterator([NOVEL, "The grass is green. The special magic numbers"], trainer)
    folder = tmp_path_factory.mktemp("ruler")
    transformers.PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>").save_pretrained(folder / "llama")
    config = transformers.LlamaConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "llama")
    return folder, fast


ASKED = ("--tasks", "niah_single_1", "--lengths", 1024, "--samples", 3)


def test_a_model_of_transformers(llama):
    folder, tokenizer = llama
    said = run(folder, "llama", "out", "--dtype", "float64", *ASKED)
    assert re.search(r"^ruler +100 % +0:00 left +niah_single_1-1024$", said, re.M), said
    prompts = lines_of(folder / "out/prompts/niah_single_1-1024.jsonl")
    for sample in prompts:
        assert sample["tokens"] == len(tokenizer.encode(sample["prompt"]).ids) <= 1024 - 128
        assert sample["tokens"] > 1024 - 128 - 100
    result = json.loads((folder / "out/ruler.json").read_text(encoding="utf-8"))
    assert [(cell["task"], cell["samples"], cell["score"]) for cell in result["cells"]] == [("niah_single_1", 3, 0)]
    assert "RULER: llama" in (folder / "out/index.html").read_text(encoding="utf-8")
    # One at a time it gives the same answers, though prompts have other lengths.
    alone = ruler.load(str(folder / "llama"), "float64", "cpu")
    answers = [alone([sample["prompt"]], 128)[0] for sample in prompts]
    together = [line["prediction"] for line in lines_of(folder / "out/predictions/niah_single_1-1024.jsonl")]
    assert together == answers and len({sample["tokens"] for sample in prompts}) > 1
    before = (folder / "out/predictions/niah_single_1-1024.jsonl").read_bytes()
    assert "0 prompts written" in run(folder, "llama", "out", "--dtype", "float64", *ASKED)
    assert (folder / "out/predictions/niah_single_1-1024.jsonl").read_bytes() == before


def test_mistakes_are_said_without_a_traceback(llama):
    folder, _ = llama
    for arguments, expected, options in (
        (("llama",), "expected a folder for prompts and predictions, got none", dict(status=2)),
        (("llama", "w", "--batch-tokens", 0), "--batch-tokens: expected at least 1, got 0", dict(status=2)),
        (("llama", "w", "--tasks", "niah"), "niah", dict(status=2)),
        (("llama", "w"), "expected the program gsa in PATH, or GSA_PROGRAM to name it, got '/nowhere/gsa'",
         dict(status=1, program="/nowhere/gsa")),
    ):  # fmt: skip
        said = run(folder, *arguments, **options)
        assert expected in said and "Traceback" not in said, said

"""gsa ruler as its users run it: a tiny model that has learned nothing, cut-off runs, prompts for others."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

NOVEL = "The keeper lights the lamp. A boat comes in from the sea! Nobody is on the quay, and it is late. "


@pytest.fixture(scope="module")
def model(tmp_path_factory, program_in):
    """A byte model of a few steps, meant for 1,024 tokens; beside it novel.txt and squad.json."""
    program = program_in(tmp_path_factory.mktemp("ruler"))
    (program.folder / "text.txt").write_text(NOVEL * 100, encoding="utf-8")
    program.run("tokenize", "text.txt", "--output", "data")
    options = {
        "data.train": "data", "data.length": 128, "batch.tokens": 256, "output.folder": "run",
        "phases.dense": 2, "phases.warmup": 0, "phases.sparse": 2, "model.k_base": 16, "model.k_min": 8,
        "model.k_max": 32,
    }  # fmt: skip
    program.run("train", *[f"--set={key}={value}" for key, value in options.items()])
    folder = program.folder / "model"
    shutil.copytree((program.folder / "run" / "latest").resolve(), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "novel.txt").write_text(NOVEL * 3, encoding="utf-8")
    paragraphs = [
        {"context": f"Lamp {i} burns.", "qas": [{"question": f"Which lamp {i}?", "is_impossible": False,
                                                 "answers": [{"text": str(i)}]}]} for i in range(9)
    ]  # fmt: skip
    squad = {"data": [{"title": "lamps", "paragraphs": paragraphs}]}
    (folder / "squad.json").write_text(json.dumps(squad), encoding="utf-8")
    return folder


def ruler(gsa, *arguments, status=0):
    return gsa.run("ruler", *arguments, status=status)


def lines_of(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_the_whole_command(gsa, model):
    arguments = (
        model, "--tasks", "niah_single_1,niah_single_2,cwe,qa_1,qa_2", "--lengths", "1024,768", "--samples", 3,
        "--haystack", model / "novel.txt", "--squad", model / "squad.json", "--device", "cpu", "--output", "out",
    )  # fmt: skip
    shown = ruler(gsa, *arguments)
    out = gsa.folder / "out"
    result = json.loads((out / "ruler.json").read_text(encoding="utf-8"))
    cells = {(cell["task"], cell["length"]): cell for cell in result["cells"]}
    assert set(cells) == {(task, length) for task in ("niah_single_1", "niah_single_2", "qa_1") for length in (768, 1024)}
    for (task, length), cell in cells.items():
        assert cell["samples"] == 3 and cell["longest_prompt_tokens"] + cell["new_tokens"] <= length
        # Noise about nothing, though single digits come up by chance.
        assert cell["score"] == 0 or task == "qa_1"
        lines = lines_of(out / "samples" / f"{task}-{length}.jsonl")
        assert [line["index"] for line in lines] == [0, 1, 2]
        assert all(line["answers"] and "prediction" in line for line in lines)
    assert cells["niah_single_2", 768]["haystack"] == "own" and "haystack" not in cells["niah_single_1", 768]
    reasons = {(entry["task"], entry["length"]): entry["reason"] for entry in result["skipped"]}
    assert set(reasons) == {(task, length) for task in ("cwe", "qa_2") for length in (768, 1024)}
    assert "needs at least" in reasons["cwe", 768] and "--hotpotqa" in reasons["qa_2", 1024]
    assert result["means"][0]["tasks"] == 3
    assert ElementTree.parse(out / "ruler.svg").getroot().tag.endswith("svg")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "niah_single_2*" in page and "novel.txt" in page and "<svg" in page
    for part in ("niah_single_2*", "skipped  qa_2: needs", "3 of 13", "18 samples answered"):
        assert part in shown

    # Nothing is done again.
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    again = ruler(gsa, *arguments)
    assert "nothing to do: every sample is answered already" in again
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    assert "a run with seed 42, this one has 7" in ruler(gsa, *arguments, "--seed", 7, status=1)
    assert "18 samples answered" in ruler(gsa, *arguments[:-1], "elsewhere", "--seed", 7)

    # Another task into the same folder, without the data of the others: their scores stay, with their mark.
    short = (model, "--lengths", 768, "--samples", 3, "--device", "cpu", "--output", "out")
    added = ruler(gsa, *short, "--tasks", "fwe")
    assert "niah_single_2*" in added and "4 of 13" in added
    assert "nothing to do" in ruler(gsa, *short, "--tasks", "niah_single_2,qa_1")
    after = json.loads((out / "ruler.json").read_text(encoding="utf-8"))["cells"]
    assert {(cell["task"], cell["length"]) for cell in after} == {*cells, ("fwe", 768)}
    assert next(cell for cell in after if cell["task"] == "niah_single_2")["haystack"] == "own"


def test_a_run_is_of_the_type_and_extension_it_came_to(gsa, model):
    folder = gsa.folder / "extended"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 2048
    config["rope_scaling"] = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    arguments = (folder, "--tasks", "niah_single_1", "--lengths", 768, "--samples", 1, "--device", "cpu")
    ruler(gsa, *arguments)
    run = json.loads((gsa.folder / "ruler" / "run.json").read_text(encoding="utf-8"))
    assert (run["dtype"], run["extend"]) == ("float32", 2)
    assert "nothing to do" in ruler(gsa, *arguments, "--dtype", "float32", "--extend", 2)
    assert "a run with extend 2.0, this one has 1.0" in ruler(gsa, *arguments, "--extend", 1, status=1)
    (gsa.folder / "ruler" / "run.json").unlink()
    assert "holds a run without run.json" in ruler(gsa, *arguments, status=1)
    (gsa.folder / "ruler" / "run.json").write_text(json.dumps(run), encoding="utf-8")
    assert 'a run with dtype "float32", this one has "bfloat16"' in ruler(gsa, *arguments, "--dtype", "bfloat16", status=1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_cut_off_goes_on(gsa, model, how):
    arguments = ("ruler", model, "--tasks", "niah_single_1,fwe", "--lengths", 768, "--samples", 12, "--device", "cpu",
                 "--cache-limit", 12)  # fmt: skip
    gsa.run(*arguments, "--output", "whole")
    whole = {file.name: file.read_bytes() for file in (gsa.folder / "whole" / "samples").iterdir()}
    process = gsa.start(*arguments, "--output", "cut")
    file = gsa.folder / "cut" / "samples" / "niah_single_1-768.jsonl"
    deadline = time.monotonic() + 120
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(how)
    output, _ = process.communicate(timeout=120)
    if how == signal.SIGINT:
        assert process.returncode == 75 and "the same command goes on" in output
    done = len(lines_of(file))
    assert 0 < done < 12, "the cache was to hold a part of the samples only"
    rest = gsa.run(*arguments, "--output", "cut")
    assert f"{24 - done} samples answered" in rest
    # A run that was killed may leave a temporary file.
    assert {file.name: file.read_bytes() for file in (gsa.folder / "cut" / "samples").glob("[!.]*")} == whole


def test_mistakes(gsa, model):
    assert "did you mean 'niah_single_1'?" in ruler(gsa, model, "--tasks", "niah_singl_1", status=2)
    assert "--extend 4 extends it" in ruler(gsa, model, "--lengths", 4096, status=2)
    assert "expected a model's folder" in ruler(gsa, status=2)
    assert "expected --essays or --haystack" in ruler(gsa, model, "--essays", "a", "--haystack", "b", status=2)
    assert "--device" in ruler(gsa, model, "--write", "w", "--device", "cpu", status=2)
    assert "one of --output, --write and --score" in ruler(gsa, model, "--write", "w", "--output", "o", status=2)
    assert "--samples" in ruler(gsa, "--score", "w", "--samples", 3, status=2)
    assert "no-such-file" in ruler(gsa, model, "--squad", "no-such-file", status=1)
    assert "expected --write" in ruler(gsa, "--counter", "cat", status=2)
    assert "expected --write" in ruler(gsa, "--score", "w", "--counter", "cat", status=2)
    assert "got 'x'" in ruler(gsa, "--write", "w", "--counter", "while read l; do echo x; done", status=1)
    assert "got its end" in ruler(gsa, "--write", "w", "--counter", "true", status=1)
    nothing = ruler(gsa, model, "--tasks", "qa_2", "--output", "skipped")
    assert "skipped  qa_2" in nothing and "nothing was asked" in nothing
    small = ruler(gsa, model, "--lengths", 1024, "--cache-limit", 1, "--tasks", "niah_single_1", "--output", "o", status=1)
    assert "room for" in small and "--cache-limit" in small


def test_prompts_for_others_and_their_scores(gsa):
    counter = f"{shlex.quote(sys.executable)} -uc 'import json, sys\nfor line in sys.stdin: print(1 + len(json.loads(line).encode()))'"
    common = ("--tasks", "niah_single_1,fwe", "--lengths", 1024, "--samples", 3)
    ruler(gsa, "bytes", "--write", "ours", *common)
    ruler(gsa, "--write", "theirs", "--counter", counter, *common)
    for name in ("niah_single_1-1024.jsonl", "fwe-1024.jsonl"):
        prompts = (gsa.folder / "ours" / "prompts" / name).read_bytes()
        assert prompts == (gsa.folder / "theirs" / "prompts" / name).read_bytes()
    folder = gsa.folder / "ours"
    (folder / "predictions").mkdir()
    with (folder / "predictions" / "niah_single_1-1024.jsonl").open("w", encoding="utf-8") as out:
        for sample in lines_of(folder / "prompts" / "niah_single_1-1024.jsonl"):
            text = sample["answers"][0] if sample["index"] < 2 else "who knows"
            print(json.dumps({"index": sample["index"], "prediction": text}), file=out)
    shown = ruler(gsa, "--score", "ours")
    result = json.loads((folder / "ruler.json").read_text(encoding="utf-8"))
    assert [(cell["task"], cell["score"]) for cell in result["cells"]] == [("niah_single_1", 66.67)]
    assert "skipped  fwe: has 0 of 3 predictions" in shown and "skipped  qa_1: has no prompts" in shown
    # Whose predictions they are is not known: the tokenizer is no model.
    assert "<title>RULER: predictions</title>" in (folder / "index.html").read_text(encoding="utf-8")


def test_a_counter_that_counts_otherwise_is_another_run(gsa):
    file = gsa.folder / "count.py"
    arguments = ("--write", "w", "--counter", f"{shlex.quote(sys.executable)} -u count.py", "--tasks", "fwe",
                 "--lengths", 1024, "--samples", 1)  # fmt: skip
    file.write_text("import sys\nfor line in sys.stdin: print(len(line))", encoding="utf-8")
    ruler(gsa, *arguments)
    assert "0 prompts written" in ruler(gsa, *arguments)
    file.write_text("import sys\nfor line in sys.stdin: print(len(line) // 2)", encoding="utf-8")
    assert "a run with probe_tokens" in ruler(gsa, *arguments, status=1)

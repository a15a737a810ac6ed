"""gsa inspect-text as its users run it: the data in its pages, and what it refuses."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TEXT = "the keeper walks to </script> the harbour <!-- of the lamp, über the hill and back to the lamp\n"
K_MIN, K_MAX = 8, 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with its tokenizer of bytes, meant for 128 of them."""
    folder = tmp_path_factory.mktemp("inspect_text")
    (folder / "text.txt").write_text("the keeper of the lamp walks to the harbour\n" * 400, encoding="utf-8")

    def gsa(*arguments):
        done = subprocess.run(
            [str(Path(os.environ["GSA_PROGRAM"]).resolve()), *arguments],
            cwd=folder, text=True, capture_output=True, timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    gsa("tokenize", "text.txt", "--output", "data")
    options = {
        "data.train": "data", "data.length": 128, "batch.tokens": 256, "output.folder": "run",
        "phases.dense": 10, "phases.warmup": 0, "phases.sparse": 5, "model.k_base": 16, "model.k_min": K_MIN,
        "model.k_max": K_MAX,
    }  # fmt: skip
    gsa("train", *[f"--set={key}={value}" for key, value in options.items()])
    model = folder / "model"
    shutil.copytree((folder / "run" / "latest").resolve(), model)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 128
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(model)


def data_of(page):
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def inspect(gsa, model, *arguments, text=TEXT):
    (gsa.folder / "read.txt").write_text(text, encoding="utf-8")
    said = gsa.run("inspect-text", model, "--text", "read.txt", "--output", "look.html", *arguments)
    return said, data_of((gsa.folder / "look.html").read_text(encoding="utf-8"))


def test_the_page_holds_tokens_and_looks(gsa, model):
    said, data = inspect(gsa, model)
    read = TEXT.rstrip("\n").encode()
    count = len(read) + 1
    assert f"look.html: 64 tokens of {count}, positions {count - 64} .. {count - 1}" in said
    assert data["model"] == model and data["text"] == "read.txt"
    assert data["tokens"][1:] == list(read)
    assert data["token_strs"][0] == ""  # a mark
    assert data["token_strs"][1:6] == ["t", "h", "e", " ", "k"]
    umlaut = read.index("ü".encode()) + 1
    assert data["token_strs"][umlaut : umlaut + 2] == ["<0xC3>", "<0xBC>"]
    assert [look["position"] for look in data["looks"]] == list(range(count - 64, count))
    for look in data["looks"]:
        assert look["sparse"] is True
        for layer in look["layers"]:
            assert K_MIN <= layer["k_t"] <= K_MAX
            assert layer["k_t"] == len(layer["positions"]) == len(layer["weights"])
            assert layer["positions"] == sorted(set(layer["positions"]))
            assert 0 <= layer["positions"][0] and layer["positions"][-1] <= look["position"]
            assert sum(layer["weights"]) == pytest.approx(1, abs=1e-3)
            assert 0 < layer["kept_mass"] < 1
            assert 0 < layer["value_gate"] < 1 and 0 < layer["output_gate"] < 1


def test_kept_mass_is_what_dense_attention_gives_these_keys(gsa, model):
    """The first layer reads the same either way: its kept mass follows from the weights of a dense look."""
    _, sparse = inspect(gsa, model, "--last", 5, "--dtype", "float32")
    _, dense = inspect(gsa, model, "--last", 5, "--dtype", "float32", "--phase", "dense")
    for some, all_of_them in zip(sparse["looks"], dense["looks"], strict=True):
        assert all_of_them["sparse"] is False
        for layer in all_of_them["layers"]:
            assert layer["positions"] == list(range(all_of_them["position"] + 1))
            assert layer["k_t"] == all_of_them["position"] + 1
            assert layer["kept_mass"] == 1
        chosen, weights = some["layers"][0], all_of_them["layers"][0]["weights"]
        kept = sum(weights[at] for at in chosen["positions"])
        assert chosen["kept_mass"] == pytest.approx(kept, rel=2e-3)
        assert chosen["value_gate"] == all_of_them["layers"][0]["value_gate"]
        assert chosen["output_gate"] == all_of_them["layers"][0]["output_gate"]


def test_positions_and_last_choose(gsa, model):
    _, part = inspect(gsa, model, "--positions", "20-23", "--dtype", "float32")
    assert [look["position"] for look in part["looks"]] == [20, 21, 22, 23]
    _, first = inspect(gsa, model, "--positions", "0-0")
    assert first["looks"][0]["layers"][0] == {
        **first["looks"][0]["layers"][0], "k_t": 1, "positions": [0], "weights": [1.0], "kept_mass": 1.0
    }  # fmt: skip
    _, everything = inspect(gsa, model, "--last", 5000)
    assert [look["position"] for look in everything["looks"]] == list(range(len(everything["tokens"])))
    _, bits = inspect(gsa, model, "--index-bits", 8, "--last", 2)
    assert len(bits["looks"]) == 2


def test_what_follows_changes_nothing(gsa, model):
    _, whole = inspect(gsa, model, "--positions", "30-31")
    _, cut = inspect(gsa, model, "--last", 2, text=TEXT[:31])
    assert [look["position"] for look in cut["looks"]] == [30, 31]
    assert whole["looks"] == cut["looks"]


def test_an_empty_text_is_its_mark(gsa, model):
    said, data = inspect(gsa, model, text="")
    assert "1 token of 1" in said
    assert data["looks"][0]["position"] == 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--positions", "5"], 2, ["--positions", "such as 4000-4063", "'5'"]),
        (["--positions", "5-x"], 2, ["--positions", "'5-x'"]),
        (["--positions", "-5-6"], 2, ["--positions"]),
        (["--positions", "9-5"], 2, ["--positions", "first position before the last", "'9-5'"]),
        (["--positions", "90-400"], 2, ["--positions", "0 .. ", "400"]),
        (["--positions", "1-2", "--last", "3"], 2, ["--last", "--positions", "both"]),
        (["--last", "0"], 2, ["--last"]),
        (["--phase", "slow"], 2, ["--phase", "slow"]),
        (["--cache-limit", "1", "--extend", "900"], 1, ["cache"]),
    ],
)
def test_mistakes_are_explained(gsa, model, arguments, status, words):
    if "--cache-limit" in arguments:
        (gsa.folder / "read.txt").write_text("a" * 100000, encoding="utf-8")
    else:
        (gsa.folder / "read.txt").write_text(TEXT, encoding="utf-8")
    said = gsa.run("inspect-text", model, "--text", "read.txt", "--output", "look.html", *arguments, status=status)
    for word in words:
        assert word in said
    assert not (gsa.folder / "look.html").exists()


def test_files_that_are_not_there(gsa, model):
    (gsa.folder / "read.txt").write_text(TEXT, encoding="utf-8")
    assert "nothing.txt" in gsa.run("inspect-text", model, "--text", "nothing.txt", "--output", "a.html", status=1)
    said = gsa.run("inspect-text", model, "--text", "read.txt", "--output", "no/such/a.html", status=1)
    assert "no/such" in said
    assert "nowhere" in gsa.run("inspect-text", "nowhere", "--text", "read.txt", "--output", "a.html", status=1)
    assert "--output" in gsa.run("inspect-text", model, "--text", "read.txt", status=2)


def test_the_text_is_not_overwritten(gsa, model):
    (gsa.folder / "read.txt").write_text(TEXT, encoding="utf-8")
    (gsa.folder / "same.txt").symlink_to("read.txt")
    for output in "read.txt", "./read.txt", "same.txt":
        said = gsa.run("inspect-text", model, "--text", "read.txt", "--output", output, status=2)
        assert f"--output: expected another file than --text, got '{output}'" in said
    assert (gsa.folder / "read.txt").read_text(encoding="utf-8") == TEXT


def test_texts_and_pages_that_are_too_long(gsa, model):
    (gsa.folder / "long.txt").write_text("the lamp " * 500, encoding="utf-8")
    command = ["inspect-text", model, "--text", "long.txt", "--output", "look.html"]
    said = gsa.run(*command, status=1)
    assert "--text: expected at most 128 tokens" in said and "4,501" in said and "--extend 36" in said
    assert gsa.run(*command, "--positions", "90-99").startswith("look.html: 10 tokens")
    said = gsa.run(*command, "--extend", 1, "--phase", "dense", "--positions", "2500-4499", status=1)
    assert "--output: expected at most 64.0 MiB" in said and "--last" in said
    fit = int(re.search(r"at most (\d+) of them fit", said)[1])
    assert 100 < fit < 2000


def test_help_teaches(gsa):
    said = gsa.run("inspect-text", "--help")
    for word in ["k_t", "kept", "gates", "--last", "--positions", "Examples"]:
        assert word in said or word == "kept" and "keep" in said

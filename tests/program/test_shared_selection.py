"""Models whose layers share selections, as users of gsa generate and gsa inspect-text meet them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import Server

safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model folder after a few steps of training, and the same without the indexers of its odd layers."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "text.txt").write_text("the keeper of the lamp walks to the harbour\n" * 400, encoding="utf-8")

    def gsa(*arguments):
        done = subprocess.run(
            [str(Path(os.environ["GSA_PROGRAM"]).resolve()), *arguments],
            cwd=folder, text=True, capture_output=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    gsa("tokenize", "text.txt", "--output", "data")
    options = {
        "data.train": "data", "data.length": 128, "batch.tokens": 256, "output.folder": "run", "phases.dense": 10,
        "phases.warmup": 0, "phases.sparse": 5, "model.k_base": 16, "model.k_min": 8, "model.k_max": 24,
    }  # fmt: skip
    gsa("train", *[f"--set={key}={value}" for key, value in options.items()])
    whole, shared = folder / "whole", folder / "shared"
    shutil.copytree((folder / "run" / "latest").resolve(), whole)
    shutil.copytree(whole, shared)
    config = json.loads((shared / "config.json").read_text(encoding="utf-8"))
    config["index_layers"] = list(range(0, config["num_hidden_layers"], 2))
    (shared / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = safetensors.load_file(shared / "model.safetensors")
    odd = re.compile(r"model\.layers\.\d*[13579]\.self_attn\.indexer\.")
    kept = {name: tensor for name, tensor in weights.items() if not odd.match(name)}
    assert len(kept) < len(weights)
    safetensors.save_file(kept, shared / "model.safetensors", metadata={"format": "pt"})
    return str(whole), str(shared)


def stats(gsa, model, *arguments):
    said = gsa.run("generate", model, "--prompt", "the keeper of the lamp", "-n", 20, "--json", "--stats", *arguments)
    return json.loads(said.splitlines()[-1])["stats"]


def text(gsa, model, *arguments):
    return gsa.run("generate", model, "--prompt", "the keeper of the lamp", "-n", 30, "--temperature", 0, *arguments)


@pytest.mark.parametrize("chunk", [1, 7])
def test_any_chunk_gives_the_same_text(gsa, models, chunk):
    assert text(gsa, models[1], "--chunk", chunk) == text(gsa, models[1])


def test_a_cache_is_smaller_and_fits_its_groups_alone(gsa, models):
    whole, shared = (stats(gsa, model) for model in models)
    assert shared["cache_bytes"] < whole["cache_bytes"] and shared["weight_bytes"] < whole["weight_bytes"]
    gsa.run("generate", models[1], "--prompt", "the keeper", "-n", 5, "--save-cache", "kept")
    assert gsa.run("generate", models[1], "--load-cache", "kept", "--prompt", " of", "-n", 5)
    said = gsa.run("generate", models[0], "--load-cache", "kept", "--prompt", " of", "-n", 5, status=1)
    assert "indexer keys in every layer, got layers 0, 2" in said


def test_a_look_shows_the_leaders_positions_with_weights_of_its_own(gsa, models):
    (gsa.folder / "read.txt").write_text("the keeper of the lamp walks to the harbour", encoding="utf-8")
    gsa.run("inspect-text", models[1], "--text", "read.txt", "--output", "look.html", "--last", 5)
    page = (gsa.folder / "look.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    for look in data["looks"]:
        assert len(look["layers"]) % 2 == 0
        for leader, follower in zip(look["layers"][::2], look["layers"][1::2]):
            assert follower["k_t"] == leader["k_t"] and follower["positions"] == leader["positions"]
            assert follower["weights"] != leader["weights"]
            assert 0 < follower["kept_mass"] < 1
    assert any(
        look["layers"][0]["positions"] != look["layers"][2]["positions"] for look in data["looks"]
    )  # each leader selects for itself


# Followers have pages without indexer keys, and keys of 8 bits a scale beside them.
@pytest.mark.parametrize("options", [[], ["--index-bits", 8]], ids=["keys", "keys-of-8-bits"])
def test_pages_that_a_server_kept_change_no_text(gsa, models, options):
    read = ("the keeper of the lamp walks to the harbour\n" * 3)[:90]
    prompts = [read, read + " of the", read[:70] + "harbour"]
    said = gsa.run("generate", models[1], "-n", 20, "--temperature", 0, "--json", *options,
                   *[item for prompt in prompts for item in ("--prompt", prompt)])  # fmt: skip
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    expected = {line["prompt"]: line["text"] for line in lines if "text" in line}
    with Server(models[1], *options) as server:
        for turn in range(2):
            for index, prompt in enumerate(prompts):
                answer = server.complete(prompt)
                assert answer["choices"][0]["text"] == expected[index]
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached == (0 if turn == index == 0 else 64)


def test_weights_must_be_those_of_the_groups(gsa, models, tmp_path):
    """Whose layers have an indexer is in config.json, and the weights agree with it."""
    for name in ("config.json", "model.safetensors"):
        folder = tmp_path / name
        shutil.copytree(models[0], folder)
        shutil.copy(Path(models[1]) / name, folder)
        said = gsa.run("generate", str(folder), "--prompt", "the", "-n", 2, status=1)
        assert "layers.1.self_attn.indexer." in said

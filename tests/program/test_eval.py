"""The program `gsa eval`: figures, files, and what it says to mistakes."""

import json
import math
import os
import shutil
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

TRAIN = {
    "data.train": "data",
    "output.folder": "run",
    "data.length": 64,
    "batch.tokens": 128,
    "batch.rows": 2,
    "model.k_base": 16,
    "model.k_min": 4,
    "model.k_max": 32,
    "phases.dense": 2,
    "phases.warmup": 2,
    "phases.sparse": 2,
    "device": "cpu",
}
MODEL = "run/latest"


def train(program, **changes):
    settings = {**TRAIN, **changes}
    program.run("train", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, program_in):
    """The program in a folder with a text, its dataset, and a model of six steps; tests write beside them."""
    program = program_in(tmp_path_factory.mktemp("eval"))
    text = "".join(f"the keeper of lamp {i} walks {i * 7 % 13} steps\nand back to the harbour\n\n" for i in range(60))
    (program.folder / "words.txt").write_text(text, encoding="utf-8")
    program.run("tokenize", "words.txt", "--split", "blank-lines", "--output", "data")
    train(program)
    return program


def evaluate(program, *arguments, status=0):
    return program.run("eval", *arguments, "--device", "cpu", status=status)


def report(program, *arguments):
    output = evaluate(program, *arguments, "--json", "-")
    return json.loads(output[output.index("{") :])


def test_agreement_and_the_groups_that_follow_from_it(trained):
    figures = report(trained, MODEL, "--data", "data", "--join", "--length", 64, "--measure", "agreement",
                     "--agreement-queries", 0)["reports"][0]["agreement"]  # fmt: skip
    assert all(figures[key][layer][layer] == 1 for key in ("selections", "oracles") for layer in range(4))
    assert figures["queries_of_window"] == 0 and figures["queries"][0][1] > 0
    told = evaluate(trained, MODEL, "--data", "data", "--join", "--length", 64, "--measure", "agreement", "--plots", "plots-a")
    assert "layers 2, 3" in told and "--agreement-queries" in told
    assert (trained.folder / "plots-a" / "agreement.svg").exists()
    assert (trained.folder / "plots-a" / "agreement-oracles.svg").exists()
    assert "agreement" not in evaluate(trained, MODEL, "--data", "data", "--length", 64)

    # Two groups of four layers, by brute force.
    found = report(trained, MODEL, "--data", "data", "--join", "--length", 64, "--stride", 64, "--measure", "agreement")
    found = found["reports"][0]["agreement"]["selections"]
    worth = {second: sum(found[0][1:second]) + sum(found[second][second + 1:]) for second in (1, 2, 3)}
    said = said_by_two = trained.run("convert", MODEL, "--index-every", 2, "--data", "data", "--length", 64,
                                     "--output", "shared")  # fmt: skip
    config = json.loads((trained.folder / "shared" / "config.json").read_text())
    assert config["index_layers"] == [0, max(worth, key=worth.get)]
    assert "goes by" in said and "kept before" in said and "2 others were left behind" in said
    after = report(trained, "shared", "--data", "data", "--length", 64, "--measure", "selection,agreement,perplexity")
    follower = next(layer for layer in range(1, 4) if layer not in config["index_layers"])
    assert after["reports"][0]["agreement"]["selections"][max(n for n in config["index_layers"] if n < follower)][follower] == 1
    train(trained, **{"model.from": "shared", "output.folder": "on", "phases.dense": 0, "phases.warmup": 0})

    said = trained.run("convert", MODEL, "--index-every", 3, "--output", "third")
    assert "One of 3 layers kept its indexer. Nothing was measured" in said
    assert json.loads((trained.folder / "third" / "config.json").read_text())["index_layers"] == [0, 3]
    trained.run("convert", MODEL, "--index-layers", "0,1", "--output", "listed")
    train(trained, **{"model.from": "listed", "output.folder": "by-two", "phases.dense": 0, "phases.warmup": 0})
    lines = [json.loads(line) for line in (trained.folder / "by-two" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["kl_layers"] == [0, 1] for line in lines if line["kind"] == "step")
    # Windows that the model reads densely are measured as it would select in them.
    dense = trained.folder / "dense"
    shutil.copytree((trained.folder / MODEL).resolve(), dense)
    config = json.loads((dense / "config.json").read_text())
    (dense / "config.json").write_text(json.dumps({**config, "dense_below": 1000}))
    again = trained.run("convert", "dense", "--index-every", 2, "--data", "data", "--length", 64, "--output", "dense-2")
    table = lambda text: text[text.index("goes by") :].splitlines()[1:]
    assert table(again) == table(said_by_two)
    assert json.loads((trained.folder / "dense-2" / "config.json").read_text())["dense_below"] == 1000

    short = trained.run("convert", MODEL, "--index-every", 2, "--data", "data", "--length", 2, "--output", "no", status=1)
    assert "--length: expected windows in which queries leave keys out" in short and not (trained.folder / "no").exists()
    for wrong, part in (((MODEL, "--index-every", 1), "fewer indexers"), (("third", "--index-every", 2), "got layer 2"),
                        ((MODEL, "--index-layers", "1"), "the first 0"), ((MODEL, "--data", "data"), "--index-every"),
                        ((MODEL, "--index-every", 2, "--length", 8), "--data"),
                        (("third", "--index-every", 4, "--data", "data"), "all have an indexer"),
                        ((MODEL, "--index-every", 2, "--set", "model.index_every=2"), "model.index_every"),
                        ((MODEL, "--index-every", 2, "--system", "sparse-only"), "--system")):  # fmt: skip
        assert part in trained.run("convert", *wrong, "--output", "no", status=2), wrong
        assert not (trained.folder / "no").exists()


def test_figures_fit_together(trained):
    result = report(trained, MODEL, "--data", "data", "--length", "48,24", "--stride", 16)
    assert result["system"] == "gsa" and result["device"] == "cpu" and result["dtype"] == "float32"
    assert result["documents"] == 60
    assert [entry["length"] for entry in result["reports"]] == [24, 48]
    text = (trained.folder / "words.txt").read_text(encoding="utf-8")
    for entry in result["reports"]:
        perplexity = entry["perplexity"]
        # Every token but a document's first is predicted: its bytes and the mark at the end.
        assert perplexity["text_bytes"] == pytest.approx(len(text), abs=2 * 60)
        assert perplexity["predictions"] == perplexity["text_bytes"] + 60
        assert perplexity["per_token"] == pytest.approx(math.exp(perplexity["nats"] / perplexity["predictions"]))
        assert perplexity["bits_per_byte"] == pytest.approx(
            perplexity["nats"] / perplexity["text_bytes"] / math.log(2)
        )
        assert 1 < perplexity["per_token"] < 400  # of 258 ids, hardly trained
        for layer in entry["sinks"]["layers"]:
            assert all(0 <= share <= 1 for share in layer["first_token"])
            assert 0 < layer["value_gate"] < 1 and 0 < layer["output_gate"] < 1
        for layer in entry["selection"]["layers"]:
            assert all(0 < share <= 1 + 1e-5 for share in layer["kept_mass"])
            oracle = layer["oracle"]
            assert 0 < oracle["kept_mass"] <= oracle["oracle_mass"] < 1 and 0 < oracle["recall"] <= 1
            assert oracle["queries"] == pytest.approx(layer["choosing"] * entry["selection"]["queries"])
            assert oracle["kept_mass"] == pytest.approx(layer["kept_mass_of_choosing"], rel=1e-4)
            assert 1 <= layer["k_t"]["min"] <= layer["k_t"]["p50"] <= layer["k_t"]["max"] <= 32
    # Only windows of 48 hold 32 neighbouring queries, and none holds 64.
    shorter, longer = (entry["selection"]["layers"][0]["union_over_k"] for entry in result["reports"])
    assert shorter["16"] >= 1 and longer["32"] >= 1
    assert shorter["32"] is None and longer["64"] is None


def test_text_file_and_dataset_agree(trained):
    one = "a text of its own, told in one document\n"
    (trained.folder / "one.txt").write_text(one, encoding="utf-8")
    trained.run("tokenize", "one.txt", "--output", "one")
    by_text = report(trained, MODEL, "--text", "one.txt", "--measure", "perplexity")["reports"][0]
    by_data = report(trained, MODEL, "--data", "one", "--measure", "perplexity")["reports"][0]
    assert by_text["perplexity"] == by_data["perplexity"]
    assert by_text["perplexity"]["text_bytes"] == len(one)
    assert "sinks" not in by_text and "selection" not in by_text


def test_joined_documents_fill_windows(trained):
    joined = report(trained, MODEL, "--data", "data", "--join", "--length", 512, "--stride", 512, "--measure", "sinks")
    assert joined["documents"] == 1
    entry = joined["reports"][0]
    assert entry["windows"] == math.ceil(entry["predictions"] / 512)
    limited = report(trained, MODEL, "--data", "data", "--join", "--length", 128, "--stride", 128, "--tokens", 300)
    assert limited["reports"][0]["predictions"] == 384


def test_changes_to_the_model(trained):
    def selection(*arguments):
        common = (MODEL, "--data", "data", "--join", "--length", 128, "--measure", "selection")
        return report(trained, *common, *arguments)["reports"][0]["selection"]

    few = selection("--k", 4, "--k-min", 4, "--k-max", 4, "--budget", "fixed")
    many = selection("--k", 64, "--k-min", 64, "--k-max", 64, "--budget", "fixed")
    assert few["layers"][0]["k_t"]["max"] == 4 and many["layers"][0]["k_t"]["max"] == 64
    assert few["kept_mass_mean"] < many["kept_mass_mean"]
    some = selection("--k", 4, "--k-min", 4, "--k-max", 4, "--budget", "fixed", "--oracle-queries", 32)
    every = selection("--k", 4, "--k-min", 4, "--k-max", 4, "--budget", "fixed", "--oracle-queries", 0)
    assert every["oracle"] == {**few["oracle"], "queries_of_window": 0}  # windows are shorter than the default
    assert some["oracle"]["queries_of_window"] == 32
    assert 0 < some["layers"][0]["oracle"]["queries"] < every["layers"][0]["oracle"]["queries"] / 3
    assert some["oracle"]["kept_over_oracle_mean"] == pytest.approx(every["oracle"]["kept_over_oracle_mean"], rel=0.1)
    dense = report(trained, MODEL, "--data", "data", "--phase", "dense")["reports"][0]
    assert dense["phase"] == "dense" and "selection" not in dense
    half = report(trained, MODEL, "--data", "data", "--dtype", "bfloat16", "--measure", "perplexity")
    full = report(trained, MODEL, "--data", "data", "--measure", "perplexity")
    assert half["dtype"] == "bfloat16"
    assert half["reports"][0]["perplexity"]["nats_per_token"] == pytest.approx(
        full["reports"][0]["perplexity"]["nats_per_token"], rel=0.02
    )


def test_tables_json_and_plots(trained):
    files = ("--json", "out.json", "--plots", "plots/a")
    output = evaluate(trained, MODEL, "--data", "data", "--join", "--length", "32,64", *files)
    for part in ("perplexity", "bits a byte", "sinks at 64", "layer 0", "even attention", "selection at 32", "∪ 16", "kept / oracle", "worst, layer"):
        assert part in output
    assert max(map(len, output.splitlines())) <= 120
    written = json.loads((trained.folder / "out.json").read_text(encoding="utf-8"))
    assert len(written["reports"]) == 2
    plots = sorted((trained.folder / "plots" / "a").glob("*.svg"))
    assert f"{len(plots)} plots in plots/a" in output
    assert {"perplexity.svg", "first-token-64.svg", "kept-mass-32.svg", "oracle-64.svg", "unions-64.svg"} <= {p.name for p in plots}
    for plot in plots:
        assert ElementTree.parse(plot).getroot().tag.endswith("svg")


def test_files_that_cannot_be_written_are_refused_at_the_start(trained):
    (trained.folder / "folder").mkdir()
    os.mkfifo(trained.folder / "pipe")
    for path, reason in [("folder", "got a folder"), ("pipe", "got a pipe"), ("no/x.json", "No such file")]:
        output = evaluate(trained, MODEL, "--data", "data", "--json", path, status=1)
        assert reason in output and "model " not in output
    assert (trained.folder / "pipe").is_fifo()
    output = evaluate(trained, MODEL, "--data", "data", "--plots", "words.txt", status=1)
    assert "expected a folder that can be made" in output and "model " not in output
    # A link stays, and the file behind it is replaced.
    (trained.folder / "link.json").symlink_to("folder/real.json")
    evaluate(trained, MODEL, "--data", "data", "--tokens", 100, "--measure", "perplexity", "--json", "link.json")
    assert (trained.folder / "link.json").is_symlink()
    assert json.loads((trained.folder / "folder" / "real.json").read_text(encoding="utf-8"))["reports"]


def test_the_folder_of_a_run_stands_for_its_newest_model(trained):
    run = Path(MODEL).parent
    assert evaluate(trained, run, "--data", "data").startswith(f"model   {MODEL}: gsa")
    assert f"{MODEL}, gsa" in trained.run("inspect", run)


def test_beyond_the_trained_length_is_said(trained):
    arguments = (MODEL, "--data", "data", "--join", "--length", 128, "--measure", "perplexity")
    long = evaluate(trained, *arguments)
    assert f"beyond the {TRAIN['data.length']} " in long and "--extend 2" in long
    extended = evaluate(trained, *arguments, "--extend", 2)
    assert "beyond" not in extended


def test_mistakes_get_a_clear_word(trained, tmp_path):
    def misused(*arguments):
        return evaluate(trained, *arguments, status=2)

    def refused(*arguments):
        return evaluate(trained, *arguments, status=1)

    assert "--data DATASET or --text FILE, got neither" in misused(MODEL)
    assert "got both" in misused(MODEL, "--data", "data", "--text", "words.txt")
    assert "--join: expected --data" in misused(MODEL, "--text", "words.txt", "--join")
    assert "did you mean 'sinks'" in misused(MODEL, "--data", "data", "--measure", "sink")
    assert "--stride: expected at most 32" in misused(MODEL, "--data", "data", "--length", 32, "--stride", 33)
    assert "--stride: expected at most 64, the length" in misused(MODEL, "--data", "data", "--stride", 999999)
    assert "gsa: --phase: expected dense" in misused(MODEL, "--data", "data", "--phase", "spares")
    assert "gsa: --budget: expected inverse" in misused(MODEL, "--data", "data", "--budget", "fixd")
    assert "gsa: --extend: expected a number from 1" in misused(MODEL, "--data", "data", "--extend", "1e300")
    assert "float32" in misused(MODEL, "--data", "data", "--dtype", "float8")
    assert "config.json" in refused("data", "--data", "data")  # a folder, but no model's
    assert "config.json" in refused(tmp_path, "--data", "data")
    assert "dataset.json" in refused(MODEL, "--data", MODEL)
    (trained.folder / "empty.txt").write_text("\n \n", encoding="utf-8")
    assert "an empty or blank file" in refused(MODEL, "--text", "empty.txt")
    assert "missing.txt" in refused(MODEL, "--text", "missing.txt")
    for option in ("--length", "--stride", "--tokens", "--batch-tokens"):
        message = f"{option}: expected a whole number of at least 1, got '0'"
        assert message in misused(MODEL, "--data", "data", option, 0)
    assert "--oracle-queries: expected a whole number in 0 .." in misused(
        MODEL, "--data", "data", "--oracle-queries", -1
    )
    for without in (("--measure", "sinks,perplexity"), ("--phase", "dense")):
        output = misused(MODEL, "--data", "data", "--oracle-queries", 64, *without)
        assert "--oracle-queries: expected the measure selection" in output and "model " not in output
    (trained.folder / "file").write_text("", encoding="utf-8")
    assert "a folder that can be made" in refused(MODEL, "--data", "data", "--plots", "file/plots")
    assert "unknown option" in evaluate(trained, MODEL, "--dta=data", status=2)
    assert "folder" in trained.run("eval", status=2)


def test_data_of_another_tokenizer_is_refused(trained):
    trained.run("tokenize", "words.txt", "--train-tokenizer", 300, "--output", "pieces")
    output = evaluate(trained, MODEL, "--data", "pieces", status=1)
    assert "another tokenizer" in output and f"--tokenizer {MODEL}" in output
    # Without a tokenizer of its own a model can still tell that ids are beyond its vocabulary.
    bare = trained.folder / "bare"
    shutil.copytree(trained.folder / MODEL, bare)
    (bare / "tokenizer_config.json").unlink()
    assert "at most 258" in evaluate(trained, "bare", "--data", "pieces", status=1)
    assert "perplexity" in evaluate(trained, "bare", "--data", "data")
    assert "expected a tokenizer" in evaluate(trained, "bare", "--text", "words.txt", status=1)
    # A tokenizer that cannot be read here is one all the same.
    (bare / "tokenizer.json").write_text("{}", encoding="utf-8")
    output = evaluate(trained, "bare", "--data", "data", status=1)
    assert "bare/tokenizer.json" in output and "cannot be compared" in output and "--ignore-tokenizer" in output
    assert "perplexity" in evaluate(trained, "bare", "--data", "data", "--ignore-tokenizer")
    assert "--ignore-tokenizer: expected --data" in evaluate(
        trained, "bare", "--text", "words.txt", "--ignore-tokenizer", status=2
    )


def test_weights_that_are_not_finite_are_an_error(trained):
    broken = trained.folder / "broken"
    shutil.copytree(trained.folder / MODEL, broken)
    file = broken / "model.safetensors"
    content = bytearray(file.read_bytes())
    (size,) = struct.unpack_from("<Q", content)
    begin = json.loads(content[8 : 8 + size])["model.norm.weight"]["data_offsets"][0]
    struct.pack_into("<f", content, 8 + size + begin, math.nan)
    file.write_bytes(content)
    for measure in ("perplexity", "sinks", "selection"):
        output = evaluate(trained, "broken", "--data", "data", "--measure", measure, "--plots", "none", status=1)
        assert "'broken': expected finite weights, got NaN or infinity in model.norm.weight" in output
    assert not (trained.folder / "none").exists()


def test_numbers_that_grow_too_large_are_an_error(trained):
    large = trained.folder / "large"
    shutil.copytree(trained.folder / MODEL, large)
    file = large / "model.safetensors"
    content = bytearray(file.read_bytes())
    (size,) = struct.unpack_from("<Q", content)
    begin = json.loads(content[8 : 8 + size])["model.layers.1.input_layernorm.weight"]["data_offsets"][0]
    struct.pack_into("<f", content, 8 + size + begin, 3e38)
    file.write_bytes(content)
    for measure in ("perplexity", "sinks", "selection", "agreement"):
        output = evaluate(trained, "large", "--data", "data", "--length", 64, "--measure", measure, status=1)
        assert "expected finite numbers, got NaN or infinity" in output, measure


def test_weights_in_a_pipe_are_not_waited_for(trained):
    piped = trained.folder / "piped"
    shutil.copytree(trained.folder / MODEL, piped)
    (piped / "model.safetensors").unlink()
    os.mkfifo(piped / "model.safetensors")
    assert "got a pipe (FIFO)" in evaluate(trained, "piped", "--data", "data", status=1)


@pytest.mark.parametrize("system", ["standard", "sparse-only", "gated-only"])
def test_other_systems(trained, system):
    dense = system in ("standard", "gated-only")
    changes = {"model.system": system, "output.folder": system, "phases.dense": 2}
    if dense:
        # What a dense model would ignore is refused.
        changes.update({"phases.warmup": 0, "phases.sparse": 0, "model.k_base": 0, "model.k_min": 0, "model.k_max": 0})
    train(trained, **changes)
    entry = report(trained, f"{system}/latest", "--data", "data", "--length", 48)["reports"][0]
    assert ("selection" in entry) == (not dense)
    assert ("value_gate" in entry["sinks"]["layers"][0]) == (system == "gated-only")
    assert entry["perplexity"]["per_token"] > 1
    if dense:
        refused = evaluate(trained, f"{system}/latest", "--data", "data", "--measure", "selection", status=1)
        assert "a model without an indexer" in refused


def test_help_teaches(trained):
    output = trained.run("eval", "--help")
    for part in ("Examples", "gsa eval runs/book/latest", "--stride", "selection", "docs/evaluation.md"):
        assert part in output

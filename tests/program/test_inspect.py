"""The program `gsa inspect`: figures, folders, and what it says to mistakes."""

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(os.environ["GSA_PROGRAM"]).resolve()
PROBE = PROGRAM.parent.parent / "gsa_model_probe"


def gsa(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)


def inspect(*arguments):
    result = gsa("inspect", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_figures_of_the_papers_model():
    report = inspect("--preset", "paper-1.7b", "--length", 131072)
    assert report["system"] == "gsa"
    assert report["config"]["num_hidden_layers"] == 24 and report["config"]["index_rope_fraction"] == 1
    assert report["parameters"]["base"] == 1_685_686_272
    assert report["parameters"]["added"] == 141_815_904
    assert report["cost"]["cache_bytes"]["index_keys"] == 131072 * 64 * 2 * 24
    assert report["standard"]["cache_bytes"]["index_keys"] == 0
    assert report["standard"]["decode_cache_bytes"]["total"] == 131072 * 512 * 2 * 2 * 24


def test_layers_that_share_a_selection_are_counted_once():
    every, fourth = (inspect("--preset", "paper-1.7b", "--length", 131072, *extra) for extra in ((), ("--index-every", 4)))
    assert fourth["config"]["index_layers"] == [0, 4, 8, 12, 16, 20] and "index_layers" not in every["config"]
    for part in (lambda r: r["parameters"]["indexer"], lambda r: r["cost"]["cache_bytes"]["index_keys"],
                 lambda r: r["cost"]["prefill_flop"]["indexer"], lambda r: r["cost"]["prefill_sigmoids"],
                 lambda r: r["cost"]["decode_cache_bytes"]["index_keys"]):  # fmt: skip
        assert part(fourth) * 4 == part(every)
    assert fourth["parameters_per_layer"] == every["parameters_per_layer"]
    assert inspect("--preset", "small", "--index-layers", "0,5")["config"]["index_layers"] == [0, 5]
    said = gsa("inspect", "--preset", "small", "--index-every", 4).stdout
    assert "by 2 of 8 layers (0, 4)" in said and "which 2 of 8 have" in said
    beyond = gsa("inspect", "--preset", "small", "--index-layers", "0,8")
    assert "--index-layers: expected layers in 0 .. 7" in beyond.stderr, beyond.stderr
    for wrong in (("--index-layers", "1,2"), ("--index-layers", "0,x"), ("--index-every", 0),
                  ("--index-every", 2, "--system", "standard"), ("--index-every", 2, "--index-layers", "0")):  # fmt: skip
        result = gsa("inspect", "--preset", "small", *wrong)
        assert result.returncode != 0 and "index-" in result.stderr, (wrong, result.stderr)


def test_large_presets_run_short_sequences_dense():
    short = inspect("--preset", "paper-1.7b", "--length", 8192)
    assert short["config"]["dense_below"] == 16384 and short["config"]["index_temperature"] == 0.1
    assert short["cost"]["prefill_flop"]["attention"] == short["standard"]["prefill_flop"]["attention"]
    sparse = inspect("--preset", "paper-1.7b", "--length", 8192, "--dense-below", 0)
    assert sparse["cost"]["prefill_flop"]["attention"] < short["cost"]["prefill_flop"]["attention"]
    note = "8,192 tokens are below dense_below"
    assert note in gsa("inspect", "--preset", "paper-1.7b", "--length", 8192).stdout
    assert note not in gsa("inspect", "--preset", "paper-1.7b", "--length", 8192, "--dense-below", 0).stdout
    assert inspect("--preset", "small", "--score", "relu")["config"]["index_temperature"] == 1


def test_every_system_and_ablation_is_an_option():
    totals = {name: inspect("--preset", "small", "--system", name)["parameters"]["added"]
              for name in ("standard", "sparse-only", "gated-only", "gsa")}
    assert totals["standard"] == 0
    assert totals["gsa"] == totals["sparse-only"] + totals["gated-only"] + 8 * 4  # the sigmoid's biases
    ablation = inspect("--preset", "small", "--output-gate", "headwise", "--value-gate", "none", "--budget", "fixed",
                       "--score", "relu", "--k", 128)
    assert ablation["system"] is None
    assert ablation["parameters_per_layer"]["output_gate"] == 8 * 513
    assert ablation["parameters_per_layer"]["value_gate"] == 0
    assert ablation["cost"]["prefill_sigmoids"] == 0


def test_table_is_for_people():
    result = gsa("inspect", "--preset", "tiny")
    assert result.returncode == 0
    for part in ("4 heads of 16, sigmoid, RoPE on 16 dimensions", "theta 10000", "value gate (G2)", "indexer keys", "gates and indexer add", "tied", "at 1,024 tokens"):
        assert part in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_folder(tmp_path):
    assert subprocess.run([PROBE, "make", tmp_path, "extend=4"], check=False).returncode == 0
    report = inspect(tmp_path)
    assert report["system"] == "standard"
    assert report["length"] == 256
    assert "30 tensors, F32" in gsa("inspect", tmp_path).stdout
    assert inspect(tmp_path, "--system", "gsa")["parameters"]["indexer"] > 0
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    assert "model.safetensors': expected" in gsa("inspect", tmp_path).stderr


@pytest.mark.parametrize("arguments, status, message", [
    (["inspect", "--lenght", "5"], 2, "unknown option '--lenght' (did you mean '--length'?)"),
    (["inspct"], 2, "unknown command 'inspct' (did you mean 'inspect'?)"),
    (["inspect", "--preset", "smal"], 2, "did you mean 'small'?"),
    (["inspect", "--system", "standard", "--k", "5"], 2, "expected a sparse system"),
    (["inspect", "--system", "gated-only", "--dense-below", "5"], 2, "expected a sparse system"),
    (["inspect", "--dense-below", "-1"], 2, "--dense-below: expected 0 or more"),
    (["inspect", "--length", "0"], 2, "--length: expected a number in 1"),
    (["inspect", "--dtype", "int8"], 2, "bfloat16, float16 or float32"),
    (["inspect", "nowhere", "--preset", "tiny"], 2, "--preset"),
    (["inspect", "--k", "10", "--k-min", "20"], 2, "1 <= --k-min <= --k <= --k-max, got --k-min 20, --k 10"),
    (["inspect", "nowhere"], 1, "file 'nowhere': expected a model's folder"),
], ids=lambda value: "-".join(value) if isinstance(value, list) else None)
def test_mistakes_are_explained(arguments, status, message):
    result = gsa(*arguments)
    assert result.returncode == status
    assert message in result.stderr
    assert not result.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["inspect"], ["inspect", "--json"]])
def test_output_that_cannot_be_written_is_an_error(tmp_path, arguments):
    def status(stdout):
        # As Python sets them for itself: a file too large and a closed pipe are errors, no signals.
        done = subprocess.run(
            [PROGRAM, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, restore_signals=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)), check=False,
        )
        assert "standard output: not all of it could be written" in done.stderr
        return done.returncode

    with (tmp_path / "out.txt").open("wb") as file:
        assert status(file) == 1
    parent, child = os.pipe()
    os.close(parent)
    assert status(child) == 1
    os.close(child)

"""bench/train_torch.py, what training is compared with: the same loss as our standard system, counted alike."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(os.environ["GSA_PROGRAM"]).resolve()
PROBE = PROGRAM.parent.parent / "gsa_model_probe"
SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "train_torch.py"
LENGTH = 96

# The model that the probe makes; see tests/probe/model_probe.cc.
SIZES = dict(layers=3, width=48, heads=4, kv_heads=2, head_size=16, intermediate=88, vocabulary=131)


@pytest.fixture(scope="module")
def train_torch():
    spec = importlib.util.spec_from_file_location("train_torch", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_torch"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["train_torch"]


@pytest.fixture
def safetensors():
    return pytest.importorskip("safetensors.torch", reason="safetensors is not installed")


def probe(*arguments):
    result = subprocess.run([PROBE, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_loss_is_ours(train_torch, safetensors, tied, tmp_path):
    probe("make", tmp_path, f"tied={int(tied)}")
    tokens = torch.randint(SIZES["vocabulary"], (2, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    safetensors.save_file({"tokens": tokens}, tmp_path / "tokens.safetensors")
    probe("run", tmp_path)
    ours = safetensors.load_file(tmp_path / "logits.safetensors")["loss"]

    model = train_torch.Model(train_torch.Sizes(**SIZES, tied=tied), LENGTH)
    model.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))  # every name, no other
    theirs = model(tokens[:, :-1], tokens[:, 1:])
    assert abs(ours - theirs.detach()) <= 1e-5 * ours
    theirs.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_a_wrong_rotation_would_show(train_torch, safetensors, tmp_path, monkeypatch):
    probe("make", tmp_path)
    tokens = torch.randint(SIZES["vocabulary"], (2, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    losses = []
    for theta in (train_torch.THETA, 1.1 * train_torch.THETA):
        monkeypatch.setattr(train_torch, "THETA", theta)
        model = train_torch.Model(train_torch.Sizes(**SIZES, tied=False), LENGTH)
        model.load_state_dict(weights)
        losses.append(model(tokens[:, :-1], tokens[:, 1:]).item())
    assert abs(losses[0] - losses[1]) > 1e-4 * losses[0]


@pytest.mark.parametrize("preset", ["tiny", "small", "paper-1.7b"])
def test_sizes_and_operations_are_those_of_the_preset(train_torch, preset):
    command = [PROGRAM, "inspect", "--preset", preset, "--system", "standard", "--length", "4096", "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    sizes = train_torch.PRESETS[preset]
    with torch.device("meta"):
        model = train_torch.Model(sizes, 4096)
    assert sum(p.numel() for p in model.parameters()) == report["parameters"]["total"]
    assert sizes.training_operations(4096) == report["cost"]["training_flop"]["total"]


def run(folder, *arguments, status=0):
    """Not compiled: that is torch's business, and takes a minute."""
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SCRIPT, "--device", "cpu", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert result.returncode == status, result.stdout + result.stderr
    return result


def test_one_table_with_ours(tmp_path):
    ours = {"preset": "tiny", "sequences": 4, "length": 1024, "tokens_a_second": 5.0, "operations": 3e12,
            "median_s": 0.5, "memory_bytes": 2e9, "samples_s": [0.5, 0.5]}  # fmt: skip
    results = [{**ours, "case": "tiny standard 4x1K"}, {**ours, "case": "tiny gsa 1x1K", "sequences": 1}]
    beside = tmp_path / "ours.json"
    beside.write_text(json.dumps({"device": "cpu", "results": results}))
    output = run(tmp_path, "--case", "tiny", "--steps", 2, "--peak-tflops", 12, "--beside", beside,
                 "--json", "new/t.json")  # fmt: skip
    measured = json.loads((tmp_path / "new" / "t.json").read_text())["results"][0]
    rows = {line.rsplit(maxsplit=9)[0].strip(): line.split() for line in output.stdout.splitlines() if "GB" in line}
    assert list(rows) == ["tiny torch 4x1K", "tiny standard 4x1K"]  # the other one has another shape
    assert rows["tiny torch 4x1K"][-1] == "1.00"
    assert rows["tiny standard 4x1K"][3:] == [
        "5", "500.0", "ms", "6.00", "0.50", "2.0", "GB", "2", f"{measured['median_s'] / 0.5:.2f}"]  # fmt: skip
    assert len(measured["samples_s"]) == 2 and measured["tokens_a_step"] == 4096
    assert 4 < measured["loss"] < 7  # ln 258 = 5.55: it has hardly learned


@pytest.mark.parametrize("arguments, status, message", [
    (["--case", "smal1"], 2, "--case: expected a part of one of tiny torch 4x1K"),
    (["--beside", "nowhere.json"], 2, "--beside: expected a file that gsa_bench_train wrote, got nowhere.json"),
    (["--case", "tiny", "--json", "/dev/null/x.json"], 1, "--json: expected a file that can be written"),
    (["--steps", "-1"], 2, "--steps"),
], ids=["case", "beside", "json", "steps"])  # fmt: skip
def test_mistakes_are_explained(arguments, status, message, tmp_path):
    assert message in run(tmp_path, *arguments, status=status).stderr

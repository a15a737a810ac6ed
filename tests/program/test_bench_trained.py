"""Benchmarks on trained tensors: gsa_bench_tensors, bench/gpu.py on its files, gsa_bench_train --model."""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

BUILD = Path(os.environ["GSA_PROGRAM"]).resolve().parent.parent
ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
SCRIPT = ROOT / "tools" / "train_for_bench.sh"
LENGTH, ROWS = 160, 2

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")


def call(command, status=0):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def dump(*arguments, status=0):
    return call([BUILD / "gsa_bench_tensors", *arguments], status)


def gpu(*arguments, status=0):
    return call([sys.executable, BENCH / "gpu.py", "--library", BUILD / "libgsa.so", *arguments], status)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, program_in):
    """data/, run/latest of a tiny model, and tensors/ of two of its layers."""
    here = tmp_path_factory.mktemp("trained")
    (here / "text.txt").write_text("".join(f"the keeper of lamp {i} walks {i * 7 % 13} steps\n" for i in range(400)))
    gsa = program_in(here)
    gsa.run("tokenize", "text.txt", "--output", "data")
    gsa.run("train", BENCH / "trained" / "tiny.toml", "--set", "data.train=data", "--set", "output.folder=run",
            "--set", "device=cpu", "--set", "phases.dense=2", "--set", "phases.warmup=1", "--set", "phases.sparse=2")  # fmt: skip
    dump(here / "run/latest", "--data", here / "data", "--length", LENGTH, "--rows", ROWS, "--offset", 7,
         "--layers", "0,3", "--output", here / "tensors", "--device", "cpu")  # fmt: skip
    return here


@pytest.fixture(scope="module")
def library():
    torch.ops.load_library(BUILD / "libgsa.so")
    return torch.ops.gsa


@pytest.fixture(scope="module")
def modules():
    """bench/gpu_*.py, as bench/gpu.py finds them."""
    sys.path.insert(0, str(BENCH))
    names = "gpu_inputs", "gpu_tensors", "gpu_dense", "gpu_layer"
    loaded = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        loaded[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    loaded["gpu_inputs"].device = "cpu"
    yield loaded
    sys.path.remove(str(BENCH))


def read(path):
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


@pytest.mark.parametrize("layer", [0, 3])
def test_the_operators_do_on_the_file_what_the_model_did(folder, library, layer):
    tensors, metadata = read(folder / "tensors" / f"layer-{layer:02d}.safetensors")
    index = [tensors[f"index_{name}"] for name in ("q", "k", "w", "bias")]
    mean = torch.tensor([float(metadata["mean_variance"])], dtype=torch.float64)
    assert mean > 0  # the sparse steps have set it, and budgets follow it
    k_t = library.select(*index, scale=float(metadata["index_scale"]), form=metadata["form"],
                         budget=metadata["budget"], k_base=int(metadata["k_base"]), k_min=int(metadata["k_min"]),
                         k_max=int(metadata["k_max"]), mean_variance=mean)[1]  # fmt: skip
    assert torch.equal(k_t, tensors["k_t"])
    assert tensors["q"].shape == (ROWS, LENGTH, 4, 32) and tensors["v"].shape == (ROWS, LENGTH, 2, 32)
    assert tensors["gate"].shape == (ROWS, 1, 4, 32)
    assert metadata["layer"] == str(layer) and metadata["offset"] == "7" and metadata["phase"] == "sparse"


def test_unions_are_counted_from_words(modules):
    mask, _ = modules["gpu_inputs"].masks_with_union(2048, 24, 3)
    keys = [set() for _ in range(2048 // 16)]
    for query, words in enumerate(mask[0].tolist()):
        keys[query // 16] |= {32 * w + i for w, word in enumerate(words) for i in range(32) if word >> i & 1}
    assert modules["gpu_inputs"].union_keys(mask) == sum(map(len, keys))


@pytest.fixture(scope="module")
def by_hand(modules, library):
    """union/k of a file of gsa_bench_tensors, by bench/gpu_inputs.py."""

    def overlap(path):
        tensors, metadata = read(path)
        index = [tensors[f"index_{name}"] for name in ("q", "k", "w", "bias")]
        budget = modules["gpu_tensors"].budget_of(metadata, "cpu")
        return modules["gpu_inputs"].selected_overlap(
            index, budget, index[0].size(1), scale=float(metadata["index_scale"]), form=metadata["form"]
        )

    return overlap


def test_the_dump_says_how_much_neighbours_share(folder, tmp_path, by_hand):
    output = dump(folder / "run/latest", "--data", folder / "data", "--length", 333, "--rows", 2, "--layers", "1,2",
                  "--output", tmp_path, "--device", "cpu")  # fmt: skip
    said = [float(line.rsplit("union/k ", 1)[1]) for line in output.splitlines()]
    expected = [by_hand(tmp_path / f"layer-{layer:02d}.safetensors") for layer in (1, 2)]
    assert said == pytest.approx(expected, abs=0.006) and min(expected) > 1.2


def test_windows_lie_where_offset_says(folder, tmp_path):
    arguments = [folder / "run/latest", "--data", folder / "data", "--length", LENGTH, "--layers", "0", "--device",
                 "cpu", "--phase", "warmup"]  # fmt: skip
    dump(*arguments, "--rows", 1, "--offset", 7 + LENGTH, "--output", tmp_path / "second")
    one, _ = read(tmp_path / "second" / "layer-00.safetensors")
    two, _ = read(folder / "tensors" / "layer-00.safetensors")
    # The first layer sees the tokens alone, whatever the phase.
    torch.testing.assert_close(one["q"][0], two["q"][1])
    assert not torch.equal(two["q"][0], two["q"][1]) and "k_t" not in one


def test_k_goes_to_every_layer_of_the_pass(folder, tmp_path):
    dump(folder / "run/latest", "--data", folder / "data", "--length", 200, "--k", 16, "--layers", "3",
         "--output", tmp_path / "few", "--device", "cpu")  # fmt: skip
    tensors, metadata = read(tmp_path / "few" / "layer-03.safetensors")
    assert [metadata[key] for key in ("k_base", "k_min", "k_max")] == ["16", "4", "32"]  # half of the model's
    assert tensors["k_t"].max() <= 32


@pytest.mark.parametrize("arguments, status, message", [
    (["--layers", "4"], 2, "--layers: expected numbers in 0 .. 3, got 4"),
    (["--length", "0"], 2, "--length"),
    (["--phase", "sparce"], 2, "did you mean 'sparse'"),
    (["--length", "1000000"], 1, "at least 1000000 tokens"),
    (["--data", "nowhere"], 1, "nowhere"),
    (["--output", "/dev/null/x"], 1, "--output: cannot make the folder"),
], ids=["layers", "length", "phase", "short", "data", "output"])  # fmt: skip
def test_mistakes_of_the_dump_are_explained(folder, tmp_path, arguments, status, message):
    usual = {"--data": folder / "data", "--output": tmp_path / "x", "--length": 64, "--device": "cpu"}
    rest = [item for pair in usual.items() if pair[0] not in arguments for item in pair]
    assert message in dump(folder / "run/latest", *rest, *arguments, status=status)


def test_reading_gives_shapes_and_budgets(folder, modules):
    tensors = modules["gpu_tensors"]
    files = tensors.files_of([folder / "tensors"])
    assert [file.name for file in files] == ["layer-00.safetensors", "layer-03.safetensors"]
    layer = tensors.read_layer(files[1], "cpu")
    assert layer.shape == tensors.shape_of(files[1]) == modules["gpu_inputs"].Shape(ROWS, LENGTH, 4, 2, 32, 4, 16)
    assert layer.label == "tensors:3" and layer.budget["k_base"] == 32 and layer.attention[0].dtype == torch.bfloat16
    assert tensors.read_layer(files[0], "cpu", k=9).budget == dict(budget="fixed", k_base=9, k_min=1, k_max=9)
    with pytest.raises(ValueError, match="expected files of gsa_bench_tensors"):
        tensors.files_of([folder / "data"])
    with pytest.raises(ValueError, match="which is another's"):
        tensors.shape_of(folder / "run/latest/model.safetensors")


def test_samples_have_one_tile_of_every_group(modules):
    layer = modules["gpu_layer"]
    tiles = layer.sampled_tiles(rows=3, tokens=1000, parts=16)  # 3 x 16 tiles
    assert tiles.tolist() == sorted(set(tiles.tolist())) and (tiles // 16).tolist() == [0, 1, 2]
    assert layer.sampled_tiles(1, 100, 16).max() <= 1 and len(layer.sampled_tiles(1, 4096, 1)) == 64


def test_pages_hold_the_keys_in_their_order(modules):
    tensor = torch.arange(2 * 100 * 3.0).view(2, 100, 3)
    order = torch.tensor([[2, 0], [3, 1]])
    pages = modules["gpu_layer"].paged(tensor, order)
    again = pages[order.flatten()].view(2, 128, 3)
    assert torch.equal(again[:, :100], tensor) and not again[:, 100:].any()


def test_distributions_are_what_they_say(modules, library):
    inputs = modules["gpu_inputs"]
    torch.manual_seed(1)
    index = inputs.indexer(512, 16, heads=4, size=32)

    def distinct(kind):
        scores = library.index_scores(*inputs.KINDS[kind](*index), scale=32**-0.5)[0, -1]
        return len(scores.unique()), scores

    plain = len(library.index_scores(*index, scale=32**-0.5)[0, -1].unique())
    assert plain > 500
    assert distinct("ties")[0] <= 64 and distinct("constant")[0] < 300
    crowded = distinct("crowded")[1]
    assert crowded.std() / crowded.mean() < 0.01
    def at_the_ends(*tensors):
        """The share of scores, of late queries, in which all heads are at 0 or all at 1."""
        scores = library.index_scores(*tensors, scale=32**-0.5)[0, 384:, :384] / index[2][0, 384:].sum(-1, True)
        return ((scores < 0.01) | (scores > 0.99)).float().mean()

    assert at_the_ends(*inputs.saturated(*index)) > 0.02 > 100 * at_the_ends(*index)


def by_label(backend, **times):
    return {label: (ms, backend) for label, ms in times.items()}


def test_a_row_tells_trained_from_random(modules):
    layer = modules["gpu_layer"]
    goal = layer.Goal(None, 8, must=1.5, aim=2.0)
    dense, times = by_label("cuDNN", random=8.0, a=8.0, b=6.0), {"random": 2.0, "a": 3.0, "b": 5.0}
    row = layer.summary("x", times, dense, goal=goal)
    assert (row["trained"], row["worst"], row["worst_over_random"]) == (4.0, 5.0, 2.5)
    assert (row["dense_over_random"], row["dense_over_trained"], row["holds"]) == (4.0, 1.75, "must")
    assert row["dense_ms"]["b"] == 6.0 and row["dense_by"]["b"] == "cuDNN" and "fastest_dense" not in row
    assert layer.summary("x", {"random": 2.0}, dense, goal=goal)["holds"] == "aim"
    assert "holds" not in layer.summary("x", {"random": 2.0, "a": 3.0}, goal=goal)


def test_limits_are_taken_like_with_like_and_the_cross_ratio_is_shown(modules):
    layer = modules["gpu_layer"]
    goal = layer.Goal(None, 8, must=1.5, aim=2.0)
    slower, faster = by_label("FlashAttention", random=8.0, a=9.0), by_label("cuDNN", random=5.0, a=6.0)
    row = layer.summary("x", {"random": 4.0, "a": 5.0}, slower, faster, goal=goal)
    assert (row["dense_over_random"], row["dense_over_trained"], row["holds"]) == (2.0, 1.8, "must")
    assert (row["fastest_dense_over_random"], row["fastest_dense_over_trained"]) == (1.25, 1.2)
    head, text = layer.header("trained"), layer.line(row)
    for column, value in (("dense/t", "1.8"), ("any/r", "1.25"), ("any/t", "1.2")):
        end = head.index(column) + len(column)
        assert text[:end].endswith(" " + value)
    assert text.endswith("must 5 FlashAttention")
    for name, (_, beside) in layer.OPERATIONS.items():
        if name.startswith("layer"):
            assert beside == ("training" if "atomic" in name else "deterministic training")
    assert layer.WITH_GOAL == ("layer, KL of a sample", "layer, KL of a sample, atomic")


def test_backends_that_are_not_deterministic_are_left_out(modules, monkeypatch, capsys):
    dense, backends = modules["gpu_dense"], torch.backends.cuda
    monkeypatch.setattr(modules["gpu_inputs"], "device", "cuda")  # to go through the backends; nothing runs on it
    times = {"cuDNN": 1.0, "FlashAttention": 2.0}

    def measure(run):
        name = "cuDNN" if backends.cudnn_sdp_enabled() else "FlashAttention"
        if torch.are_deterministic_algorithms_enabled():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.utils.deterministic.fill_uninitialized_memory
            run(name)
        return times[name]

    def refuses(name):
        if name == "cuDNN":
            raise RuntimeError("No available kernel. Aborting execution.")

    def warns(name):
        if name == "cuDNN":
            warnings.warn("cuDNN SDPA is not deterministic.", stacklevel=1)

    def fails(name):
        raise RuntimeError("no form of it")

    assert dense.Dense.fastest(measure, refuses) == (1.0, "cuDNN")
    assert dense.Dense.fastest(measure, refuses, deterministic=True) == (2.0, "FlashAttention")
    assert "cuDNN: No available kernel" in capsys.readouterr().err
    assert dense.Dense.fastest(measure, warns, deterministic=True) == (2.0, "FlashAttention")
    assert "cuDNN: cuDNN SDPA is not deterministic." in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="no deterministic attention for these tensors by cuDNN or FlashAttention"):
        dense.Dense.fastest(measure, fails, deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory and backends.cudnn_sdp_enabled()


def test_every_operation_runs_on_the_files(folder, tmp_path):
    output = gpu("--device", "cpu", "--tensors", folder / "tensors", "--sample", 2, "--json", tmp_path / "rows.json")
    document = json.loads((tmp_path / "rows.json").read_text())
    assert document["failed"] == [] and "2 x 160 tokens, 4/2 heads of 32, indexer 4 of 16" in output
    names = gpu("--tensors", folder / "tensors", "--list").split("\n")[:-1]
    assert [row["name"] for row in document["rows"]] == names and len(names) == 12
    for row in document["rows"]:
        assert list(row["ms"]) == ["random", "tensors:0", "tensors:3"] and min(row["ms"].values()) > 0
        assert row["worst"] == max(ms for label, ms in row["ms"].items() if label != "random")
        ordered = row["name"] in ("layer, KL of a sample", "layer, KL selected")
        assert ("fastest_dense_over_trained" in row) == ordered


@pytest.mark.parametrize("arguments, message", [
    (["--tensors", "nowhere"], "--tensors: expected files of gsa_bench_tensors or a folder of them, got 'nowhere'"),
    (["--inputs", "crowed"], "invalid choice: 'crowed'"),
    (["--shape", "32k"], "--shape: expected --tensors, --inputs or --suite beside it"),
    (["--device", "cpu"], "--device: expected --tensors, --inputs or --suite beside it"),
    (["--suite", "layer", "--only", "slect"], "--only: expected some of select, attend forward"),
    (["--inputs", "ties", "--suite", "layer"], "--inputs: expected a table of its own"),
    (["--inputs", "ties", "--k", "0"], "--k: expected a whole number of at least 1, got '0'"),
], ids=["tensors", "inputs", "shape", "device", "only", "suite", "k"])  # fmt: skip
def test_mistakes_of_the_benchmark_are_explained(arguments, message):
    assert message in gpu(*arguments, status=2)


def test_tensors_of_another_shape_are_not_passed_over(folder):
    message = gpu("--suite", "layer", "--tensors", folder / "tensors", status=2)
    assert "--tensors: expected the shapes of the suite" in message and "2 x 160 tokens" in message


def test_training_steps_of_a_trained_model(folder, tmp_path):
    result = tmp_path / "steps.json"
    output = call([BUILD / "gsa_bench_train", "--device", "cpu", "--model", folder / "run/latest", "--data",
                   folder / "data", "--length", 128, "--sequences", 2, "--steps", 1, "--case", "128", "--peak-tflops",
                   1, "--json", result])  # fmt: skip
    document = json.loads(result.read_text())
    rows = {row["case"]: row for row in document["results"]}
    systems = "standard", "gated-only", "trained sparse", "trained sparse KL-selected"
    names = [f"run {system} 2x128" for system in systems]
    assert list(rows) == names + [name + ", non-deterministic" for name in names] and "/ standard" in output
    assert rows[names[0]]["over_standard"] == 1 and rows[names[2]]["over_standard"] > 0
    # Random weights guess among 258 bytes; five steps are enough to do better. Nothing learns while it is timed.
    assert 5.3 < rows[names[0]]["loss"] < 5.9 and rows[names[2]]["loss"] < rows[names[0]]["loss"] - 0.1
    assert rows[names[2]]["loss"] == pytest.approx(rows[names[2] + ", non-deterministic"]["loss"], rel=1e-6)
    assert "union_over_k" not in rows[names[0]] and "union_over_k" not in rows[names[1]]
    for name in names[2:]:
        overlap = rows[name]["union_over_k"]
        assert len(overlap["by_layer"]) == 4 and 1 < overlap["min"] <= overlap["mean"] <= overlap["max"] < 16
        k = rows[name]["mean_k"]["mean"]
        assert 1 <= k <= 128 and len(rows[name]["mean_k"]["by_layer"]) == 4
        assert f"{overlap['mean']:.2f} ({overlap['min']:.2f} to {overlap['max']:.2f}), k {k:.0f}\n" in output
    torch_cases = call([sys.executable, BENCH / "train_torch.py", "--device", "cpu", "--beside", result, "--list"])
    assert torch_cases == "run torch 2x128\n"


def test_runs_of_tokens_are_found_for_an_overlap(tmp_path):
    result = tmp_path / "steps.json"
    output = call([BUILD / "gsa_bench_train", "--device", "cpu", "--case", "tiny gsa", "--overlap", 5.5, "--steps", 1,
                   "--peak-tflops", 1, "--json", result])  # fmt: skip
    (row,) = json.loads(result.read_text())["results"]
    tried = {entry["token_runs"]: entry["union_over_k"] for entry in row["overlap"]["tried"]}
    assert list(tried) == [2**n for n in range(len(tried))] and tried[1] > 7
    assert min(list(tried.values())[:-1]) >= 5.5 > list(tried.values())[-1]
    assert row["token_runs"] == min(tried, key=lambda runs: abs(tried[runs] - 5.5)) > 1
    assert row["union_over_k"]["mean"] == pytest.approx(tried[row["token_runs"]], rel=0.15)  # two steps later
    assert row["case"] == "tiny gsa 4x1K, overlap 5.5" and f", runs of {row['token_runs']}\n" in output


@pytest.mark.parametrize("arguments, status, message", [
    (["--model", "run/latest"], 2, "--data"),
    (["--phase", "sparse"], 2, "--model"),
    (["--model", "run/latest", "--data", "data", "--phase", "x"], 2, "phase"),
    (["--model", "run/latest", "--data", "data", "--token-runs", "8"], 2, "--model excludes --token-runs"),
    (["--token-runs", "5000"], 2, "--token-runs: Value 5000 not in range 1 to 4096"),
    (["--token-runs", "8", "--overlap", "3"], 2, "--token-runs excludes --overlap"),
    (["--overlap", "0.5"], 2, "--overlap: Value 0.5 not in range 1"),
], ids=["data", "model", "phase", "no runs", "runs", "both", "overlap"])  # fmt: skip
def test_mistakes_of_the_steps_are_explained(folder, arguments, status, message):
    paths = [folder / a if a in ("run/latest", "data") else a for a in arguments]
    assert message in call([BUILD / "gsa_bench_train", "--device", "cpu", *paths], status)


@pytest.mark.parametrize("arguments, message", [
    ([], "expected a text file, got none"),
    (["nowhere.txt"], "expected a text file, got nowhere.txt"),
    ([SCRIPT, "--models", "large"], "--models: expected small, wide or tiny, got large"),
    ([SCRIPT, "--models"], "--models: expected a value, got none"),
    ([SCRIPT, "--depth", "3"], "expected an option that --help names, got --depth"),
    ([SCRIPT, "--build", "nowhere"], "--build: expected nowhere/bin/gsa, got none"),
], ids=["none", "text", "models", "value", "option", "build"])  # fmt: skip
def test_mistakes_of_the_script_are_explained(arguments, message):
    assert message in call([SCRIPT, *arguments], status=2)


@pytest.mark.parametrize("name, says", [("tiny", "preset = 'tiny'"), ("small", "k_base = 1024"),
                                        ("wide", "head_size = 128"), ("wide-32k", "index_head_size = 64"),
                                        ("wide-128k", "length = 131072")])  # fmt: skip
def test_configurations_are_ones_of_the_trainer(gsa, name, says):
    config = gsa.run("train", BENCH / "trained" / f"{name}.toml", "--set", "data.train=x", "--set", "output.folder=y",
                     "--print-config")  # fmt: skip
    assert says in config

"""gsa train as a process: kills, signals, a full disk, and what it writes."""

import json
import random
import re
import resource
import shutil
import signal
import struct
import time

import pytest

SETTINGS = {
    "data.train": "data",
    "output.folder": "run",
    "data.length": 32,
    "batch.tokens": 64,
    "batch.rows": 2,
    "model.k_base": 8,
    "model.k_min": 4,
    "model.k_max": 16,
    "phases.dense": 8,
    "phases.warmup": 8,
    "phases.sparse": 8,
    "kl_share": 0.5,
    "output.save_every": 1,
    "output.log_every": 1,
    "device": "cpu",
}


def arguments(**changes):
    settings = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    return ["train", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


def newest(gsa, run="run"):
    return sorted((gsa.folder / run / "checkpoints").glob("step-*"))[-1]


def weights(folder):
    return (folder / "model.safetensors").read_bytes(), (folder / "optimizer.safetensors").read_bytes()


def metrics(gsa, run="run"):
    return [json.loads(line) for line in (gsa.folder / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def losses(lines):
    return [(line["step"], line["phase"], line.get("loss"), line.get("kl")) for line in lines if line["kind"] == "step"]


# Twenty kills without warning, each at a random moment of a run that saves after every step. The newest
# checkpoint is always readable (resuming verifies every checksum), and the run ends with the very bits of one
# that was never killed.
def test_kill_at_any_moment(gsa, data):
    phases = {"phases__dense": 15, "phases__warmup": 15, "phases__sparse": 15}
    gsa.run(*arguments(output__folder="whole", **phases))
    moments = random.Random(5)
    done = in_the_middle = 0
    for kill in range(20):
        process = gsa.start(*arguments(**phases), *(["--resume"] if done else []))
        text = ""
        for line in process.stdout:  # until steps come
            text += line
            if re.match(r"(dense|warmup|sparse) ", line):
                break
        time.sleep(moments.uniform(0, 0.25))
        process.kill()
        process.wait()
        if done:
            resumed = re.search(r"resumed from the checkpoint of step (\d+)", text)
            assert resumed and int(resumed[1]) >= done, f"kill {kill}: {text}"
        folder = gsa.folder / "run" / "checkpoints"
        in_the_middle += any(folder.glob(".step-*"))
        done = max((int(path.name.split("-")[1]) for path in folder.glob("step-*")), default=0)
    assert done > 0 and in_the_middle > 0, "the kills came at the wrong moments to show anything"
    assert "resumed" in gsa.run(*arguments(**phases), "--resume")
    assert weights(newest(gsa)) == weights(newest(gsa, "whole"))
    assert losses(metrics(gsa)) == losses(metrics(gsa, "whole"))


def until_step(process, step):
    for line in process.stdout:
        if line.startswith(f"dense {step}/"):
            return
    raise AssertionError(f"status {process.wait()} before step {step}")


# A closed terminal is told twice, by the shell and by the system; a limit of CPU time every second.
@pytest.mark.parametrize("which, times", [
    (signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGHUP, 2), (signal.SIGXCPU, 2), (signal.SIGUSR1, 2),
])
def test_a_signal_saves_and_says_so(gsa, data, which, times):
    process = gsa.start(*arguments(output__save_every=0, phases__dense=100000))
    until_step(process, 3)
    for _ in range(times):
        process.send_signal(which)
        time.sleep(0.005)  # each on its own
    output = process.stdout.read()
    assert process.wait(timeout=60) == 75, output
    assert "--resume" in output
    step = int(re.search(r"interrupted after step (\d+)", output)[1])
    assert newest(gsa).name == f"step-{step:010d}"
    assert (gsa.folder / "run" / "latest").resolve() == newest(gsa)


def test_nohup_keeps_a_closed_terminal_away(gsa, data):
    process = gsa.start(
        *arguments(output__save_every=0, phases__dense=100000),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    until_step(process, 3)
    process.send_signal(signal.SIGHUP)
    until_step(process, 10)
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait(timeout=60) == 75


# As `gsa train ... | head -1` does.
def test_a_training_that_nobody_reads_goes_on(gsa, data):
    status, said = gsa.run_unread(*arguments(output__save_every=0))
    assert status == 0, said
    assert said.count("standard output can no longer be written (Broken pipe); training goes on") == 1
    assert newest(gsa).name == "step-0000000024" and len(losses(metrics(gsa))) == 24


# A limit on the size of files, set while it runs, stands in for a full disk.
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_full_disk_is_said_and_the_last_checkpoint_kept(gsa, data):
    process = gsa.start(*arguments(output__save_every=3))
    for line in process.stdout:
        if "saved" in line:
            break
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    output = process.stdout.read()
    assert process.wait(timeout=60) == 1, output
    assert "checkpoint of step 6 failed" in output and "File too large" in output
    assert "newest complete one is" in output and "step-0000000003" in output
    assert newest(gsa).name == "step-0000000003"
    assert "resumed from the checkpoint of step 3" in gsa.run(*arguments(output__save_every=3), "--resume")


def test_a_damaged_checkpoint_is_named(gsa, data):
    gsa.run(*arguments(output__save_every=20))
    file = newest(gsa) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    output = gsa.run(*arguments(output__save_every=20), "--resume", status=1)
    assert "step-0000000024' is damaged" in output and "model.safetensors" in output
    assert "step-0000000020 is sound" in output
    # Once it is removed, the link that pointed to it says so, and resuming points it to the one before.
    shutil.rmtree(newest(gsa))
    for command in (["inspect", "run/latest"], ["generate", "run/latest", "--prompt", "a"],
                    ["eval", "run/latest", "--text", "words.txt"], ["eval", "run/latest", "--data", "data"]):
        assert "is a link to 'checkpoints/step-0000000024', which is not there" in gsa.run(*command, status=1)
    process = gsa.start(*arguments(output__save_every=20), "--resume")
    for line in process.stdout:
        if "resumed from the checkpoint of step 20" in line:
            break
    process.kill()
    process.wait()
    assert (gsa.folder / "run" / "latest").resolve().is_dir()


def test_a_finished_run_says_that_it_is(gsa, data):
    gsa.run(*arguments(output__save_every=0))
    output = gsa.run(*arguments(output__save_every=0), "--resume")
    assert "resumed from the checkpoint of step 24: all steps are done" in output


# More steps than it was made with: the optimiser goes on, the schedule ends later.
def test_a_finished_run_can_be_given_more_steps(gsa, data):
    gsa.run(*arguments(output__save_every=0))
    changes = {"output__save_every": 0, "optimizer__warmup_steps": 1}  # what -1 meant for the 24 steps
    output = gsa.run(*arguments(**changes, phases__sparse=12), "--resume")
    assert "resumed from the checkpoint of step 24\n" in output
    assert "note    the run goes on to 28 steps instead of 24; the schedule of the learning rate now ends there" in output
    assert newest(gsa).name == "step-0000000028"
    assert [line["step"] for line in metrics(gsa) if line["kind"] == "step"] == list(range(1, 29))
    state = json.loads((newest(gsa) / "state.json").read_text(encoding="utf-8"))
    assert "sparse = 12" in state["config"]
    # Phases that are over stay as they were, and without more steps the schedule does too.
    refused = gsa.run(*arguments(**changes, phases__sparse=20, phases__dense=9), "--resume", status=2)
    assert "option 'phases.dense': expected 8, since step 28" in refused
    refused = gsa.run(*arguments(**changes, phases__sparse=12, optimizer__lr=0.5), "--resume", status=2)
    assert "option 'optimizer.lr': expected 0.001" in refused


def test_a_run_may_start_from_another_runs_newest_checkpoint(gsa, data):
    gsa.run(*arguments(output__save_every=0))
    more = {"output__save_every": 0, "phases__dense": 1, "phases__warmup": 1, "phases__sparse": 1}
    gsa.run(*arguments(**more, model__from="run", output__folder="of_run"))
    gsa.run(*arguments(**more, model__from="run/latest", output__folder="of_latest"))
    assert weights(newest(gsa, "of_run")) == weights(newest(gsa, "of_latest"))


def test_a_template_needs_no_dataset(gsa, data):
    template = gsa.run("train", "--print-config", "--set", "model.layers=2")
    assert template.startswith("# To be filled in before a run: data.train output.folder phases\n")
    assert "layers = 2\n" in template and "warmup_steps = -1\n" in template
    (gsa.folder / "mine.toml").write_text(template, encoding="utf-8")
    gsa.run("train", "mine.toml", *arguments(output__save_every=0)[1:])


def test_the_old_name_of_an_extension_is_read(gsa, data):
    (gsa.folder / "old.toml").write_text("[model]\nyarn_factor = 2.0\n", encoding="utf-8")
    assert "extend = 2.0\n" in gsa.run("train", "old.toml", "--print-config")


def test_a_model_goes_on_with_its_own_tokenizer_only(gsa, data):
    gsa.run("tokenize", "words.txt", "--train-tokenizer", 300, "--output", "pieces")
    gsa.run(*arguments(data__train="pieces", output__save_every=0))
    more = {"model__from": "run/latest", "output__folder": "more", "output__save_every": 0}
    output = gsa.run(*arguments(**more), status=1)
    assert "another tokenizer" in output and "--tokenizer run/latest" in output
    # One of a kind that is not read here cannot be compared; of none only the size of the vocabulary is known.
    folder = newest(gsa)
    (folder / "tokenizer.model").unlink()
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    output = gsa.run(*arguments(**more), status=1)
    assert "cannot be compared" in output and "tokenizer.json" in output and "model.ignore_tokenizer=true" in output
    gsa.run(*arguments(**more, model__ignore_tokenizer="true"))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    gsa.run(*arguments(**{**more, "output__folder": "again"}))
    refused = gsa.run(*arguments(output__folder="x", model__ignore_tokenizer="true"), status=2)
    assert "option 'model.ignore_tokenizer': expected model.from beside it" in refused


def test_mistakes_are_explained(gsa, data):
    assert "key=value" in gsa.run("train", "--set", "foo", status=2)
    assert "did you mean 'phases.warmup'" in gsa.run("train", "--set", "phases.warmp=1", status=2)
    (gsa.folder / "bad.toml").write_text("[optimiser]\nlr = 1\n", encoding="utf-8")
    assert "did you mean 'optimizer.lr'" in gsa.run("train", "bad.toml", status=2)
    assert "data.train" in gsa.run("train", status=2)
    assert "none.toml" in gsa.run("train", "none.toml", status=1)
    assert "no indexer" in gsa.run(
        *arguments(model__system="standard", model__k_base=0, model__k_min=0, model__k_max=0), status=2
    )
    assert "--resume" in gsa.run("train", "--resum", status=2)
    for part in ["optimizer", "lr = 0.001", "Examples", "dense", "[output]"]:
        assert part in gsa.run("train", "--help")


def test_the_effective_configuration_runs_the_same(gsa, data):
    gsa.run(*arguments(output__save_every=0))
    printed = gsa.run(*arguments(output__save_every=0), "--print-config")
    written = (gsa.folder / "run" / "config.toml").read_text(encoding="utf-8")
    place = str(gsa.folder.resolve() / "run")
    assert place in printed and printed.replace(place, ".") == written
    gsa.run("train", "run/config.toml", "--set", "output.folder=again")
    assert weights(newest(gsa)) == weights(newest(gsa, "again"))


def test_metrics_have_what_is_promised(gsa, data):
    gsa.run(
        *arguments(
            output__save_every=0, data__validation="data", output__validate_every=10, output__sample_every=12,
            output__peak_tflops=1, output__validation_tokens=200, kl_share=1,
        )
    )
    lines = metrics(gsa)
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, 25))
    assert [line["phase"] for line in steps] == ["dense"] * 8 + ["warmup"] * 8 + ["sparse"] * 8
    common = {"lr", "tokens_per_second", "tflops", "mfu", "memory_bytes", "epoch", "spikes", "layers"}
    for line in steps:
        assert common <= line.keys()
        assert ("loss" in line) == ("gradient_norm" in line) == (line["phase"] != "warmup")
        assert ("kl" in line) == ("indexer_gradient_norm" in line) == (line["phase"] != "dense")
        assert len(line["layers"]) == 4 and all(0 < layer["output_gate"] < 1 for layer in line["layers"])
        if line["phase"] != "dense":
            assert len(line["kl"]) == 4
            assert all(1 <= layer["k_mean"] <= 16 and 0 < layer["kept_mass"] <= 1.001 for layer in line["layers"])
        assert ("kept_mass" in line) == (line["phase"] == "sparse")
        if line["phase"] == "sparse":
            assert line["kept_mass"] == [layer["kept_mass"] for layer in line["layers"]]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [10, 20, 24]
    assert [line["step"] for line in lines if line["kind"] == "sample"] == [12, 24]


def test_sizes_of_ones_own_and_a_dense_model_made_sparse(gsa, data):
    no_k = {"model__k_base": 0, "model__k_min": 0, "model__k_max": 0}
    gsa.run(
        *arguments(
            **no_k, model__system="gated-only", phases__warmup=0, phases__sparse=0, output__save_every=0,
            model__layers=2, model__d_model=48, model__heads=3, model__kv_heads=1, model__head_size=16,
            model__intermediate_size=64,
        )
    )
    config = json.loads((newest(gsa) / "config.json").read_text(encoding="utf-8"))
    assert (config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]) == (2, 48, 64)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (3, 1, 16)
    sparse = {
        **no_k, "kl_share": 1, "model__from": "run/latest", "model__system": "gsa", "phases__dense": 0, "output__folder": "sparse",
        "output__save_every": 0,
    }
    refused = gsa.run(*arguments(**sparse, model__layers=3), status=2)
    assert "option 'model.layers': expected 2, as the folder 'run/latest' has it, got 3" in refused
    # It says what it chose and when the indexer starts, to people and in the log.
    output = gsa.run(*arguments(**sparse, model__index_heads=2, model__index_head_size=8))
    chosen = "an indexer of 2 heads of 8 and inverse budgets of k_base 4 (an eighth of data.length), k_min 1, k_max 8"
    started = "the indexer starts from q_proj and k_proj: 2 heads from 3, one key from the mean of 1, 8 of its 8 dimensions"
    assert chosen in output and f"step 1  {started}" in output
    notes = [(line["step"], line["text"]) for line in metrics(gsa, "sparse") if line["kind"] == "note"]
    assert [step for step, _ in notes] == [0, 1]
    assert chosen in notes[0][1] and started in notes[1][1]


def test_says_where_sparse_steps_run_dense_and_few_queries_teach(gsa, data):
    short = {"phases__dense": 0, "phases__warmup": 1, "phases__sparse": 1, "output__save_every": 0}
    output = gsa.run(*arguments(**short, model__dense_below=64))
    dense = "sparse steps run dense: rows of 32 tokens are shorter than the model's dense_below, 64"
    few = "the indexer learns from about 32 queries a step, which is few; kl_share=1 takes 64"
    assert f"note    {dense}; model.dense_below=0 lets them select\n" in output and f"note    {few}\n" in output
    notes = [line["text"] for line in metrics(gsa) if line["kind"] == "note"]
    assert len(notes) == 2 and notes[0].startswith(dense) and notes[1] == few
    output = gsa.run(*arguments(**short, kl_share=1, output__folder="plain"))
    assert "note    " not in output


def test_tensorboard_opens_the_events(gsa, data):
    gsa.run(*arguments(output__save_every=0))
    (file,) = (gsa.folder / "run" / "tensorboard").iterdir()
    content, at, records = file.read_bytes(), 0, 0
    while at < len(content):  # framing; checksums are verified by the C++ tests and by TensorBoard
        (size,) = struct.unpack_from("<Q", content, at)
        at += 16 + size
        records += 1
    assert at == len(content) and records == 1 + 24
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(file.parent))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("train/loss")]
    wanted = [(line["step"], line["loss"]) for line in metrics(gsa) if "loss" in line]
    assert [step for step, _ in read] == [step for step, _ in wanted]
    assert all(abs(a - b) < 1e-6 * abs(b) for (_, a), (_, b) in zip(read, wanted))
    wanted = {"kl/layer_00", "kept_mass/layer_03", "train/kept_mass", "k_mean/layer_03", "output_gate/layer_00"}
    assert wanted <= set(events.Tags()["scalars"])


# What a killed run wrote after its last checkpoint is void: neither log has a step twice.
def test_logs_of_a_resumed_run_have_every_step_once(gsa, data):
    process = gsa.start(*arguments(output__save_every=5))
    for line in process.stdout:
        if line.startswith("dense 8/"):
            break
    process.kill()
    process.wait()
    gsa.run(*arguments(output__save_every=5), "--resume")
    assert [line["step"] for line in metrics(gsa) if line["kind"] == "step"] == list(range(1, 25))
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(gsa.folder / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/lr")] == list(range(1, 25))

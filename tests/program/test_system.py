"""What the system and others do to the program: closed streams, limits, pipes, files that change, empty values."""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

TRAIN = {
    "data.train": "data", "output.folder": "run", "data.length": 32, "batch.tokens": 64, "batch.rows": 2,
    "model.system": "standard", "phases.dense": 100000, "output.save_every": 0, "output.log_every": 1, "device": "cpu",
}


def train(**changes):
    settings = {**TRAIN, **{key.replace("__", "."): value for key, value in changes.items()}}
    return ["train", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


def wait_for(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come in a minute")


# Without a standard output the next file that is opened would get its number, and the log would go into it.
def test_closed_streams_are_no_place_for_files(gsa, data):
    process = gsa.start(*train(), preexec_fn=lambda: os.closerange(0, 3))
    log = gsa.folder / "run" / "metrics.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size > 0)
    streams = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert streams == ["/dev/null"] * 3


def test_a_limit_on_files_is_an_error_and_leaves_nothing(gsa):
    (gsa.folder / "long.txt").write_text("the keeper of the lamp\n" * 10_000, encoding="utf-8")
    process = gsa.start("tokenize", "long.txt", "--output", "x",
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "File too large" in output, output
    assert not (gsa.folder / "x").exists()


def test_a_dataset_that_shrinks_is_named(gsa, data):
    process = gsa.start(*train())
    for line in process.stdout:
        if line.startswith("dense 2/"):
            break
    os.truncate(gsa.folder / "data" / "tokens-00000.bin", 0)
    output = process.stdout.read()
    assert process.wait(timeout=60) == 1, output
    assert f"gsa: file '{gsa.folder.resolve()}/data/tokens-00000.bin': expected it to stay as it is" in output


def test_an_altered_dataset_is_not_trained_on(gsa, data):
    file = gsa.folder / "data" / "tokens-00000.bin"
    content = bytearray(file.read_bytes())
    content[10] ^= 1
    file.write_bytes(content)
    output = gsa.run(*train(), status=1)
    assert "tokens-00000.bin': expected checksum" in output and "damaged" in output
    assert not (gsa.folder / "run").exists()


def test_pipes_are_refused_instead_of_waited_for(gsa):
    os.mkfifo(gsa.folder / "pipe.toml")
    (gsa.folder / "model").mkdir()
    os.mkfifo(gsa.folder / "model" / "config.json")
    for command, file in [(["train", "pipe.toml"], "pipe.toml"), (["inspect", "model"], "model/config.json")]:
        process = gsa.start(*command)
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 1
        assert f"file '{file}': expected a regular file, got a pipe (FIFO)" in output


@pytest.mark.parametrize("arguments, option", [
    (["generate", "m", "--prompt", "a", "--save-cache", ""], "--save-cache"),
    (["generate", "m", "--prompt", "a", "--load-cache", ""], "--load-cache"),
    (["eval", "m", "--data", "d", "--json", ""], "--json"),
    (["eval", "m", "--data", "d", "--plots", ""], "--plots"),
    (["tokenize", "a.txt", "--output", "x", "--separator", ""], "--separator"),
    (["inspect", "--system", ""], "--system"),
    (["train", ""], "config"),
])
def test_empty_values_are_refused(gsa, arguments, option):
    assert f"gsa: {option}: expected a value, got an empty one" in gsa.run(*arguments, status=2)


def test_refused_runs_leave_no_folders(gsa, data):
    refused = train(output__folder="deep/run", model__k_base=3)
    gsa.run(*refused, status=2)
    gsa.run(*train(output__folder="deep/run"), "--resume", status=2)
    assert not (gsa.folder / "deep").exists()
    (gsa.folder / "mine").mkdir()
    gsa.run(*train(output__folder="mine"), "--resume", status=2)
    assert list((gsa.folder / "mine").iterdir()) == []


# The file in a run's folder means the folder that it stands in, and finds the data from anywhere.
def test_a_run_that_was_moved_goes_on(gsa, data, program_in):
    gsa.run(*train(phases__dense=3))
    (gsa.folder / "elsewhere").mkdir()
    (gsa.folder / "run").rename(gsa.folder / "elsewhere" / "moved")
    output = program_in(gsa.folder / "elsewhere").run("train", "moved/config.toml", "--resume")
    assert "resumed from the checkpoint of step 3" in output and "output  moved\n" in output
    output = program_in(Path("/")).run("train", gsa.folder / "elsewhere" / "moved" / "config.toml", "--resume")
    assert "resumed from the checkpoint of step 3" in output
    assert not (gsa.folder / "run").exists()


def test_a_folder_that_cannot_be_written_is_named_as_it_was_given(gsa, words):
    output = gsa.run("tokenize", words, "--output", "/proc/gsa/x", status=1)
    assert "file '/proc/gsa/x': expected a folder that can be written to, got none: in '/proc' no file" in output


# The second must not touch what the first is writing, nor the first fail for it.
def test_two_that_make_one_dataset(gsa, words):
    first = gsa.start("tokenize", "-", "--output", "x", stdin=subprocess.PIPE)
    first.stdin.write("some text\n" * 2_000_000)
    first.stdin.flush()
    wait_for(lambda: (gsa.folder / "x").is_dir() and any((gsa.folder / "x").glob(".tokens-*")))
    output = gsa.run("tokenize", words, "--output", "x", status=1)
    assert "folder 'x': expected no other process that writes to it, got one that makes a dataset" in output
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 0, output
    assert "every checksum is right" in gsa.run("tokenize", "--check", "--output", "x")
    assert "20,000,002 tokens" in output
    assert sorted(path.name for path in (gsa.folder / "x").iterdir()) == [
        ".verified.json", "dataset.json", "documents-00000.bin", "tokenizer_config.json", "tokens-00000.bin"
    ]

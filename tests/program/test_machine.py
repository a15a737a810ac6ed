"""gsa beside other work, with little memory, and on plain terminals."""

import json
import os
import resource
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

TRAIN = {"data.train": "data", "output.folder": "run", "data.length": 32, "batch.tokens": 64, "batch.rows": 2,
         "phases.dense": 1, "device": "cpu"}


def train(**changes):
    settings = {**TRAIN, **{key.replace("__", "."): value for key, value in changes.items()}}
    return ["train", *(f"--set={key}={value}" for key, value in settings.items())]


@pytest.fixture
def model(gsa, words):
    gsa.run("tokenize", words, "--split", "blank-lines", "--output", "data")
    gsa.run(*train())
    return "run/latest"


def openmp_settings(gsa, **variables):
    """What torch's OpenMP runtime itself says it has read."""
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [gsa.path, "--version"], env={**environment, "OMP_DISPLAY_ENV": "verbose", **variables},
        text=True, capture_output=True, timeout=60,
    )
    assert done.returncode == 0 and done.stderr.count("DISPLAY ENVIRONMENT BEGIN") == 1, done.stderr
    return done.stderr


# Unbounded spinning takes the core from the thread that is waited for.
def test_waiting_threads_spin_briefly(gsa):
    assert "GOMP_SPINCOUNT = '1000'" in openmp_settings(gsa)


def test_a_wait_policy_of_the_users_stands(gsa):
    assert "GOMP_SPINCOUNT = '77'" in openmp_settings(gsa, GOMP_SPINCOUNT="77")
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in openmp_settings(gsa, OMP_WAIT_POLICY="active")


def test_more_threads_than_cores_are_not_started(gsa, model):
    cores = len(os.sched_getaffinity(0))
    note = f"of 4096 threads asked for, {cores} {'is' if cores == 1 else 'are'} used"
    assert f"note    {note}" in gsa.run(*train(threads=4096, output__folder="other"))
    assert f"note: {note}" in gsa.run("eval", model, "--data", "data", "--threads", 4096)
    assert f"note: {note}" in gsa.run("generate", model, "--prompt", "the", "-n", 1, "--threads", 4096)
    for command in (["eval", model], ["generate", model], ["demo"]):
        for value in (0, 4097, 100000):
            output = gsa.run(*command, "--threads", value, status=2)
            assert f"--threads: expected a whole number in 1 .. 4096, got '{value}'" in output


# Some terabytes: refused before anything is taken, with what would do.
def test_memory_is_counted_before_work(gsa, model):
    output = gsa.run(*train(output__folder="big", batch__rows=1 << 20, batch__tokens=1 << 25), status=1)
    assert "gsa: training needs about " in output and "TiB of memory" in output
    assert "batch.rows=" in output and "would fit" in output
    output = gsa.run(*train(output__folder="big", model__preset="llama-7b-class", model__layers=2000), status=1)
    assert "the weights alone do not fit" in output
    assert len(output.splitlines()) == 1 and not (gsa.folder / "big" / "latest").exists()
    gsa.run("eval", model, "--data", "data", "--length", 1 << 28, "--batch-tokens", 1 << 40, "--tokens", 10)
    text = "the keeper of the lamp\n" * (1 << 20)
    (gsa.folder / "long.txt").write_text(text, encoding="utf-8")
    limited = limited_run(gsa, 4 << 30, "eval", model, "--text", "long.txt", "--length", 1 << 24, "--threads", 1)
    assert "gsa: evaluation needs about " in limited and "ulimit -v has" in limited, limited
    assert "--length " in limited and "would fit" in limited
    # Groups of layers are measured under the same condition.
    gsa.run("tokenize", "long.txt", "--output", "long")
    limited = limited_run(gsa, 4 << 30, "convert", model, "--index-every", 2, "--data", "long", "--length", 1 << 24,
                          "--output", "grouped")  # fmt: skip
    assert "gsa: evaluation needs about " in limited and "a shorter --length" in limited, limited
    assert not (gsa.folder / "grouped").exists()


def limited_run(gsa, bytes_, *arguments, status=1):
    """The program with `ulimit -v`."""
    done = subprocess.run(
        [gsa.path, *map(str, arguments)], cwd=gsa.folder, text=True, capture_output=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_)),
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr


# Too little even for torch's own constructors, and enough for those but not for the work: a word, no abort and no
# stack of calls.
@pytest.mark.parametrize("mebibytes", [390, 520, 560, 600])
def test_running_out_of_memory_is_said_in_one_line(gsa, model, mebibytes):
    for command in (train(output__folder="small", batch__rows=512, batch__tokens=512 * 32),
                    ["generate", model, "--prompt", "x" * 3000, "--extend", 1, "-n", 100000, "--chunk", 3000]):
        output = limited_run(gsa, mebibytes << 20, *command)
        lines = [line for line in output.splitlines() if line]
        assert "frame #" not in output and "terminate" not in output and len(lines) == 1, output
        assert lines[0].startswith("gsa: ") and any(word in output for word in ("memory", "MiB", "shared object")), output


def test_charts_say_of_what_they_are(gsa, model):
    output = gsa.run("eval", "run", "--data", "data", "--plots", "plots")
    assert "index.html" in output
    page = (gsa.folder / "plots" / "index.html").read_text(encoding="utf-8")
    charts = sorted((gsa.folder / "plots").glob("*.svg"))
    assert charts and page.count("<img ") == len(charts) and "run/latest (gsa) on data" in page
    for chart in charts:
        assert chart.name in page
        texts = [element.text for element in ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}text")]
        assert "run/latest (gsa) on data" in texts


def test_bad_json_lines_are_skipped_on_request(gsa):
    lines = [json.dumps({"text": "one"}), "{no json", json.dumps({"title": "no text"}), "", json.dumps({"text": "two"})]
    (gsa.folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert "a.jsonl, line 2" in gsa.run("tokenize", "a.jsonl", "--output", "data", status=1)
    output = gsa.run("tokenize", "a.jsonl", "--output", "data", "--skip-bad-lines")
    assert "note: 2 lines were skipped, the first of them: file 'a.jsonl, line 2'" in output
    assert "2 documents" in output
    (gsa.folder / "a.txt").write_text("text", encoding="utf-8")
    assert "--skip-bad-lines: expected JSON lines" in gsa.run(
        "tokenize", "a.txt", "--output", "other", "--skip-bad-lines", status=2
    )


def test_plain_characters_where_nothing_else_is_shown(gsa, model):
    command = ["eval", model, "--data", "data"]
    fancy = gsa.run_on_a_terminal(*command, TERM="xterm", LC_ALL="C.UTF-8")
    assert "─".encode() in fancy
    plain = gsa.run_on_a_terminal(*command, TERM="xterm", LC_ALL="C")
    assert plain.isascii() and b"-----" in plain
    assert plain.isascii()
    dumb = gsa.run_on_a_terminal(*train(output__folder="dumb", phases__dense=20), TERM="dumb", LC_ALL="C")
    assert b"\x1b" not in dumb and b"\rdense" not in dumb
    assert b"\x1b[K" in gsa.run_on_a_terminal(*train(output__folder="live", phases__dense=20), TERM="xterm")

"""gsa paper in small: it runs through, leaves pages, goes on where it was cut off, and does nothing twice."""

import json
import random
import re
import shutil
import signal
import time

import pytest

SMOKE = ["paper", "--scale", "smoke", "--threads", "1", "--output", "out"]
TABLES = ["Perplexity", "RULER by length", "RULER: gates, their start, selection", "Attention sinks and activations", "Training stability",
          "Throughput by length", "Ablation: gate positions", "Ablation: k",
          "Ablation: the indexer's form and the budget"]  # fmt: skip


TIMES = {"seconds", "tokens_per_second", "prefill", "decode"}  # figures that no two runs share


@pytest.fixture(scope="module")
def whole(tmp_path_factory, program_in):
    program = program_in(tmp_path_factory.mktemp("paper"))
    return program, program.run(*SMOKE)


def main_tables(folder):
    """The part of README.md that they are; the tables behind it have times in them."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    return text[text.index("\n## Perplexity") : text.index("\n## Training stability")]


def figures(folder):
    """All that the pages are made of, times aside."""
    return {
        str(path.relative_to(folder)): {
            name: value for name, value in json.loads(path.read_text())["values"].items() if name not in TIMES
        }
        for path in folder.glob("results/**/*.json")
    }


def pages(folder):
    """README.md, index.html and the charts beside them."""
    found = [folder / "README.md", folder / "index.html", *folder.glob("charts/*.svg")]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in found}


def pages_without_times(program, folder, name):
    """All of the pages as they are where every time is 1: they are functions of the results alone."""
    copy = program.folder / name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("runs", "data"))
    for path in copy.glob("results/**/*.json"):
        result = json.loads(path.read_text())
        result["values"].update({value: 1 for value in TIMES & result["values"].keys()})
        result["date"] = "2026-01-01"
        path.write_text(json.dumps(result))
    assert "nothing to do" in program.run(*SMOKE[:-1], name)
    return pages(copy)


def test_every_table_is_there_with_a_sentence(whole):
    program, output = whole
    markdown = (program.folder / "out" / "README.md").read_text(encoding="utf-8")
    html = (program.folder / "out" / "index.html").read_text(encoding="utf-8")
    places = [markdown.index(f"## {title}") for title in TABLES]
    assert places == sorted(places)
    for title in TABLES:
        part = markdown[markdown.index(f"## {title}") :].split("\n## ")[0]
        assert re.search(r"^Cannot be told at this scale \(one seed\): ", part, re.M), part
        assert title in output
    assert "Not run yet" not in markdown and "of all tables are done" not in markdown
    assert html.count("<svg") == 18 and "WikiText-103" in html
    for chart in re.findall(r"\((charts/[a-z0-9-]+\.svg)\)", markdown):
        assert (program.folder / "out" / chart).read_text(encoding="utf-8").startswith("<svg")


def test_a_second_run_does_nothing_and_says_so(whole):
    program, _ = whole
    folder = program.folder / "out"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert "nothing to do: all" in program.run(*SMOKE)
    # And the page stays whole.
    assert "nothing to do: all" in program.run(*SMOKE, "--tables", "main", "--systems", "gsa")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


def test_pages_of_a_gpus_folder_need_no_gpu(whole, gsa):
    program, _ = whole
    out = gsa.folder / "out"
    shutil.copytree(program.folder / "out", out, ignore=shutil.ignore_patterns("runs", "data"))
    mark = out / "paper.json"
    mark.write_text(mark.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    page = (out / "README.md").read_text(encoding="utf-8")
    for device in ["--device", "cuda"], []:
        (out / "README.md").unlink()
        assert "nothing to do: all" in gsa.run(*SMOKE, *device)
        assert (out / "README.md").read_text(encoding="utf-8") == page
    # All that differs is named.
    said = gsa.run("paper", "--scale", "small", "--output", "out", "--device", "cpu", status=1)
    assert 'got device "cuda", not "cpu"; scale "smoke", not "small"' in said


def test_systems_saw_the_same_tokens(whole):
    program, _ = whole
    results = program.folder / "out" / "results" / "seed-1"
    steps = {}
    for system in ("standard", "sparse-only", "gated-only", "gsa"):
        steps[system] = json.loads((results / system / "train.json").read_text())["values"]["steps"]
    assert len(set(steps.values())) == 1


# kill -9 hits the program, and by it the commands at work.
def test_killed_at_random_moments_ends_with_the_same_page(whole, gsa):
    program, _ = whole
    out, expected = gsa.folder / "out", program.folder / "out"

    def done():
        return len(list(out.glob("results/**/*.json")))

    steps = len(list(expected.glob("results/**/*.json")))
    draws = random.Random(1)
    # Moments of the whole run, in their order: so many results are there, and a while behind that.
    moments = [(count, draws.uniform(0, 0.6)) for count in sorted(draws.sample(range(steps - 4), 10))]
    for count, later in moments:
        process = gsa.start(*SMOKE, "--jobs", "3")
        while done() < count:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.005)
        time.sleep(later)
        assert process.poll() is None, process.stdout.read()
        process.kill()
        process.communicate()
    before = done()
    assert f"{steps - before} steps done, {before} had been before" in gsa.run(*SMOKE)
    assert figures(out) == figures(expected)
    # What stands there is what the results say, and they say the same.
    written = pages(out)
    (out / "README.md").unlink()
    assert "nothing to do" in gsa.run(*SMOKE)
    assert pages(out) == written
    assert pages_without_times(gsa, out, "killed") == pages_without_times(gsa, expected, "whole")


def test_a_folder_without_its_weights_goes_on(whole, gsa):
    program, _ = whole
    out = gsa.folder / "out"
    shutil.copytree(program.folder / "out", out, ignore=shutil.ignore_patterns("runs", "data"))
    (out / "results" / "seed-1" / "gsa" / "eval-2.json").unlink()
    assert "1 steps done" in gsa.run(*SMOKE, "--tables", "main")
    assert main_tables(out) == main_tables(program.folder / "out")
    assert {path.name for path in (out / "runs" / "seed-1").iterdir()} == {"base-gated", "gsa"}


def test_a_folder_that_came_to_nothing_is_free_again(gsa):
    process = gsa.start("paper", "--scale", "small", "--output", "out", "--device", "cpu")
    mark = gsa.folder / "out" / "paper.json"
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not list((gsa.folder / "out").glob("results/**/*.json"))
    process = gsa.start(*SMOKE)
    while not list((gsa.folder / "out" / "results").glob("data.json")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 75, process.stdout.read()
    assert json.loads(mark.read_text())["scale"]["name"] == "smoke"
    said = gsa.run("paper", "--scale", "small", "--output", "out", "--device", "cpu", status=1)
    assert 'got scale "smoke", not "small"' in said


def test_figures_of_another_version_are_refused(whole, gsa):
    program, _ = whole
    out = gsa.folder / "out"
    shutil.copytree(program.folder / "out", out, ignore=shutil.ignore_patterns("runs", "data"))
    result = out / "results" / "seed-1" / "gsa" / "train.json"
    result.write_text(result.read_text().replace("model.k_base=48", "model.k_base=64"))
    message = gsa.run(*SMOKE, "--tables", "speed", status=1)
    assert "seed-1/gsa/train.json" in message and "'model.k_base=64' instead of 'model.k_base=48'" in message


def test_interrupt_ends_in_order(gsa):
    process = gsa.start(*SMOKE)
    while not list((gsa.folder / "out" / "runs").glob("*/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait() == 75, rest
    assert re.search(r"interrupted with \d+ of \d+ steps done; the same command goes on", rest)


def test_other_folders_and_wrong_usage(gsa):
    (gsa.folder / "out").mkdir()
    (gsa.folder / "out" / "precious.txt").write_text("mine")
    assert "precious.txt in it" in gsa.run(*SMOKE, status=1)
    assert "--scale: expected smoke, small or medium, got 'smal' (did you mean 'small'?)" in gsa.run(
        "paper", "--scale", "smal", status=2
    )
    assert "--systems: expected" in gsa.run("paper", "--systems", "gated", status=2)
    assert "--tables: expected" in gsa.run("paper", "--tables", "gate", status=2)
    assert "--device" in gsa.run("paper", "--device", "tpu", status=2)
    assert not (gsa.folder / "gsa-paper").exists()

"""gsa demo, short: it runs through, what it leaves behind, and how it ends early."""

import json
import re
import signal
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

SHORT = ["demo", "--steps", "6", "--questions", "1", "--threads", "1", "--output", "out"]
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that every element that is opened is closed, and keeps the text."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    from conftest import Program

    program = Program(tmp_path_factory.mktemp("demo"))
    return program, program.run(*SHORT)


def test_runs_through_and_says_so(short):
    _, output = short
    assert re.search(r"^6 steps for each model, about \d+ (seconds|minutes) on this machine", output, re.M)
    for text in ("validation loss", "recall of a needle", "attention on the first token", "keys that a query reads",
                 "attention mass kept", "value gate G2", "report.html", "gsa writes:"):
        assert text in output, output


def test_report_is_a_page_with_plots(short):
    program, _ = short
    html = (program.folder / "out" / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    pictures = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(pictures) == 7
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert "Neither has learned to look back yet" in page.text  # six steps teach nothing, and it admits it
    assert "src=" not in html and "https:" not in html


def test_results_are_whole(short):
    program, _ = short
    results = json.loads((program.folder / "out" / "results.json").read_text(encoding="utf-8"))
    steps = results["settings"]["steps"]
    assert sum(steps.values()) == 6 and min(steps.values()) > 0
    for name in ("standard", "gsa"):
        model = results[name]
        assert len(model["loss"]["value"]) == 6
        assert len(model["recall"]) == 8 and all(depth["questions"] == 1 for depth in model["recall"])
        assert 0 < model["validation_loss"] < 10
        assert len(model["first_token"]) == results["settings"]["layers"]
        assert (program.folder / "out" / name / "latest" / "model.safetensors").is_file()
    gsa = results["gsa"]
    assert max(gsa["k_mean"]) <= results["settings"]["k"]["max"]
    assert all(0 < mass <= 1 for mass in gsa["kept_mass"])
    assert gsa["parameters"] > results["standard"]["parameters"]
    assert gsa["loss"]["value"][steps["dense"]] is None  # no text is learned in the warm-up


def test_models_serve_the_other_commands(short):
    program, _ = short
    assert "gsa" in program.run("inspect", "out/gsa/latest")
    assert "every checksum is right" in program.run("tokenize", "--check", "--output", "out/data/train")


def test_same_seed_same_results(short, tmp_path):
    program, _ = short
    program.run(*SHORT[:-1], "again")
    first, second = (json.loads((program.folder / folder / "results.json").read_text(encoding="utf-8")) for folder in ("out", "again"))
    for name in ("standard", "gsa"):
        assert first[name]["loss"] == second[name]["loss"]
        assert first[name]["samples"] == second[name]["samples"]


def test_samples_are_what_generate_writes(short):
    program, _ = short
    results = json.loads((program.folder / "out" / "results.json").read_text(encoding="utf-8"))
    for name in ("standard", "gsa"):
        samples = results[name]["samples"]
        prompts = [argument for sample in samples for argument in ("--prompt", sample["prompt"])]
        written = program.run("generate", f"out/{name}/latest", *prompts, "--temperature", "0.8", "--seed", "1",
                              "--max-tokens", "60", "--threads", "1", "--json")
        lines = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
        texts = {line["prompt"]: line["text"] for line in lines if "text" in line}
        assert texts == {i: sample["text"] for i, sample in enumerate(samples)}


def test_another_folder_is_refused(gsa):
    (gsa.folder / "out").mkdir()
    (gsa.folder / "out" / "precious.txt").write_text("mine")
    output = gsa.run(*SHORT, status=1)
    assert "something else in it" in output and "--output" in output
    assert (gsa.folder / "out" / "precious.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made(gsa):
    (gsa.folder / "file").write_text("", encoding="utf-8")
    output = gsa.run(*SHORT[:-1], "file/out", status=1)
    assert "file 'file/out': expected a folder that can be made" in output and "filesystem error" not in output


def test_interrupt_ends_in_order_and_the_next_run_starts_afresh(gsa):
    process = gsa.start("demo", "--steps", "2000", "--threads", "1", "--output", "out")
    for line in process.stdout:
        if "step " in line:
            break
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait() == 75, rest
    assert "interrupted" in rest
    assert not (gsa.folder / "out" / "report.html").exists()
    assert "replacing the demo" in gsa.run(*SHORT)
    assert (gsa.folder / "out" / "report.html").is_file()


# Steps by the clock would teach nothing on a busy machine, and everyone something else.
def test_the_number_of_steps_is_fixed_unless_minutes_are_given(gsa):
    shown = gsa.run("demo", "--help")
    assert re.search(r"--steps INT:in \[6 - \d+\]=1500 ", shown)
    assert "--minutes FLOAT:in [0.5 - 10000] " in shown  # no default


def test_wrong_usage(gsa):
    for value in ("0", "nan", "inf", "1e300", "-1"):
        output = gsa.run("demo", "--minutes", value, status=2)
        assert f"--minutes: expected a number in 0.5 .. 10000, got '{value}'" in output
    assert "--seed: expected a whole number" in gsa.run("demo", "--seed", "-1", status=2)
    assert "excludes" in gsa.run("demo", "--minutes", "3", "--steps", "50", status=2)

"""gsa generate as its users run it, on a tiny model that gsa train has made in a few steps."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with its tokenizer, meant for 128 bytes."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "text.txt").write_text("the keeper of the lamp walks to the harbour\n" * 400, encoding="utf-8")

    def gsa(*arguments):
        done = subprocess.run(
            [str(Path(os.environ["GSA_PROGRAM"]).resolve()), *arguments], cwd=folder, text=True, capture_output=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr

    gsa("tokenize", "text.txt", "--output", "data")
    options = {
        "data.train": "data", "data.length": 128, "batch.tokens": 256, "output.folder": "run",
        "phases.dense": 20, "phases.warmup": 0, "phases.sparse": 10, "model.k_base": 16, "model.k_min": 8,
        "model.k_max": 32,
    }
    gsa("train", *[f"--set={key}={value}" for key, value in options.items()])
    model = folder / "model"
    shutil.copytree((folder / "run" / "latest").resolve(), model)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 128  # the preset's own is longer than what these tests want to exceed
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(model)


def lines_of(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def generate(gsa, model, *arguments, **options):
    length = [] if "-n" in arguments else ["-n", 20]
    return gsa.run("generate", model, *length, *arguments, **options)


def texts(gsa, model, *arguments):
    found = lines_of(generate(gsa, model, "--json", *arguments))
    return {(line["prompt"], line["sample"]): line for line in found if "text" in line}


def test_prompts_come_from_everywhere(gsa, model):
    (gsa.folder / "prompt.txt").write_text("the keeper\n", encoding="utf-8")
    by_argument = generate(gsa, model, "--prompt", "the keeper")
    assert by_argument and by_argument.endswith("\n")
    assert generate(gsa, model, "--prompt-file", "prompt.txt") == by_argument
    assert generate(gsa, model, "-", text="the keeper\n") == by_argument
    assert generate(gsa, model, "--prompt", "the keeper", "--echo") == "the keeper" + by_argument
    assert generate(gsa, model, "--prompt", "the keeper", "--seed", 1) != by_argument
    lines = texts(gsa, model, "--prompt", r"a\n\\b")
    assert lines[0, 0]["prompt_tokens"] == 1 + 4


def test_a_batch_gives_each_prompt_its_own_text(gsa, model):
    prompts = ["the keeper", "of", "walks to the harbour and"]
    arguments = [word for prompt in prompts for word in ("--prompt", prompt)]
    together = texts(gsa, model, "--dtype", "float32", "--samples", 2, *arguments)
    assert sorted(together) == [(i, j) for i in range(3) for j in range(2)]
    for i, prompt in enumerate(prompts):
        alone = texts(gsa, model, "--dtype", "float32", "--samples", 2, "--prompt", prompt)
        for j in range(2):
            assert together[i, j]["tokens"] == alone[0, j]["tokens"]
    shown = generate(gsa, model, *arguments)
    titles = [line for line in shown.splitlines() if line.startswith("── ")]
    assert titles == [f"── prompt {i} of 3" for i in (1, 2, 3)]
    wanted = texts(gsa, model, *arguments)
    for i in range(3):
        assert "\n".join(wanted[i, 0]["text"].splitlines()) in "\n".join(shown.splitlines())


def test_stop_strings_and_endings(gsa, model):
    whole = texts(gsa, model, "--prompt", "the", "--temperature", 0, "--ignore-eos")[0, 0]
    assert whole["ending"] == "length" and len(whole["tokens"]) == 20
    stop = whole["text"][3:5]
    stopped = texts(gsa, model, "--prompt", "the", "--temperature", 0, "--ignore-eos", "--stop", stop)[0, 0]
    assert stopped["ending"] == "stop" and stopped["stop"] == stop
    assert stopped["text"] == whole["text"][: whole["text"].index(stop)]


def test_logprobs_are_reported(gsa, model):
    line = texts(gsa, model, "--prompt", "the", "--temperature", 0, "--logprobs", 3)[0, 0]
    assert len(line["logprobs"]) == len(line["tokens"])
    for token, entry in zip(line["tokens"], line["logprobs"]):
        assert entry["id"] == token and len(entry["top"]) == 3
        assert entry["top"][0]["id"] == token and entry["logprob"] == entry["top"][0]["logprob"] <= 0
        assert entry["top"][0]["logprob"] >= entry["top"][1]["logprob"] >= entry["top"][2]["logprob"]
    assert "--json" in generate(gsa, model, "--prompt", "the", "--logprobs", 3, status=2)


def test_stats_say_what_it_cost(gsa, model):
    shown = generate(gsa, model, "--prompt", "the keeper", "--stats", "--ignore-eos")
    for pattern in [r"prefill +11 tokens in .* tokens/s", r"decode +19 tokens in .* tokens/s",
                    r"cache +\d+ tokens in .*, [\d,]+ bytes a token", r"k_t +\d+\.\d+ keys a query"]:
        assert re.search(pattern, shown), shown
    stats = lines_of(generate(gsa, model, "--prompt", "the keeper", "--stats", "--json", "--ignore-eos"))[-1]["stats"]
    assert stats["prefill_tokens"] == 11 and stats["decode_tokens"] == 19
    assert 1 < stats["keys_per_query"] <= 32
    # 4 layers, 2 heads of 32 for keys and values, 16 for indexer keys, float32.
    assert stats["cache_bytes_per_token"] == 4 * (2 * 2 * 32 + 16) * 4
    small = lines_of(generate(gsa, model, "--prompt", "the", "--stats", "--json", "--index-bits", 8))[-1]["stats"]
    assert small["cache_bytes_per_token"] == 4 * (2 * 2 * 32 * 4 + 16 + 4)


# Every pass reads the whole prompt: what the cache holds at the end is one prompt and one text.
def test_stats_of_repeated_passes_are_medians(gsa, model):
    arguments = ["--prompt", "the keeper", "--stats", "--json", "--ignore-eos"]
    text, line = lines_of(generate(gsa, model, *arguments, "--repeat", 3))
    once_text, once = lines_of(generate(gsa, model, *arguments))
    assert text["tokens"] == once_text["tokens"]
    stats, once = line["stats"], once["stats"]
    assert len(stats["passes"]) == 3 and "passes" not in once
    for part in ("prefill", "decode"):
        assert stats[f"{part}_seconds"] == sorted(each[f"{part}_seconds"] for each in stats["passes"])[1] > 0
        assert stats[f"{part}_tokens_per_second"] == pytest.approx(stats[f"{part}_tokens"] / stats[f"{part}_seconds"])
    for key in ("prefill_tokens", "decode_tokens", "cache_tokens"):
        assert stats[key] == once[key], key
    assert stats["keys_per_query"] == pytest.approx(once["keys_per_query"])
    shown = generate(gsa, model, "--prompt", "the keeper", "--stats", "--repeat", 2)
    assert "2 passes, of which times are medians, after one that was not timed" in shown
    # Behind a cache, what it holds is not read again.
    generate(gsa, model, "--prompt", "the keeper", "-n", 0, "--save-cache", "kept.cache")
    behind = ["--load-cache", "kept.cache", "--prompt", " of", "--stats", "--json", "--ignore-eos"]
    stats = lines_of(generate(gsa, model, *behind, "--repeat", 2))[-1]["stats"]
    assert stats["prefill_tokens"] == 3 and stats["cache_tokens"] == lines_of(generate(gsa, model, *behind))[-1]["stats"]["cache_tokens"]


@pytest.mark.parametrize("arguments, expected", [
    ([], "--stats beside it"), (["--stats", "--prompt", "b"], "one prompt, got 2"),
    (["--stats", "--samples", 2], "one text, got --samples 2"), (["--stats", "--save-cache", "x"], "no --save-cache"),
])
def test_what_does_not_go_with_repeat(gsa, model, arguments, expected):
    assert f"--repeat: expected {expected}" in generate(gsa, model, "--prompt", "a", "--repeat", 2, *arguments, status=2)


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_any_chunk_gives_the_same_text(gsa, model, chunk):
    prompt = "the keeper of the lamp walks to the harbour, and back"
    whole = texts(gsa, model, "--prompt", prompt, "--temperature", 0)[0, 0]["tokens"]
    assert texts(gsa, model, "--prompt", prompt, "--temperature", 0, "--chunk", chunk)[0, 0]["tokens"] == whole


def test_a_long_prompt_gets_a_clear_word_and_an_extension(gsa, model):
    (gsa.folder / "long.txt").write_text("the keeper of the lamp " * 10, encoding="utf-8")
    long = ["--prompt-file", "long.txt"]
    output = generate(gsa, model, *long, status=1)
    assert "231 tokens" in output and "trained at 128" in output and "--extend 2 extends it to 256" in output
    assert generate(gsa, model, *long, "--extend", 2)
    assert generate(gsa, model, *long, "--extend", 1)
    assert "--extend 2" in generate(gsa, model, *long, "--extend", 1.5, status=1)
    # A prompt that fits, but not all of the text.
    output = generate(gsa, model, "--prompt", "x" * 120, "--json", "--ignore-eos")
    assert "texts end at 128 tokens" in output and len(lines_of(output)[0]["tokens"]) == 7


def test_a_cache_is_kept_and_gone_on_from(gsa, model):
    greedy = ["--temperature", 0, "--ignore-eos"]
    whole = texts(gsa, model, "--prompt", "the keeper of the lamp", *greedy)[0, 0]["text"]
    generate(gsa, model, "--prompt", "the keeper", "-n", 0, "--save-cache", "a.cache")
    shared = texts(gsa, model, "--load-cache", "a.cache", "--prompt", " of the lamp", "--prompt", " of", *greedy)
    assert shared[0, 0]["text"] == whole and shared[0, 0]["prompt_tokens"] == 23
    assert shared[1, 0]["text"] == texts(gsa, model, "--prompt", "the keeper of", *greedy)[0, 0]["text"]
    # What was generated is in the file too, and goes on where it ended.
    first = texts(gsa, model, "--prompt", "the keeper of the lamp", *greedy, "-n", 8, "--save-cache", "b.cache")
    again = texts(gsa, model, "--load-cache", "b.cache", *greedy, "-n", 12)
    assert first[0, 0]["text"] + again[0, 0]["text"] == whole
    content = bytearray((gsa.folder / "a.cache").read_bytes())
    content[-1] ^= 1
    (gsa.folder / "bad.cache").write_bytes(content)
    assert "bad.cache" in generate(gsa, model, "--load-cache", "bad.cache", status=1)
    assert "one prompt" in generate(
        gsa, model, "--prompt", "a", "--prompt", "b", "--save-cache", "c.cache", status=2
    )
    assert "--samples 2" in generate(
        gsa, model, "--prompt", "a", "--samples", 2, "--save-cache", "c.cache", status=2
    )
    assert "another YaRN factor" in generate(gsa, model, "--load-cache", "a.cache", "--extend", 2, status=1)


def test_a_cache_that_cannot_be_written_is_refused_before_the_prompt_is_read(gsa, model):
    (gsa.folder / "folder").mkdir()
    os.mkfifo(gsa.folder / "pipe")
    for path, reason in [("folder", "got a folder"), ("pipe", "got a pipe"), ("no/x.cache", "No such file")]:
        # Standard input is not read: it would have no end here.
        process = gsa.start("generate", model, "-", "--save-cache", path, stdin=subprocess.PIPE)
        assert process.wait(timeout=60) == 1
        assert reason in process.stdout.read()
        process.stdin.close()
        process.stdout.close()
    assert (gsa.folder / "pipe").is_fifo()
    assert [path.name for path in gsa.folder.iterdir() if path.name.startswith(".")] == []


def test_too_many_texts_are_refused_before_any_work(gsa, model):
    assert "--samples" in generate(gsa, model, "--prompt", "a", "--samples", 2049, status=2)
    prompts = ["--prompt", "a"] * 3
    output = generate(gsa, model, *prompts, "--samples", 1000, status=2)
    assert "at most 2,048 texts" in output and "3 prompts with --samples 1000" in output
    assert "2,048" in gsa.run("generate", "--help")


@pytest.mark.parametrize("option, value", [
    ("--max-tokens", "-1"), ("--max-tokens", "9223372036854775807"), ("--max-tokens", "99999999999999999999"),
    ("--seed", "-1"), ("--seed", "18446744073709551616"), ("--seed", "1.5"), ("--samples", "0"),
    ("--repeat", "0"),
])
def test_numbers_out_of_bounds_name_their_option(gsa, model, option, value):
    output = gsa.run("generate", model, "--prompt", "a", option, value, status=2)
    assert f"{option}: expected a whole number in" in output and f"got '{value}'" in output


# As they were typed, and as mistakes of usage.
@pytest.mark.parametrize("option, value", [
    ("--top-k", -1), ("--top-p", 2), ("--top-p", 0), ("--min-p", 1.5), ("--temperature", -1), ("--temperature", "nan"),
    ("--repetition-penalty", 0), ("--chunk", 0), ("--stop", ""), ("--phase", "spares"), ("--extend", 0.5),
    ("--extend", 1e12), ("--extend", 1e300), ("--extend", "nan"),
])
def test_wrong_values_name_the_option_that_was_typed(gsa, model, option, value):
    typed = [f"{option}={value}"] if value != "" else [option, value]
    output = gsa.run("generate", model, "--prompt", "a", *typed, status=2)
    assert f"gsa: {option}: expected" in output and "argument" not in output and "-0" not in output, output


def test_the_old_name_of_an_extension_is_understood(gsa, model):
    old = gsa.run("generate", model, "--prompt", "a", "-n", 3, "--yarn", 2)
    assert old.startswith("note: --yarn is now --extend\n")
    assert old.endswith(gsa.run("generate", model, "--prompt", "a", "-n", 3, "--extend", 2))
    assert "--yarn" not in gsa.run("generate", "--help")


def test_an_extension_is_named_only_where_it_could_work(gsa, model):
    long = ["--prompt", "x" * 200]
    output = generate(gsa, model, *long, "-n", 500_000_000, status=1)
    assert "--extend 3906252 extends it to 500,000,256" in output
    output = generate(gsa, model, *long, "-n", 2**30, status=1)
    assert "at most 1,073,741,824, with fewer --max-tokens" in output and "e+" not in output


def test_a_prompt_that_cannot_fit_is_refused_with_the_numbers(gsa, model):
    output = generate(gsa, model, "--prompt", "the", "--extend", 1, "-n", 100000, "--cache-limit", 1, status=1)
    assert re.search(r"100,?00\d tokens", output) and "1.00 MiB" in output, output


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGHUP])
def test_interrupts_end_it_cleanly(gsa, model, which):
    process = gsa.start("generate", model, "--prompt", "the", "-n", 50000, "--extend", 1, "--ignore-eos",
                        "--save-cache", "kept.cache")
    seen = process.stdout.read(40)
    process.send_signal(which)
    seen += process.stdout.read()
    assert process.wait(timeout=60) == 75, seen
    assert "interrupted; what was generated stays" in seen
    assert (gsa.folder / "kept.cache").is_file()
    assert generate(gsa, model, "--load-cache", "kept.cache", "--extend", 1)


# As `gsa generate ... | head -c 1` does.
def test_a_cache_is_kept_where_nobody_reads_the_text(gsa, model):
    status, said = gsa.run_unread("generate", model, "--prompt", "the", "-n", 400, "--extend", 1, "--ignore-eos",
                                  "--save-cache", "unread.cache")  # fmt: skip
    assert status == 1 and "standard output: not all of it could be written" in said
    assert generate(gsa, model, "--load-cache", "unread.cache", "--extend", 1)


def test_an_interrupt_while_standard_input_is_waited_for(gsa, model):
    process = gsa.start("generate", model, "-", stdin=subprocess.PIPE)
    process.stdin.write("the keeper")
    process.stdin.flush()
    status = Path(f"/proc/{process.pid}/status")
    for _ in range(600):  # until it watches for SIGINT
        caught = re.search(r"SigCgt:\s*(\w+)", status.read_text(encoding="utf-8"))[1]
        if int(caught, 16) >> (signal.SIGINT - 1) & 1:
            break
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "nothing was generated" in output, output


def test_a_terminal_shows_a_bar_while_a_long_prompt_is_read(gsa, model):
    (gsa.folder / "long.txt").write_text("the keeper of the lamp " * 200, encoding="utf-8")
    shown = gsa.run_on_a_terminal("generate", model, "--prompt-file", "long.txt", "--extend", 40, "--chunk", 16,
                                  "-n", 5)  # fmt: skip
    text = shown.decode("utf-8", "replace")
    assert "reading the prompt" in text and "of 4,601 tokens" in text and "left" in text
    # The bar's line is cleared before the text begins.
    assert text.rindex("\x1b[K") > text.rindex("reading the prompt")


def test_mistakes_are_explained(gsa, model):
    assert "no prompt" in generate(gsa, model, status=2)
    assert "--prompt-file" in gsa.run("generate", model, "the keeper", status=2)
    assert "'nowhere': expected a model's folder" in gsa.run("generate", "nowhere", "--prompt", "a", status=1)
    run = Path(model).parent / "run"
    assert gsa.run("generate", run, "--prompt", "a", "-n", 3)  # a run stands for its newest model
    assert "expected 8" in generate(gsa, model, "--prompt", "a", "--index-bits", 4, status=2)
    assert "1 .. 16777216, got '0'" in generate(gsa, model, "--prompt", "a", "--cache-limit", 0, status=2)
    assert "--echo" in generate(gsa, model, "--prompt", "a", "--echo", "--json", status=2)
    assert "--temperature" in gsa.run("generate", model, "--temprature", 1, status=2)
    assert "missing.txt" in generate(gsa, model, "--prompt-file", "missing.txt", status=1)
    shown = gsa.run("generate", "--help")
    for part in ["--prompt", "Examples", "--extend", "75", "--load-cache", "--min-p"]:
        assert part in shown

"""gsa tokenize: inputs, tokenizers, mistakes, interruptions."""

import json
import signal
import subprocess
import time


def manifest(folder):
    return json.loads((folder / "dataset.json").read_text(encoding="utf-8"))


def test_documents_of_text(gsa, words):
    gsa.run("tokenize", words, "--output", "whole")
    gsa.run("tokenize", words, "--split", "blank-lines", "--output", "split")
    whole, split = manifest(gsa.folder / "whole"), manifest(gsa.folder / "split")
    assert (whole["documents"], split["documents"]) == (1, 200)
    assert whole["text_bytes"] == words.stat().st_size
    # Each document has two marks; the line end and the blank line between documents are gone.
    assert split["tokens"] == whole["tokens"] - 2 + 2 * 200 - 2 * 199 - 1
    assert "every checksum is right" in gsa.run("tokenize", "--check", "--output", "split")


def test_standard_input_equals_a_file(gsa, words):
    text = words.read_text(encoding="utf-8")
    gsa.run("tokenize", words, "--output", "file")
    gsa.run("tokenize", "-", "--output", "stdin", text=text)
    assert manifest(gsa.folder / "file") == manifest(gsa.folder / "stdin")


def test_json_lines_and_separators_give_the_same(gsa, words):
    documents = words.read_text(encoding="utf-8").strip().split("\n\n")
    (gsa.folder / "a.jsonl").write_text(
        "".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(documents)), encoding="utf-8"
    )
    (gsa.folder / "b.txt").write_text("\n<|end|>\n".join(documents), encoding="utf-8")
    gsa.run("tokenize", "a.jsonl", "--field", "body", "--output", "json")
    gsa.run("tokenize", "b.txt", "--separator", "<|end|>", "--output", "separated")
    gsa.run("tokenize", words, "--split", "blank-lines", "--output", "blank")
    assert manifest(gsa.folder / "json") == manifest(gsa.folder / "separated") == manifest(gsa.folder / "blank")


def test_a_trained_tokenizer_is_used_again(gsa, words):
    gsa.run("tokenize", words, "--train-tokenizer", 320, "--output", "train")
    gsa.run("tokenize", words, "--tokenizer", "train", "--output", "valid")
    gsa.run("tokenize", words, "--tokenizer", "train/tokenizer.model", "--output", "again")
    train = manifest(gsa.folder / "train")
    assert train["tokenizer"] == "sentencepiece" and train["vocab_size"] == 320
    assert train["tokens"] < words.stat().st_size / 2
    assert train == manifest(gsa.folder / "valid") == manifest(gsa.folder / "again")
    # transformers would put a space before every text.
    assert json.loads((gsa.folder / "train/tokenizer_config.json").read_text())["add_prefix_space"] is False


def test_mistakes_are_explained(gsa, words):
    gsa.run("tokenize", words, "--output", "there")
    (gsa.folder / "empty.txt").write_text("\n \n", encoding="utf-8")
    (gsa.folder / "few.txt").write_text("".join(map(chr, range(0x4E00, 0x4E80))), encoding="utf-8")
    for arguments, parts in [
        (["none.txt", "--output", "x"], ["none.txt", "No such file"]),
        ([words, "--output", "there"], ["there", "dataset.json"]),
        (["empty.txt", "--output", "x"], ["file 'empty.txt'", "text in it"]),
        (["empty.txt", "empty.txt", "--output", "x"], ["file 'empty.txt' ... 'empty.txt'", "text in it"]),
        (["empty.txt", "--output", "x", "--train-tokenizer", 300], ["file 'empty.txt'", "text in it"]),
        (["-", "--output", "x"], ["file 'standard input'", "text in it"]),
        ([words, "--output", "x", "--tokenizer", "nothing"], ["nothing"]),
        ([words, "--output", "x", "--train-tokenizer", 5000000], ["expected at most ", " pieces", "got 5000000"]),
        (["few.txt", "--output", "x", "--train-tokenizer", 300], ["expected at least ", " pieces", "got 300"]),
    ]:
        output = gsa.run("tokenize", *arguments, status=1)
        assert all(part in output for part in parts), output
        assert "character_coverage" not in output and "INTERNAL" not in output.upper(), output
        assert not (gsa.folder / "x").exists()  # the folder that it made
    for arguments, parts in [
        (["--output", "x"], ["files to read"]),
        ([words, "--output", "x", "--split", "blank-line"], ["--split", "did you mean 'blank-lines'"]),
        ([words, "--output", "x", "--format", "json"], ["--format", "did you mean 'jsonl'"]),
        ([words, "--output", "x", "--field", "body"], ["--field", "JSON lines"]),
        ([words, "--output", "x", "--split", "blank-lines", "--separator", "x"], ["--split", "--separator"]),
        ([words, "--output", "x", "--train-tokenizer", 300, "--tokenizer", "bytes"], ["both"]),
        (["-", "--output", "x", "--train-tokenizer", 300], ["standard input"]),
    ]:
        output = gsa.run("tokenize", *arguments, status=2)
        assert all(part in output for part in parts), output
        assert not (gsa.folder / "x").exists()
    assert "--split" in gsa.run("tokenize", words, "--spilt", "file", "--output", "x", status=2)


def test_an_interrupted_run_leaves_no_dataset(gsa):
    process = gsa.start("tokenize", "-", "--output", "x", stdin=subprocess.PIPE)
    process.stdin.write("some text\n" * 2_000_000)
    process.stdin.flush()
    for _ in range(600):
        if (gsa.folder / "x").is_dir() and any((gsa.folder / "x").iterdir()):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "nothing was kept" in output
    assert not (gsa.folder / "x").exists()


def test_a_folder_that_was_there_stays(gsa):
    (gsa.folder / "x").mkdir()
    (gsa.folder / "empty.txt").write_text("", encoding="utf-8")
    gsa.run("tokenize", "empty.txt", "--output", "x", status=1)
    assert list((gsa.folder / "x").iterdir()) == []


def test_an_output_that_cannot_be_is_refused_before_a_tokenizer_is_trained(gsa, words):
    output = gsa.run("tokenize", words, "--train-tokenizer", 320, "--output", f"{words}/x", status=1)
    assert "expected a folder that can be made" in output and "training a tokenizer" not in output

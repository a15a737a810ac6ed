#!/usr/bin/env python3
"""Time `gsa tokenize` beside the package tokenizers, with a vocabulary of Qwen3's size, and the import of the package.

    make bench-tokenizer
    make bench-tokenizer ARGS="--tokenizer Qwen3-0.6B --text web.jsonl"     a real one, a text of yours

Without --tokenizer a byte-level BPE with Qwen's split and 151,643 pieces is trained by tokenizers, some minutes, on
the Python files of this environment, which are the text, too. Both read the same documents on the same cores, and
every id is compared. The program's time is that of all it does (reading, splitting, encoding, checksums, writing) less
that of a run over one word; tokenizers' is encode_batch alone. Shown are the best of some rounds, on the wall and of
the processor; the latter is all cores' and means something while others use them.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|endoftext|>"


def python_files(megabytes: float) -> list[str]:
    files = sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))
    random.Random(0).shuffle(files)
    texts, size = [], 0
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if text.strip() and END not in text:
            texts.append(text)
            size += len(text.encode())
        if size >= megabytes * 1e6:
            break
    return texts


def train(folder: Path, pieces: int, texts: list[str]) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])  # fmt: skip
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=pieces, min_frequency=1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))  # fmt: skip
    made.add_special_tokens([END])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "bos_token": None}))


def of_program(program: str, folder: Path, text: Path, output: Path) -> tuple[dict, np.ndarray]:
    """Seconds of one run, and all ids."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([program, "tokenize", text, "--tokenizer", folder, "--output", output], check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    about = json.loads((output / "dataset.json").read_text())
    ids = [np.fromfile(output / shard["tokens_file"], f"<u{about['token_bytes']}") for shard in about["shards"]]
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall": wall, "cpu": cpu}, np.concatenate(ids)


def of_package(tokenizer, texts: list[str]) -> tuple[dict, list]:
    start, cpu = time.perf_counter(), time.process_time()
    found = tokenizer.encode_batch(texts, add_special_tokens=False)
    return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}, found


def import_seconds(rounds: int) -> list[float]:
    """Of the package alone, after torch."""
    code = ("import time, torch; start = time.perf_counter(); import gated_sparse_attention; "
            "print(time.perf_counter() - start)")  # fmt: skip
    return [float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
            for _ in range(rounds)]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer.json, in place of a trained one")
    parser.add_argument("--text", type=Path, help='JSON lines, {"text": ...} a document, in place of Python files')
    parser.add_argument("--pieces", type=int, default=151643, help="of the trained one; Qwen3 has so many")
    parser.add_argument("--megabytes", type=float, default=12, help="of text; trained on twice as much")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default="build/release/bin/gsa")
    parser.add_argument("--json", type=Path, default=Path("build/bench-python-tokenizer.json"))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)  # of what is started, too
    os.environ |= {"RAYON_NUM_THREADS": str(len(cores)), "OMP_NUM_THREADS": str(len(cores)), "TOKENIZERS_PARALLELISM": "true"}
    imports = import_seconds(options.rounds)

    from tokenizers import Tokenizer  # which reads these variables

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.text is None:
            texts = python_files(options.megabytes)
        else:
            texts = [json.loads(line)["text"] for line in options.text.read_text(encoding="utf-8").splitlines()]
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (folder / "word.jsonl").write_text('{"text": "word"}\n')
        if options.tokenizer is None:
            train(folder, options.pieces, python_files(2 * options.megabytes))
        place = options.tokenizer or folder
        tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
        best = {name: {"wall": float("inf"), "cpu": float("inf")} for name in ("start", "gsa tokenize", "tokenizers")}
        for n in range(options.rounds):
            start, one = of_program(options.program, place, folder / "word.jsonl", folder / f"word{n}")
            ours, ids = of_program(options.program, place, folder / "text.jsonl", folder / f"data{n}")
            theirs, found = of_package(tokenizer, texts)
            for name, seconds in (("start", start), ("gsa tokenize", ours), ("tokenizers", theirs)):
                best[name] = {key: min(best[name][key], seconds[key]) for key in seconds}
    marks = len(one) - len(tokenizer.encode("word", add_special_tokens=False).ids)
    begins = 0 if marks == 0 or one[0] == tokenizer.encode("word", add_special_tokens=False).ids[0] else 1
    at = 0
    for text, encoding in zip(texts, found, strict=True):
        if not np.array_equal(ids[at + begins : at + begins + len(encoding.ids)], encoding.ids):
            raise SystemExit(f"the ids of document {text[:60]!r} differ")
        at += marks + len(encoding.ids)
    if at != len(ids):
        raise SystemExit(f"expected {at} ids of gsa tokenize, got {len(ids)}")

    size = sum(len(text.encode()) for text in texts)
    best["gsa tokenize"] = {key: value - best["start"][key] for key, value in best["gsa tokenize"].items()}
    speed = {name: {key: size / 1e6 / best[name][key] for key in ("wall", "cpu")} for name in ("tokenizers", "gsa tokenize")}
    ratio = {key: speed["gsa tokenize"][key] / speed["tokenizers"][key] for key in ("wall", "cpu")}
    print(f"{tokenizer.get_vocab_size()} tokens in the vocabulary, {size / 1e6:.1f} MB in {len(texts)} documents, "
          f"{len(ids)} ids, {len(cores)} cores; the same ids")  # fmt: skip
    for name, values in speed.items():
        relative = {key: values[key] / speed["tokenizers"][key] for key in values}
        print(f"{name:14} wall {values['wall']:6.2f} MB/s (x {relative['wall']:.2f})   "
              f"cpu {values['cpu']:6.2f} MB/s of a core (x {relative['cpu']:.2f})")  # fmt: skip
    print(f"import gated_sparse_attention after torch: {statistics.median(imports):.2f} s, the median of {len(imports)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({
        "vocabulary": tokenizer.get_vocab_size(), "megabytes": size / 1e6, "documents": len(texts), "ids": len(ids),
        "cores": len(cores), "seconds": best, "megabytes_per_second": speed, "ratio": ratio, "import_seconds": imports,
    }, indent=2) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()

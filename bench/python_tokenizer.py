#!/usr/bin/env python3
"""Time `gsa tokenize` beside the package tokenizers, with a vocabulary of Qwen3's size, and the import of the package.

    make bench-tokenizer
    make bench-tokenizer ARGS="--tokenizer Qwen3-0.6B --text web.jsonl"     a real one, a text of yours

Without --tokenizer a byte-level BPE with Qwen's split and 151,643 pieces is trained by tokenizers, some minutes, on
the Python files of this environment. Read are some of these files, and random words, of which neither has seen one
before. Both get the same documents on the same cores, and every id is compared. The program's time is that of a whole
run: it reads the tokenizer and the text, encodes, writes ids and checksums. tokenizers' is that of Tokenizer.from_file
and encode_batch alone. Shown are the best of some rounds, on the wall and of the processor: the latter is that of all
cores, and means something while others use them.
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
    if made.get_vocab_size() < pieces:
        raise SystemExit(f"--pieces: expected at most {made.get_vocab_size()}, what --train-megabytes gives, got {pieces}")
    made.add_special_tokens([END])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "bos_token": None}))


def of_program(program: str, folder: Path, text: Path, scratch: Path) -> tuple[dict, np.ndarray]:
    """Seconds of one run, and all ids."""
    output = Path(tempfile.mkdtemp(dir=scratch)) / "data"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([program, "tokenize", text, "--tokenizer", folder, "--output", output], check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    about = json.loads((output / "dataset.json").read_text())
    ids = [np.fromfile(output / shard["tokens_file"], f"<u{about['token_bytes']}") for shard in about["shards"]]
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall": wall, "cpu": cpu}, np.concatenate(ids)


def of_package(file: Path, texts: list[str]) -> tuple[dict, list]:
    from tokenizers import Tokenizer

    start, cpu = time.perf_counter(), time.process_time()
    found = Tokenizer.from_file(str(file)).encode_batch(texts, add_special_tokens=False)
    return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}, found


def import_seconds(rounds: int) -> list[float]:
    """Of the package alone, after torch."""
    code = ("import time, torch; start = time.perf_counter(); import gated_sparse_attention; "
            "print(time.perf_counter() - start)")  # fmt: skip
    return [float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
            for _ in range(rounds)]  # fmt: skip


def random_words(megabytes: float) -> list[str]:
    """Words of random letters, and Han characters in a row: what no table of words seen before helps with."""
    draw, texts, size = random.Random(3), [], 0
    while size < megabytes * 1e6:
        words = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(3, 14))) for _ in range(1500))
        han = "".join(chr(draw.randrange(0x4E00, 0x9FA5)) if draw.random() < 0.9 else "\uff0c" for _ in range(5000))
        texts.append(f"{' '.join(words)}\n{han}")
        size += len(texts[-1].encode())
    return texts


def require_same_ids(ids: np.ndarray, found: list, begins: int, ends: int) -> None:
    at = 0
    for number, encoding in enumerate(found):
        at += begins
        if not np.array_equal(ids[at : at + len(encoding.ids)], encoding.ids):
            raise SystemExit(f"the ids of document {number} differ")
        at += len(encoding.ids) + ends
    if at != len(ids):
        raise SystemExit(f"expected {at} ids of gsa tokenize, got {len(ids)}")


def measure(name: str, texts: list[str], tokenizer, place: Path, scratch: Path, options) -> dict:
    text, word = scratch / "text.jsonl", scratch / "word.jsonl"
    text.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    word.write_text('{"text": "word"}\n')
    plain, (_, one) = tokenizer.encode("word", add_special_tokens=False).ids, of_program(options.program, place, word, scratch)
    begins = one.tolist().index(plain[0])  # marks of the program before a document, and behind it
    best = {who: {"wall": float("inf"), "cpu": float("inf")} for who in ("tokenizers", "gsa tokenize")}
    for _ in range(options.rounds):
        ours, ids = of_program(options.program, place, text, scratch)
        theirs, found = of_package(place / "tokenizer.json", texts)
        for who, seconds in (("gsa tokenize", ours), ("tokenizers", theirs)):
            best[who] = {key: min(best[who][key], seconds[key]) for key in seconds}
    require_same_ids(ids, found, begins, len(one) - len(plain) - begins)

    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{name}: {megabytes:.1f} MB in {len(texts)} documents, {len(ids)} ids, the same of both")
    for who, seconds in best.items():
        print(f"  {who:12} " + "   ".join(
            f"{key} {value:6.2f} s, {megabytes / value:6.2f} MB/s (x {best['tokenizers'][key] / value:5.2f})"
            for key, value in seconds.items()))  # fmt: skip
    return {"megabytes": megabytes, "documents": len(texts), "ids": len(ids), "seconds": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer.json, in place of a trained one")
    parser.add_argument("--text", type=Path, help='JSON lines, {"text": ...} a document, in place of both texts')
    parser.add_argument("--pieces", type=int, default=151643, help="of the trained one; Qwen3 has so many")
    parser.add_argument("--train-megabytes", type=float, default=64)
    parser.add_argument("--megabytes", type=float, default=24, help="of Python files, and half of that of random words")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", default="build/release/bin/gsa")
    parser.add_argument("--json", type=Path, default=Path("build/bench-tokenizer.json"))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)  # of what is started, too
    os.environ |= {"RAYON_NUM_THREADS": str(len(cores)), "OMP_NUM_THREADS": str(len(cores)), "TOKENIZERS_PARALLELISM": "true"}
    imports = import_seconds(options.rounds)
    print(f"import gated_sparse_attention after torch: {statistics.median(imports):.2f} s, the median of {len(imports)}", flush=True)

    from tokenizers import Tokenizer  # which reads these variables

    if options.text is None:
        texts = {"Python files": python_files(options.megabytes), "random words and Han": random_words(options.megabytes / 2)}
    else:
        lines = options.text.read_text(encoding="utf-8").splitlines()
        texts = {options.text.name: [json.loads(line)["text"] for line in lines]}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if options.tokenizer is None:
            train(scratch, options.pieces, python_files(options.train_megabytes))
        place = options.tokenizer or scratch
        tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
        print(f"{tokenizer.get_vocab_size()} tokens in the vocabulary, {len(cores)} cores", flush=True)
        measured = {name: measure(name, text, tokenizer, place, scratch, options) for name, text in texts.items()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({
        "vocabulary": tokenizer.get_vocab_size(), "cores": len(cores), "import_seconds": imports, "texts": measured,
    }, indent=2) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()

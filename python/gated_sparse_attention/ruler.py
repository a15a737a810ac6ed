"""RULER for a model of transformers, with the prompts and scores of `gsa ruler` (docs/ruler.md).

    python -m gated_sparse_attention.ruler MODEL FOLDER --lengths 4096,8192 --samples 20 --essays essays.txt

The program `gsa`, found in PATH or named by GSA_PROGRAM, makes prompts to length by the model's own tokenizer, this
answers them, and `gsa` scores them into FOLDER/index.html. Answers that are there already are kept: a run that was cut
off goes on with the same command.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Progress", "answer", "count", "main"]

Generate = Callable[[list[str], int], list[str]]  # prompts and new tokens: a text for each


def count(tokenizer: Callable[[str], Any], lines: Iterable[str], out: TextIO) -> None:
    """For every JSON string on a line, its number of tokens on a line: what `gsa ruler --counter` calls."""
    for line in lines:
        print(len(tokenizer(json.loads(line))["input_ids"]), file=out, flush=True)


class Progress:
    """A line on stderr: how much is answered, and the time left, by prompts' lengths."""

    def __init__(self, total: int, out: TextIO, clock: Callable[[], float] = time.monotonic):
        self.total, self.out, self.clock = total, out, clock
        self.done, self.start = 0, clock()

    def add(self, name: str, work: int) -> None:
        self.done += work
        left = (self.clock() - self.start) * (self.total - self.done) / self.done
        minutes, seconds = divmod(round(left), 60)
        text = f"ruler  {100 * self.done // self.total:3} %  {minutes:3}:{seconds:02} left  {name}"
        print(f"\r{text:60}" if self.out.isatty() else text, end="" if self.out.isatty() else "\n", file=self.out, flush=True)

    def close(self) -> None:
        if self.done and self.out.isatty():
            print(file=self.out)


def _answered(file: Path) -> set[int]:
    """Which samples have an answer. A line that was cut off goes, in one step, so that no answer is ever lost."""
    text = file.read_text("utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        beside = file.with_suffix(".tmp")
        beside.write_text(whole, "utf-8")
        os.replace(beside, file)
    return {json.loads(line)["index"] for line in whole.split("\n")[:-1]}


def answer(generate: Generate, folder: Path, batch_tokens: int, out: TextIO | None = None) -> None:
    """Asks for what has no prediction yet, as many prompts of a file at once as have batch_tokens tokens together, and
    at least one. A batch is on the disk before the next one begins."""
    (folder / "predictions").mkdir(exist_ok=True)
    missing = {}
    for prompts in sorted((folder / "prompts").glob("*.jsonl")):
        done = _answered(folder / "predictions" / prompts.name)
        with prompts.open(encoding="utf-8") as lines:
            missing[prompts.name] = [sample for sample in map(json.loads, lines) if sample["index"] not in done]
    progress = Progress(sum(sample["tokens"] for samples in missing.values() for sample in samples), out or sys.stderr)
    for name, samples in missing.items():
        while samples:
            longest = max(sample["tokens"] + sample["max_new_tokens"] for sample in samples)
            size = max(1, batch_tokens // longest)
            batch, samples = samples[:size], samples[size:]
            texts = generate([sample["prompt"] for sample in batch], batch[0]["max_new_tokens"])
            with (folder / "predictions" / name).open("a", encoding="utf-8") as file:
                for sample, text in zip(batch, texts, strict=True):
                    print(json.dumps({"index": sample["index"], "prediction": text}), file=file)
            progress.add(name.removesuffix(".jsonl"), sum(sample["tokens"] for sample in batch))
    progress.close()


def load(name: str, dtype: str, device: str) -> Generate:
    """A model of transformers, which writes greedily; prompts of a batch are padded on the left."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()

    @torch.inference_mode()
    def generate(prompts: list[str], max_new_tokens: int) -> list[str]:
        inputs = tokenizer(prompts, return_tensors="pt", padding=len(prompts) > 1).to(device)
        out = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        return tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    return generate


def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    from . import huggingface  # noqa: F401, registers our own model; says so where transformers is missing

    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # Llama has none; what is masked may be any token
    return tokenizer


def main(arguments: list[str] | None = None) -> None:
    import torch

    parser = argparse.ArgumentParser(
        "python -m gated_sparse_attention.ruler", description=(__doc__ or "").split("\n")[0], allow_abbrev=False,
        epilog="All other options go to `gsa ruler --write`: --lengths, --samples, --tasks, --seed, --essays, --squad, ...",
    )  # fmt: skip
    parser.add_argument("model", help="a folder or a name, as from_pretrained takes it")
    parser.add_argument("folder", type=Path, nargs="?", help="for prompts, predictions and the page")
    parser.add_argument("--count", action="store_true", help="what `gsa ruler --counter` calls: counts tokens of stdin")
    parser.add_argument("--batch-tokens", type=int, default=65536, help="prompts at once, by their tokens (65536)")
    parser.add_argument("--dtype", default="auto", help="of the model: auto (as stored), float32, bfloat16, ...")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options, of_program = parser.parse_known_args(arguments)
    if options.batch_tokens < 1:
        parser.error(f"--batch-tokens: expected at least 1, got {options.batch_tokens}")
    if options.count:
        return count(load_tokenizer(options.model), sys.stdin, sys.stdout)
    if options.folder is None:
        parser.error("expected a folder for prompts and predictions, got none")

    program = os.environ.get("GSA_PROGRAM", "gsa")

    def ruler(*words: Any) -> None:
        try:
            done = subprocess.run([program, "ruler", *map(str, words)], check=False)
        except FileNotFoundError:
            raise SystemExit(f"expected the program gsa in PATH, or GSA_PROGRAM to name it, got {program!r}") from None
        if done.returncode != 0:
            raise SystemExit(done.returncode)  # it has said why

    counter = shlex.join([sys.executable, "-m", __spec__.name if __spec__ else __name__, "--count", options.model])
    ruler("--write", options.folder, "--counter", counter, *of_program)
    about = options.folder / "run.json"  # whose name stands on the page
    run = json.loads(about.read_text("utf-8"))
    if run.get("model") != options.model:
        about.write_text(json.dumps(run | {"model": options.model}, indent=2) + "\n", "utf-8")
    try:
        answer(load(options.model, options.dtype, options.device), options.folder, options.batch_tokens)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        raise SystemExit(75) from None  # as of `gsa ruler`
    ruler("--score", options.folder)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Time a token of generate() (transformers, the Python package) beside `gsa generate`, behind a long prompt.

    make bench-python
    make bench-python ARGS="--tokens 4096 --new 32 --system gated-only"     another length, another system

A model of random weights (time does not depend on them but through k, which is fixed here) with the sizes of a preset
reads one prompt of bytes by both, one after the other, with the same number of threads: one, then all. Shown is the
mean time between two new tokens, on the wall and of the processor; only the latter means something while others use the
cores. """

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria

import gated_sparse_attention as gsa


class Clock(StoppingCriteria):
    """Ends nothing; notes when each token was there, in seconds on the wall and of the processor."""

    def __init__(self):
        self.times = []

    def __call__(self, ids, scores, **_):
        self.times.append((time.perf_counter(), time.process_time()))
        return torch.zeros(ids.size(0), dtype=torch.bool)


def make_folder(folder: Path, options) -> None:
    config = gsa.ModelConfig.preset(options.preset).apply(options.system)
    config.max_positions = options.tokens + options.new + 4
    config.bos_id, config.eos_ids = 256, [257]
    if config.attention.sparse:
        config.attention.budget.mode = "fixed"
    torch.manual_seed(0)
    gsa.save_model(gsa.GatedSparseForCausalLM(config), folder, getattr(torch, options.dtype))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GsaByteTokenizer"}\n')
    letters = torch.randint(97, 123, (options.tokens - 1,), generator=torch.Generator().manual_seed(0))
    (folder / "prompt.txt").write_bytes(bytes(letters.tolist()))


def of_package(folder: Path, options) -> dict:
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[256, *(folder / "prompt.txt").read_bytes()]])
    clock, start = Clock(), time.perf_counter()
    model.generate(ids, max_new_tokens=options.new, min_new_tokens=options.new, do_sample=False, stopping_criteria=[clock])
    (first, first_cpu), (last, last_cpu), steps = clock.times[0], clock.times[-1], len(clock.times) - 1
    return {"prompt_s": first - start, "wall_ms": 1e3 * (last - first) / steps, "cpu_ms": 1e3 * (last_cpu - first_cpu) / steps}


def of_program(folder: Path, threads: int, options) -> dict:
    def run(*arguments) -> tuple[dict, float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [options.program, "generate", folder, "-t", "0", "--ignore-eos", "--json", "--stats", "--threads",
             str(threads), "--device", "cpu", *map(str, arguments)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return json.loads(done.stdout.splitlines()[-1])["stats"], used

    prompt, _ = run("--prompt-file", folder / "prompt.txt", "-n", 0, "--save-cache", folder / "cache")
    behind = ("--load-cache", folder / "cache", "--prompt", "x")
    _, few = run(*behind, "-n", 2)
    stats, many = run(*behind, "-n", 2 + options.new)
    return {"prompt_s": prompt["prefill_seconds"], "wall_ms": 1e3 / stats["decode_tokens_per_second"],
            "cpu_ms": 1e3 * (many - few) / options.new}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="small")
    parser.add_argument("--system", default="gsa")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--tokens", type=int, default=32768, help="of the prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens that are generated")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count()}), help="one run with each")
    parser.add_argument("--program", default="build/release/bin/gsa")
    options = parser.parse_args()
    print(f"{options.preset} ({options.system}, {options.dtype}), {options.tokens} tokens")
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder), options)
        for threads in options.threads:
            torch.set_num_threads(threads)
            theirs, ours = of_program(Path(folder), threads, options), of_package(Path(folder), options)
            print(f"{threads} threads" if threads > 1 else "1 thread")
            for name, found in (("gsa generate", theirs), ("generate()", ours)):
                times = "   ".join(
                    f"{key} {found[f'{key}_ms']:7.2f} ms a token (x {found[f'{key}_ms'] / theirs[f'{key}_ms']:.2f})"
                    for key in ("wall", "cpu")
                )
                print(f"  {name:14} prompt {found['prompt_s']:7.1f} s   {times}", flush=True)


if __name__ == "__main__":
    main()

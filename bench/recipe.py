#!/usr/bin/env python3
"""Which recipe teaches an indexer best? A dense model with gates is trained once; from it, one variant after another
is adapted to sparse attention and measured: the loss of its sparse phase above that of its own dense phase, and how
much of the attention that the best selection of the same size would keep the learned one keeps.

    bench/recipe.py --gsa build/release/bin/gsa --train data/train --validation data/valid --out build/recipe

Every variant changes one thing. Results: a table, OUT/results.jsonl, and each run's folder and log."""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import time

# About 10 M parameters with a vocabulary of 16,384.
TINY = {
    "model.preset": "small", "model.layers": 6, "model.d_model": 256, "model.intermediate_size": 704,
    "model.heads": 4, "model.kv_heads": 2, "model.head_size": 64,
}  # fmt: skip
SMALL = {"model.preset": "small"}

ADAPTED = {
    "model.system": "gsa", "phases.warmup": 100, "phases.sparse": 100, "optimizer.lr": 3e-4,
    "optimizer.schedule": "cosine", "model.budget": "fixed",
}  # fmt: skip


def keys(length, share):
    """k in a fixed budget, as a share of the length."""
    k = length // share
    return {"model.k_base": k, "model.k_min": k // 8, "model.k_max": 2 * k}


def variants(length):
    """name -> options beside ADAPTED."""
    all_of = {"default": {}}
    all_of["RoPE on half"] = {"model.index_rope_fraction": 0.5}
    all_of["RoPE on none"] = {"model.index_rope_fraction": 0.0}
    all_of["random start"] = {"model.indexer_init": "random"}
    all_of["random start, RoPE on half"] = {"model.indexer_init": "random", "model.index_rope_fraction": 0.5}
    for n in (1, 4, 16, 64):
        all_of[f"share 1/{n}"] = {"kl_share": 1 / n}
    all_of["selected keys"] = {"kl_support": "selected"}
    all_of["selected keys, temperature 1 (paper)"] = {"kl_support": "selected", "model.index_temperature": 1}
    for t in (1, 0.25, 0.1, 0.03):
        all_of[f"temperature {t}"] = {"model.index_temperature": t}
    all_of["temperature learned"] = {"model.index_temperature_learned": "true"}
    for m in (3, 30):
        all_of[f"indexer rate x{m}"] = {"optimizer.indexer_lr_multiplier": m}
    # A folder that gets an indexer gets 4 heads of 64, whatever preset it was made from.
    all_of["heads 4 of 32"] = {"model.index_head_size": 32}
    all_of["heads 8 of 64"] = {"model.index_heads": 8}
    all_of["ReLU"] = {"model.score_form": "relu"}
    all_of["inverse budget"] = {"model.budget": "inverse"}
    # Its mean k was 1.37 times k_base: this one should come to the mean of the fixed budget.
    all_of["inverse budget, k_base less"] = {"model.budget": "inverse", **keys(length * 3 // 4, 8)}
    for n in (16, 32):
        all_of[f"k = L/{n}"] = keys(length, n)
    all_of["warm-up 25, sparse 25"] = {"phases.warmup": 25, "phases.sparse": 25}
    all_of["warm-up 200, sparse 0"] = {"phases.warmup": 200, "phases.sparse": 0}
    all_of["warm-up 0, sparse 200"] = {"phases.warmup": 0, "phases.sparse": 200}
    all_of["warm-up 300, sparse 300"] = {"phases.warmup": 300, "phases.sparse": 300}
    return all_of


def switches(dense):
    """When to switch, at an equal number of tokens: names and options of runs from scratch."""
    for part in (0.2, 0.5, 0.8):
        first = int(dense * part)
        yield f"switch at {first} of {dense}", {"phases.dense": first, "phases.warmup": 100, "phases.sparse": dense - first}


class Runner:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.common = {
            "data.train": args.train, "data.length": args.length, "batch.tokens": args.tokens,
            "batch.rows": args.rows or args.tokens // args.length, "output.validate_every": 0,
            "output.save_every": 1_000_000, "output.keep_last": 1, "output.log_every": 50,
            "output.tensorboard": "false", "device": args.device,
        }  # fmt: skip

    def train(self, name, options):
        """The folder of the trained model, and the seconds that it took."""
        folder = self.out / "".join(c if c.isalnum() else "-" for c in name)
        latest = folder / "latest"
        if not latest.exists():
            command = [self.args.gsa, "train"]
            for key, value in {**self.common, "output.folder": folder, **options}.items():
                command += ["--set", f"{key}={value}"]
            begin = time.time()
            with open(f"{folder}.log", "w") as log:
                status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
            if status != 0:
                raise RuntimeError(f"{name}: gsa train ended with {status}: {pathlib.Path(f'{folder}.log').read_text()[-600:]}")
            return latest, time.time() - begin
        return latest, 0.0

    def evaluate(self, model, phase):
        command = [
            self.args.gsa, "eval", model, "--data", self.args.validation, "--join", "--tokens", self.args.eval_tokens,
            "--phase", phase, "--length", self.args.length, "--stride", self.args.length, "--device", self.args.device, "--json", "-",
            "--measure", "perplexity,selection" if phase == "sparse" else "perplexity",
        ]  # fmt: skip
        done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{model}: gsa eval ended with {done.returncode}: {done.stderr[-600:]}")
        return json.loads(done.stdout)["reports"][0]

    def measure(self, name, options=None, model=None, **more):
        """A row of results.jsonl: a model that is trained with `options`, or one that is there."""
        seconds = 0.0
        if model is None:
            model, seconds = self.train(name, options)
        dense, sparse = self.evaluate(model, "dense"), self.evaluate(model, "sparse")
        selection = sparse["selection"]
        layers = [layer["oracle"] for layer in selection["layers"]]
        row = {
            "name": name, "options": {k: str(v) for k, v in (options or {}).items()}, "seconds": seconds, **more,
            "dense": dense["perplexity"]["nats_per_token"], "sparse": sparse["perplexity"]["nats_per_token"],
            "kept_over_oracle": [layer["kept_over_oracle"] for layer in layers],
            "kept": [layer["kept_mass"] for layer in layers], "recall": [layer["recall"] for layer in layers],
            "k": [layer["k_t"]["mean"] for layer in selection["layers"]],
        }  # fmt: skip
        with open(self.out / "results.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        return row


def line(row):
    def mean(xs):
        return sum(xs) / len(xs)

    share = row["kept_over_oracle"]
    return (
        f"{row['name']:36s} {mean(row['k']):6.0f} {row['dense']:8.4f} {row['sparse']:8.4f} {row['sparse'] - row['dense']:+8.4f}"
        f" {100 * mean(row['kept']):6.1f} {100 * mean(share):6.1f} {100 * min(share):6.1f} {100 * mean(row['recall']):6.1f} {row['seconds']:6.0f}"
    )


def setting(argument):
    key, equals, value = argument.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {argument!r}")
    return key, value


HEADER = f"{'variant':36s} {'mean k':>6s} {'dense':>8s} {'sparse':>8s} {'gap':>8s} {'kept %':>6s} {'/orac.':>6s} {'worst':>6s} {'recall':>6s} {'s':>6s}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsa", required=True, help="the program")
    parser.add_argument("--train", required=True, help="a dataset of gsa tokenize")
    parser.add_argument("--validation", required=True, help="another one")
    parser.add_argument("--out", required=True, help="where runs, logs and results.jsonl go")
    parser.add_argument("--size", choices=("tiny", "small"), default="tiny", help="about 10 M parameters, or the preset small")
    parser.add_argument("--base", help="a finished dense model's folder, instead of training one")
    parser.add_argument("--base-steps", type=int, default=1500, help="dense steps of the base (default %(default)s)")
    parser.add_argument("--length", type=int, default=8192, help="tokens of a window (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens of a step (default %(default)s)")
    parser.add_argument("--rows", type=int, default=0, help="windows of a micro-batch (default: all of a step)")
    parser.add_argument("--eval-tokens", type=int, default=131072, help="predictions that are measured (default %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these variants alone")
    parser.add_argument("--set", action="append", type=setting, default=[], metavar="KEY=VALUE",
                        help="an option of gsa train for every variant that does not set it itself")  # fmt: skip
    parser.add_argument("--switches", action="store_true", help="runs from scratch that switch early and late, too")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time (default %(default)s): their seconds then say nothing")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further run after this many")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    unknown = set(args.only or []) - set(variants(args.length))
    if unknown:
        parser.error(f"--only: expected names of {'; '.join(variants(args.length))}, got {'; '.join(sorted(unknown))}")
    runner = Runner(args)
    begin = time.time()
    size = TINY if args.size == "tiny" else SMALL
    base = args.base
    if base is None:
        base, seconds = runner.train("base", {**size, "model.system": "gated-only", "phases.dense": args.base_steps, "optimizer.lr": 1e-3})
        print(f"base: {args.base_steps} dense steps in {seconds:.0f} s", flush=True)
    wanted = {}
    if args.switches:
        for name, options in switches(args.base_steps):
            wanted[name] = {**size, "model.system": "gsa", **keys(args.length, 8), "model.budget": "fixed", "optimizer.lr": 1e-3, **options}
    for name, options in variants(args.length).items():
        if args.only and name not in args.only:
            continue
        wanted[name] = {"model.from": base, **ADAPTED, **keys(args.length, 8), **dict(args.set), **options}
    print(HEADER, flush=True)

    def one(item):
        if time.time() - begin > args.seconds:
            return f"{item[0]:36s} not run: out of time"
        try:
            return line(runner.measure(*item))
        except (RuntimeError, KeyError, OSError) as error:
            return f"{item[0]:36s} FAILED: {error}"

    failed = False
    with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        for text in pool.map(one, wanted.items()):
            failed |= "FAILED" in text
            print(text, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

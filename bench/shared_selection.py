#!/usr/bin/env python3
"""What does it cost that layers share a selection, and from which depth on does it pay? A deep dense model with gates
is trained once. From it, models with an indexer in every layer (n = 1) and in one of n are adapted by the same steps
on the same tokens, and measured: how far layers agree on keys, loss, kept mass, and what the best selection of each
layer's own would keep.

    bench/shared_selection.py --gsa build/release/bin/gsa --train data/train --validation data/valid --out build/shared

Groups of n are every n-th layer, and those that `gsa convert --index-every n` finds by the agreement of n = 1, measured
on the training text; that model is measured as it was converted, too, before it has learned anything. Results: a table,
OUT/results.jsonl, OUT/agreement/index.html, and each run's folder and log. What is there is not made again.

A GPU takes some 20 minutes with these sizes; two CPU cores an hour with --width 128 --length 512 --tokens 8192."""

import argparse
import json
import pathlib
import subprocess
import sys

from recipe import ADAPTED, Runner, keys, setting


def sizes(layers, width):
    """A model of heads of 64 (of 32 where it is narrow), two of them for one key head."""
    head = 64 if width >= 256 else 32
    return {
        "model.preset": "small", "model.layers": layers, "model.d_model": width, "model.intermediate_size": width * 11 // 4,
        "model.heads": width // head, "model.kv_heads": max(1, width // head // 2), "model.head_size": head,
    }  # fmt: skip


def mean(numbers):
    return sum(numbers) / len(numbers)


def by_distance(pairs, distance):
    """Mean of what layers find of the keys of those `distance` after them; None entries (no query counts) left out."""
    found = [pairs[a][a + distance] for a in range(len(pairs) - distance)]
    found = [share for share in found if share is not None]
    return mean(found) if found else None


def converted(runner, model, n):
    """The folder in which layers of `model` share selections by agreement, and which of them have an indexer."""
    folder = runner.out / f"converted-{n}"
    if not folder.exists():
        command = [
            runner.args.gsa, "convert", model, "--output", folder, "--index-every", n, "--data", runner.args.train,
            "--length", runner.args.length, "--tokens", runner.args.eval_tokens,
        ]  # fmt: skip
        done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
        pathlib.Path(f"{folder}.log").write_text(done.stdout + done.stderr)
        if done.returncode != 0:
            raise RuntimeError(f"gsa convert ended with {done.returncode}: {done.stderr[-600:]}")
    return folder, json.loads((folder / "config.json").read_text())["index_layers"]


def agreement(runner, model):
    """The agreement of layers, as gsa eval prints it."""
    command = [
        runner.args.gsa, "eval", model, "--data", runner.args.validation, "--join", "--tokens", runner.args.eval_tokens,
        "--phase", "sparse", "--length", runner.args.length, "--stride", runner.args.length, "--device", runner.args.device,
        "--json", "-", "--measure", "agreement", "--plots", runner.out / "agreement",
    ]  # fmt: skip
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{model}: gsa eval ended with {done.returncode}: {done.stderr[-600:]}")
    return json.loads(done.stdout)["reports"][0]["agreement"]


HEADER = (
    f"{'indexers':28s} {'layers':>6s} {'dense':>8s} {'sparse':>8s} {'gap':>8s} {'k':>5s} {'kept %':>7s} {'/orac.':>7s}"
    f" {'worst':>6s} {'recall':>7s}"
)


def line(row):
    share = row["kept_over_oracle"]
    return (
        f"{row['name']:28s} {row['indexers']:6d} {row['dense']:8.4f} {row['sparse']:8.4f} {row['sparse'] - row['dense']:+8.4f}"
        f" {mean(row['k']):5.0f} {100 * mean(row['kept']):7.1f} {100 * mean(share):7.1f} {100 * min(share):6.1f} {100 * mean(row['recall']):7.1f}"
    )


def percent(share):
    return "-" if share is None else f"{100 * share:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsa", required=True, help="the program")
    parser.add_argument("--train", required=True, help="a dataset of gsa tokenize")
    parser.add_argument("--validation", required=True, help="another one")
    parser.add_argument("--out", required=True, help="where runs, logs and results.jsonl go")
    parser.add_argument("--layers", type=int, default=24, help="(default %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64 (default %(default)s)")
    parser.add_argument("--every", type=int, nargs="+", default=[2, 4], metavar="N", help="(default 2 4)")
    parser.add_argument("--base-steps", type=int, default=1500, help="dense steps of the base (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=100, help="steps in which the indexers alone learn (default %(default)s)")
    parser.add_argument("--sparse", type=int, default=100, help="sparse steps (default %(default)s)")
    parser.add_argument("--length", type=int, default=8192, help="tokens of a window (default %(default)s); k is an eighth")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens of a step (default %(default)s)")
    parser.add_argument("--rows", type=int, default=0, help="windows of a micro-batch (default: all of a step)")
    parser.add_argument("--eval-tokens", type=int, default=65536, help="predictions that are measured (default %(default)s)")
    parser.add_argument("--set", action="append", type=setting, default=[], metavar="KEY=VALUE", help="an option of every gsa train")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.width < 64 or args.width % 64:
        parser.error(f"--width: expected a multiple of 64, got {args.width}")
    for n in args.every:
        if not 2 <= n <= args.layers:
            parser.error(f"--every: expected 2 to --layers ({args.layers}), got {n}")
    runner = Runner(args)
    given = dict(args.set)
    dense = {"model.system": "gated-only", "phases.dense": args.base_steps, "optimizer.lr": 1e-3}
    base, seconds = runner.train("base", {**sizes(args.layers, args.width), **dense, **given})
    print(f"base: {args.layers} layers of {args.width}, {args.base_steps} dense steps in {seconds:.0f} s", flush=True)
    steps = {"phases.warmup": args.warmup, "phases.sparse": args.sparse}
    adapted = {"model.from": base, **ADAPTED, **keys(args.length, 8), **steps, **given}

    done = {}
    results = runner.out / "results.jsonl"
    if results.exists():
        done = {row["name"]: row for row in map(json.loads, results.read_text().splitlines())}

    def measured(name, indexers, options=None, model=None):
        row = done.get(name) or runner.measure(name, options, model, indexers=indexers)
        print(line(row), flush=True)

    print(HEADER, flush=True)
    whole, _ = runner.train("n = 1", adapted)
    measured("n = 1", args.layers, adapted)
    for n in args.every:
        every = {**adapted, "model.index_every": n}
        measured(f"n = {n}, every n-th", len(range(0, args.layers, n)), every)
        folder, chosen = converted(runner, whole, n)
        measured(f"n = {n}, converted", len(chosen), model=folder)
        if chosen == list(range(0, args.layers, n)):
            print("  by agreement: every n-th, too", flush=True)
            continue
        grouped = {**adapted, "model.index_layers": ",".join(map(str, chosen))}
        measured(f"n = {n}, by agreement", len(chosen), grouped)
        print(f"  indexers by agreement: {chosen}", flush=True)

    pairs = agreement(runner, whole)
    (runner.out / "agreement.json").write_text(json.dumps(pairs) + "\n")
    print("\nlayers apart   share of the later layer's keys that the earlier one has, %: selections, oracles")
    for distance in range(1, min(args.layers, max(args.every) + 1)):
        print(f"{distance:12d} {percent(by_distance(pairs['selections'], distance)):>12s} {percent(by_distance(pairs['oracles'], distance)):>10s}")
    neighbours = [f"{percent(pairs['selections'][a][a + 1])}" for a in range(args.layers - 1)]
    print("neighbours, by layer, selections:", " ".join(neighbours))
    neighbours = [f"{percent(pairs['oracles'][a][a + 1])}" for a in range(args.layers - 1)]
    print("neighbours, by layer, oracles:   ", " ".join(neighbours))
    return 0


if __name__ == "__main__":
    sys.exit(main())

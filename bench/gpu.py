#!/usr/bin/env python3
"""Measures the CUDA operators beside torch's own attention, in one run on one GPU.

    make bench-gpu                                 build and run everything (about two minutes on an H200)
    make bench-gpu ARGS="--only decode attend"     the cases whose names contain one of these words
    make bench-gpu ARGS="--list"                   the cases, without running them

By hand, with any libgsa.so that holds the CUDA operators:

    python3 bench/gpu.py --library build/release/libgsa.so --json build/bench-gpu.json

On a trained layer's tensors (gsa_bench_tensors writes them; make bench-trained does it all), and on distributions:

    bench/gpu.py --library ... --tensors tensors/small-8k           every operation: random | trained | ratio | dense
    bench/gpu.py --library ... --suite layer --tensors tensors/*    a whole layer at 16K, 32K, 128K and 8 x 8K; trained
                                                                    tensors join where they have the shape
    bench/gpu.py --library ... --inputs crowded ties --shape 128k   scores that crowd together, exact ties, ...

The columns of these tables are explained in bench/gpu_layer.py. Random inputs there have the union/k of the trained
ones (3 in a suite) and as many keys: their mean k, or --k for both, or in a suite the shape's.

What is measured without these options: a layer of 32 query heads and 8 key/value heads of 128, bfloat16, 4 indexer
heads of 64, k = 2048, one sequence, causal. Times are medians of device events, with the L2 cache emptied before each
run. Short cases run as CUDA graphs, ours and the standard alike. The standard is torch's scaled_dot_product_attention
by cuDNN or FlashAttention, whichever is faster in this run. Its backward pass adds up dq, dk, dv with atomics, not
reproducibly; ours does so only where asked to ('atomic'): that row compares like with like, 'ordered' is the default.

How to read the table: 'ours' and 'standard' are milliseconds unless a unit is given, 'ratio' is standard over ours
(above 1: we are faster). 'must' and 'aim' are the limits that the project set itself, either for 'ours' or for the
'ratio'. 'union/k' says how many keys 16 neighbouring queries select together, over what one of them selects: trained
models show 2 to 6, independent random inputs are the worst case.
"""

import argparse
import json
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_inputs  # noqa: E402
from gpu_dense import Dense  # noqa: E402
from gpu_inputs import (  # noqa: E402
    KINDS,
    TILE,
    attention,
    indexer,
    masks_with_union,
    normal,
    overlapping_indexer,
    random_layers,
    selected_overlap,
    union_keys,
)
from gpu_layer import OPERATIONS, SHAPES, SUITES, asked_for, compare, typical_k  # noqa: E402
from gpu_tensors import files_of, read_layer, shape_of  # noqa: E402
from gpu_timing import HostTimer, Timer, peak_above  # noqa: E402

K = 2048
LONG, MIDDLE, SHORT, HUGE = 131072, 32768, 4096, 1 << 20
MUST_TFLOPS = 550  # executed by attend, lists of keys included
BUDGET = dict(budget="fixed", k_base=K, k_min=1, k_max=K)
INDEX_SCALE = 64**-0.5

gsa = torch.ops.gsa


def stage(tensors, index, **options):
    return gsa.sparse_attend(*tensors, *index, index_scale=INDEX_SCALE, **BUDGET, **options)


# ---- cases: each takes a Timer and yields rows. A row: name, ours [, standard, unit, must, aim, note].


def select_128k(timer):
    q, k, w, bias = indexer(LONG, 64)
    ours = timer.median(lambda: gsa.select(q, k, w, bias, scale=INDEX_SCALE, **BUDGET))
    yield dict(name="select, 128K", ours=ours, must=15, aim=12)


def attend_128k(timer):
    q, k, v = attention(LONG)
    for ratio in (1.5, 2, 3, 6):
        mask, overlap = masks_with_union(LONG, K, ratio)
        ours = timer.median(lambda: gsa.attend(q, k, v, mask))
        # Executed: the rows of a tile, 16 queries of 32 heads, with every key of its union, two products.
        tflop = 4e-12 * union_keys(mask) * TILE * q.size(2) * q.size(3)
        limits = dict(must=round(1000 * tflop / MUST_TFLOPS, 1)) if ratio <= 3 else {}
        note = f"union/k {overlap:.2f}, {1000 * tflop / ours:.0f} TFLOPS executed"
        yield dict(name=f"attend forward, 128K, union/k = {ratio}", ours=ours, note=note, **limits)


def stage_128k(timer):
    tensors = attention(LONG)
    standard, by = Dense.forward(timer.median, *tensors)
    index, overlap = overlapping_indexer(LONG, BUDGET)
    ours = timer.median(lambda: stage(tensors, index))
    yield dict(name="whole stage, 128K, overlapping", ours=ours, standard=standard, must_ratio=5.5, aim_ratio=8,
               note=f"union/k {overlap:.2f}, {by}")  # fmt: skip
    extra = peak_above(lambda: stage(tensors, index), lambda value: value)
    yield dict(name="whole stage, 128K: extra memory", ours=extra / 1e6, unit="MB", must=1000)
    index = indexer(LONG, 0)
    overlap = selected_overlap(index, BUDGET, LONG)
    ours = timer.median(lambda: stage(tensors, index))
    yield dict(name="whole stage, 128K, independent", ours=ours, standard=standard, note=f"union/k {overlap:.2f}, {by}")


def decode_128k(timer):
    page = 64
    blocks = LONG // page
    for batch, limits in ((1, {}), (8, dict(must_ratio=8, aim_ratio=16)), (16, {})):
        pages = [normal(batch * blocks, page, 8, 128) for _ in range(2)]
        index_k = normal(batch * blocks, page, 64)
        table = torch.randperm(batch * blocks, device="cuda").view(batch, blocks).to(torch.int32)
        lengths = torch.full((batch,), LONG, device="cuda", dtype=torch.int32)
        q, z = normal(batch, 1, 32, 128), normal(batch, 1, 32, 128)
        index = normal(batch, 1, 4, 64), index_k, normal(batch, 1, 4).sigmoid(), normal(4)

        def step():
            return gsa.decode(q, *pages, table, lengths, *index, z, max_length=LONG, index_scale=INDEX_SCALE, **BUDGET)

        ours = timer.graph(step)
        keys, values = (p.view(batch, LONG, 8, 128) for p in pages)
        standard, by = Dense.forward(timer.graph, q, keys, values, causal=False)
        yield dict(name=f"decode, 128K, {batch} sequence{'s' if batch > 1 else ''}", ours=1000 * ours,
                   standard=1000 * standard, unit="us", note=f"{by}; gate included", **limits)  # fmt: skip

        def lead():
            return gsa.decode_with_selection(
                q, *pages, table, lengths, *index, z, max_length=LONG, index_scale=INDEX_SCALE, **BUDGET
            )

        k_t, selected = lead()[2:]

        def follow():
            return gsa.decode(
                q, *pages, table, lengths, gate=z, max_length=LONG, selected=selected, selected_k=k_t
            )

        for name, call in (("selection given out", lead), ("selection taken", follow)):
            yield dict(name=f"decode, 128K, {batch}: {name}", ours=1000 * timer.graph(call), unit="us")
        del pages, index_k, keys, values, index


def training(timer, tokens, name, **limits):
    tensors = attention(tokens)
    dout = normal(1, tokens, 32, 128)
    index, overlap = overlapping_indexer(tokens, BUDGET)
    leaves = [t.detach().requires_grad_() for t in tensors]
    standard, by = Dense.forward_backward(timer.graph, *tensors, dout)
    for accumulation in ("ordered", "atomic"):
        ours = timer.graph(
            lambda: torch.autograd.grad(stage(leaves, index, accumulation=accumulation)[0], leaves, dout)
        )
        order = "deterministic" if accumulation == "ordered" else f"atomics, as {by} has them"
        yield dict(name=f"forward + backward, {name}, {accumulation}", ours=ours, standard=standard,
                   note=f"union/k {overlap:.2f}, {by}; {order}", **(limits if accumulation == "ordered" else {}))  # fmt: skip


def training_32k(timer):
    yield from training(timer, MIDDLE, "32K", must_ratio=1.5, aim_ratio=3)


def training_4k(timer):
    yield from training(timer, SHORT, "4K", must_ratio=1 / 1.5, aim_ratio=1 / 1.05)


def warmup_32k(timer):
    q, k, v = attention(MIDDLE)
    index = [t.requires_grad_() for t in indexer(MIDDLE, 64)]
    lse = gsa.attend(q, k, v)[1]
    weight = torch.full((1, MIDDLE), 1 / MIDDLE, device="cuda")

    def step():
        loss, index_lse = gsa.indexer_kl(q, k, lse, *index, index_scale=INDEX_SCALE)
        return loss, index_lse, *torch.autograd.grad(loss, index, weight)

    extra = peak_above(step, lambda value: value)
    yield dict(name="KL warm-up, 32K: extra memory", ours=extra / 1e6, unit="MB", must=500, aim=200)
    yield dict(name="KL warm-up, 32K: loss and gradients", ours=timer.median(step))


def forward_1m(timer):
    tensors = attention(HUGE)
    index = indexer(HUGE, 64)
    peak = peak_above(lambda: stage(tensors, index), lambda value: value)
    ours = timer.once(lambda: stage(tensors, index))
    yield dict(name="one layer, 1M tokens, forward", ours=ours, note=f"extra memory {peak / 1e6:.0f} MB")


def gate_bandwidth(timer):
    x, z = normal(1, LONG, 32, 128), normal(1, LONG, 32, 128)
    copied = timer.median(lambda: x.clone())
    ours = timer.median(lambda: gsa.gate(x, z))
    rate = 3 * x.nbytes / ours / 1e9
    yield dict(name="gate, 128K", ours=ours, note=f"{rate:.2f} TB/s; a copy: {2 * x.nbytes / copied / 1e9:.2f} TB/s")
    dy = normal(1, LONG, 32, 128)
    backward = timer.median(lambda: gsa.gate_backward(dy, x, z))
    yield dict(name="gate backward, 128K", ours=backward, note=f"{5 * x.nbytes / backward / 1e9:.2f} TB/s")


def skinny_linear(timer):
    """The products of a layer of the paper's 1.7B in a decoding step, with norms, SwiGLU and residual sums; each of
    four layers has weights of its own."""
    size, inner, columns, layers = 2048, 5504, 5960, 4
    shapes = ((columns, size), (size, size), (2 * inner, size), (size, inner))
    weights = [[0.02 * normal(*shape) for shape in shapes] for _ in range(layers)]
    norm, bias = torch.ones(size, device="cuda", dtype=torch.bfloat16), 0.02 * normal(columns)
    for rows in (1, 8, 16):
        start, attended = normal(rows, size), normal(rows, size)

        def ours():
            x = start
            for into, out, up, down in weights:
                gsa.skinny_linear(x, into, norm, bias, eps=1e-6, settled=True)
                x = gsa.skinny_linear(attended, out, residual=x, settled=True)
                hidden = gsa.skinny_linear(x, up, norm, eps=1e-6, swiglu=True, settled=True)
                x = gsa.skinny_linear(hidden, down, residual=x, settled=True)
            return x

        def by_torch():
            x, linear = start, F.linear
            for into, out, up, down in weights:
                linear(gsa.rms_norm(x, None, norm, 1e-6)[0], into, bias)
                y, x, _ = gsa.rms_norm(x, linear(attended, out), norm, 1e-6)
                x = x + linear(gsa.swiglu(linear(y, up)), down)
            return x

        mine, standard = timer.graph(ours), timer.graph(by_torch)
        rate = sum(w.nbytes for layer in weights for w in layer) / mine / 1e9
        yield dict(name=f"products of a layer, {rows} row{'s' if rows > 1 else ''}", ours=1000 * mine / layers,
                   standard=1000 * standard / layers, unit="us", note=f"{rate:.2f} TB/s; torch's product")  # fmt: skip


CASES = {
    "select": select_128k,
    "attend": attend_128k,
    "stage": stage_128k,
    "decode": decode_128k,
    "skinny_linear": skinny_linear,
    "train32k": training_32k,
    "train4k": training_4k,
    "warmup": warmup_32k,
    "million": forward_1m,
    "gate": gate_bandwidth,
}


# ---- report


def verdict(row):
    """'aim', 'must' or 'MISSED' where there is a limit to be held."""
    ratio = row["standard"] / row["ours"] if "standard" in row else None
    for name in ("aim", "must"):
        if name in row and row["ours"] <= row[name]:
            return name
        if f"{name}_ratio" in row and ratio >= row[f"{name}_ratio"]:
            return name
    return "MISSED" if "must" in row or "must_ratio" in row else ""


def number(value):
    return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def limit(row, name):
    if name in row:
        return f"{row[name]:g}"
    return f"{row[name + '_ratio']:.2g}x" if f"{name}_ratio" in row else ""


def line(row):
    ratio = number(row["standard"] / row["ours"]) + "x" if "standard" in row else ""
    unit = row.get("unit", "ms")
    return (
        f"{row['name']:<42} {limit(row, 'must'):>6} {limit(row, 'aim'):>6} {number(row['ours']):>8} {unit:<3}"
        f"{number(row.get('standard')):>8} {ratio:>7}  {verdict(row):<6} {row.get('note', '')}"
    )


HEADER = f"{'case':<42} {'must':>6} {'aim':>6} {'ours':>8} {'':<3}{'standard':>8} {'ratio':>7}  {'holds':<6}"


# ---- one layer on trained tensors and on distributions


OVERLAP = 3.0  # union/k of random inputs where no trained ones say otherwise


def layer_groups(args):
    """For each table its layers, 'random' first, and the goal of its shape."""
    files = {}
    for file in args.files:
        files.setdefault(shape_of(file), []).append(file)
    if files and not args.suite:
        for shape, paths in files.items():
            trained = [read_layer(path, args.device, args.k) for path in paths]
            overlaps, keys = [], []
            for layer in trained:
                overlaps.append(layer.overlap())
                keys.append(typical_k(layer))
                layer.facts += f", k {keys[-1]}, union/k {overlaps[-1]:.2f}"
            k, wanted = round(sum(keys) / len(keys)), sum(overlaps) / len(overlaps)
            yield random_layers(shape, k, wanted) + trained, None
        return
    for name in args.shape:
        goal = SHAPES[name]
        k = args.k or goal.k
        trained = [read_layer(path, args.device, k) for path in files.get(goal.shape, [])]
        for layer in trained:
            layer.facts += f", k {k}, union/k {layer.overlap():.2f}"
        yield random_layers(goal.shape, k, OVERLAP, args.inputs) + trained, goal if args.suite and k == goal.k else None


def run_layers(timer, args):
    """Rows of all tables, and the names of what failed."""
    rows, failed = [], []
    for layers, goal in layer_groups(args):
        for row in compare(timer, layers, args.sample, args.only, goal, args.beside == "like"):
            rows.append(dict(shape=str(layers[0].shape), inputs={x.label: x.facts for x in layers}, **row))
            failed += [row["name"]] if "failed" in row else []
            if row.get("lost"):
                return rows, failed
    return rows, failed


def run_cases(timer, args):
    """The same of the cases at the top of this file."""
    print(HEADER)
    rows, failed = [], []
    for name, case in CASES.items():
        if not asked_for(name, args.only, CASES):
            continue
        start = time.time()
        print(f"[{name}]", file=sys.stderr, flush=True)
        try:
            for row in case(timer):
                rows.append(row)
                print(line(row), flush=True)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except torch.AcceleratorError as error:  # the device refuses all further work of this process
            failed.append(name)
            print(f"{name}: FAILED: {str(error).splitlines()[0]}; nothing more can run", flush=True)
            break
        except RuntimeError as error:  # one broken case must not lose the others
            failed.append(name)
            print(f"{name}: FAILED: {str(error).splitlines()[0]}", flush=True)
        print(f"[{name}: {time.time() - start:.0f} s]", file=sys.stderr, flush=True)
    return rows, failed


# ---- the command line


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libgsa.so with the CUDA operators")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD",
                        help="cases (with the options below: operations) of these names, or whose name contains one of these words")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each measurement (default 1)")
    parser.add_argument("--json", type=pathlib.Path, help="write all numbers to this file")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    layer = parser.add_argument_group("one layer, instead of the cases")
    layer.add_argument("--tensors", nargs="+", default=[], metavar="PATH",
                       help="files of gsa_bench_tensors, or folders of them")  # fmt: skip
    layer.add_argument("--inputs", nargs="+", default=[], choices=KINDS, metavar="KIND",
                       help=f"distributions beside the random one: {', '.join(KINDS)}")  # fmt: skip
    layer.add_argument("--suite", choices=SUITES, help="layer: the shapes that the project has limits for")
    layer.add_argument("--shape", nargs="+", default=[], choices=SHAPES, metavar="SHAPE",
                       help=f"{', '.join(SHAPES)} (default: 32k and 8x8k; in a suite, all that it has)")  # fmt: skip
    layer.add_argument("--k", type=positive, help="a fixed budget of so many keys, not a model's or a shape's own")
    layer.add_argument("--sample", type=positive, default=64, metavar="N",
                       help="the sampled KL takes one of N query tiles (default 64, as in training)")  # fmt: skip
    layer.add_argument("--beside", choices=("like", "fastest"), default="like",
                       help="dense attention beside ordered rows: deterministic too, or the fastest of all")  # fmt: skip
    layer.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                       help="cpu: to try files and small shapes without a GPU; the times say little")  # fmt: skip
    args = parser.parse_args(arguments)
    args.of_layer = bool(args.tensors or args.inputs or args.suite)
    if not args.of_layer:
        for option, default in (("shape", []), ("k", None), ("sample", 64), ("beside", "like"), ("device", "cuda")):
            if getattr(args, option) != default:
                parser.error(f"--{option}: expected --tensors, --inputs or --suite beside it, got none")
    names = OPERATIONS if args.of_layer else CASES
    if unknown := [word for word in args.only if not any(word in name for name in names)]:
        parser.error(f"--only: expected some of {', '.join(names)}, got {unknown[0]!r}")
    if args.inputs and (args.tensors or args.suite):
        parser.error("--inputs: expected a table of its own, got --tensors or --suite beside it")
    if args.tensors and args.shape and not args.suite:
        parser.error("--shape: expected none beside --tensors, whose files have their shapes, unless with --suite")
    if not args.shape:
        args.shape = SUITES[args.suite] if args.suite else ("32k", "8x8k")
    try:
        args.files = files_of(args.tensors)
        if args.suite:
            shapes = [SHAPES[name].shape for name in args.shape]
            if unfit := [file for file in args.files if shape_of(file) not in shapes]:
                raise ValueError(f"expected the shapes of the suite, got {unfit[0]} with {shape_of(unfit[0])}")
    except (ValueError, ImportError) as error:
        parser.error(f"--tensors: {error}")
    if args.list:
        print("\n".join(names))
        sys.exit(0)
    if not args.library or not pathlib.Path(args.library).is_file():
        parser.error(f"--library: expected the path of libgsa.so, got {args.library!r}")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("bench/gpu.py: no CUDA device here")
    return args


def main():
    args = parse()
    torch.ops.load_library(args.library)
    if args.device == "cuda" and not gsa.built_with_cuda():
        sys.exit(f"bench/gpu.py: {args.library} is built without the CUDA operators (cmake -DGSA_CUDA=ON)")
    gpu_inputs.device = args.device
    torch.manual_seed(1)
    machine = dict(
        gpu=torch.cuda.get_device_name() if args.device == "cuda" else "none",
        torch=torch.__version__,
        cudnn=torch.backends.cudnn.version(),
        date=time.strftime("%Y-%m-%d %H:%M"),
    )
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    timer = Timer(args.seconds) if args.device == "cuda" else HostTimer()
    rows, failed = (run_layers if args.of_layer else run_cases)(timer, args)
    if args.json:
        args.json.write_text(json.dumps(dict(machine=machine, rows=rows, failed=failed), indent=1))
        print(f"written: {args.json}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures a training step of the standard system by plain torch: what a user would have without gsa.

    make bench-train                                          gsa_bench_train and then this, on a GPU: one table
    python3 bench/train_torch.py --case small                 by hand: cases whose name contains the word
    python3 bench/train_torch.py --device cpu --case tiny     a look at it without a GPU

The model is a Llama-shaped decoder with the sizes of our presets: RMSNorm, rotary embedding, grouped-query attention
by scaled_dot_product_attention, SwiGLU. It goes through torch.compile block by block, output projection and loss as one
piece more; all of it as one (--whole) takes longer to compile and ran no faster with `small`. On a GPU it computes in
bfloat16 by autocast with fp32 weights, on a CPU in fp32, with fused AdamW on both. A step is what gsa_bench_train takes
for one: forward, cross-entropy, backward, gradient norm and clipping, AdamW, on random tokens, until the host has read
the loss. Compilation comes before and does not count. tests/program/test_train_torch.py shows that at equal weights the
loss is that of our standard system.

How to read the table: medians of whole steps; TFLOPS count what the model needs (docs/model.md), 'share' is that over
--peak-tflops; 'memory' is the most that tensors took (on a CPU what the process holds). With --beside, the results of
gsa_bench_train follow, and '/ torch' is their speed over that of torch: above 1, gsa is faster. Where they are of a
trained model (gsa_bench_train --model), the cases are its sizes and shapes; the weights here are random all the same,
on which the time of dense attention does not depend.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import math
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-5  # of RMSNorm
THETA = 10000.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool

    def training_operations(self, length):
        """Of one sequence, as gsa::nn::estimate_cost counts: matrix products and attention, three times forward."""
        matrices = 2 * self.width * self.head_size * (self.heads + self.kv_heads) + 3 * self.width * self.intermediate
        pairs = length * (length + 1) // 2
        layer = 2 * length * matrices + 4 * self.heads * self.head_size * pairs
        return 3 * (self.layers * layer + 2 * length * self.vocabulary * self.width)


PRESETS = {
    "tiny": Sizes(4, 128, 4, 2, 32, 352, 258, tied=True),
    "small": Sizes(8, 512, 8, 2, 64, 1408, 32768, tied=True),
    "paper-1.7b": Sizes(24, 2048, 16, 4, 128, 5504, 151936, tied=False),
}


# ---- the model; parameters carry Llama's names


def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return (wide * scale * self.weight).to(x.dtype)


def rotation(length, size):
    """Cosines and sines [length, 1, size / 2]."""
    frequency = THETA ** (-torch.arange(size // 2, dtype=torch.float64) * 2 / size)
    angle = torch.arange(length, dtype=torch.float64)[:, None, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.head_size = sizes.head_size
        self.q_proj = linear(sizes.width, sizes.heads * sizes.head_size)
        self.k_proj = linear(sizes.width, sizes.kv_heads * sizes.head_size)
        self.v_proj = linear(sizes.width, sizes.kv_heads * sizes.head_size)
        self.o_proj = linear(sizes.heads * sizes.head_size, sizes.width)

    def forward(self, x, cos, sin):
        q, k, v = (p(x).unflatten(-1, (-1, self.head_size)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (t.transpose(1, 2) for t in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.gate_proj = linear(sizes.width, sizes.intermediate)
        self.up_proj = linear(sizes.width, sizes.intermediate)
        self.down_proj = linear(sizes.intermediate, sizes.width)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.input_layernorm = Norm(sizes.width)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = Norm(sizes.width)
        self.mlp = SwiGlu(sizes)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)


class Model(nn.Module):
    """Tokens and targets [B, length] -> mean cross-entropy. stream: the type of the residual stream."""

    def __init__(self, sizes, length, stream=torch.float32):
        super().__init__()
        self.stream = stream
        self.model = Decoder(sizes)
        self.lm_head = None if sizes.tied else linear(sizes.width, sizes.vocabulary)
        for name, table in zip(("cos", "sin"), rotation(length, sizes.head_size)):
            self.register_buffer(name, table, persistent=False)

    def forward(self, tokens, targets):
        x = self.model.embed_tokens(tokens).to(self.stream)
        for layer in self.model.layers:
            x = layer(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        output = self.model.embed_tokens if self.lm_head is None else self.lm_head
        logits = F.linear(self.model.norm(x), output.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def compiled(model, whole):
    """By blocks, which are alike and so are compiled once, or as a whole."""
    if whole:
        return torch.compile(model, dynamic=False)
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    model.loss = torch.compile(model.loss, dynamic=False)
    return model


# ---- measuring


@dataclasses.dataclass(frozen=True)
class Case:
    preset: str
    sequences: int
    length: int

    @property
    def name(self):
        length = f"{self.length // 1024}K" if self.length % 1024 == 0 else self.length
        return f"{self.preset} torch {self.sequences}x{length}"


CASES = {
    "cpu": [Case("tiny", 4, 1024), Case("small", 4, 1024), Case("small", 1, 4096)],
    "cuda": [Case("small", 16, 4096), Case("paper-1.7b", 4, 4096), Case("paper-1.7b", 1, 32768)],
}


def trained_cases(results):
    """The shapes of gsa_bench_train's results of a trained model, whose sizes become a preset of its name."""
    cases = []
    for result in results:
        PRESETS[result["preset"]] = Sizes(**result["sizes"])
        cases.append(Case(result["preset"], result["sequences"], result["length"]))
    return list(dict.fromkeys(cases))


class Steps:
    """A model, its optimiser and random tokens; a call is a step, which returns the loss."""

    def __init__(self, case, device, whole):
        torch.manual_seed(1)
        on_gpu = device == "cuda"
        sizes = PRESETS[case.preset]
        with torch.device(device):
            model = Model(sizes, case.length, torch.bfloat16 if on_gpu else torch.float32)
            tokens = torch.randint(sizes.vocabulary, (case.sequences, case.length + 1))
        self.inputs = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.autocast = torch.autocast(device, torch.bfloat16) if on_gpu else contextlib.nullcontext()
        self.parameters = list(model.parameters())
        self.model = compiled(model, whole)
        decays = [p for p in self.parameters if p.dim() > 1]
        others = [p for p in self.parameters if p.dim() <= 1]
        groups = [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)

    def __call__(self):
        with self.autocast:
            loss = self.model(*self.inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def memory_in_use(device):
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    resident = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(resident) * 4096


def measure(case, device, steps, whole):
    """A result with the keys that those of gsa_bench_train have."""
    torch.compiler.reset()  # every case gets code for its own shape
    gc.collect()  # a compiled model refers to itself
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = Steps(case, device, whole)
    for _ in range(3):
        step()
    samples = []
    while len(samples) < steps if steps else len(samples) < 3 or (sum(samples) < 1 and len(samples) < 15):
        start = time.perf_counter()
        loss = step()
        samples.append(time.perf_counter() - start)
    seconds = statistics.median(samples)
    tokens = case.sequences * case.length
    return {
        "case": case.name,
        "preset": case.preset,
        "sequences": case.sequences,
        "length": case.length,
        "parameters": sum(p.numel() for p in step.parameters),
        "tokens_a_step": tokens,
        "tokens_a_second": tokens / seconds,
        "median_s": seconds,
        "samples_s": samples,
        "operations": case.sequences * PRESETS[case.preset].training_operations(case.length),
        "memory_bytes": memory_in_use(device),
        "loss": loss,
    }


# ---- report


def row(*cells):
    return "  {:<36} {:>10} {:>10} {:>9} {:>7} {:>10} {:>6} {:>8}".format(*cells)


HEADER = row("model, sequences x length", "tokens/s", "step", "TFLOPS", "share", "memory", "runs", "/ torch")


def line(result, peak, torch_seconds):
    speed = result["operations"] / result["median_s"]
    return row(
        result["case"],
        f"{result['tokens_a_second']:.0f}",
        f"{1e3 * result['median_s']:.1f} ms",
        f"{1e-12 * speed:.2f}",
        f"{speed / peak:.2f}" if peak else "",
        f"{1e-9 * result['memory_bytes']:.1f} GB",
        len(result["samples_s"]),
        f"{torch_seconds / result['median_s']:.2f}",
    )


def same_shape(a, b):
    return all(a[key] == b[key] for key in ("preset", "sequences", "length"))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda where it is")
    parser.add_argument("--case", action="append", default=[], metavar="NAME",
                        help="only cases whose name contains NAME (repeat for more)")  # fmt: skip
    parser.add_argument("--steps", type=int, default=0, help="steps that are timed (default: 3 to 15, about a second)")
    parser.add_argument("--whole", action="store_true", help="compile the model in one piece: a minute more for 1.7B")
    parser.add_argument("--peak-tflops", type=float, default=0, help="what the device could do (H200, bf16: 989)")
    parser.add_argument("--beside", type=pathlib.Path, metavar="FILE", help="what gsa_bench_train wrote")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("build/bench-train-torch.json"),
                        help="file for the results (default %(default)s)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    args = parser.parse_args()
    available = torch.cuda.is_available()
    if args.device == "auto":
        args.device = "cuda" if available else "cpu"
    if args.device == "cuda" and not available:
        parser.error("--device: expected a device that is there, got cuda, and torch finds no GPU")
    if args.steps < 0 or args.peak_tflops < 0 or not math.isfinite(args.peak_tflops):
        parser.error("--steps, --peak-tflops: expected numbers from 0 on")
    args.ours, cases = [], CASES[args.device]
    if args.beside:
        try:
            document = json.loads(args.beside.read_text(encoding="utf-8"))
            args.ours = document["results"]
            if not document["device"].startswith(args.device):
                parser.error(f"--beside: expected results of {args.device}, got those of {document['device']}")
            if "trained" in document:
                cases = trained_cases(args.ours)
        except (OSError, ValueError, KeyError) as error:
            parser.error(f"--beside: expected a file that gsa_bench_train wrote, got {args.beside}: {error}")
    args.cases = [c for c in cases if not args.case or any(part in c.name for part in args.case)]
    if not args.cases:
        names = ", ".join(c.name for c in cases)
        parser.error(f"--case: expected a part of one of {names}, got none that fits")
    return args


def main():
    args = parse()
    if args.list:
        print("\n".join(case.name for case in args.cases))
        return
    try:  # before the long part
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text("{}\n", encoding="utf-8")
    except OSError as error:
        sys.exit(f"bench/train_torch.py: --json: expected a file that can be written: {error}")
    peak = 1e12 * args.peak_tflops
    document = {"device": args.device, "torch": torch.__version__, "peak_flops": peak, "results": []}
    how = "bf16 autocast, fp32 weights" if args.device == "cuda" else "fp32"
    print(f"\nA training step by torch {torch.__version__}: torch.compile, {how}, fused AdamW")
    print(HEADER)
    for case in args.cases:
        print(f"[{case.name}: compiling, timing]", file=sys.stderr, flush=True)
        result = measure(case, args.device, args.steps, args.whole)
        document["results"].append(result)
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        for each in [result, *(ours for ours in args.ours if same_shape(ours, result))]:
            print(line(each, peak, result["median_s"]), flush=True)
        torch.compiler.reset()  # the next model is another one


if __name__ == "__main__":
    main()

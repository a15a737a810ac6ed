"""Operations of one layer, timed on several inputs of one shape: random ones, distributions, a trained model's.

A row of the table is an operation. Columns:
    random          ms on random inputs with overlapping neighbours
    trained, worst  ms on the given inputs: the mean of them, and the slowest ('given' where they are --inputs)
    worst/r         worst over random: what the benchmark's random inputs would have hidden
    dense           ms of torch's attention on the same q, k, v: the faster of cuDNN and FlashAttention, forward for
                    forward and forward + backward for what has both; like with like, see below
    dense/r, /t     dense over random and over trained: above 1, sparse is faster
    any/r, /t       the same with the fastest dense attention of all, where 'dense' is not that one
    must, holds     limits of the project for dense/t (for dense/r where there are no trained tensors)
and behind them the ms on each of the given inputs, and whose attention 'dense' is.

Like with like: a backward pass either accumulates its gradients in a fixed order, so that they are the same bits in
every run (deterministic; our 'ordered', the default), or by atomics in whatever order threads arrive, which is faster.
The rows 'layer, ...' are ordered and stand beside the fastest dense attention that is deterministic too: what torch
still runs under torch.use_deterministic_algorithms(True). That is FlashAttention; torch refuses cuDNN there, whose
backward pass it calls not deterministic. The rows 'layer, ..., atomic' stand beside the fastest of all. Columns any/r
and any/t compare across: ordered, beside the fastest of all. Forward passes are deterministic everywhere. The limits
hold for 'layer, KL of a sample' and for its atomic form, each beside its like. --beside fastest: every row stands
beside the fastest dense attention of all, and no other is timed (a deterministic one takes seconds a run at 128K).
"""

import dataclasses
import statistics
import sys

import gpu_inputs
import torch
from gpu_dense import Dense
from gpu_inputs import Shape, normal

QUERY_TILE = 64  # kQueryTile of include/gsa/tensor_view.h
PAGE = 64

gsa = torch.ops.gsa


@dataclasses.dataclass(frozen=True)
class Goal:
    """A shape by name, the keys that its queries select, and dense/ours that a whole layer must and should reach."""

    shape: Shape
    k: int
    must: float | None = None
    aim: float | None = None


SHAPES = {
    "16k": Goal(Shape(1, 16384, 16, 4, 128, 4, 64), 2048, 1.0, 1.2),
    "32k": Goal(Shape(1, 32768, 16, 4, 128, 4, 64), 2048, 1.5, 2.0),
    "128k": Goal(Shape(1, 131072, 16, 4, 128, 4, 64), 2048, 4.0, 5.0),
    "8x8k": Goal(Shape(8, 8192, 8, 2, 64, 4, 32), 1024),
    "tiny": Goal(Shape(2, 256, 4, 2, 32, 2, 16), 32),  # to try it: no suite has it
}
SUITES = {"layer": ("16k", "32k", "128k", "8x8k")}


def sampled_tiles(rows, tokens, parts):
    """Numbers of the query tiles that a sampled loss takes: of every `parts` neighbours one, drawn with a fixed seed,
    so that early (cheap) and late (dear) queries have their share."""
    tiles = rows * -(-tokens // QUERY_TILE)
    generator = torch.Generator().manual_seed(1)
    numbers = torch.arange(0, tiles, parts)
    numbers += torch.randint(parts, numbers.shape, generator=generator)
    return numbers.clamp_(max=tiles - 1)


def keeps_mask(shape):
    """Whether a layer keeps the selection's mask for the backward pass and the loss (kernels/attention/kept_mask.h)."""
    return 4 * -(-shape.tokens // 32) <= 4 * 2 * shape.heads * shape.size


# ---- operations: each takes a timer, a Layer and the parts of a sample, and gives milliseconds


def attend(layer, tensors, accumulation="ordered"):
    """As a layer does it: (out, lse, support of the loss, k_t)."""
    call = gsa.sparse_attend_with_mask if keeps_mask(layer.shape) else gsa.sparse_attend
    result = call(*tensors, *layer.index, **layer.scores, **layer.budget, accumulation=accumulation)
    support = dict(mask=result[6]) if len(result) == 7 else dict(threshold=result[4], tie_cut=result[5])
    return result[0], result[1], support


def time_select(timer, layer, parts):
    return timer.graph(layer.select)


def time_attend(timer, layer, parts):
    mask = layer.select()[0]
    return timer.graph(lambda: gsa.attend(*layer.attention, mask))


def time_stage(timer, layer, parts):
    return timer.graph(lambda: gsa.sparse_attend(*layer.attention, *layer.index, **layer.scores, **layer.budget))


def time_backward(accumulation):
    def run(timer, layer, parts):
        with torch.no_grad():
            result = gsa.sparse_attend(*layer.attention, *layer.index, **layer.scores, **layer.budget)
            mask = layer.select()[0] if keeps_mask(layer.shape) else None
        out, lse, k_t, _, threshold, tie_cut = result
        dout, most = normal(*out.shape).to(out.dtype), int(k_t.max())
        arguments = dout, *layer.attention, *layer.index, out, lse, threshold, tie_cut, mask
        return timer.graph(
            lambda: gsa.sparse_attend_backward(
                *arguments, **layer.scores, max_selected=most, accumulation=accumulation
            )
        )

    return run


class Loss:
    """The indexer's loss over what was selected, or (parts) over all keys of a sample of the queries."""

    def __init__(self, layer, parts=None):
        self.layer, shape = layer, layer.shape
        self.leaves = [t.detach().requires_grad_() if t is not None else None for t in layer.index]
        self.wanted = [t for t in self.leaves if t is not None]
        self.tiles = None if parts is None else sampled_tiles(shape.rows, shape.tokens, parts)
        queries = shape.rows * shape.tokens
        self.weight = torch.full((shape.rows, shape.tokens), (parts or 1) / queries, device=gpu_inputs.device)

    def forward(self, lse, support):
        q, k, _ = self.layer.attention
        if self.tiles is not None:
            lse, support = gsa.attend_lse(q, k, query_tiles=self.tiles), dict(query_tiles=self.tiles)
        return gsa.indexer_kl(q, k, lse, *self.leaves, **support, **self.layer.scores)[0]


def time_kl(sampled):
    def run(timer, layer, parts):
        loss = Loss(layer, parts if sampled else None)
        with torch.no_grad():
            _, lse, support = attend(layer, layer.attention)
        return timer.graph(lambda: torch.autograd.grad(loss.forward(lse, support), loss.wanted, loss.weight))

    return run


def time_layer(sampled, accumulation):
    def run(timer, layer, parts):
        loss = Loss(layer, parts if sampled else None)
        leaves = [t.detach().requires_grad_() for t in layer.attention]
        dout = normal(*leaves[0].shape).to(leaves[0].dtype)

        def step():
            out, lse, support = attend(layer, leaves, accumulation)
            kl = loss.forward(lse, support)
            return torch.autograd.grad([out, kl], [*leaves, *loss.wanted], [dout, loss.weight])

        return timer.graph(step)

    return run


def paged(tensor, order):
    """[rows, tokens, ...] in pages of PAGE positions, the page of a block where `order` puts it."""
    rows, tokens = tensor.shape[:2]
    blocks = -(-tokens // PAGE)
    padded = tensor.new_zeros(rows, blocks * PAGE, *tensor.shape[2:])
    padded[:, :tokens] = tensor
    pages = torch.empty_like(padded).view(rows * blocks, PAGE, *tensor.shape[2:])
    pages[order.flatten().long()] = padded.view(pages.shape)
    return pages


def time_decode(timer, layer, parts):
    shape, device = layer.shape, gpu_inputs.device
    q, k, v = layer.attention
    index_q, index_k, index_w, bias = layer.index
    blocks = -(-shape.tokens // PAGE)
    table = torch.randperm(shape.rows * blocks, device=device).view(shape.rows, blocks).to(torch.int32)
    lengths = torch.full((shape.rows,), shape.tokens, device=device, dtype=torch.int32)
    pages = [paged(t, table) for t in (k, v)]
    last = [t[:, -1:].contiguous() for t in (q, index_q, index_w)]
    index = last[1], paged(index_k, table), last[2], bias
    gate = layer.gate if layer.gate is not None else normal(*last[0].shape).to(q.dtype)
    return timer.graph(
        lambda: gsa.decode(
            last[0], *pages, table, lengths, *index, gate, max_length=shape.tokens, **layer.scores, **layer.budget
        )
    )


# Name -> (operation, what torch's attention is timed for beside it; time_dense() knows these).
OPERATIONS = {
    "select": (time_select, None),
    "attend forward": (time_attend, "forward"),
    "select + attend forward": (time_stage, "forward"),
    "backward, ordered": (time_backward("ordered"), None),
    "backward, atomic": (time_backward("atomic"), None),
    "KL over selected keys": (time_kl(sampled=False), None),
    "KL of a sample, all keys": (time_kl(sampled=True), None),
    "layer, KL of a sample": (time_layer(True, "ordered"), "deterministic training"),
    "layer, KL of a sample, atomic": (time_layer(True, "atomic"), "training"),
    "layer, KL selected": (time_layer(False, "ordered"), "deterministic training"),
    "layer, KL selected, atomic": (time_layer(False, "atomic"), "training"),
    "decode": (time_decode, "decode"),
}
FASTEST_OF_ALL = {"deterministic training": "training"}  # beside what was kept to deterministic backends
WITH_GOAL = ("layer, KL of a sample", "layer, KL of a sample, atomic")


def time_dense(timer, layer, what):
    """(milliseconds, backend)."""
    q, k, v = layer.attention
    if what == "forward":
        return Dense.forward(timer.graph, q, k, v)
    if what == "decode":
        return Dense.forward(timer.graph, q[:, -1:], k, v, causal=False)
    dout = normal(*q.shape).to(q.dtype)
    return Dense.forward_backward(timer.graph, q, k, v, dout, deterministic=what == "deterministic training")


# ---- report


def typical_k(layer):
    """Mean of k_t over the second half of the sequences, where what is visible hardly bounds it."""
    k_t = layer.select()[1]
    return round(k_t[:, k_t.size(1) // 2 :].float().mean().item())


def summary(name, times, dense=None, fastest=None, goal=None):
    """A row. times: milliseconds by label, 'random' among them. dense: (milliseconds, backend) by label, of torch's
    attention with the same accumulation; fastest: its non-deterministic one, where that is another."""
    row = dict(name=name, ms=times, random=times["random"])
    given = [label for label in times if label != "random"]
    if given:
        row["trained"] = statistics.fmean(times[label] for label in given)
        row["worst"] = max(times[label] for label in given)
        row["worst_over_random"] = row["worst"] / row["random"]
    for key, beside in (("dense", dense), ("fastest_dense", fastest)):
        if not beside:
            continue
        ms = {label: beside[label][0] for label in times}
        row[f"{key}_ms"], row[f"{key}_by"] = ms, {label: beside[label][1] for label in times}
        row[f"{key}_over_random"] = ms["random"] / times["random"]
        row[key] = statistics.fmean(ms[label] for label in given or ["random"])
        if given:
            row[f"{key}_over_trained"] = row[key] / row["trained"]
    if dense and goal and goal.must:
        ratio = row.get("dense_over_trained", row["dense_over_random"])
        row["must"] = goal.must
        row["holds"] = "aim" if ratio >= goal.aim else "must" if ratio >= goal.must else "MISSED"
    return row


def number(value):
    return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def cells(name, *values):
    return f"{name:<31}" + "".join(f" {value:>8}" for value in values[:-1]) + f"  {values[-1]}"


def header(given):
    ratios = [f"{name}/{letter}" for name in ("dense", "any") for letter in ("r", given[0])]
    return cells("", "random", given, "worst", "worst/r", "dense", *ratios, "must", "holds, each, dense by")


COLUMNS = (
    "random", "trained", "worst", "worst_over_random", "dense", "dense_over_random", "dense_over_trained",
    "fastest_dense_over_random", "fastest_dense_over_trained", "must",
)  # fmt: skip


def line(row):
    each = [number(ms) for label, ms in row["ms"].items() if label != "random"]
    by = " or ".join(dict.fromkeys(row.get("dense_by", {}).values()))
    rest = " ".join(filter(None, [row.get("holds", ""), ", ".join(each), by]))
    return cells(row["name"], *(number(row.get(key)) for key in COLUMNS), rest)


def asked_for(name, only, names):
    """Whether --only asks for a name: by itself, or by a word that it contains and that is no name itself."""
    return not only or any(word == name or (word not in names and word in name) for word in only)


def compare(timer, layers, parts, only=(), goal=None, like=True):
    """Prints a table of the operations on layers of one shape, the first of them 'random'; yields its rows. One that
    failed has the key 'failed', and 'lost' where nothing more can run. like: ordered rows stand beside deterministic
    attention."""
    print(f"\n{layers[0].shape}; the sampled KL takes 1/{parts} of the queries; ms")
    for layer in layers:
        print(f"  {layer.label}: {layer.facts}")
    print(header("given" if any(layer.label in gpu_inputs.KINDS for layer in layers) else "trained"))
    dense = {}  # by what is timed: it does not depend on the operation beside it
    for name, (operation, beside) in OPERATIONS.items():
        if not asked_for(name, only, OPERATIONS):
            continue
        print(f"[{name}]", file=sys.stderr, flush=True)
        try:
            times = {layer.label: operation(timer, layer, parts) for layer in layers}
            others = [what for what in (beside, FASTEST_OF_ALL.get(beside)) if what]
            others = others if like else others[-1:]
            for what in others:
                if what not in dense:
                    dense[what] = {layer.label: time_dense(timer, layer, what) for layer in layers}
        except (RuntimeError, AttributeError) as error:  # an operator that refuses, or that the library has not
            print(f"{name}: FAILED: {str(error).splitlines()[0]}", flush=True)
            # After such an error the device refuses all further work of this process.
            yield dict(name=name, failed=str(error), lost=isinstance(error, torch.AcceleratorError))
            continue
        row = summary(name, times, *(dense.get(what) for what in others), goal=goal if name in WITH_GOAL else None)
        print(line(row), flush=True)
        yield row
        if gpu_inputs.device != "cpu":
            torch.cuda.empty_cache()

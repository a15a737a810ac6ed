"""Mistakes: every message names the operator, the argument, what was expected and what came."""

import re

import pytest
import torch

import reference
from problems import make, pack

gsa = torch.ops.gsa
L, S = 6, 9


def calls():
    """A good call of each operator, by keyword."""
    p = make(batch=2, queries=L, keys=S, heads=4, kv_heads=2, size=8, index_heads=3, index_size=8)
    plain = dict(q=p.index_q, k=p.index_k, w=p.index_w, bias=p.index_bias)
    indexer = dict(index_q=p.index_q, index_k=p.index_k, index_w=p.index_w, index_bias=p.index_bias)
    attention = dict(q=p.q, k=p.k, v=p.v)
    mask, k_t, variance, threshold, tie_cut = gsa.select(*p.indexer(), k_min=1)
    out, lse = gsa.attend(p.q, p.k, p.v)
    selection = dict(threshold=threshold, tie_cut=tie_cut)
    passed = dict(out=out, lse=lse)
    kl = dict(q=p.q, k=p.k, lse=lse) | indexer
    absent = dict(mask=None, threshold=None, tie_cut=None)
    return {
        "select": plain | dict(k_min=1),
        "select_mask": plain | selection,
        "index_scores": plain,
        "attend": attention | dict(mask=mask),
        "attend_backward": attention | passed | dict(dout=out, mask=mask),
        "attend_lse": dict(q=p.q, k=p.k),
        "sparse_attend": attention | indexer | dict(k_min=1),
        "sparse_attend_backward": attention | indexer | passed | selection | dict(dout=out),
        "gate": dict(x=p.q, z=p.q),
        "gate_backward": dict(dy=p.q, x=p.q, z=p.q),
        "indexer_kl": kl | absent,
        "indexer_kl_backward": kl | absent | dict(dloss=variance, index_lse=variance),
    }


def arguments(op):
    return calls()[op]


OPS = list(calls())
INDEXER = ["select", "select_mask", "index_scores"]
ATTENTION = ["attend", "attend_backward", "sparse_attend", "sparse_attend_backward"]
WITH_INDEX = ["sparse_attend", "sparse_attend_backward", "indexer_kl", "indexer_kl_backward"]
KL = ["indexer_kl", "indexer_kl_backward"]
SAMPLED = KL + ["attend_lse"]
SEQUENCES = INDEXER + ATTENTION + SAMPLED


def expect_error(op, argument, changes):
    call = arguments(op)
    for name, change in changes.items():
        call[name] = change(call[name]) if callable(change) else change
    message = rf"gsa::{op}: argument '{argument}': expected .+, got .+"
    with pytest.raises(RuntimeError, match=message) as info:
        getattr(gsa, op)(**call)
    assert re.match(message, str(info.value)), "the message stands at the front"


def huge(*shape):
    return torch.zeros(()).expand(*shape)


def case(ops, argument, label, **changes):
    changes = changes or {}
    return [pytest.param(op, argument, changes, id=f"{op}-{argument}-{label}") for op in ops]


def integers(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


int_type = lambda t: t.int()
half = lambda t: t.half()
double = lambda t: t.double()
drop = lambda t: t[0]
narrow = lambda t: t[..., :-1]
no_heads = lambda t: t[..., :0, :]
meta = lambda t: t.to("meta")
future = lambda mask: pack(reference.visible(L, S).expand(2, -1, -1).roll(1, -1) | reference.visible(L, S))

visible_bool = lambda: reference.visible(L, S).expand(2, -1, -1)
visible_mask = lambda: pack(reference.visible(L, S).expand(2, -1, -1))

CASES = sum(
    [
        # ranks and shapes
        *[case(SEQUENCES, name, "rank", **{name: drop}) for name in ("q", "k")],
        *[case(INDEXER, name, "shape", **{name: narrow}) for name in ("k", "w", "bias")],
        case(ATTENTION, "v", "rank", v=drop),
        case(ATTENTION, "v", "size", v=narrow),
        case(ATTENTION + SAMPLED, "k", "size", k=narrow),
        case(ATTENTION + SAMPLED, "k", "heads", k=lambda t: torch.cat([t, t[:, :, :1]], 2)),
        case(ATTENTION + SAMPLED, "k", "no-heads", k=no_heads),
        case(ATTENTION + SAMPLED, "q", "no-heads", q=no_heads),
        case(SEQUENCES, "k", "batch", k=lambda t: t[:1]),
        case(SEQUENCES, "k", "fewer-keys", k=lambda t: t[:, : L - 1]),
        case(SEQUENCES, "k", "no-keys", k=lambda t: t[:, :0]),
        *[case(WITH_INDEX, name, "rank", **{name: drop}) for name in ("index_q", "index_k")],
        *[case(WITH_INDEX, name, "shape", **{name: narrow}) for name in ("index_k", "index_w", "index_bias")],
        case(WITH_INDEX, "index_q", "tokens", index_q=lambda t: t[:, 1:]),
        case(WITH_INDEX, "index_k", "tokens", index_k=lambda t: t[:, 1:]),
        case(WITH_INDEX, "index_q", "size257", index_q=lambda t: torch.zeros(2, L, 3, 257)),
        case(WITH_INDEX, "index_q", "heads129", index_q=lambda t: torch.zeros(2, L, 129, 8)),
        case(INDEXER, "q", "size257", q=lambda t: torch.zeros(2, L, 3, 257)),
        case(INDEXER, "q", "heads129", q=lambda t: torch.zeros(2, L, 129, 8)),
        case(INDEXER, "q", "no-heads", q=no_heads),
        case(INDEXER, "q", "size0", q=lambda t: t[..., :0]),
        case(ATTENTION + SAMPLED, "q", "size257", q=lambda t: torch.zeros(2, L, 4, 257)),
        case(ATTENTION + SAMPLED, "q", "size0", q=lambda t: t[..., :0]),
        case(["attend", "attend_backward"], "mask", "words", mask=lambda t: torch.cat([t, t], -1)),
        case(["attend", "attend_backward"], "mask", "rows", mask=lambda t: t[:, 1:]),
        case(["attend", "attend_backward"], "mask", "type", mask=lambda t: t.long()),
        case(["attend", "attend_backward"] + KL, "mask", "bool", mask=lambda _: visible_bool()),
        case(["attend", "attend_backward"], "mask", "future", mask=future),
        case(["attend", "attend_backward"], "mask", "beyond-keys", mask=lambda t: torch.full_like(t, -1)),
        case(KL, "mask", "words", mask=lambda _: torch.zeros(2, L, 2, dtype=torch.int32)),
        case(KL, "mask", "future", mask=future),
        *[case([op], "dout", "shape", dout=narrow) for op in ("attend_backward", "sparse_attend_backward")],
        *[case([op], "out", "shape", out=narrow) for op in ("attend_backward", "sparse_attend_backward")],
        *[case([op], "lse", "shape", lse=narrow) for op in ATTENTION[1::2] + KL],
        *[case([op], "lse", "type", lse=half) for op in ATTENTION[1::2] + KL],
        *[
            case([op], name, "shape", **{name: narrow})
            for op in ("select_mask", "sparse_attend_backward")
            for name in ("threshold", "tie_cut")
        ],
        *[
            case([op], "threshold", "type", threshold=double)
            for op in ("select_mask", "sparse_attend_backward")
        ],
        *[
            case([op], "tie_cut", "type", tie_cut=lambda t: t.long())
            for op in ("select_mask", "sparse_attend_backward")
        ],
        # samples: two sequences of one tile each
        case(SAMPLED, "query_tiles", "rank", query_tiles=torch.zeros(1, 1, dtype=torch.int64)),
        case(SAMPLED, "query_tiles", "type", query_tiles=torch.zeros(1)),
        case(SAMPLED, "query_tiles", "beyond", query_tiles=integers(0, 2)),
        case(SAMPLED, "query_tiles", "negative", query_tiles=integers(-1)),
        case(SAMPLED, "query_tiles", "twice", query_tiles=integers(1, 1)),
        case(SAMPLED, "query_tiles", "falling", query_tiles=integers(1, 0, dtype=torch.int32)),
        case(KL, "query_tiles", "mask", query_tiles=integers(0), mask=lambda _: visible_mask()),
        case(
            KL,
            "query_tiles",
            "threshold",
            query_tiles=integers(0),
            threshold=lambda _: torch.zeros(2, L),
            tie_cut=lambda _: torch.zeros(2, L, dtype=torch.int32),
        ),
        case(["indexer_kl_backward"], "dloss", "shape", dloss=narrow),
        case(["indexer_kl_backward"], "index_lse", "shape", index_lse=narrow),
        case(["gate", "gate_backward"], "x", "rank", x=lambda t: t.flatten()),
        case(["gate", "gate_backward"], "z", "shape", z=narrow),
        case(["gate", "gate_backward"], "z", "heads", z=lambda t: t[..., :2, 0]),
        case(["gate_backward"], "dy", "shape", dy=narrow),
        # types
        case(SEQUENCES, "q", "type", q=int_type),
        case(SEQUENCES, "k", "mixed-types", k=half),
        case(INDEXER, "w", "mixed-types", w=double),
        case(INDEXER, "bias", "mixed-types", bias=double),
        case(ATTENTION, "v", "mixed-types", v=half),
        case(WITH_INDEX, "index_q", "mixed-types", index_q=half, index_k=half, index_w=half, index_bias=half),
        case(WITH_INDEX, "index_w", "mixed-types", index_w=half),
        case(["gate", "gate_backward"], "x", "type", x=int_type),
        case(["gate", "gate_backward"], "z", "mixed-types", z=half),
        # devices
        case(SEQUENCES, "k", "device", k=meta),
        case(ATTENTION, "v", "device", v=meta),
        case(INDEXER, "w", "device", w=meta),
        case(WITH_INDEX, "index_k", "device", index_k=meta),
        case(["gate", "gate_backward"], "z", "device", z=meta),
        # numbers and names
        case(INDEXER, "scale", "nan", scale=float("nan")),
        case(ATTENTION + SAMPLED, "scale", "inf", scale=float("inf")),
        case(WITH_INDEX, "index_scale", "inf", index_scale=float("inf")),
        case(INDEXER + WITH_INDEX, "form", "name", form="tanh"),
        *[
            case(["select", "sparse_attend"], argument, label, **changes)
            for argument, label, changes in [
                ("budget", "name", dict(budget="adaptive")),
                ("k_min", "above-k_max", dict(k_min=11, k_max=10)),
                ("k_min", "zero", dict(k_min=0)),
                ("k_max", "zero", dict(k_min=1, k_max=0)),
                ("k_base", "zero", dict(k_base=0)),
                ("k_base", "beyond-int32", dict(k_base=2**40)),
                ("mean_variance", "two", dict(mean_variance=torch.zeros(2))),
                ("mean_variance", "type", dict(mean_variance=torch.tensor(1))),
                ("mean_variance", "nan", dict(mean_variance=torch.tensor(float("nan")))),
            ]
        ],
        # layout
        case(SEQUENCES, "q_position", "count", q_position=integers(0)),
        case(SEQUENCES, "q_position", "negative", q_position=integers(0, -1)),
        case(SEQUENCES, "q_position", "beyond", q_position=integers(0, S - L + 1)),
        case(SEQUENCES, "q_position", "overflow", q_position=integers(0, 2**63 - 1)),
        case(SEQUENCES, "q_position", "type", q_position=torch.zeros(2)),
        case(SEQUENCES, "q", "packed-rank", cu_seqlens_q=integers(0, 12), cu_seqlens_k=integers(0, 18)),
        case(INDEXER, "max_keys", "batched", max_keys=S),
        # sizes beyond reason, of tensors that take no memory
        case(
            ATTENTION,
            "q",
            "huge-length",
            q=huge(1, 2**40, 4, 8),
            k=huge(1, 2**40, 2, 8),
            v=huge(1, 2**40, 2, 8),
        ),
        case(
            ATTENTION,
            "q",
            "huge-batch",
            q=huge(2**40, 1, 4, 8),
            k=huge(2**40, 1, 2, 8),
            v=huge(2**40, 1, 2, 8),
        ),
        case(ATTENTION, "q", "huge-product", q=huge(2**31, 2**31, 1, 1), k=huge(2**31, 2**31, 1, 1)),
        case(ATTENTION, "q", "many-sequences", q=huge(2**25, 1, 1, 1), k=huge(2**25, 1, 1, 1)),
        case(
            ["attend"],
            "q",
            "huge-heads",
            q=huge(1, 1, 2**40, 8),
            k=huge(1, 1, 1, 8),
            v=huge(1, 1, 1, 8),
            mask=None,
        ),
        case(ATTENTION + SAMPLED, "q", "many-heads", q=torch.zeros(2, L, 2**16 + 2, 8)),
        case(INDEXER, "q", "huge-length", q=huge(1, 2**40, 1, 8), k=huge(1, 2**40, 8), w=huge(1, 2**40, 1)),
        case(
            ["select"],
            "q",
            "huge-mask",
            q=huge(1, 2**30, 1, 8),
            k=huge(1, 2**30, 8),
            w=huge(1, 2**30, 1),
            bias=None,
        ),
        case(
            ["index_scores"],
            "q",
            "huge-scores",
            q=huge(1, 2**30, 1, 8),
            k=huge(1, 2**30, 8),
            w=huge(1, 2**30, 1),
            bias=None,
        ),
        case(["gate"], "x", "huge", x=huge(2**40, 2, 2), z=huge(2**40, 2, 2)),
        case(["gate"], "x", "huge-product", x=huge(2**20, 2**20, 2**20, 1), z=huge(2**20, 2**20, 2**20)),
    ],
    [],
)


@pytest.mark.parametrize("op, argument, changes", CASES)
def test_error(op, argument, changes):
    expect_error(op, argument, changes)


def packed(op):
    call = {
        name: value.flatten(0, 1) if isinstance(value, torch.Tensor) and value.dim() > 1 else value
        for name, value in arguments(op).items()
    }
    return call | dict(cu_seqlens_q=integers(0, 6, 12), cu_seqlens_k=integers(0, 9, 18))


PACKED = [
    ("cu_seqlens_q", "absent", dict(cu_seqlens_q=None)),
    ("cu_seqlens_k", "absent", dict(cu_seqlens_k=None)),
    ("cu_seqlens_q", "start", dict(cu_seqlens_q=integers(1, 6, 12))),
    ("cu_seqlens_q", "end", dict(cu_seqlens_q=integers(0, 6, 11))),
    ("cu_seqlens_q", "decreasing", dict(cu_seqlens_q=integers(0, 13, 12))),
    ("cu_seqlens_k", "decreasing", dict(cu_seqlens_k=integers(0, -1, 18))),
    ("cu_seqlens_k", "end", dict(cu_seqlens_k=integers(0, 9, 19))),
    ("cu_seqlens_q", "type", dict(cu_seqlens_q=torch.tensor([0.0, 6, 12]))),
    ("cu_seqlens_q", "rank", dict(cu_seqlens_q=integers(0, 6, 12).unsqueeze(0))),
    ("cu_seqlens_q", "empty", dict(cu_seqlens_q=integers())),
    ("cu_seqlens_k", "count", dict(cu_seqlens_k=integers(0, 6, 9, 18))),
    ("k", "fewer-keys", dict(cu_seqlens_k=integers(0, 5, 18))),
    ("q_position", "beyond", dict(q_position=integers(4, 0))),
    ("q_position", "count", dict(q_position=integers(0, 0, 0))),
]


@pytest.mark.parametrize("op", SEQUENCES)
@pytest.mark.parametrize("argument, label, changes", PACKED, ids=[f"{a}-{b}" for a, b, _ in PACKED])
def test_packed_error(op, argument, label, changes):
    with pytest.raises(RuntimeError, match=rf"gsa::{op}: argument '{argument}': expected .+, got .+"):
        getattr(gsa, op)(**(packed(op) | changes))


@pytest.mark.parametrize("op", INDEXER)
def test_max_keys_error(op):
    with pytest.raises(RuntimeError, match=rf"gsa::{op}: argument 'max_keys': expected .+, got 8"):
        getattr(gsa, op)(**packed(op), max_keys=8)
    assert getattr(gsa, op)(**packed(op), max_keys=9) is not None


@pytest.mark.parametrize("op", KL)
def test_support_given_twice_or_by_half(op):
    call = arguments(op)
    mask, _, _, threshold, tie_cut = gsa.select(
        *(call[name] for name in ("index_q", "index_k", "index_w", "index_bias")), k_min=1
    )
    for argument, changes in [
        ("threshold", dict(mask=mask, threshold=threshold, tie_cut=tie_cut)),
        ("tie_cut", dict(threshold=threshold)),
        ("threshold", dict(tie_cut=tie_cut)),
    ]:
        with pytest.raises(RuntimeError, match=f"gsa::{op}: argument '{argument}': expected .+, got .+"):
            getattr(gsa, op)(**(call | changes))


def test_a_bool_mask_gets_a_hint():
    """The words that pack_mask makes are what the message asks for."""
    call = arguments("attend")
    with pytest.raises(RuntimeError, match="gsa::pack_mask"):
        gsa.attend(**(call | dict(mask=visible_bool())))
    gsa.attend(**(call | dict(mask=gsa.pack_mask(visible_bool()))))


@pytest.mark.parametrize("keys", [0, 1, 31, 32, 33, 100])
def test_pack_mask(keys):
    mask = torch.rand(2, 5, keys) < 0.5
    mask[0, 0] = True
    assert torch.equal(gsa.pack_mask(mask), pack(mask))
    assert torch.equal(gsa.pack_mask(mask.transpose(0, 1)), pack(mask.transpose(0, 1)))
    for wrong in (mask.int(), torch.tensor(True)):
        with pytest.raises(RuntimeError, match="gsa::pack_mask: argument 'mask': expected .+, got .+"):
            gsa.pack_mask(wrong)


@pytest.mark.parametrize("op", OPS)
def test_the_good_call_is_good(op):
    """The call that the cases above change is right as it stands."""
    getattr(gsa, op)(**arguments(op))


@pytest.mark.parametrize("op", SEQUENCES)
def test_the_good_packed_call_is_good(op):
    getattr(gsa, op)(**packed(op))

"""gsa::decode: the newest queries against a paged cache, compared with select, attend and gate on the same keys
laid out densely."""

import pytest
import torch

from problems import FLOATS, assert_same_bits, everywhere

gsa = torch.ops.gsa
BUDGET = dict(budget="fixed", k_base=20, k_min=1, k_max=64)


class Cache:
    """Sequences of keys, values and indexer keys, dense and in pages that lie in random order."""

    def __init__(self, lengths, dtype, page=16, kv_heads=2, size=64, index_size=32):
        self.lengths, self.dtype = lengths, dtype
        self.max_length = max(max(lengths), 1) + 5
        blocks = -(-self.max_length // page)
        order = torch.randperm(len(lengths) * blocks + 3)
        self.block_table = order[: len(lengths) * blocks].view(len(lengths), blocks).to(torch.int32)
        self.dense = [
            (self.normal(n, kv_heads, size), self.normal(n, kv_heads, size), self.normal(n, index_size))
            for n in lengths
        ]
        # Rows that belong to no position hold NaN: nobody may look at them.
        shape = (len(order), page)
        self.pages = [
            torch.full((*shape, *tail), float("nan"), dtype=dtype)
            for tail in ((kv_heads, size), (kv_heads, size), (index_size,))
        ]
        for sequence, parts in enumerate(self.dense):
            for pages, rows in zip(self.pages, parts):
                for position, row in enumerate(rows):
                    pages[self.block_table[sequence, position // page], position % page] = row

    def normal(self, *shape):
        return torch.randn(*shape, dtype=torch.float64).to(self.dtype)

    def arguments(self):
        k, v, index_k = self.pages
        return k, v, self.block_table, torch.tensor(self.lengths, dtype=torch.int32), index_k


def inputs(cache, queries, heads=8, size=64, index_heads=4, index_size=32):
    batch = len(cache.lengths)
    return dict(
        q=2 * cache.normal(batch, queries, heads, size),
        index_q=2 * cache.normal(batch, queries, index_heads, index_size),
        index_w=cache.normal(batch, queries, index_heads).sigmoid(),
        index_bias=cache.normal(index_heads) / 2,
        gate=cache.normal(batch, queries, heads, size),
    )


def decode(cache, x, sparse=True, **options):
    k, v, block_table, lengths, index_k = cache.arguments()
    indexer = (x["index_q"], index_k, x["index_w"], x["index_bias"]) if sparse else (None, None, None, None)
    options = {**BUDGET, "gate": x["gate"], **options}
    return gsa.decode(
        x["q"], k, v, block_table, lengths, *indexer, max_length=cache.max_length, index_scale=0.2, **options
    )


def densely(cache, x, sequence, sparse=True, **options):
    """out, lse and k_t of one sequence by the three operators."""
    options = {**BUDGET, "gate": x["gate"], **options}
    gate = options.pop("gate")
    k, v, index_k = (t.unsqueeze(0) for t in cache.dense[sequence])
    row = lambda name: x[name][sequence : sequence + 1]
    mask, k_t = None, None
    if sparse:
        mask, k_t = gsa.select(
            row("index_q"), index_k, row("index_w"), x["index_bias"], scale=0.2, **options
        )[:2]
    out, lse = gsa.attend(row("q"), k, v, mask)
    return (out if gate is None else gsa.gate(out, gate[sequence : sequence + 1]))[0], lse[0], k_t


def check(cache, x, sparse=True, exact=False, **options):
    out, lse, k_t = decode(cache, x, sparse, **options)
    assert out.shape == x["q"].shape and lse.shape == out.shape[:-1] and k_t.shape == out.shape[:2]
    for sequence, length in enumerate(cache.lengths):
        if length == 0:
            assert out[sequence].isnan().all() and (k_t[sequence] == 0).all()
            continue
        expected, expected_lse, expected_k = densely(cache, x, sequence, sparse, **options)
        if exact:
            assert_same_bits(out[sequence], expected)
            assert_same_bits(lse[sequence], expected_lse)
        else:  # sums run in another order, and the gate is applied before the result is rounded
            unit = torch.finfo(out.dtype).eps
            torch.testing.assert_close(out[sequence], expected, rtol=2 * unit, atol=2 * unit)
            torch.testing.assert_close(lse[sequence], expected_lse, rtol=1e-5, atol=1e-5)
        if sparse:
            assert (k_t[sequence] == expected_k).all()


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
def test_equals_select_attend_and_gate(dtype, sparse, queries):
    cache = Cache([300, 17, 1000, queries, 64], dtype)
    x = inputs(cache, queries)
    check(cache, x, sparse, exact=not x["q"].is_cuda)


@pytest.mark.parametrize("dtype", everywhere(FLOATS), indirect=True)
def test_gates_and_budgets(dtype):
    cache = Cache([200, 90], dtype, page=8)
    x = inputs(cache, 2)
    check(cache, x, gate=None)
    check(cache, x, gate=x["gate"][..., 0])
    check(cache, x, budget="inverse", mean_variance=torch.tensor(0.02, dtype=torch.float64))
    check(cache, x, form="relu")


@pytest.mark.parametrize("dtype", everywhere([torch.bfloat16]), indirect=True)
def test_unused_sequences(dtype):
    """A length of 0 has no query: NaN, and nothing selected; its neighbours do not notice."""
    cache = Cache([40, 0, 7], dtype)
    check(cache, inputs(cache, 1))


@pytest.mark.parametrize("dtype", everywhere([torch.bfloat16]), indirect=True)
def test_interleaved_cache(dtype):
    """Keys and values side by side in one tensor: pages are strided."""
    cache = Cache([130, 70], dtype)
    x = inputs(cache, 1)
    before = decode(cache, x)
    both = torch.stack(cache.pages[:2], dim=2)
    cache.pages[:2] = both.unbind(2)
    for a, b in zip(decode(cache, x), before):
        assert_same_bits(a, b)


def test_mistakes_are_named():
    cache = Cache([30, 20], torch.float32)
    x = inputs(cache, 1)
    k, v, block_table, lengths, index_k = cache.arguments()
    good = [x["q"], k, v, block_table, lengths, x["index_q"], index_k, x["index_w"]]
    gsa.decode(*good, max_length=30)

    def wrong(argument, position, value, **options):
        arguments = list(good)
        arguments[position] = value
        with pytest.raises(RuntimeError, match=f"gsa::decode: argument '{argument}'"):
            gsa.decode(*arguments, **{"max_length": 30, **options})

    wrong("q", 0, x["q"][0])
    wrong("q", 0, x["q"].expand(2, 17, 8, 64))
    wrong("k", 1, k[:, :12])
    wrong("k", 1, k[:, :, :, :32])
    wrong("v", 2, v[:-1])
    wrong("block_table", 3, block_table.long())
    wrong("block_table", 3, block_table + 1000)
    wrong("lengths", 4, lengths[:1])
    wrong("lengths", 4, lengths + 20)
    wrong("index_k", 6, None)
    wrong("index_w", 7, x["index_w"].bfloat16())
    wrong("max_length", 0, x["q"], max_length=0)
    wrong("max_length", 0, x["q"], max_length=10**6)

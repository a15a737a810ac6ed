"""gsa::decode: the newest queries against a paged cache, compared with select, attend and gate on the same keys
laid out densely: on the CPU the same bits. And the indexer's keys in eight bits."""

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


def lead(cache, x, **options):
    k, v, block_table, lengths, index_k = cache.arguments()
    options = {**BUDGET, "gate": x["gate"], "max_length": cache.max_length, "index_scale": 0.2, **options}
    indexer = x["index_q"], index_k, x["index_w"], x["index_bias"]
    return gsa.decode_with_selection(x["q"], k, v, block_table, lengths, *indexer, **options)


def follow(cache, x, selected, selected_k, **options):
    options = {"gate": x["gate"], "max_length": cache.max_length, **options}
    k, v, block_table, lengths, _ = cache.arguments()
    return gsa.decode(
        x["q"], k, v, block_table, lengths, selected=selected, selected_k=selected_k, **options
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


def small_call(sample):
    """Pages of 8 positions: 5 blocks for each of 2 sequences of 33 and 40 keys."""
    normal = lambda *shape: torch.randn(*shape)
    block_table = torch.randperm(12)[:10].view(2, 5).to(torch.int32)
    lengths = torch.tensor([33, 40], dtype=torch.int32)
    keys, index_keys = (normal(12, 8, 2, 8) for _ in range(2)), normal(12, 8, 8)
    queries = sample.p.q.detach().reshape(-1, 4, 8)[:6].reshape(2, 3, 4, 8)
    return (queries, *keys, block_table, lengths, normal(2, 3, 3, 8), index_keys, normal(2, 3, 3), normal(3))


def forward_cases(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    arguments, options = small_call(sample), dict(sample.BUDGET, max_length=40)
    in_bytes = list(arguments)
    in_bytes[6], scale = gsa.quantize_index_keys(in_bytes[6])
    of_bytes = tuple(in_bytes), dict(options, index_k_scale=scale)
    # Positions that another call has selected.
    _, _, k_t, selected = gsa.decode_with_selection(*arguments, **options)
    return {
        "decode": (arguments, options),
        "decode-bytes": of_bytes,
        "decode-follower": (arguments[:5], dict(max_length=40, selected=selected, selected_k=k_t)),
        "decode_with_selection": (arguments, options),
        "decode_with_selection-bytes": of_bytes,
        "quantize_index_keys": ((torch.randn(3, 4, 8),), {}),
    }


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("dtype", everywhere(FLOATS + [torch.float64]), indirect=True)
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


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_a_prompt_in_chunks_is_the_prompt_at_once(sparse):
    """On the CPU a prompt goes through in chunks of any size, and every query gets the bits of one pass."""
    cache = Cache([90], torch.bfloat16)
    x = inputs(cache, 90)
    whole = decode(cache, x, sparse)
    check(cache, x, sparse, exact=True)
    for step in (1, 7, 32):
        for first in range(0, 90, step):
            part = {name: t if name == "index_bias" else t[:, first : first + step] for name, t in x.items()}
            cache.lengths = [min(first + step, 90)]
            for got, expected in zip(decode(cache, part, sparse), whole):
                assert_same_bits(got, expected[:, first : first + step])


@pytest.mark.parametrize("page", [8, 64, 1024])
def test_page_sizes(page):
    cache = Cache([1030, 1024, 1, 63], torch.float32, page=page)
    check(cache, inputs(cache, 1), exact=True)


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("dtype", everywhere(FLOATS + [torch.float64]), indirect=True)
def test_keys_of_eight_bits(dtype, strided):
    """The key is index_k * index_k_scale: on the CPU the selection is that of select() on these numbers."""
    cache = Cache([300, 17, 1000], dtype)
    x = inputs(cache, 2)
    k, v, block_table, lengths, index_k = cache.arguments()
    values, scale = gsa.quantize_index_keys(index_k)
    values[scale.isnan()] = 77  # rows of no position
    if strided:
        values, scale = (torch.stack([t, t], dim=1)[:, 0] for t in (values, scale))
    indexer = x["index_q"], values, x["index_w"], x["index_bias"]
    options = dict(BUDGET, gate=x["gate"], max_length=cache.max_length, index_scale=0.2, index_k_scale=scale)
    out, lse, k_t = gsa.decode(x["q"], k, v, block_table, lengths, *indexer, **options)
    real = torch.float64 if out.dtype == torch.float64 else torch.float32
    for sequence, (keys, values_of, index_keys) in enumerate(cache.dense):
        row = lambda name: x[name][sequence : sequence + 1]
        integers, factors = gsa.quantize_index_keys(index_keys)
        numbers = (integers.to(real) * factors.to(real).unsqueeze(-1)).unsqueeze(0)
        if out.is_cuda:  # scores are rounded otherwise there; the kernels' own tests compare selections
            assert (k_t[sequence] >= 16).all() and not out[sequence].isnan().any()
            continue
        mask, expected_k = gsa.select(
            row("index_q").to(real), numbers, row("index_w").to(real), x["index_bias"].to(real), scale=0.2, **BUDGET
        )[:2]
        expected, expected_lse = gsa.attend(row("q"), keys.unsqueeze(0), values_of.unsqueeze(0), mask)
        assert_same_bits(out[sequence], gsa.gate(expected, row("gate"))[0])
        assert_same_bits(lse[sequence], expected_lse[0])
        assert (k_t[sequence] == expected_k).all()


@pytest.mark.parametrize("dtype", everywhere(FLOATS + [torch.float64]), indirect=True)
def test_quantize_index_keys(dtype):
    keys = torch.randn(5, 7, 33, dtype=torch.float64).to(dtype) * 3
    values, scale = gsa.quantize_index_keys(keys)
    assert values.dtype == torch.int8 and values.shape == keys.shape
    assert scale.dtype == torch.float32 and scale.shape == keys.shape[:-1]
    numbers = values.double() * scale.double().unsqueeze(-1)
    assert ((numbers - keys.double()).abs() <= 0.50001 * scale.double().unsqueeze(-1)).all()
    assert (values.abs().amax(-1) == 127).all()  # the largest of a key uses the whole range
    # What eight bits hold exactly comes back exactly, and halves go to the even integer.
    exact = torch.tensor([[127, -127, 3, 0, -64], [127, 2.5, 3.5, -0.5, -1.5]]).to(dtype)
    values, scale = gsa.quantize_index_keys(exact)
    assert scale.tolist() == [1, 1]
    assert values.tolist() == [[127, -127, 3, 0, -64], [127, 2, 4, 0, -2]]


def test_quantize_index_keys_at_the_edges():
    nan, inf = float("nan"), float("inf")
    keys = torch.tensor([[0.0, -0.0], [nan, 1], [inf, 1], [-inf, inf], [1e-44, 0], [3e38, -1e38]])
    values, scale = gsa.quantize_index_keys(keys)
    assert values[:5].tolist() == [[0, 0], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert scale.isnan().tolist() == [False, True, True, True, False, False]
    assert scale[0] == 0 and values[5].tolist() == [127, -42]
    assert gsa.quantize_index_keys(torch.randn(0, 3, 4))[0].shape == (0, 3, 4)
    with pytest.raises(RuntimeError, match="gsa::quantize_index_keys: argument 'keys'"):
        gsa.quantize_index_keys(torch.ones(3, 4, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="gsa::quantize_index_keys: argument 'keys': .*, got d = 0"):
        gsa.quantize_index_keys(torch.ones(3, 0))


def test_a_bad_key_of_eight_bits_makes_nan():
    """NaN goes through the eight bits: no silently different selection."""
    cache = Cache([50], torch.float32)
    x = inputs(cache, 2)
    k, v, block_table, lengths, index_k = cache.arguments()
    values, scale = gsa.quantize_index_keys(index_k)
    scale[block_table[0, 3], 1] = gsa.quantize_index_keys(torch.tensor([float("inf"), 1]))[1]  # position 49
    out, lse, k_t = gsa.decode(
        x["q"], k, v, block_table, lengths, x["index_q"], values, x["index_w"],
        max_length=50, index_k_scale=scale, **BUDGET,
    )  # fmt: skip
    assert k_t.tolist() == [[20, 0]]
    assert not out[0, 0].isnan().any() and out[0, 1].isnan().all() and lse[0, 1].isnan().all()


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


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("dtype", everywhere(FLOATS + [torch.float64]), indirect=True)
def test_followers_have_the_bits_of_their_leader(dtype, queries):
    """Positions that a call has selected, given to another call for the same keys; and for other keys."""
    cache = Cache([300, 17, 1000, queries, 0, 64], dtype)
    x = inputs(cache, queries)
    alone = decode(cache, x)
    *leader, selected = lead(cache, x)
    for a, b in zip(leader, alone):
        assert_same_bits(a, b)
    assert selected.shape == (6, queries, 64) and selected.dtype == torch.int32
    k_t = leader[2]
    for row, count in zip(selected.flatten(0, 1).tolist(), k_t.flatten().tolist()):
        assert row[:count] == sorted(set(row[:count])) and row[count:] == [-1] * (64 - count)
    for a, b in zip(follow(cache, x, selected, k_t), alone):
        assert_same_bits(a, b)

    other = Cache(cache.lengths, dtype)  # another layer: its own queries and keys, the same pages
    other.block_table, other.dense = cache.block_table, [tuple(-t for t in parts) for parts in cache.dense]
    other.pages = [-t for t in cache.pages]
    y = inputs(other, queries)
    out, lse, counts = follow(other, y, selected, k_t)
    assert_same_bits(counts, k_t)
    for sequence, length in enumerate(cache.lengths):
        if length == 0:
            assert out[sequence].isnan().all()
            continue
        chosen = torch.zeros(1, queries, length, dtype=torch.bool)
        for query in range(queries):
            chosen[0, query, selected[sequence, query, : k_t[sequence, query]].long()] = True
        k, v, _ = (t.unsqueeze(0) for t in other.dense[sequence])
        expected, expected_lse = gsa.attend(y["q"][sequence : sequence + 1], k, v, gsa.pack_mask(chosen))
        expected = gsa.gate(expected, y["gate"][sequence : sequence + 1])[0]
        if out.is_cuda:
            unit = torch.finfo(out.dtype).eps
            torch.testing.assert_close(out[sequence], expected, rtol=2 * unit, atol=2 * unit)
            torch.testing.assert_close(lse[sequence], expected_lse[0], rtol=1e-5, atol=1e-5)
        else:
            assert_same_bits(out[sequence], expected)
            assert_same_bits(lse[sequence], expected_lse[0])


@pytest.mark.parametrize("dtype", everywhere([torch.bfloat16]), indirect=True)
def test_positions_may_be_anybodys(dtype):
    """Strided, of any width; a query without one gets NaN."""
    cache = Cache([130, 70], dtype)
    x = inputs(cache, 1)
    *leader, selected = lead(cache, x)
    wide = torch.full((2, 1, 200), -1, dtype=torch.int32)
    wide[..., ::2][..., :64] = selected
    for a, b in zip(follow(cache, x, wide[..., ::2], leader[2]), leader):
        assert_same_bits(a, b)
    out, lse, k_t = follow(cache, x, selected, torch.tensor([[0], [5]], dtype=torch.int32))
    assert out[0].isnan().all() and lse[0].isnan().all() and not out[1].isnan().any()
    assert k_t.tolist() == [[0], [5]]


def test_mistakes_of_followers_are_named():
    cache = Cache([30, 20], torch.float32)
    x = inputs(cache, 1)
    k_t, selected = lead(cache, x)[2:]
    follow(cache, x, selected, k_t)

    def wrong(argument, selected, selected_k, **options):
        with pytest.raises(RuntimeError, match=f"gsa::decode: argument '{argument}'"):
            follow(cache, x, selected, selected_k, **options)

    wrong("selected_k", selected, None)
    wrong("selected_k", None, k_t)
    wrong("selected_k", selected, k_t[:1])
    wrong("selected_k", selected, k_t.long())
    wrong("selected_k", selected, k_t + 40)
    wrong("selected_k", selected, -k_t)
    wrong("selected", selected.long(), k_t)
    wrong("selected", selected[0], k_t)
    wrong("selected", selected[..., :0], k_t)
    wrong("selected", selected.flip(-1), k_t)
    wrong("selected", selected + 30, k_t)
    indexer = dict(index_q=x["index_q"], index_k=cache.pages[2], index_w=x["index_w"])
    wrong("selected", selected, k_t, **indexer)


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

    wrong("q", 0, x["q"][:1].expand(2049, -1, -1, -1))  # sequences: the limit of the kernels
    wrong("q", 0, x["q"][0])
    wrong("index_q", 0, x["q"].expand(2, 17, 8, 64))
    wrong("k", 1, k[:, :12])
    wrong("k", 1, k[:, :, :, :32])
    wrong("v", 2, v[:-1])
    wrong("block_table", 3, block_table.long())
    wrong("block_table", 3, block_table + 1000)
    wrong("lengths", 4, lengths[:1])
    wrong("lengths", 4, lengths + 20)
    wrong("index_k", 6, None)
    wrong("index_w", 7, x["index_w"].bfloat16())
    scale = torch.ones(index_k.shape[:2])
    wrong("index_k", 0, x["q"], index_k_scale=scale)
    wrong("index_k", 6, index_k.char())
    wrong("index_k_scale", 6, index_k.char(), index_k_scale=scale.double())
    wrong("index_k_scale", 6, index_k.char(), index_k_scale=scale[1:])
    wrong("max_length", 0, x["q"], max_length=0)
    wrong("max_length", 0, x["q"], max_length=10**6)

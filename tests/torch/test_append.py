"""append against the chain of single operators that it stands for."""

import pytest
import torch

from problems import everywhere

ALL_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def rotated(x, cos, sin):
    """x [T, heads, d], the first 2 * pairs dimensions rotated, rounded to the type once."""
    pairs = cos.shape[1]
    c, s = cos[:, None], sin[:, None]
    a, b = x[..., :pairs].to(cos.dtype), x[..., pairs : 2 * pairs].to(cos.dtype)
    return torch.cat([(a * c - b * s).to(x.dtype), (b * c + a * s).to(x.dtype), x[..., 2 * pairs :]], -1)


def make(dtype, tokens=37, heads=4, kv=2, size=16, index=(3, 8, 2), gate="elementwise", output_gate=64, int8=False):
    """Arguments of append, and what it must give."""
    index_heads, index_size, index_pairs = index
    real = torch.float64 if dtype == torch.float64 else torch.float32
    gates = {"none": 0, "headwise": kv, "elementwise": kv * size}[gate]
    index_width = (index_heads + 1) * index_size if index_heads else 0
    w_column = (heads + 2 * kv) * size + index_width + gates + output_gate
    columns = w_column + index_heads + 5
    x = torch.randn(tokens, columns).to(dtype)
    table = lambda pairs: torch.randn(tokens, pairs, dtype=real)
    cos, sin, index_cos, index_sin = table(size // 2), table(size // 2), table(index_pairs), table(index_pairs)
    pages, page = 8, 16
    slots = torch.randperm(pages * page)[:tokens]
    pool = lambda *shape: torch.full((pages, page, *shape), 7.0).to(dtype)
    k, v, index_k = pool(kv, size), pool(kv, size), pool(index_size)
    scale = torch.full((pages, page), 7.0) if int8 else None
    if int8:
        index_k = torch.full((pages, page, index_size), 7, dtype=torch.int8)
    arguments = [x, cos, sin, index_cos, index_sin, slots, k, v, index_k, scale]
    if not index_heads:
        arguments[3:5], arguments[8:10] = [None, None], [None, None]
    options = dict(q_heads=heads, index_heads=index_heads, value_gate=gates, index_w_column=w_column)

    at = 0

    def take(width):
        nonlocal at
        at += width
        return x[:, at - width : at]

    expected = {"q": rotated(take(heads * size).view(tokens, heads, size), cos, sin)}
    expected["k"] = rotated(take(kv * size).view(tokens, kv, size), cos, sin)
    values = take(kv * size).view(tokens, kv, size)
    if index_heads:
        expected["index_q"] = rotated(take(index_heads * index_size).view(tokens, index_heads, -1), index_cos, index_sin)
        expected["index_k"] = rotated(take(index_size).view(tokens, 1, -1), index_cos, index_sin)[:, 0]
        expected["index_w"] = torch.sigmoid(x[:, w_column : w_column + index_heads].to(real))
    if gates:
        z = take(gates).to(real)
        z = z.view(tokens, kv, size) if gate == "elementwise" else z.view(tokens, kv, 1)
        values = values.to(real) * torch.sigmoid(z)
    expected["v"] = values
    return arguments, options, expected


def cases_without_gradients(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    return {"append": make(torch.float32)[:2]}


def check_close(actual, expected, dtype):
    """Equal up to one rounding of the type: sigmoids may differ in their last bit before it."""
    ulp = {torch.float64: 1e-14, torch.float32: 3e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    torch.testing.assert_close(actual.to(torch.float64), expected.to(torch.float64), rtol=2 * ulp, atol=2 * ulp)


@pytest.mark.parametrize("dtype", everywhere(ALL_TYPES), indirect=True)
@pytest.mark.parametrize("gate", ["none", "headwise", "elementwise"])
def test_chain_of_operators(dtype, gate):
    arguments, options, expected = make(dtype, gate=gate)
    slots, (k, v, index_k) = arguments[5], arguments[6:9]
    q, index_q, index_w = torch.ops.gsa.append(*arguments, **options)
    check_close(q, expected["q"], dtype)
    check_close(index_q, expected["index_q"], dtype)
    check_close(index_w, expected["index_w"], dtype)
    untouched = torch.ones(8 * 16, dtype=torch.bool)
    untouched[slots] = False
    for name, pool in (("k", k), ("v", v), ("index_k", index_k)):
        check_close(pool.flatten(0, 1)[slots], expected[name], dtype)
        assert (pool.flatten(0, 1)[untouched] == 7).all(), name


@pytest.mark.parametrize("dtype", everywhere(ALL_TYPES), indirect=True)
def test_dense_model(dtype):
    arguments, options, expected = make(dtype, index=(0, 0, 0), output_gate=0)
    q, index_q, index_w = torch.ops.gsa.append(*arguments, **options)
    assert index_q.numel() == index_w.numel() == 0
    check_close(q, expected["q"], dtype)
    check_close(arguments[7].flatten(0, 1)[arguments[5]], expected["v"], dtype)


@pytest.mark.parametrize("dtype", everywhere(ALL_TYPES), indirect=True)
def test_relu_weights_and_odd_sizes(dtype):
    arguments, options, expected = make(dtype, tokens=3, heads=6, kv=3, size=10, index=(5, 7, 1), output_gate=1)
    x, column = arguments[0], options["index_w_column"]
    q, index_q, index_w = torch.ops.gsa.append(*arguments, **options, sigmoid_w=False)
    check_close(q, expected["q"], dtype)
    check_close(index_q, expected["index_q"], dtype)
    check_close(index_w, x[:, column : column + 5].to(torch.float64) * 5**-0.5, dtype)


@pytest.mark.parametrize("dtype", everywhere(ALL_TYPES), indirect=True)
def test_eight_bit_keys_are_those_of_quantize(dtype):
    arguments, options, expected = make(dtype, int8=True)
    arguments[0][5] = 0  # a key of zeros
    arguments[0][6, options["index_w_column"] - 64 - 32 - 8] = float("nan")  # one that is not finite
    torch.ops.gsa.append(*arguments, **options)
    expected["index_k"][5] = 0
    expected["index_k"][6, 0] = float("nan")
    values, scale = torch.ops.gsa.quantize_index_keys(expected["index_k"])
    index_k, scales, slots = arguments[8].flatten(0, 1), arguments[9].flatten(0, 1), arguments[5]
    torch.testing.assert_close(scales[slots], scale, rtol=1e-6, atol=0, equal_nan=True)
    if dtype in (torch.bfloat16, torch.float16):  # rounded keys are the same bits on every way
        assert torch.equal(index_k[slots], values)
    else:
        assert (index_k[slots].int() - values.int()).abs().max() <= 1
    assert scales[slots][5] == 0 and scales[slots][6].isnan()


def test_rows_of_any_stride_and_no_tokens():
    arguments, options, expected = make(torch.float32)
    wide = torch.randn(37, arguments[0].shape[1] + 100)
    wide[:, 50 : 50 + arguments[0].shape[1]] = arguments[0]
    arguments[0] = wide[:, 50 : 50 + arguments[0].shape[1]]
    q, _, _ = torch.ops.gsa.append(*arguments, **options)
    check_close(q, expected["q"], torch.float32)
    empty = [a[:0] if i < 6 else a for i, a in enumerate(arguments)]
    assert torch.ops.gsa.append(*empty, **options)[0].shape == (0, 4, 16)


def test_errors_name_the_argument():
    arguments, options, _ = make(torch.float32)

    def refused(match, change=None, **more):
        changed = list(arguments)
        for place, value in (change or {}).items():
            changed[place] = value
        with pytest.raises(RuntimeError, match=match):
            torch.ops.gsa.append(*changed, **{**options, **more})

    refused("argument 'slots'.*0 .. 127.*got 128", {5: torch.full((37,), 128)})
    refused("argument 'slots'", {5: torch.zeros(36, dtype=torch.int64)})
    refused("argument 'x'.*columns", {0: arguments[0][:, :100]})
    refused("argument 'value_gate'.*got 5", value_gate=5)
    refused("argument 'k'.*contiguous", {6: arguments[6].transpose(0, 1)})
    refused("argument 'index_k'.*None", {8: None})
    refused("argument 'v'", {7: arguments[7].double()})
    refused("argument 'cos'.*half a head", {1: torch.randn(37, 9), 2: torch.randn(37, 9)})
    refused("argument 'index_cos'.*half a head", {3: torch.randn(37, 5), 4: torch.randn(37, 5)})
    refused("argument 'index_sin'", {4: torch.randn(37, 1)})
    refused("argument 'index_sin'.*got None", {4: None})
    refused("argument 'k'.*head size.*got 0", {6: arguments[6][..., :0], 7: arguments[7][..., :0]})
    refused("argument 'index_k'.*head size.*got 0", {8: arguments[8][..., :0]})
    refused("argument 'q_heads'.*got -1", q_heads=-1)
    refused("argument 'index_heads'.*got -1", index_heads=-1)


def test_registration():
    arguments, options, _ = make(torch.float32)
    torch.library.opcheck(torch.ops.gsa.append.default, tuple(arguments), options)

"""gated_sparse_attention.functional: every operator has a function, and it gives what the operator gives."""

import inspect

import pytest
import torch
from problems import assert_same_bits, make, operators

from gated_sparse_attention import functional as F

gsa = torch.ops.gsa
BUDGET = F.BudgetOptions("fixed", 5, 1, 64)
BUDGET_WORDS = dict(budget="fixed", k_base=5, k_min=1, k_max=64)


@pytest.fixture
def p():
    return make(batch=2, queries=40, heads=4, kv_heads=2, size=8, index_heads=3, index_size=8)


def indexer(p, **changes):
    return F.IndexerInputs(p.index_q, p.index_k, p.index_w, p.index_bias, **({"scale": 0.3} | changes))


def packed(p):
    """The same tokens without batch, as sequences of 30 and 50."""
    return p.map(lambda t: t.flatten(0, 1) if t.dim() > 1 else t), F.Layout.packed(torch.tensor([0, 30, 80]), 50)


def same(ours, theirs):
    ours = [ours] if isinstance(ours, torch.Tensor) else [x for x in vars(ours).values() if x is not None]
    theirs = [theirs] if isinstance(theirs, torch.Tensor) else theirs
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert_same_bits(a, b)


PUBLIC = {  # what functional.py promises
    "adamw_", "append", "attend", "attend_backward", "attend_lse", "cross_entropy_", "decode", "gate", "index_scores",
    "indexer_kl", "pack_mask", "quantize_index_keys", "rms_norm", "rotary", "select", "select_mask", "skinny_linear",
    "sparse_attention", "swiglu",
}  # fmt: skip
OPERATOR = {"sparse_attention": "sparse_attend"}


def test_the_public_functions_are_documented_operators():
    assert {OPERATOR.get(name, name) for name in PUBLIC} <= set(operators())
    assert {name for name in F.__all__ if name[0].islower()} == PUBLIC | {"built_with_cuda"}
    for name in F.__all__:
        assert inspect.getdoc(getattr(F, name)), name


def test_selection(p):
    selection = F.select(indexer(p), BUDGET)
    same(selection, gsa.select(*p.indexer(), scale=0.3, **BUDGET_WORDS))
    same(F.select_mask(indexer(p), selection.threshold, selection.tie_cut), selection.mask)
    same(F.index_scores(indexer(p, form="relu")), gsa.index_scores(*p.indexer(), scale=0.3, form="relu"))
    same(F.pack_mask(torch.ones(2, 40, dtype=torch.bool)), torch.tensor([[-1, 255]] * 2, dtype=torch.int32))


def test_the_budget_arrives_whole(p):
    budget = F.BudgetOptions("proportional", 9, 2, 20, torch.tensor(0.1))
    words = dict(budget="proportional", k_base=9, k_min=2, k_max=20, mean_variance=torch.tensor(0.1))
    same(F.select(indexer(p), budget), gsa.select(*p.indexer(), scale=0.3, **words))


@pytest.mark.parametrize("as_packed", [False, True], ids=["batch", "packed"])
def test_attention(p, as_packed):
    layout, words = None, {}
    if as_packed:
        p, layout = packed(p)
        words = dict(cu_seqlens_q=layout.cu_seqlens_q, cu_seqlens_k=layout.cu_seqlens_k)
    selection = F.select(indexer(p), BUDGET, layout)
    attention = F.attend(*p.attention(), selection.mask, scale=0.2, layout=layout)
    same(attention, gsa.attend(*p.attention(), selection.mask, scale=0.2, **words))
    same(F.attend_lse(p.q, p.k, layout=layout), F.attend(*p.attention(), layout=layout).lse)
    sparse = F.sparse_attention(*p.attention(), indexer(p), BUDGET, scale=0.2, layout=layout, return_mask=True)
    same(F.SparseAttention(attention.out, attention.lse, *(getattr(selection, n) for n in
         ("k_t", "variance", "threshold", "tie_cut", "mask"))), list(vars(sparse).values()))  # fmt: skip
    assert F.sparse_attention(*p.attention(), indexer(p), BUDGET, layout=layout).mask is None
    by_mask = F.indexer_kl(p.q, p.k, attention.lse, indexer(p), mask=selection.mask, scale=0.2, layout=layout)
    by_threshold = F.indexer_kl(p.q, p.k, attention.lse, indexer(p), threshold=selection.threshold,
                                tie_cut=selection.tie_cut, scale=0.2, layout=layout)  # fmt: skip
    same(by_mask, list(vars(by_threshold).values()))
    dout = torch.randn_like(attention.out)
    leaves = p.leaves()
    out = F.attend(*leaves.attention(), selection.mask, scale=0.2, layout=layout).out
    gradients = torch.autograd.grad(out, leaves.attention(), dout)
    same(F.attend_backward(dout, *p.attention(), attention, selection.mask, scale=0.2, layout=layout), gradients)


def test_decode_is_attention_over_pages(p):
    # Position s of sequence n lies in row s % 8 of page 5 n + s / 8.
    pages = lambda t: t.unflatten(1, (5, 8)).flatten(0, 1)
    cache = F.PagedCache(pages(p.k), pages(p.v), torch.arange(10, dtype=torch.int32).view(2, 5),
                         torch.tensor([40, 40], dtype=torch.int32), 40, pages(p.index_k))  # fmt: skip
    z = torch.randn(2, 3, 4)
    decoded = F.decode(p.q[:, -3:], cache, p.index_q[:, -3:], p.index_w[:, -3:], p.index_bias, index_scale=0.3,
                       budget=BUDGET, gate=z)  # fmt: skip
    whole = F.sparse_attention(*p.attention(), indexer(p), BUDGET)
    same(decoded.out, F.gate(whole.out[:, -3:].contiguous(), z))
    same(decoded.k_t, whole.k_t[:, -3:].contiguous())
    shared = F.decode(p.q[:, -3:], cache, p.index_q[:, -3:], p.index_w[:, -3:], p.index_bias, index_scale=0.3,
                      budget=BUDGET, gate=z, return_selected=True)  # fmt: skip
    same(shared.out, decoded.out)
    mask = (F.select(indexer(p), BUDGET).mask[:, -3:].unsqueeze(-1) >> torch.arange(32) & 1).flatten(2)
    assert shared.selected.positions[..., :5].sort(-1).values.tolist() == mask.nonzero()[:, 2].view(2, 3, 5).tolist()
    again = F.decode(p.q[:, -3:], cache, selected=shared.selected, gate=z)
    same(again, list(vars(decoded).values())[:3])
    for options in (dict(selected=shared.selected, return_selected=True), dict(return_selected=True)):
        with pytest.raises(ValueError, match="argument '(selected|return_selected)'"):
            F.decode(p.q[:, -3:], cache, **options)
    of_an_indexer = dict(index_w=p.index_w[:, -3:], index_bias=p.index_bias, index_scale=0.3, form="relu", budget=BUDGET)
    for selected in (None, shared.selected):
        for name, value in of_an_indexer.items():
            with pytest.raises(ValueError, match=f"decode: argument '{name}': expected .* without index_q, got "):
                F.decode(p.q[:, -3:], cache, selected=selected, **{name: value})
    keys = F.quantize_index_keys(cache.index_k)
    assert (keys.values * keys.scale.unsqueeze(-1) - cache.index_k).abs().max() < 0.02


def test_append_writes_rows():
    heads, size, tokens = 2, 8, 3
    x = torch.randn(tokens, (heads + 2) * size)
    cos, sin = torch.randn(tokens, size // 2), torch.randn(tokens, size // 2)
    k, v = torch.zeros(2, 8, 1, size), torch.zeros(2, 8, 1, size)
    slots = torch.tensor([0, 9, 10])
    appended = F.append(x, cos, sin, slots, k, v, q_heads=heads)
    rotated = F.rotary(x, cos, sin, heads, 1, 1)
    same(appended.q, rotated.q)
    same(k.flatten(0, 1)[slots], rotated.k)
    same(v.flatten(0, 1)[slots], rotated.v)


def test_what_stands_between_products():
    x, branch, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed = F.rms_norm(x, weight, 1e-5, branch)
    same(normed.sum, x + branch)
    torch.testing.assert_close(normed.y, torch.nn.functional.rms_norm(x + branch, (8,), weight, 1e-5))
    assert F.rms_norm(x, weight, 1e-5).sum is x
    torch.testing.assert_close(F.swiglu(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:])
    torch.testing.assert_close(F.skinny_linear(x, branch, residual=x[:, :3]), x @ branch.T + x[:, :3])
    logits, targets = torch.randn(4, 7), torch.tensor([1, -100, 0, 6])
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(F.cross_entropy_(logits.clone(), targets), expected)


def test_adamw_is_torchs():
    master, gradient = torch.randn(9), torch.randn(9)
    theirs = torch.nn.Parameter(master.clone())
    optimizer = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    theirs.grad = gradient.clone()
    optimizer.step()
    F.adamw_(master, torch.zeros(9), torch.zeros(9), None, gradient, F.AdamWStep(lr=0.1, decay=0.01))
    torch.testing.assert_close(master, theirs.detach())


def test_errors_name_the_argument(p):
    with pytest.raises(RuntimeError, match="argument 'k'"):
        F.attend(p.q, p.k[:, :, :, :4], p.v)
    with pytest.raises(ValueError, match="argument 'eps'"):
        F.skinny_linear(torch.randn(1, 8), torch.randn(4, 8), eps=1e-5)


def test_functions_compile_as_one_graph(p):
    def layer(q, k, v, index_q, index_k, index_w, index_bias):
        inputs = F.IndexerInputs(index_q, index_k, index_w, index_bias, scale=0.3)
        found = F.sparse_attention(q, k, v, inputs, BUDGET)
        loss = F.indexer_kl(q, k, found.lse, inputs, threshold=found.threshold, tie_cut=found.tie_cut)
        return F.gate(found.out, q), loss.loss

    arguments = (*p.attention(), *p.indexer())
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)(*arguments)
    for ours, theirs in zip(compiled, layer(*arguments)):
        assert_same_bits(ours, theirs)

"""gsa::select, select_mask, index_scores: scores, variance, budgets, exact selection."""

import pytest
import torch

import reference
from problems import FLOATS, assert_close_as, assert_same_bits, dtype_id, everywhere, make, unpack

gsa = torch.ops.gsa


def select(p, **options):
    names = ("mask", "k_t", "variance", "threshold", "tie_cut")
    return dict(zip(names, gsa.select(*p.indexer(), scale=p.scale(), **options)))


def check_selection(p, result, form="sigmoid"):
    """The mask is the full stable sort of the very scores that select() compared, cut at k_t; and it can be
    rebuilt from threshold and tie cut."""
    queries, keys = p.index_q.size(1), p.index_k.size(1)
    score = gsa.index_scores(*p.indexer(), scale=p.scale(), form=form)
    seen = reference.visible(queries, keys)
    assert (score.isneginf() == ~seen).all(), "scores are -inf where not visible, and nowhere else"
    mask = unpack(result["mask"], keys)
    expected = reference.select(score, result["k_t"], seen)
    assert (mask == expected).all(), f"{(mask != expected).sum()} bits differ from the sorted selection"
    assert (mask.sum(-1) == result["k_t"]).all()
    again = gsa.select_mask(*p.indexer(), result["threshold"], result["tie_cut"], scale=p.scale(), form=form)
    assert_same_bits(result["mask"], again, "select_mask")
    return mask


SHAPES = [
    dict(batch=1, queries=1),
    dict(queries=33),
    dict(batch=8, queries=97, index_heads=1),
    dict(queries=97, keys=200, index_size=59),
    dict(batch=1, queries=1025, index_heads=3, index_size=7),
    dict(batch=1, queries=5, keys=1025, index_heads=128, index_size=8),
    dict(batch=3, queries=64, index_size=256, bias=False),
    dict(batch=0, queries=9),
    dict(queries=0, keys=9),
]


def shape_id(shape):
    return "-".join(f"{name}{value}" for name, value in shape.items()) if isinstance(shape, dict) else None


def forward_cases(sample):
    """For test_registration.py: name -> (arguments, keywords)."""
    indexer, layout, width = sample.p.indexer(), sample.layout, sample.width
    return {
        "select": (indexer, dict(sample.BUDGET, mean_variance=torch.tensor(0.1), **layout, **width)),
        "select_mask": ((*indexer, sample.threshold, sample.tie_cut), layout | width),
        "index_scores": (indexer, layout | width),
    }


@pytest.mark.parametrize("form", ["sigmoid", "relu"])
@pytest.mark.parametrize("dtype", everywhere(FLOATS + [torch.float64]), indirect=True)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_scores_and_variance(shape, dtype, form):
    p = make(dtype=dtype, **shape)
    seen = reference.visible(p.index_q.size(1), p.index_k.size(1))
    exact = reference.scores(*p.double().indexer(), scale=p.scale(), form=form)
    baseline = reference.scores(*p.indexer(), scale=p.scale(), form=form)
    ours = gsa.index_scores(*p.indexer(), scale=p.scale(), form=form)
    assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    if ours.numel() == 0:
        assert ours.shape == exact.shape
        return
    exact = exact.masked_fill(~seen, float("-inf"))
    result = select(p, form=form, k_base=8, k_min=1, k_max=64)
    if dtype == torch.float64:  # as precise as the reference
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(result["variance"], reference.variance(exact, seen), rtol=1e-9, atol=1e-14)
        return
    assert_close_as(ours, baseline, exact, 2, "scores")
    # Of the very scores that were compared, so that nothing but the variance's own sums is judged.
    exact_variance, torchs = reference.variance(ours.double(), seen), reference.variance(ours, seen)
    # As in tests/kernels: the roundings of a long sum, in which a lane adds up more squares than torch's pairwise
    # sums do, the more so the fewer lanes a CPU has; on a GPU each score moved by two roundings, too.
    unit, terms = torch.finfo(torch.float32).eps / 2, 128 * exact_variance
    if ours.is_cuda:
        highest = ours.masked_fill(~seen, 0).abs().amax(-1)
        terms = 4 * highest * exact_variance.sqrt() + terms
    assert_close_as(result["variance"], torchs, exact_variance, 2, "variance", unit, terms)


@pytest.mark.parametrize("form", ["sigmoid", "relu"])
@pytest.mark.parametrize("dtype", everywhere(FLOATS + [torch.float64]), indirect=True)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_selection_is_the_sorted_one(shape, dtype, form):
    p = make(dtype=dtype, **shape)
    for k in [1, 8, 31, 500]:
        result = select(p, form=form, budget="fixed", k_base=k, k_min=1, k_max=4096)
        check_selection(p, result, form)


def test_scores_lie_between_zero_and_the_sum_of_weights():
    p = make(queries=200, sharpness=30.0)  # far into the saturation of the sigmoid
    score = gsa.index_scores(*p.indexer(), scale=p.scale())
    seen = reference.visible(200, 200)
    total = p.index_w.sum(-1, keepdim=True).expand_as(score)
    assert (score[:, seen] >= 0).all()
    assert (score[:, seen] <= total[:, seen] * (1 + 1e-6)).all()
    assert (score[:, seen] < p.index_w.size(-1)).all()
    mild = make(queries=200)
    score = gsa.index_scores(*mild.indexer(), scale=mild.scale())[:, seen]
    assert (score > 0).all() and (score < 4).all()


def test_planted_ties_lower_position_wins():
    p = make(batch=1, queries=97)
    index_k = p.index_k[:, :1].expand(-1, 97, -1).clone()
    index_k[:, 40:45] = p.index_k[:, 1:2]  # two values only: every selection cuts through a run of equals
    p = p.with_(index_k=index_k)
    for k in [1, 3, 5, 6, 50, 96]:
        mask = check_selection(p, select(p, budget="fixed", k_base=k, k_min=1, k_max=97))
        low = torch.cat([torch.arange(0, 40), torch.arange(45, 97)])
        for chosen in mask[0, :, low].int():
            assert (chosen.diff() <= 0).all(), "among equals, no hole before a selected position"


def test_constant_scores_select_the_first_positions():
    p = make(queries=97)
    p = p.with_(index_k=torch.zeros_like(p.index_k))
    result = select(p, budget="fixed", k_base=10, k_min=1, k_max=97)
    mask = check_selection(p, result)
    assert (
        mask == (torch.arange(97) < torch.minimum(torch.arange(1, 98), torch.tensor(10)).unsqueeze(-1))
    ).all()
    assert (result["variance"] == 0).all()


def test_relu_zeros():
    p = make(queries=97, sharpness=1.0)
    p = p.with_(index_bias=torch.full_like(p.index_bias, -1.0))  # most scores are exactly zero
    score = gsa.index_scores(*p.indexer(), scale=p.scale(), form="relu")
    assert (score == 0).float().mean() > 0.1
    for k in [1, 7, 32, 64]:
        check_selection(p, select(p, form="relu", budget="fixed", k_base=k, k_min=1, k_max=97), "relu")


def test_all_selected_threshold_is_minus_infinity():
    p = make(queries=50)
    result = select(p, budget="fixed", k_base=50, k_min=1, k_max=50)
    assert result["threshold"].isneginf().all()
    assert (result["tie_cut"] == torch.arange(50)).all()
    assert (unpack(result["mask"], 50) == reference.visible(50, 50)).all()


@pytest.mark.parametrize("mean_variance", [None, -1.0, 0.0, 1e-3, 0.02, 10.0])
@pytest.mark.parametrize("budget", ["inverse", "proportional", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=dtype_id)
def test_budget_formula(budget, mean_variance, dtype):
    p = make(queries=300, dtype=dtype)
    given = None if mean_variance is None else torch.tensor(mean_variance, dtype=torch.float64)
    options = dict(k_base=64, k_min=16, k_max=128)
    result = select(p, budget=budget, mean_variance=given, **options)
    seen = reference.visible(300, 300)
    if budget == "proportional" and mean_variance == 0:
        # Any variance is infinitely more than a mean of 0; none at all is none.
        expected = torch.where(result["variance"] > 0, 128, 16).clamp(max=seen.sum(-1))
        assert (result["k_t"] == expected).all()
        return
    # The variance that comes back is rounded to Real; the floor may fall either way within that rounding.
    slack = 4 * torch.finfo(result["variance"].dtype).eps
    low, high = (
        reference.budget(
            result["variance"].double() * factor, seen, budget, mean_variance=mean_variance, **options
        )
        for factor in (1 - slack, 1 + slack)
    )
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    assert ((low <= result["k_t"]) & (result["k_t"] <= high)).all()
    assert (low == high).float().mean() > 0.99, "the slack hides nothing"
    assert (result["k_t"] >= seen.sum(-1).clamp(max=16)).all() and (result["k_t"] <= 128).all()
    check_selection(p, result)


@pytest.mark.parametrize("budget, expected", [("inverse", 40), ("proportional", 5), ("fixed", 20)])
def test_budget_of_no_variance(budget, expected):
    p = make(queries=97)
    p = p.with_(index_k=torch.zeros_like(p.index_k))
    options = dict(k_base=20, k_min=5, k_max=40)
    result = select(p, budget=budget, mean_variance=torch.tensor(0.5), **options)
    assert (result["k_t"] == torch.arange(1, 98).clamp(max=expected)).all()
    # Not known yet: k_base, whatever the mode.
    for unknown in [None, torch.tensor(-1.0), torch.tensor([-2.0], dtype=torch.float64)]:
        result = select(p, budget=budget, mean_variance=unknown, **options)
        assert (result["k_t"] == torch.arange(1, 98).clamp(max=20)).all()


def test_first_token_selects_itself():
    p = make(queries=1, keys=1, index_heads=2)
    result = select(p)
    assert (result["mask"] == 1).all() and (result["k_t"] == 1).all() and (result["variance"] == 0).all()


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_query_offset(fraction):
    """q_position places queries anywhere among the keys: the same as the rows of the whole."""
    p = make(queries=120)
    whole = select(p, budget="fixed", k_base=20, k_min=1, k_max=50)
    start = int(fraction * (120 - 33))
    part = p.with_(index_q=p.index_q[:, start : start + 33], index_w=p.index_w[:, start : start + 33])
    result = select(
        part, budget="fixed", k_base=20, k_min=1, k_max=50, q_position=torch.tensor([start, start])
    )
    for name, value in result.items():
        assert_same_bits(value, whole[name][:, start : start + 33], name)
    score = gsa.index_scores(*part.indexer(), scale=p.scale(), q_position=torch.tensor([start, start]))
    assert_same_bits(score, gsa.index_scores(*p.indexer(), scale=p.scale())[:, start : start + 33], "scores")


def test_no_gradient():
    p = make(queries=20).leaves()
    results = gsa.select(*p.indexer(), budget="fixed", k_base=4, k_min=1)
    assert not any(result.requires_grad for result in results)
    assert not gsa.select_mask(*p.indexer(), results[3], results[4]).requires_grad
    assert not gsa.index_scores(*p.indexer()).requires_grad


@pytest.mark.parametrize("size", [1e12, 1e-15], ids=["large", "small"])
def test_extreme_scores(size):
    """Scores whose squares leave float32: still finite scores, so still the exact selection and a variance."""
    p = make(batch=1, queries=200, bias=False)
    p = p.with_(index_q=p.index_q * size, index_k=p.index_k * size)
    result = select(p, form="relu", budget="fixed", k_base=20, k_min=1, k_max=20)
    check_selection(p, result, "relu")
    assert (result["k_t"].flatten() == torch.arange(1, 201).clamp(max=20)).all()
    exact = gsa.index_scores(*p.indexer(), scale=p.scale(), form="relu")[0, -1].double().var(correction=0)
    # As the budget sees it; in float32 it may be infinite or zero.
    assert result["variance"][0, -1] == exact.float() or (result["variance"][0, -1] / exact - 1).abs() < 1e-5


def test_subnormals_flushed():
    """A process that treats subnormal numbers as zero cuts ties at a score of zero at the same place."""
    p = make(batch=1, queries=200)
    p = p.with_(index_bias=torch.full_like(p.index_bias, -1e4))  # ReLU of all scores: exact zeros
    options = dict(form="relu", budget="fixed", k_base=20, k_min=1, k_max=20)
    before = select(p, **options)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        flushed = select(p, **options)
    finally:
        torch.set_flush_denormal(False)
    for name in before:
        assert_same_bits(before[name], flushed[name], name)
    check_selection(p, before, "relu")


@pytest.mark.parametrize("keys", [33, 1000, 5000])
@pytest.mark.parametrize("units", [1, 4, 100])
@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
def test_variance_of_nearly_equal_scores(dtype, units, keys):
    """Scores that differ by a few units in the last place: the error of a float32 mean is as large."""
    noise = torch.randint(0, units + 1, (keys,))
    noise[:2] = torch.tensor([0, units])
    rest = noise * 2.0**-13  # one unit of 1024
    index_k = torch.stack([torch.full_like(rest, 1024), rest], -1).to(dtype).view(1, keys, 2)
    indexer = torch.ones(1, 1, 1, 2, dtype=dtype), index_k, torch.ones(1, 1, 1, dtype=dtype)
    expected = rest.double().var(correction=0)
    budget = dict(budget="inverse", k_base=16, k_min=1, k_max=keys, mean_variance=expected)
    _, k_t, variance, *_ = gsa.select(*indexer, form="relu", **budget)
    assert abs(variance.item() / expected.item() - 1) < 1e-5
    assert k_t.item() in (15, 16)


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
@pytest.mark.parametrize("index_size", [33, 64])
def test_relu_of_products_that_are_exact(index_size, dtype):
    """Whole numbers: products that are 0 give a score of 0 and equal ones a tie, whatever the scale."""
    p = make(queries=60, index_heads=1, index_size=index_size, bias=False, dtype=dtype)
    whole = lambda t: torch.randint(-2, 3, t.shape).to(dtype)
    p = p.with_(index_q=whole(p.index_q), index_k=whole(p.index_k), index_w=torch.ones_like(p.index_w))
    product = torch.einsum("bld,bsd->bls", p.index_q[:, :, 0].double(), p.index_k.double())
    seen = reference.visible(60, 60).expand(2, -1, -1)
    score = gsa.index_scores(*p.indexer(), scale=p.scale(), form="relu")
    assert (product[seen] == 0).any()
    assert ((score > 0) == (product > 0))[seen].all()
    order = lambda t: t.masked_fill(~seen, -1).sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(order(score.double()), order(product.clamp(min=0)))
    check_selection(p, select(p, form="relu", budget="fixed", k_base=10, k_min=1, k_max=10), form="relu")


@pytest.mark.parametrize("dtype", everywhere([torch.float32, torch.bfloat16]), indirect=True)
def test_slope_of_relu_at_zero(dtype):
    """ReLU' is 0 where the product is 0: the gradient of such a key comes from other queries alone."""
    p = make(batch=1, queries=12, index_heads=1, index_size=33, bias=False, dtype=dtype)
    index_q, index_k = torch.zeros_like(p.index_q), torch.zeros_like(p.index_k)
    index_q[..., :2] = torch.tensor([3.0, 5.0])
    index_k[..., :2] = torch.tensor([5.0, -3.0])  # 15 - 15
    index_k[:, ::2] *= -1
    p = p.with_(index_q=index_q, index_k=index_k).leaves()
    lse = gsa.attend(*(t.detach() for t in p.attention()))[1]
    loss, _ = gsa.indexer_kl(
        p.q.detach(), p.k.detach(), lse, *p.indexer(), index_scale=p.scale(), form="relu"
    )
    loss.sum().backward()
    assert (p.index_q.grad == 0).all() and (p.index_k.grad == 0).all()

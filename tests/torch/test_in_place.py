"""Operators that write into their arguments, under autograd: as torch's own, they are seen to have written."""

import pytest
import torch

from problems import everywhere
from test_append import make as append_case
from test_fused import cases_without_gradients

gsa = torch.ops.gsa
TYPES = [torch.float32, torch.bfloat16]
WRITTEN = {"append": (6, 7, 8, 9), "cross_entropy_": (0,), "adamw_": (0, 1, 2, 3)}


def case(name):
    """Arguments and keywords, on the default device."""
    if name == "append":
        return append_case(torch.bfloat16, int8=True)[:2]
    arguments, keywords = cases_without_gradients(None)[name]
    return list(arguments), keywords


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
@pytest.mark.parametrize("name", WRITTEN)
def test_written_arguments_are_marked(name, dtype):
    arguments, keywords = case(name)
    before = [a._version if isinstance(a, torch.Tensor) else None for a in arguments]
    getattr(gsa, name)(*arguments, **keywords)
    for i, version in enumerate(before):
        if version is not None:
            assert arguments[i]._version == version + (i in WRITTEN[name]), f"argument {i} of {name}"


@pytest.mark.parametrize("dtype", everywhere(TYPES), indirect=True)
def test_values_that_a_backward_pass_kept_may_not_change(dtype):
    w = torch.randn(4, 8, dtype=dtype, requires_grad=True)
    x = w * 1
    square = x.square()
    with torch.no_grad():
        gsa.cross_entropy_(x, torch.arange(4), gradient=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


@pytest.mark.parametrize("name, argument", [("append", "x"), ("cross_entropy_", "logits"), ("adamw_", "master")])
def test_arguments_that_require_gradients_are_refused(name, argument):
    arguments, keywords = case(name)
    arguments[0].requires_grad_()
    before = arguments[0].detach().clone()
    with pytest.raises(RuntimeError, match=f"gsa::{name}: argument '{argument}': expected .*no gradient"):
        getattr(gsa, name)(*arguments, **keywords)
    assert torch.equal(arguments[0], before)
    with torch.no_grad():
        getattr(gsa, name)(*arguments, **keywords)

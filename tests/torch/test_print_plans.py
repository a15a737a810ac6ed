"""GSA_PRINT_PLANS=1: one line to stderr for every new plan."""

import os
import subprocess
import sys

import pytest

from problems import operators

SCRIPT = """
import os, torch
torch.ops.load_library(os.environ["GSA_LIBRARY"])
gsa = torch.ops.gsa
def attend(tokens):
    x = torch.randn(1, tokens, 2, 16)
    gsa.attend(x, x, x)
for tokens in (40, 40, 50):
    attend(tokens)
index = torch.randn(1, 40, 2, 16), torch.randn(1, 40, 16), torch.rand(1, 40, 2)
gsa.select(*index, scale=0.25, budget="fixed", k_base=8, k_min=1, k_max=8)
"""

BF16_SCRIPT = """
import os, torch
torch.ops.load_library(os.environ["GSA_LIBRARY"])
x = torch.randn(1, 40, 2, 16, dtype=torch.bfloat16)
torch.ops.gsa.attend(x, x, x)
"""


def plans_of(script, value="1"):
    """What a process of its own prints."""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"GSA_PRINT_PLANS": value},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in result.stderr.splitlines() if line.startswith("gsa::")]


@pytest.mark.parametrize("value, lines", [("1", 3), ("0", 0), ("", 0)])
def test_new_plans_are_printed_once(value, lines):
    plans = plans_of(SCRIPT, value)
    assert len(plans) == lines, plans
    if lines:
        assert plans[0].startswith("gsa::attend: 2/2 heads of 16, float32, 1 sequence, 40 queries, up to 40 keys: cpu, ")
        assert "up to 50 keys" in plans[1]
        assert plans[2].startswith("gsa::select: indexer 2 heads of 16, float32, 1 sequence, 40 queries")


def test_products_of_bfloat16_are_named():
    """AVX3_BF16 has an instruction for them; other instruction sets take them in float, and say nothing."""
    (plan,) = plans_of(BF16_SCRIPT)
    assert plan.endswith(", products of bfloat16") == ("cpu, AVX3_BF16" in plan)
    assert "attend: 2/2 heads of 16, bfloat16" in plan


# Calls every operator once, by the cases of test_registration.py.
ALL_SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import os, torch
torch.ops.load_library(os.environ["GSA_LIBRARY"])
import test_registration
from problems import operators
for name, (arguments, keywords) in test_registration.cases(False, False).items():
    test_registration.operator(name)(*arguments, **keywords)
"""


def test_every_operator_on_the_cpu_prints_a_plan():
    plans = plans_of(ALL_SCRIPT.format(folder=os.path.dirname(__file__)))
    printed = {plan.removeprefix("gsa::").split(":")[0] for plan in plans}
    by_others = {
        "pack_mask",  # torch's own operators
        "quantize_index_keys",
        "few_linear",  # another name of the next
        "skinny_linear",  # on the CPU torch's product, between operators of ours
        "sparse_attend",  # select and attend
        "sparse_attend_with_mask",
        "sparse_attend_backward",
        "decode_with_selection",  # decode
    }
    missing = set(operators()) - printed - by_others
    assert not missing, sorted(printed)

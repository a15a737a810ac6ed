"""GSA_PRINT_PLANS=1: one line to stderr for every new plan."""

import os
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("value, lines", [("1", 3), ("0", 0), ("", 0)])
def test_new_plans_are_printed_once(value, lines):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"GSA_PRINT_PLANS": value},
        capture_output=True,
        text=True,
        check=True,
    )
    plans = [line for line in result.stderr.splitlines() if line.startswith("gsa::")]
    assert len(plans) == lines, result.stderr
    if lines:
        assert plans[0].startswith("gsa::attend: 2/2 heads of 16, float32, 1 sequence, 40 queries, up to 40 keys: cpu, ")
        assert "up to 50 keys" in plans[1]
        assert plans[2].startswith("gsa::select: indexer 2 heads of 16, float32, 1 sequence, 40 queries")

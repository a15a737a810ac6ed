"""No tensor of all pairs of tokens, anywhere: at 32K tokens one of float32 would take 4 GiB, one of bytes 1 GiB."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")


def grown(name, folder):
    """By how many MiB a pass over 32K tokens raised the peak of memory."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/python/memory_worker.py", folder, name], text=True, capture_output=True,
        timeout=600, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return float(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["selected", "shared", "kept", "all", "dense", "warmup", "generate", "no-cache"])
def test_memory_at_32k_tokens(name, tmp_path):
    # A mask that is kept takes 128 MiB, in bits, beside a q of 32 MiB.
    limit = 768 if name == "kept" else 512
    assert 0 < grown(name, tmp_path) < limit


def test_a_byte_a_pair_would_show(tmp_path):
    assert grown("pairs", tmp_path) >= 1024

"""No tensor of all pairs of tokens, anywhere: at 32K tokens one of float32 would take 4 GiB, one of bytes 1 GiB."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")


@pytest.mark.parametrize("name", ["selected", "shared", "all", "generate"])
def test_memory_at_32k_tokens(name, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "tests/python/memory_worker.py", tmp_path, name], text=True, capture_output=True,
        timeout=600, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    grown = float(done.stdout.splitlines()[-1])
    assert 0 < grown < 512, f"{grown} MiB"

"""Loads the operators, seeds every test, and prints the id that replays a failure."""

import os
import zlib
from pathlib import Path

import pytest
import torch


def pytest_configure():
    library = os.environ.get("GSA_LIBRARY")
    if not library or not Path(library).is_file():
        raise pytest.UsageError(
            f"GSA_LIBRARY: expected the path of libgsa.so, got {library!r} (`make test` sets it; "
            "by hand: GSA_LIBRARY=build/release/libgsa.so python -m pytest tests/torch)"
        )
    torch.ops.load_library(library)


@pytest.fixture(autouse=True)
def seeded(request):
    """One seed a test, from its name: a test gives the same numbers alone and among others.

    One thread, too: most problems are too small for two. test_invariance.py sets others and finds the same
    bits.
    """
    torch.manual_seed(zlib.crc32(request.node.name.encode()))
    torch.set_num_threads(1)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.sections.append(("replay", f"python -m pytest '{item.nodeid}'"))

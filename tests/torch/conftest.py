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


def cuda_missing():
    """Why operators cannot run on a GPU here; None where they can."""
    if not torch.ops.gsa.built_with_cuda():
        return "libgsa.so is built without the CUDA operators"
    if not torch.cuda.is_available():
        return "no CUDA device"
    return None


@pytest.fixture
def cuda():
    """New tensors of the test lie on the GPU; without one the test is skipped, with the reason."""
    if reason := cuda_missing():
        pytest.skip(reason)
    torch.set_default_device("cuda")
    yield torch.device("cuda")
    torch.set_default_device(None)


@pytest.fixture
def dtype(request):
    """A type of problems.everywhere(): tensors that the test makes lie on its device."""
    device, dtype = request.param
    if device == "cuda":
        request.getfixturevalue("cuda")
    return dtype


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

"""Finds the package, seeds every test, and finds the program and the probe.

The package is the installed one, and GSA_BUILD the build folder with the program and the probe (`make test`); or, where
GSA_LIBRARY names a libgsa.so in such a folder, that of this tree (`make pytest`).
"""

import importlib.util
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("GSA_LIBRARY")
BUILD = Path(os.environ.get("GSA_BUILD") or Path(LIBRARY or ".").parent).resolve()
if LIBRARY:
    sys.path.insert(0, str(ROOT / "python"))
    # for the processes that tests start
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT / "tests" / "torch"))  # problems.py


def pytest_configure():
    if LIBRARY and not Path(LIBRARY).is_file():
        raise pytest.UsageError(f"GSA_LIBRARY: expected the path of libgsa.so, got {LIBRARY!r}")
    if importlib.util.find_spec("gated_sparse_attention") is None:
        raise pytest.UsageError(
            "gated_sparse_attention is not installed, and GSA_LIBRARY names no library for that of this tree (`make test` "
            "installs it; by hand: GSA_LIBRARY=build/release/libgsa.so python -m pytest tests/python)"
        )
    if not (BUILD / "gsa_model_probe").is_file():
        raise pytest.UsageError(f"GSA_BUILD: expected the build folder, with gsa_model_probe in it, got {str(BUILD)!r}")


@pytest.fixture(autouse=True)
def seeded(request):
    """One seed a test, from its name, and one thread: results do not depend on their number."""
    import torch

    torch.manual_seed(zlib.crc32(request.node.name.encode()))
    torch.set_num_threads(1)


def run_program(path, *arguments, cwd=None):
    done = subprocess.run(
        [str(path), *map(str, arguments)], cwd=cwd, text=True, capture_output=True, timeout=600, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def program():
    """program(*arguments, cwd=): what `gsa` prints."""
    return lambda *arguments, cwd=None: run_program(BUILD / "bin" / "gsa", *arguments, cwd=cwd)


@pytest.fixture(scope="session")
def probe():
    """probe(*arguments): the C++ model, see tests/probe/model_probe.cc."""
    return lambda *arguments: run_program(BUILD / "gsa_model_probe", *arguments)


@pytest.fixture
def folder(tmp_path):
    """folder(case): a saved model of configs.py whose running means are known."""
    import torch
    from configs import CASES, model

    import gated_sparse_attention as gsa

    def make(case, dtype=torch.float32):
        made = gsa.GatedSparseForCausalLM(model(**CASES[case]))
        for buffer in made.buffers():
            buffer.fill_(0.02)
        gsa.save_model(made.to(dtype), tmp_path)
        return tmp_path

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory, program):
    """trained(system, **options): a tiny model that the program has trained for some steps, as a folder."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("the keeper of the lamp walks to the harbour\n" * 400, encoding="utf-8")
    made = {}

    def make(system="gsa", **options):
        key = (system, *sorted(options.items()))
        if key in made:
            return made[key]
        if not made:
            program("tokenize", "text.txt", "--output", "data", cwd=folder)
        run = f"run{len(made)}"
        sparse = system in ("gsa", "sparse-only")
        settings = {
            "model.system": system, "data.train": "data", "data.length": 128, "batch.tokens": 256,
            "output.folder": run, "phases.dense": 20, "phases.warmup": 2 if sparse else 0,
            "phases.sparse": 10 if sparse else 0,
        }  # fmt: skip
        if sparse:
            settings |= {"model.k_base": 16, "model.k_min": 8, "model.k_max": 32}
        settings |= {f"model.{name}": value for name, value in options.items()}
        program("train", *[f"--set={key}={value}" for key, value in settings.items()], cwd=folder)
        made[key] = (folder / run / "latest").resolve()
        return made[key]

    return make

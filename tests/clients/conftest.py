"""`gsa serve` on a tiny model, for clients that others wrote."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "program"))
if importlib.util.find_spec("gated_sparse_attention") is None:  # that of this tree, with the program's library
    sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))
    os.environ.setdefault("GSA_LIBRARY", str(Path(os.environ["GSA_PROGRAM"]).resolve().parents[1] / "libgsa.so"))

from serving import Server, train_tiny  # noqa: E402


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(model):
    with Server(model, "--name", "book", "--api-key", "secret") as running:
        yield running

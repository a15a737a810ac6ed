"""Loads libgsa.so, whose operators are then torch.ops.gsa.*.

The library is the one that the environment variable GSA_LIBRARY names, else the one that was installed with the
package: beside this file, or after `pip install -e .` in another folder of the package's path. Beside it lies
libgsa.json, which says what torch it was built with.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch

NAME = "libgsa.so"


def find() -> Path:
    """Where the library lies; ImportError, with what was looked for, where it lies nowhere."""
    named = os.environ.get("GSA_LIBRARY")
    if named:
        if Path(named).is_file():
            return Path(named).resolve()
        raise ImportError(f"GSA_LIBRARY: expected the path of {NAME}, got {named!r}")
    places = [Path(folder).resolve() / NAME for folder in sys.modules[__package__].__path__]
    for place in places:
        if place.is_file():
            return place
    raise ImportError(
        f"gated_sparse_attention: expected {' or '.join(map(str, places))}, which an installed package has, or the "
        f"environment variable GSA_LIBRARY to name a {NAME} that was built (build/release/{NAME}); got neither"
    )


def check_torch(library: Path, running: str) -> None:
    """ImportError where the library was built for another torch: its C++ interface holds within a minor version, and
    beyond it the loader would say no more than `undefined symbol`."""
    facts = library.with_suffix(".json")
    if not facts.is_file():
        warnings.warn(
            f"gated_sparse_attention: expected {facts}, which says what torch {library} was built with, got none: whether "
            f"it fits torch {running} is not known. Copy that file along with {NAME}",
            stacklevel=2,
        )
        return
    text = facts.read_text(encoding="utf-8", errors="replace")
    try:
        built = json.loads(text)["torch"]
    except (ValueError, LookupError, TypeError):
        built = None
    if not isinstance(built, str):
        raise ImportError(
            f"gated_sparse_attention: file '{facts}': expected an object whose 'torch' is the version that {NAME} was "
            f"built with, got {text[:80]!r}; install or build the package once more"
        )
    minor = ".".join(built.split(".")[:2])
    if running.split(".")[:2] != built.split(".")[:2]:
        raise ImportError(
            f"gated_sparse_attention: expected torch {minor}, with which {library} was built ({built}), got {running}. "
            f"Either install that torch: pip install 'torch=={minor}.*'; or build the package for this one, from a "
            "clone: pip install 'scikit-build-core>=0.11' cmake ninja && "
            "pip install --no-build-isolation --force-reinstall --no-deps ."
        )


def load() -> Path:
    """Registers the operators with torch; a second call changes nothing."""
    path = find()
    check_torch(path, torch.__version__)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # the loader's
        raise ImportError(
            f"gated_sparse_attention: expected {path} to be a library that can be loaded with torch {torch.__version__}, "
            f"got: {error.__cause__ or error}; install or build the package once more, from a clone: pip install "
            "'scikit-build-core>=0.11' cmake ninja && pip install --no-build-isolation --force-reinstall --no-deps ."
        ) from error
    return path


path = load()

"""Checks that this interpreter has a torch that the project builds against, and pytest.

    check_python.py --torch             torch alone
    check_python.py --installed FILE    only whether the packages of a requirements file are there, in these versions
"""

import importlib.metadata
import pathlib
import re
import sys

OLDEST_TORCH = (2, 11)
DEPS = pathlib.Path(__file__).resolve().parent.parent / ".deps" / "python"


def installed(requirements: str) -> bool:
    path = pathlib.Path(requirements)
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r ") and not installed(str(path.parent / line[3:])):
            return False
        name, _, wanted = line.partition("==")
        if not wanted or line.startswith("#"):
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return False
        if found.split("+")[0] != wanted:
            return False
    return True


def main() -> int:
    if sys.argv[1:2] == ["--installed"]:
        return 0 if installed(sys.argv[2]) else 1
    try:
        import torch
    except ImportError as error:
        print(f"[setup] {sys.executable}: torch: expected an installed torch, got: {error}", file=sys.stderr)
        print("[setup] Without PYTHON=..., make builds an environment of its own in .venv.", file=sys.stderr)
        return 1
    version = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())
    if version < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        print(f"[setup] {sys.executable}: torch: expected {oldest} or newer, got {torch.__version__}", file=sys.stderr)
        return 1

    if sys.argv[1:] == ["--torch"]:
        print(f"[setup] {sys.executable}: torch {torch.__version__}")
        return 0
    sys.path.append(str(DEPS))
    try:
        import pytest
    except ImportError:
        print(f"[setup] {sys.executable}: pytest: expected an installed pytest, got none.", file=sys.stderr)
        print(f"[setup] {sys.executable} -m pip install pytest, or `make deps` and copy .deps here.", file=sys.stderr)
        return 1
    print(f"[setup] {sys.executable}: torch {torch.__version__}, pytest {pytest.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

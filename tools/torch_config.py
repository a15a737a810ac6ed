"""Prints, for CMake, where the torch of this Python interpreter keeps what a C++ library needs.

One `key=value` a line; lists are separated by semicolons. Works the same with CPU and CUDA wheels and needs no
CUDA toolkit, unlike find_package(Torch).
"""

import os
import sys


def openmp_runtime() -> str:
    """The OpenMP library that torch has loaded into this process: the only one that we may link."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "/" in line}
    found = sorted(p for p in paths if os.path.basename(p).startswith(("libgomp", "libomp", "libiomp5")))
    if len(found) != 1:
        raise SystemExit(f"torch_config: expected torch to load one OpenMP runtime, got {found or 'none'}")
    return found[0]


def main() -> None:
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        raise SystemExit(f"torch_config: {sys.executable} cannot import torch: {error}") from None

    library_dir = os.path.join(os.path.dirname(torch.__file__), "lib")
    libraries = [os.path.join(library_dir, f"lib{name}.so") for name in ("torch", "torch_cpu", "c10")]
    missing = [path for path in libraries if not os.path.exists(path)]
    if missing:
        raise SystemExit(f"torch_config: torch {torch.__version__} lacks {', '.join(missing)}")

    print(f"version={torch.__version__}")
    print(f"cuda={torch.version.cuda or ''}")
    print(f"include_dirs={';'.join(p for p in cpp_extension.include_paths() if os.path.isdir(p))}")
    print(f"libraries={';'.join(libraries)}")
    print(f"openmp={openmp_runtime()}")
    print(f"cxx11_abi={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")


if __name__ == "__main__":
    main()

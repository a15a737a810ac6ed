#!/usr/bin/env bash
# Installs the Python package as its users do, and runs README's example with it:
#
#   tools/pip_install.sh [PYTHON]     default: python3
#
# A clone of what is committed, in a new folder; a new virtual environment of PYTHON; `pip install .`, which makes a
# build environment of its own, and then `pip install --no-build-isolation .` against the torch that is there. Of this
# tree nothing is used, but for the libraries of `make deps`, which stand for packages of the system. ccache may help.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${1:-python3}")
root=$PWD
unset GSA_LIBRARY GSA_BUILD GSA_PROGRAM PYTHONPATH VIRTUAL_ENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

folder=$(mktemp -d "${TMPDIR:-/tmp}/gsa-pip-install.XXXXXX")
trap 'rm -rf "$folder"' EXIT
leg() {
  local name=$1
  shift
  TIMEFORMAT="[pip-install] $name: %0R s (processor: %0U s)"
  if ! { time "$@" >"$folder/log" 2>&1; } 2>&1; then
    cat "$folder/log" >&2
    echo "[pip-install] $name: failed, see above" >&2
    exit 1
  fi
}

# What must hold of an installed package. From a folder that has no copy of it; the time is that of the import alone.
check() {
  "$fresh" -m pip check
  cd "$folder/elsewhere"
  "$fresh" - "$root/README.md" <<'END'
import importlib.metadata, pathlib, re, sys, time
import torch
start = time.perf_counter()
import gated_sparse_attention as gsa
seconds = time.perf_counter() - start
assert gsa.__file__.startswith(sys.prefix) and str(gsa._library.path).startswith(sys.prefix), gsa._library.path
wheel = importlib.metadata.distribution("gated-sparse-attention").read_text("WHEEL")
assert re.search(r"^Tag: py3-none-\w*linux", wheel, re.M), wheel
page = pathlib.Path(sys.argv[1]).read_text("utf-8")
(example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "import gated_sparse_attention" in code]
names = {}
exec(example, names)
grad = names["layer"].indexer.wq.weight.grad
assert grad is not None and grad.isfinite().all() and grad.abs().sum() > 0
print(f"torch {torch.__version__}, import after torch {seconds:.2f} s, README's example ran")
END
  cd "$root"
  tail -n 1 "$folder/log"
}

if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
  echo "[pip-install] note: changes that are not committed are left out"
fi
git clone --quiet . "$folder/clone"
if [ -d .deps ]; then ln -s "$root/.deps" "$folder/clone/.deps"; fi
mkdir "$folder/elsewhere"
"$python" -m venv "$folder/fresh"
fresh=$folder/fresh/bin/python
pip() { (cd "$folder/clone" && "$fresh" -m pip "$@"); }

leg "pip install ." pip install .
leg "its checks" check
# The commands of docs/python.md.
pip uninstall --quiet --yes gated-sparse-attention
leg "pip install scikit-build-core" pip install 'scikit-build-core>=0.11' cmake ninja
leg "pip install --no-build-isolation ." pip install --no-build-isolation .
leg "its checks" check
echo "[pip-install] passed: commit $(git rev-parse --short HEAD), $("$python" --version)"

#!/usr/bin/env bash
# Packs what a build folder has built (target gsa_wheel) into a wheel; nothing is compiled.
#
#   tools/wheel.sh PYTHON BUILD OUTPUT [ENVIRONMENT]
#
# PYTHON is the interpreter that BUILD was configured with, with scikit-build-core. With ENVIRONMENT a new virtual
# environment is made there, the wheel installed into it, and torch and all else taken from PYTHON's packages.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 build=$2 output=$3 environment=${4:-}

if [ ! -f "$build/python/libgsa.so" ]; then
  echo "[wheel] expected $build/python/libgsa.so, got none: cmake --build $build --target gsa_wheel" >&2
  exit 1
fi
mkdir -p "$output"
rm -f "$output"/gated_sparse_attention-*.whl
"$python" -m pip wheel --disable-pip-version-check --no-input --quiet --no-build-isolation --no-deps \
  --wheel-dir "$output" --config-settings=cmake.define.GSA_WHEEL_FROM="$(realpath "$build")" .
wheel=$(echo "$output"/gated_sparse_attention-*.whl)
echo "[wheel] $wheel"

if [ -n "$environment" ]; then
  rm -rf "$environment"
  "$python" -m venv --without-pip "$environment"
  # The packages of PYTHON, after those of the environment.
  "$python" -c 'import site; print("\n".join([*site.getsitepackages(), site.getusersitepackages()]))' \
    >"$("$environment/bin/python" -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth"
  "$python" -m pip --python "$environment/bin/python" install --disable-pip-version-check --no-input --quiet --no-deps \
    --no-index --ignore-installed --no-compile "$wheel"
  "$environment/bin/python" - <<'END'
import sys, gated_sparse_attention
assert gated_sparse_attention.__file__.startswith(sys.prefix), gated_sparse_attention.__file__
END
  echo "[wheel] installed into $environment"
fi

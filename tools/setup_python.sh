#!/usr/bin/env bash
# Gets a Python with torch ready, and checks it.
#
#   tools/setup_python.sh                  makes .venv from tools/requirements.txt, or brings it up to date
#   tools/setup_python.sh --run            the same with what the program wants alone: tools/requirements-run.txt
#   tools/setup_python.sh /path/python3    checks that this interpreter has what is wanted; installs nothing
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=tools/requirements.txt
if [ "${1:-}" = --run ]; then
  requirements=tools/requirements-run.txt
elif [ $# -gt 0 ]; then
  python=$1
  if ! command -v "$python" >/dev/null; then
    echo "[setup] PYTHON=$python: no such program" >&2
    exit 1
  fi
  exec "$python" tools/check_python.py
fi

venv=.venv
stamp=$venv/.requirements.sha256
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "[setup] python3: expected 3.11 or newer, got $(python3 --version 2>&1)" >&2
  exit 1
fi
everything=$(cat tools/requirements-run.txt tools/requirements.txt | sha256sum)
wanted=$everything
[ $requirements = tools/requirements.txt ] || wanted=$(sha256sum <$requirements)
found=$(cat $stamp 2>/dev/null || true)
if [ -x $venv/bin/python ] && { [ "$found" = "$wanted" ] || [ "$found" = "$everything" ]; } &&
  $venv/bin/python tools/check_python.py --installed $requirements; then
  exit 0
fi

names=$(cat tools/requirements-run.txt $requirements | grep -E '^[a-z]' | sort -u | tr '\n' ' ')
echo "[setup] making $venv with $names(a few minutes, once)"
if ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
  python3 -m venv --clear $venv
fi
# pip compiles to bytecode on one core, which takes as long as the rest. The tests, which start Python often, want it.
if ! $venv/bin/python -m pip install --disable-pip-version-check --no-input --no-compile -r $requirements \
  </dev/null; then
  {
    echo "[setup] pip could not install $requirements (see above)."
    echo "[setup] Where torch is already installed: make PYTHON=/path/to/python3 test"
  } >&2
  exit 1
fi
if [ $requirements = tools/requirements.txt ]; then
  $venv/bin/python -m compileall -q -j 0 $venv/lib >/dev/null || true  # templates of packages are no Python
fi
$venv/bin/python tools/check_python.py $([ $requirements = tools/requirements.txt ] || echo --torch)
echo "$wanted" >$stamp

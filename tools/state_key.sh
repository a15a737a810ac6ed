#!/usr/bin/env bash
# One line that changes whenever a file of the checkout or the torch behind the given interpreter does: two runs
# of the tests under the same key would run the same code on the same sources.
set -euo pipefail
cd "$(dirname "$0")/.."
files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard
  else
    find . -type f -not -path './build/*' -not -path './.venv/*' -not -path './.deps/*' -print0
  fi
}
{
  files | sort -z | while IFS= read -r -d '' file; do
    if [ -f "$file" ]; then sha256sum "$file"; fi
  done
  "$1" -c 'import sys, torch; print(sys.version, torch.__version__, torch.cuda.device_count())'
  uname -m
} | sha256sum | cut -d ' ' -f 1

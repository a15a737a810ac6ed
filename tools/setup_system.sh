#!/usr/bin/env bash
# Installs the system packages that the build wants: nothing when all are there, apt as root, else it prints the
# command to run and stops.
#
#   tools/setup_system.sh [--run] [--venv] [--browser]
#
#   --run       nothing but what the program needs: neither ccache, curl nor clang-format
#   --venv      Python's venv module too
#   --browser   Chromium too
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/packages.sh

also=() optional=
[[ " $* " == *" --run "* ]] || optional=$(missing_packages optional)
for option in "$@"; do
  case "$option" in
    --run) ;;
    --venv | --browser) also+=("${option#--}") ;;
    *) echo "[setup] expected --run, --venv or --browser, got $option" >&2; exit 2 ;;
  esac
done
missing_required() {
  local need
  echo $(for need in required "${also[@]}"; do missing_packages "$need"; done)
}

required=$(missing_required)
tried=.cache/optional-packages-tried  # a machine that cannot have them is asked once, not at every run

if [ -z "$required" ] && { [ -z "$optional" ] || [ -e "$tried" ]; }; then
  exit 0
fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  if [ -z "$required" ]; then
    echo "[setup] not found: $optional (not needed to build; without clang-format the format check is skipped)"
    exit 0
  fi
  {
    echo "[setup] packages are missing and this is not root on a Debian or Ubuntu machine. Run"
    echo
    echo "    sudo sh -c 'apt-get update && apt-get install -y $required${optional:+ $optional}'"
    echo
    echo "and start again. Without root: \`make deps\` fetches the libraries among them into .deps/ on a machine"
    echo "with a network; that folder may be copied here."
  } >&2
  exit 1
fi

echo "[setup] installing with apt: $required${required:+${optional:+ }}$optional"
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2)
"${apt[@]}" update </dev/null || echo "[setup] apt-get update failed: trying with the package lists that are there"
install() { "${apt[@]}" install -y --no-install-recommends "$@" </dev/null; }
# In two steps: an optional package that cannot be had must not keep a required one away.
if { [ -z "$required" ] || install $required; } && { [ -z "$optional" ] || install $optional; }; then
  exit 0
fi

required=$(missing_required)
if [ -n "$required" ]; then
  {
    echo "[setup] apt-get could not install: $required"
    echo "[setup] On a machine without a network, run \`make deps\` on one with, and copy the folder .deps here."
  } >&2
  exit 1
fi
mkdir -p .cache && touch "$tried"
echo "[setup] apt-get could not install $optional: going on without (the format check is skipped without clang-format)"

#!/usr/bin/env bash
# Unpacks libraries into .deps/ without root, for this machine or for another one that is cut off.
#
#   tools/fetch_deps.sh                    Highway and toml++ (rarely installed), pytest, and what this machine lacks
#   tools/fetch_deps.sh libgtest-dev ...   these Debian packages instead
#
# .deps/usr       headers and libraries; CMake looks there after the system
# .deps/python    pytest, for interpreters that have torch but not pytest
# Copy the folder into another checkout and build there with `make PYTHON=/path/to/python3 test`.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/packages.sh

deps=$PWD/.deps
archives=$deps/archives
mkdir -p "$archives"

for tool in apt-get dpkg-deb; do
  if ! command -v $tool >/dev/null; then
    echo "[deps] $tool not found: run make deps on a Debian or Ubuntu machine and copy .deps here" >&2
    exit 1
  fi
done

if [ $# -gt 0 ]; then
  packages=("$@")
else
  # The runtime library beside libhwy-dev carries another name in newer releases (libhwy1, libhwy1t64).
  runtime=$(apt-cache depends libhwy-dev 2>/dev/null | sed -nE 's/^ *Depends: (libhwy[0-9][a-z0-9]*)$/\1/p' | head -n 1)
  packages=(libhwy-dev "${runtime:-libhwy1}" libtomlplusplus-dev)
  for package in $(missing_packages required); do
    case $package in
      libhwy-dev | g++ | cmake | ninja-build) ;;  # fetched anyway, or programs that do not run from a folder
      libsentencepiece-dev) packages+=("$package" libsentencepiece0) ;;  # the library itself
      libtomlplusplus-dev) ;;  # fetched anyway
      *) packages+=("$package") ;;
    esac
  done
fi

# download <package> [apt option...]: into $archives
download() {
  local package=$1
  shift
  (cd "$archives" && apt-get -q -o "APT::Sandbox::User=$(id -un)" "$@" download "$package")
}

private=()  # options for package lists of our own, where the system's are missing or too old to be served
for package in "${packages[@]}"; do
  if [ -e "$archives/$package.unpacked" ]; then
    echo "[deps] $package: already here"
    continue
  fi
  echo "[deps] $package"
  rm -f "$archives/${package}_"*.deb
  if [ ${#private[@]} = 0 ] && ! download "$package"; then
    echo "[deps] fetching package lists into .deps (the system's do not have $package, or are out of date)"
    mkdir -p "$deps/apt/lists/partial" "$deps/apt/cache/archives/partial"
    private=(-o "Dir::State::lists=$deps/apt/lists" -o "Dir::Cache=$deps/apt/cache")
    apt-get -q "${private[@]}" update
  fi
  if [ ${#private[@]} != 0 ]; then
    download "$package" "${private[@]}"
  fi
  dpkg-deb -x "$archives/${package}_"*.deb "$deps"
  touch "$archives/$package.unpacked"
done

if [ $# = 0 ]; then
  pytest=$(grep '^pytest' tools/requirements.txt)
  if [ "$(cat "$deps/python/.requirement" 2>/dev/null)" = "$pytest" ]; then
    echo "[deps] $pytest: already here"
  else
    echo "[deps] $pytest"
    rm -rf "$deps/python"
    python3 -m pip install --disable-pip-version-check --no-input --quiet --no-compile \
      --target "$deps/python" "$pytest" </dev/null
    echo "$pytest" >"$deps/python/.requirement"
  fi
fi
rm -rf "$deps/apt"
echo "[deps] ready: $(du -sh "$deps" | cut -f1) in .deps"

#!/usr/bin/env bash
# Unpacks libraries into .deps/ without root, for this machine or for another one that is cut off.
#
#   tools/fetch_deps.sh                    Highway, toml++, PCRE2, utf8proc and Boost (rarely installed), pytest, and
#                                          what this machine lacks
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

# runtime_of <package> <stem> <number>: the library's own package, whose name is another in newer releases (libhwy1,
# libhwy1t64); with that number where the machine has no package lists
runtime_of() {
  local name
  name=$(apt-cache depends "$1" 2>/dev/null | sed -nE "s/^ *Depends: ($2[0-9][a-z0-9]*)\$/\1/p" | head -n 1)
  echo "${name:-$2$3}"
}

if [ $# -gt 0 ]; then
  packages=("$@")
else
  boost=$(apt-cache depends libboost-dev 2>/dev/null | sed -nE 's/^ *Depends: (libboost[0-9.]+-dev)$/\1/p' | head -n 1)
  packages=(libhwy-dev "$(runtime_of libhwy-dev libhwy 1)" libtomlplusplus-dev libpcre2-dev libpcre2-8-0
            libutf8proc-dev "$(runtime_of libutf8proc-dev libutf8proc 2)" "${boost:-libboost1.74-dev}")
  for package in $(missing_packages required); do
    case $package in
      libhwy-dev | g++ | cmake | ninja-build) ;;  # fetched anyway, or programs that do not run from a folder
      libsentencepiece-dev) packages+=("$package" libsentencepiece0) ;;  # the library itself
      libtomlplusplus-dev | libpcre2-dev | libutf8proc-dev | libboost-dev) ;;  # fetched anyway
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

# unpack_boost <archive>: of its 15,000 headers (150 MB) those that src/serve includes, where a compiler can tell
unpack_boost() {
  local whole=$deps/boost source
  rm -rf "$whole"
  dpkg-deb -x "$1" "$whole"
  if ! command -v g++ >/dev/null; then
    cp -r "$whole/usr" "$deps/"
  else
    mkdir -p "$deps/usr/include"
    for source in src/serve/http/*.cc; do
      g++ -std=c++20 -M -isystem "$whole/usr/include" -iquote src -I include "$source" || exit 1
    done | tr -s ' \\' '\n' | sed -n "s#^$whole/usr/include/boost/#boost/#p" | sort -u >"$whole/headers"
    # boost/config: whole, for another compiler than this one.
    tar -C "$whole/usr/include" -cf - boost/config -T "$whole/headers" | tar -C "$deps/usr/include" -xf -
  fi
  rm -rf "$whole"
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
  case $package in
    libboost*) unpack_boost "$archives/${package}_"*.deb ;;
    *) dpkg-deb -x "$archives/${package}_"*.deb "$deps" ;;
  esac
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

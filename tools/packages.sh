# Which Debian packages the build wants, and how to see whether a machine has what they bring.
# Sourced by setup_system.sh and fetch_deps.sh; runs nothing by itself.
#
# Presence is probed by file or command, not by package name: a machine may have it from elsewhere.

# package             need      kind     probe
PACKAGE_TABLE='
g++                   required  command  g++
cmake                 required  command  cmake
ninja-build           required  command  ninja
libhwy-dev            required  header   hwy/highway.h
libgtest-dev          required  header   gtest/gtest.h
nlohmann-json3-dev    required  header   nlohmann/json.hpp
libcli11-dev          required  header   CLI/CLI.hpp
libtomlplusplus-dev   required  header   toml++/toml.h
libsentencepiece-dev  required  header   sentencepiece_processor.h
libpcre2-dev          required  header   pcre2.h
libutf8proc-dev       required  header   utf8proc.h
libboost-dev          required  header   boost/beast/http/parser.hpp
python3-venv          venv      python   ensurepip,venv
chromium              browser   command  chromium,chromium-browser,google-chrome
chromium-driver       browser   command  chromedriver
curl                  optional  command  curl
ccache                optional  command  ccache
clang-format          optional  command  clang-format-14,clang-format
'

# has <kind> <probe>
has() {
  local name dir
  case "$1" in
    command)
      for name in ${2//,/ }; do
        command -v "$name" >/dev/null 2>&1 && return 0
      done
      return 1
      ;;
    header)
      for dir in /usr/include /usr/local/include .deps/usr/include; do
        [ -e "$dir/$2" ] && return 0
      done
      return 1
      ;;
    python)
      python3 -c "import $2" >/dev/null 2>&1
      ;;
  esac
}

# missing_packages <need>: the packages of that need that the machine lacks, on one line
missing_packages() {
  local package need kind probe missing=()
  while read -r package need kind probe; do
    [ "$need" = "$1" ] && ! has "$kind" "$probe" && missing+=("$package")
  done <<<"$PACKAGE_TABLE"
  echo "${missing[*]}"
}

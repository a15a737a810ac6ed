#!/usr/bin/env bash
# clang-format over all C++ and CUDA sources.
#
#   tools/format.sh fix      rewrites files
#   tools/format.sh check    changes nothing; exit 1 with the differences, 77 when the check cannot be made
#
# Versions of clang-format disagree with each other, so only the reference version decides.
set -euo pipefail
cd "$(dirname "$0")/.."

reference=14
mode=${1:-}
case $mode in
  fix) failure=1 ;;
  check) failure=77 ;;
  *)
    echo "usage: tools/format.sh fix|check" >&2
    exit 2
    ;;
esac

tool=$(command -v clang-format-$reference || command -v clang-format || true)
if [ -z "$tool" ]; then
  echo "format: clang-format $reference not found: apt-get install clang-format-$reference" >&2
  exit $failure
fi
version=$("$tool" --version | grep -oE 'version [0-9]+' | cut -d' ' -f2)
if [ "$version" != $reference ]; then
  echo "format: expected clang-format $reference, got $version ($tool): apt-get install clang-format-$reference" >&2
  exit $failure
fi

mapfile -t files < <(find include src tests bench examples -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) | sort)
if [ $mode = fix ]; then
  "$tool" -i "${files[@]}"
  echo "format: ${#files[@]} files formatted"
elif "$tool" --dry-run -Werror "${files[@]}"; then
  echo "format: ${#files[@]} files are formatted"
else
  echo "format: some files differ: run \`make format\`" >&2
  exit 1
fi

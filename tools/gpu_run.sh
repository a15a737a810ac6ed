#!/usr/bin/env bash
# Everything about a GPU in one call: builds, tests, benches, and leaves a log of each step.
#
#   tools/gpu_run.sh [--out DIR] [--python PATH] [--sanitize] [--no-test] [--no-bench] [--bench-args "..."]
#
#   --out DIR       where logs go (default build/gpu)
#   --python PATH   the interpreter whose torch is used (default python3)
#   --sanitize      the kernels' tests under compute-sanitizer too (memcheck, racecheck, initcheck, synccheck)
#
# A step that fails does not keep the others from running; the exit status says whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."

out=build/gpu python=python3 sanitize= test=1 bench=1 bench_args=
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift ;;
    --python) python=$2; shift ;;
    --sanitize) sanitize=1 ;;
    --no-test) test= ;;
    --no-bench) bench= ;;
    --bench-args) bench_args=$2; shift ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift
done
mkdir -p "$out"
build=build/release
failed=()

# step <name> <command...>: runs it, keeps its output, says how long it took
step() {
  local name=$1 start status
  shift
  start=$(date +%s)
  "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "[$name] $([ $status = 0 ] && echo passed || echo "FAILED ($status)") in $(($(date +%s) - start)) s: $out/$name.log"
  if [ $status != 0 ]; then
    failed+=("$name")
    tail -n 25 "$out/$name.log"
  fi
  return $status
}

build_all() {
  cmake --preset release -DGSA_PYTHON="$(command -v "$python")" -DGSA_CUDA=ON &&
    cmake --build --preset release -j "$(nproc)" --target gsa gsa_cuda_tests
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/machine.log"
step build build_all || exit 1
if [ -n "$test" ]; then
  step kernels $build/gsa_cuda_tests --gtest_brief=1
  step kernels_ptx env CUDA_FORCE_PTX_JIT=1 $build/gsa_cuda_tests --gtest_brief=1 --gtest_filter='*MatchesTheReference*:*FullSort*'
  step pytest env GSA_LIBRARY=$build/libgsa.so PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=.deps/python \
    "$python" -m pytest -q -rs -p no:cacheprovider -k cuda tests/torch
fi
if [ -n "$sanitize" ]; then
  # Repeats add nothing here and take long under these tools.
  for tool in memcheck racecheck initcheck synccheck; do
    step $tool env GSA_TEST_EXACT=1 compute-sanitizer --tool $tool --error-exitcode 9 $build/gsa_cuda_tests \
      --gtest_brief=1 --gtest_filter='*bfloat16*MatchesTheReference*:*MatchesTheReference*bfloat16*:*Graph*:*FullSort*bfloat16_gsa*'
  done
fi
if [ -n "$bench" ]; then
  # shellcheck disable=SC2086
  step bench "$python" bench/gpu.py --library $build/libgsa.so --json "$out/bench.json" $bench_args
  cat "$out/bench.log"
fi
echo "gpu_run: ${#failed[@]} steps failed${failed[0]:+: ${failed[*]}}"
[ ${#failed[@]} = 0 ]

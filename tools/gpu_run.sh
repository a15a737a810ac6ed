#!/usr/bin/env bash
# Everything about a GPU in one call: builds, tests, benches, and leaves a log of each step.
#
#   tools/gpu_run.sh [--out DIR] [--python PATH] [--sanitize] [--no-test] [--no-bench] [--bench-args "..."] [--serve]
#                    [--cmake-args "..."]
#
#   --out DIR       where logs go (default build/gpu)
#   --python PATH   the interpreter whose torch is used (default python3)
#   --sanitize      small cases of every operator under compute-sanitizer too: memcheck, racecheck, initcheck and
#                   synccheck, side by side, each at most 100 s for the cases of an operator
#   --serve         what gsa serve makes of paper-1.7b (random weights): 8 clients at 128K beside the engine alone, and
#                   the times between their tokens while another prompt of 128K is read
#   --no-test       builds the programs alone, not their tests
#   --cmake-args    options of CMake beside those of the release, such as -DGSA_SELECT_SPREAD=ON
#
# A step that fails does not keep the others from running; the exit status says whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."

out=build/gpu python=python3 sanitize= test=1 bench=1 bench_args= serve= cmake_args=
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift ;;
    --python) python=$2; shift ;;
    --sanitize) sanitize=1 ;;
    --serve) serve=1 ;;
    --no-test) test= ;;
    --no-bench) bench= ;;
    --bench-args) bench_args=$2; shift ;;
    --cmake-args) cmake_args=$2; shift ;;
    *) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift
done
mkdir -p "$out"
rm -f "$out"/*.failed
build=build/release

# step <name> <command...>: runs it, keeps its output, says how long it took; NAME.failed stays where it failed
step() {
  local name=$1 start status
  shift
  start=$(date +%s)
  "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "[$name] $([ $status = 0 ] && echo passed || echo "FAILED ($status)") in $(($(date +%s) - start)) s: $out/$name.log"
  if [ $status != 0 ]; then
    touch "$out/$name.failed"
    tail -n 25 "$out/$name.log"
  fi
  return $status
}

build_all() {
  local targets=(gsa gsa_cli gsa_bench_infer)
  [ -z "$test" ] || targets+=(gsa_model_probe gsa_cuda_tests gsa_nn_tests gsa_train_tests gsa_infer_tests)
  # shellcheck disable=SC2086
  cmake --preset release --compile-no-warning-as-error -DGSA_PYTHON="$(command -v "$python")" -DGSA_CUDA=ON $cmake_args &&
    cmake --build --preset release -j "$(nproc)" --target "${targets[@]}"
}

# cases <filter> <command...>: tests by name, all of which must run: a filter that names none fails, and so does a
# test that skips itself
cases() {
  local filter=$1 report status
  shift
  report=$(mktemp)
  "$@" --gtest_brief=1 --gtest_filter="$filter" | tee "$report"
  status=${PIPESTATUS[0]}
  if [ "$status" = 0 ] && { grep -q 'SKIPPED' "$report" || ! grep -q 'PASSED  \] [1-9]' "$report"; }; then status=1; fi
  rm "$report"
  return "$status"
}

# aside <name> <command...>: a step in the background, beside as many others as there are cores. Nothing in it is timed
aside() {
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  step "$@" &
}

# sanitized <name> <filter> <tool...>: the kernels' cases under each tool
sanitized() {
  local name=$1 filter=$2 tool
  shift 2
  for tool in "$@"; do
    aside "$tool.$name" cases "$filter" env GSA_TEST_EXACT=1 timeout 100 \
      compute-sanitizer --tool "$tool" --error-exitcode 9 $build/gsa_cuda_tests
  done
}

# The program as its users run it: text to tokens, training through the three phases, evaluation, generation. A model
# that has learned these sentences by heart goes on with their words.
program() {
  local gsa=$build/bin/gsa work=$out/program text
  rm -rf "$work" && mkdir -p "$work" &&
    seq -f 'the keeper of lamp %g walks to the harbour and back' 4000 | awk 'NR % 20 == 0 { print "" } 1' >"$work/lamps.txt" &&
    $gsa tokenize "$work/lamps.txt" --split blank-lines --output "$work/data" &&
    $gsa train configs/tiny.toml --set device=cuda --set data.train="$work/data" --set output.folder="$work/run" &&
    $gsa eval "$work/run/latest" --data "$work/data" --device cuda || return
  for option in --stats --index-bits=8; do
    text=$($gsa generate "$work/run/latest" --device cuda --temperature 0 --max-tokens 60 $option \
      --prompt 'the keeper of lamp 77 walks to') || return
    echo "$option: $text"
    grep -q 'the harbour and back' <<<"$text" || return
  done
}

# examples/train_fsdp.py under torchrun, with NCCL: every phase in bfloat16, and once more from the checkpoint in the
# middle, whose losses are nearly the same (gradients are summed up in any order).
fsdp() {
  local gsa=$build/bin/gsa work=$out/fsdp
  local -x GSA_LIBRARY=$build/libgsa.so PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=python:.deps/python
  local train=("$python" -m torch.distributed.run --standalone --nproc-per-node 1 examples/train_fsdp.py
    --data "$work/data" --output "$work/run" --precision bf16 --length 512 --rows 8
    --dense 60 --warmup 10 --sparse 30 --save-every 50)
  rm -rf "$work" && mkdir -p "$work" &&
    seq -f 'the keeper of lamp %g walks to the harbour and back' 4000 | awk 'NR % 20 == 0 { print "" } 1' >"$work/lamps.txt" &&
    $gsa tokenize "$work/lamps.txt" --split blank-lines --output "$work/data" &&
    "${train[@]}" && rm -r "$work/run/checkpoints/step-00000100" && "${train[@]}" &&
    "$python" - "$work/run/losses.jsonl" <<'END' &&
import json, sys
reports = [json.loads(line) for line in open(sys.argv[1])]
first, resumed = reports[:100], reports[100:]
assert [report["step"] for report in reports] == [*range(100), *range(50, 100)], len(reports)
assert first[-1]["loss"] < first[0]["loss"] / 2 and first[-1]["kl"] > 0, (first[0], first[-1])
assert all(abs(a["loss"] - b["loss"]) < 0.2 * b["loss"] for a, b in zip(resumed, first[50:])), (resumed[-1], first[-1])
END
    $gsa generate "$work/run/model" --device cuda --temperature 0 --max-tokens 40 --prompt 'the keeper of lamp 77 walks'
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/machine.log"
step build build_all || exit 1
if [ -n "$test" ]; then
  for shard in {0..7}; do
    aside "kernels.$shard" env GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX="$shard" $build/gsa_cuda_tests --gtest_brief=1
  done
  aside kernels_ptx env CUDA_FORCE_PTX_JIT=1 $build/gsa_cuda_tests --gtest_brief=1 --gtest_filter='*MatchesTheReference*:*FullSort*'
  aside program program
  aside fsdp fsdp
  aside nn cases '*OnCuda*' $build/gsa_nn_tests
  aside infer cases '*Cuda*' $build/gsa_infer_tests
  aside train cases '*OnAGpu*:*PrecisionFollowsTheDevice*:*/cuda*' $build/gsa_train_tests
  aside pytest env GSA_LIBRARY=$build/libgsa.so PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=.deps/python \
    "$python" -m pytest -q -rs -p no:cacheprovider -k cuda tests/torch
  aside python_package env GSA_LIBRARY=$build/libgsa.so PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=.deps/python \
    "$python" -m pytest -q -rs -p no:cacheprovider tests/python/test_cuda.py
  aside cmake_package env GSA_BUILD=$build PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=.deps/python \
    "$python" -m pytest -q -rs -p no:cacheprovider -k cuda tests/package
fi
if [ -n "$sanitize" ]; then
  # Large cases and repeats add nothing here and take minutes under these tools, racecheck above all: select's one pass
  # over long rows is too much for it. The slowest come first.
  all='racecheck memcheck initcheck synccheck'
  # shellcheck disable=SC2086
  {
    sanitized select_one_pass 'Cuda/OnePass.EmptiesQueriesThatSeeNan/bfloat16' memcheck initcheck synccheck
    sanitized select 'Select/Selection.*/bfloat16_gsa_packed:Select/Selection.*/bfloat16_gsa_wide_gaps:Select/Selection.*/bfloat16_packed' $all
    sanitized attend 'Attend/Attend.Matches*/bfloat16_group_4_128*:Attend/Attend.Matches*/bfloat16_packed_*:Cuda/Graph.*' $all
    sanitized decode 'All/Decode.Agrees*/bfloat16_*_queries_2:All/Decode.Agrees*/bfloat16_*_relu:All/Decode.Agrees*/bfloat16_*_dense' $all
    sanitized eight_bit 'All/Decode.Agrees*/bfloat16_*_bytes_queries_4:All/Decode.Agrees*/bfloat16_*_bytes_odd_sizes:Append.EightBit*' $all
    sanitized attend_backward 'Attend/AttendBackward.Matches*/bfloat16_group_4_128*:Attend/AttendBackward.Matches*/bfloat16_gqa_half' $all
    sanitized indexer_kl 'IndexerKl/*.Matches*/bfloat16_one:IndexerKl/*.Matches*/bfloat16_gqa_half:IndexerKl/*.Matches*/bfloat16_gsa_packed*' $all
    sanitized fused 'Fused/*.Matches*/bfloat16_*:Fused/AdamW.*/bf16*-*_many:*_longer' $all
    sanitized gate 'Gate/Gate.Matches*/bfloat16_*-*many*' $all
    sanitized append 'Append.EveryPart*' $all
    sanitized skinny_linear 'Cuda/SkinnyLinearOnCuda.Matches*/bfloat16_one_normed:Cuda/SkinnyLinearOnCuda.Matches*/bfloat16_swiglu*' $all
  }
fi
wait
if [ -n "$bench" ]; then
  # shellcheck disable=SC2086
  step bench "$python" bench/gpu.py --library $build/libgsa.so --json "$out/bench.json" $bench_args
  cat "$out/bench.log"
fi
if [ -n "$serve" ]; then
  step serve "$python" bench/serve.py random:paper-1.7b --program $build/bin/gsa --parts decode,gap --device cuda \
    --context 131072 --long 131072 --writers 8 --scratch "$out" --json "$out/serve.json"
  cat "$out/serve.log"
fi
shopt -s nullglob
failed=("$out"/*.failed)
failed=("${failed[@]##*/}")
echo "gpu_run: ${#failed[@]} steps failed${failed[0]:+: ${failed[*]%.failed}}"
[ ${#failed[@]} = 0 ]

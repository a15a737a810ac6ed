#!/usr/bin/env bash
# Benchmarks on trained weights, in one command: tokenizes a text, trains small models on it for some minutes, writes
# what their attention works on, and runs the benchmarks on that.
#
#   make bench-trained TEXT=book.txt PYTHON=/path/python3        builds what is needed, then this
#   tools/train_for_bench.sh book.txt --models small             by hand, with what is built
#   tools/train_for_bench.sh book.txt --models tiny --device cpu a try without a GPU, in minutes
#
#   TEXT              a text file (.xz and .gz are unpacked), one document; 128K tokens and more for `wide`,
#                     better some hundred megabytes
#   --models LIST     small: 8/2 heads of 64, indexer 4 of 32, trained at 8K, read at 8 x 8K, and its training steps
#                     wide:  16/4 heads of 128, indexer 4 of 64, k 2048, trained at 8K, 32K and 128K, read at 16K, 32K
#                            and 128K
#                     tiny:  to try this script                          (default: small,wide)
#   --output FOLDER   data, runs, tensors and results (default build/bench-trained); what is there is not made again
#   --device NAME     cuda or cpu (default cuda)
#   --build FOLDER    of the programs (default build/release)
#   --python PATH     an interpreter with torch and safetensors (default .venv/bin/python)
#   --set KEY=VALUE   an option of gsa train for every model, e.g. --set phases.dense=2000; may be repeated
#   --peak-tflops N   what the device could do, for the share (H200, bf16: 989)
#
# Results: FOLDER/results/*.json, and every table in FOLDER/results/log.txt.
set -euo pipefail

usage() { sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0"; }
refuse() {
  echo "tools/train_for_bench.sh: $1" >&2
  exit 2
}

text='' models=small,wide output=build/bench-trained device=cuda build=build/release python=.venv/bin/python peak=0
train_options=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --models | --output | --device | --build | --python | --set | --peak-tflops)
      [ $# -ge 2 ] || refuse "$1: expected a value, got none"
      case $1 in
        --models) models=$2 ;;
        --output) output=$2 ;;
        --device) device=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        --set) train_options+=(--set "$2") ;;
        --peak-tflops) peak=$2 ;;
      esac
      shift 2
      ;;
    -*) refuse "expected an option that --help names, got $1" ;;
    *)
      [ -z "$text" ] || refuse "expected one text file, got $text and $1"
      text=$1
      shift
      ;;
  esac
done
[ -n "$text" ] || refuse "expected a text file, got none (--help)"
[ -f "$text" ] || refuse "expected a text file, got $text"
case $device in cuda | cpu) ;; *) refuse "--device: expected cuda or cpu, got $device" ;; esac
here=$(dirname "$0")/..
IFS=, read -ra names <<<"$models"
for name in "${names[@]}"; do
  case $name in small | wide | tiny) ;; *) refuse "--models: expected small, wide or tiny, got $name" ;; esac
done
for program in bin/gsa gsa_bench_tensors gsa_bench_train libgsa.so; do
  [ -e "$build/$program" ] || refuse "--build: expected $build/$program, got none (make build)"
done
command -v "$python" >/dev/null || refuse "--python: expected an interpreter, got $python"

mkdir -p "$output/results"
exec > >(tee -a "$output/results/log.txt") 2>&1
say() { printf '\n== %s\n' "$*"; }

# ---- Data: a tokenizer of 16,384 pieces, as in the project's experiments; bytes for the try

# tokenized NAME [option]...: sets data to a dataset of the text
tokenized() {
  data=$output/data-$1
  shift
  [ ! -e "$data/dataset.json" ] || return 0
  local plain=$text
  case $text in
    *.xz) plain=$output/text.txt && xz -dc "$text" >"$plain" ;;
    *.gz) plain=$output/text.txt && gzip -dc "$text" >"$plain" ;;
  esac
  say "tokenize $text"
  "$build/bin/gsa" tokenize "$plain" "$@" --output "$data"
}

train() { # NAME [option]...
  local run=$output/$1
  [ ! -e "$run/trained" ] || return 0
  say "train $1"
  if [ -e "$run/latest" ]; then
    "$build/bin/gsa" train "$run/config.toml" --resume
  else
    "$build/bin/gsa" train "$here/bench/trained/$1.toml" --set data.train="$data" --set output.folder="$run" \
      --set device="$device" "${@:2}" "${train_options[@]}"
  fi
  touch "$run/trained"
}

dump() { # NAME LENGTH ROWS [option]...
  local to=$output/tensors/$1-$2x$3
  tensors+=("$to")
  [ ! -e "$to/complete" ] || return 0
  say "tensors of $1, $3 x $2 tokens"
  "$build/gsa_bench_tensors" "$output/$1/latest" --data "$data" --device "$device" --length "$2" --rows "$3" \
    --output "$to" "${@:4}"
  touch "$to/complete"
}

gpu() { # RESULT [option]...
  say "bench/gpu.py ${*:2}"
  "$python" "$here/bench/gpu.py" --library "$build/libgsa.so" --device "$device" \
    --json "$output/results/$1.json" "${@:2}"
}

steps() { # NAME [option]...
  local to=$output/results/train-$1.json
  say "training steps of $1"
  "$build/gsa_bench_train" --device "$device" --model "$output/$1/latest" --data "$data" --json "$to" \
    --peak-tflops "$peak" "${@:2}"
  if [ "$device" = cuda ]; then
    "$python" "$here/bench/train_torch.py" --device cuda --beside "$to" --peak-tflops "$peak" \
      --json "$output/results/train-$1-torch.json"
  fi
}

status=0
fitting=() # tensors of the shapes that the suite has
for name in "${names[@]}"; do
  tensors=()
  case $name in
    tiny) tokenized bytes --tokenizer bytes ;;
    *) tokenized bpe --train-tokenizer 16384 ;;
  esac
  train "$name"
  case $name in
    small) dump small 8192 8 ;;
    wide)
      train wide-32k --set model.from="$output/wide/latest"
      train wide-128k --set model.from="$output/wide-32k/latest"
      dump wide-32k 16384 1
      dump wide-32k 32768 1
      dump wide-128k 131072 1
      ;;
    tiny) dump tiny 256 2 --layers 0,3 ;;
  esac
  [ "$name" = tiny ] || fitting+=("${tensors[@]}")
  # A benchmark that fails is reported at the end; the others still run.
  gpu "$name" --tensors "${tensors[@]}" || status=1
  case $name in
    small) steps small --length 8192 --sequences 8 || status=1 ;;
    tiny) steps tiny --sequences 2 --steps 1 || status=1 ;;
  esac
done
if [ ${#fitting[@]} -gt 0 ]; then
  gpu layer --suite layer --tensors "${fitting[@]}" || status=1
  shapes=()
  case ,$models, in *,small,*) shapes+=(8x8k) ;; esac
  case ,$models, in *,wide,*) shapes+=(32k 128k) ;; esac
  gpu distributions --shape "${shapes[@]}" --inputs crowded saturated ties dominant constant || status=1
fi
say "results in $output/results"
exit $status

#!/usr/bin/env bash
# Long contexts on a GPU, measured: prefill by length, 128K with and without shared selections, a million tokens, and
# what sharing costs a deep model that was trained here. After tools/gpu_run.sh, which builds.
#
#   tools/gpu_long.sh PART... [--out DIR] [--python PATH] [--run N] [--text FILE]
#
#   lengths     whole paper-1.7b, prefill at 4K to 64K beside the standard model: from where on sparse attention pays
#   layers      the same at 128K, prefill and decoding, an indexer in every layer and in every fourth
#   million     the same at 1,048,576 tokens, an indexer in every fourth layer, beside dense attention by L²
#   generate    gsa generate behind a prompt of 1,048,576 tokens (random weights, a vocabulary of bytes, YaRN)
#   sharing     bench/shared_selection.py: 24 layers of 256, trained on --text
#
#   --out DIR       where logs and JSON go (default build/gpu)
#   --python PATH   an interpreter with torch (default python3)
#   --run N         tokens in a run: larger ones make neighbours agree more; union/k is printed (default 512)
#   --text FILE     for sharing; .xz is unpacked
#   --base-steps N  for sharing: dense steps of the model that the others start from (default 1500)
#
# On an H200, estimated: two minutes each for lengths, layers and million, three for generate, twelve for sharing (seven
# with --base-steps 600). A part that fails does not keep the others from running; what sharing has made is not made
# again.
set -uo pipefail
cd "$(dirname "$0")/.."

out=build/gpu python=python3 run=512 text='' base_steps=1500 parts=()
refuse() {
  echo "tools/gpu_long.sh: $1" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      sed -n '2,/^set -uo/{/^set -uo/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    --out | --python | --run | --text | --base-steps)
      [ $# -ge 2 ] || refuse "$1: expected a value, got none"
      name=${1#--}
      declare "${name//-/_}=$2"
      shift
      ;;
    lengths | layers | million | generate | sharing) parts+=("$1") ;;
    *) refuse "expected lengths, layers, million, generate, sharing or an option that --help names, got $1" ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || refuse "expected a part, got none (--help)"
build=build/release
for program in bin/gsa gsa_bench_infer; do
  [ -x $build/$program ] || refuse "expected $build/$program, got none (make build)"
done
mkdir -p "$out"
rm -f "$out"/*.failed

# part <name> <command...>: runs it, shows and keeps its output; NAME.failed stays where it failed
part() {
  local name=$1 start status
  shift
  start=$(date +%s)
  echo "[$name] $*"
  "$@" 2>"$out/$name.err" | tee "$out/$name.log"
  status=${PIPESTATUS[0]}
  echo "[$name] $([ "$status" = 0 ] && echo done || echo "FAILED ($status)") in $(($(date +%s) - start)) s"
  if [ "$status" != 0 ]; then
    touch "$out/$name.failed"
    tail -n 20 "$out/$name.err"
  fi
}

infer() { # <name> <option...>
  local name=$1
  shift
  part "$name" $build/gsa_bench_infer --device cuda --run "$run" --json "$out/$name.json" "$@"
}

generate() {
  local folder=$out/random-paper-1.7b
  [ -e "$folder/config.json" ] || "$python" bench/random_model.py paper-1.7b "$folder" --program $build/bin/gsa || return
  "$python" -c "
import sys
line = 'the keeper of lamp %d walks to the harbour and back\n'
text = ''.join(line % i for i in range(21000))
sys.stdout.write(text[: 2**20 - 1])  # a byte is a token, behind the begin mark
" >"$out/million.txt" || return
  part generate $build/bin/gsa generate "$folder" --device cuda --prompt-file "$out/million.txt" --extend 5 \
    --max-tokens 64 --ignore-eos --temperature 0 --stats --json
  $build/bin/gsa inspect "$folder" --length 1048576 --extend 5
}

sharing() {
  local source=$out/sharing.txt
  [ -n "$text" ] || refuse "sharing: expected --text FILE, got none"
  case $text in *.xz) xz -dkc "$text" ;; *) cat "$text" ;; esac >"$source" || return
  if [ ! -e "$out/sharing/valid/dataset.json" ]; then
    mkdir -p "$out/sharing"
    head -c -4000000 "$source" >"$out/train.txt" && tail -c 4000000 "$source" >"$out/valid.txt" &&
      $build/bin/gsa tokenize "$out/train.txt" --train-tokenizer 16384 --output "$out/sharing/train" &&
      $build/bin/gsa tokenize "$out/valid.txt" --tokenizer "$out/sharing/train" --output "$out/sharing/valid" || return
  fi
  part sharing "$python" bench/shared_selection.py --gsa $build/bin/gsa --train "$out/sharing/train" \
    --validation "$out/sharing/valid" --out "$out/sharing/runs" --base-steps "$base_steps" --device cuda
}

for name in "${parts[@]}"; do
  case $name in
    lengths) infer lengths --prefill --length 4096 --length 8192 --length 16384 --length 32768 --length 65536 ;;
    layers) infer layers --length 131072 --index-every 1 --index-every 4 ;;
    million) infer million --sequences 1 --length 1048576 --dense-limit 131072 --index-every 4 ;;
    *) "$name" || touch "$out/$name.failed" ;;
  esac
done
shopt -s nullglob
failed=("$out"/*.failed)
failed=("${failed[@]##*/}")
echo "gpu_long: ${#failed[@]} parts failed${failed[0]:+: ${failed[*]%.failed}}"
[ ${#failed[@]} = 0 ]

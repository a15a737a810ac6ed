#!/usr/bin/env python3
"""Checks the shape of the source tree: dependencies point one way, and files stay short.

    tools/check_layers.py              checks the repository this script stands in
    tools/check_layers.py --root DIR   checks another tree
    tools/check_layers.py --self-test  builds small trees that break each rule and checks that it is reported

Rules, with the name each finding carries:
    layer         src/<layer>/ includes only the layers listed for it in ALLOWED
    operator      a folder of src/kernels/ includes of another operator only its public <op>.h
    shared        what several operators share (SHARED: common, scores, attention) includes no operator
    room          in an operator's folder, a room includes of the other rooms only those listed for it in ROOMS, and
                  what runs on the CPU (cpu/, *_cpu.*, *.cc) includes no .cuh
    framework     no torch, ATen, c10 or caffe2 header in include/, src/core, src/data, src/infer/core, src/kernels,
                  src/model, src/paper, src/plot, src/ruler, src/serve/core, src/serve/http and their tests
    public        include/ includes only the standard library and gsa/ headers, and has no conditional compilation
    path          project includes are written from src/ or include/, never with '..' or from the file's own folder
    unknown       every folder of src/ is a known layer, every folder of an operator a known room
    length        a file has at most MAX_LINES lines
"""

import argparse
import pathlib
import re
import sys
import tempfile

MAX_LINES = 700

# What a layer may include, itself aside. cli -> train, eval, infer -> nn -> torch -> kernels -> core; among the
# three programs of the middle, train may evaluate and evaluation may generate, never the other way. What knows no
# tensor stands beside: data (text and tokens), model (what of a model is no tensor), infer/core (what of inference is
# none), plot (charts), ruler (a benchmark's prompts and scores) and paper (tables of what commands of the program came
# to). The server: serve/http (connections), serve/core (API and scheduler, no tensor), serve (the engine behind them).
# demo is a program made of them all.
ALLOWED = {
    "core": set(),
    "data": {"core"},
    "plot": {"core"},
    "ruler": {"plot", "core"},
    "paper": {"ruler", "plot", "data", "core"},
    "kernels": {"core"},
    "model": {"kernels", "core"},
    "torch": {"kernels", "core"},
    "nn": {"torch", "model", "kernels", "core"},
    "infer/core": {"model", "kernels", "data", "core"},
    "infer": {"infer/core", "nn", "torch", "model", "kernels", "data", "core"},
    "eval": {"infer", "infer/core", "nn", "torch", "model", "kernels", "plot", "data", "core"},
    "train": {"eval", "infer", "infer/core", "nn", "torch", "model", "kernels", "plot", "data", "core"},
}
ALLOWED["serve/http"] = {"core"}
ALLOWED["serve/core"] = {"serve/http", "infer/core", "model", "kernels", "data", "core"}
ALLOWED["serve"] = {"serve/core", "serve/http", "infer"} | ALLOWED["infer"]
ALLOWED["demo"] = {"train"} | ALLOWED["train"]
ALLOWED["python"] = {"train"} | ALLOWED["train"]
ALLOWED["cli"] = {"demo", "paper", "ruler", "serve", "serve/core", "serve/http"} | ALLOWED["demo"]
# Folders of src/kernels/ that are no operators, and which others of them they may include.
SHARED = {"common": set(), "scores": {"common"}, "attention": {"common"}}
# Folders within an operator's, by who runs what is in them, and which of the others they may include. cuda is what
# every GPU runs, generic the kernels of all but Hopper.
ROOMS = {"cpu": set(), "cuda": set(), "hopper": {"cuda"}, "generic": {"cuda"}}
FRAMEWORK = ("torch/", "ATen/", "c10/", "caffe2/")
FRAMEWORK_FREE = (
    "include/",
    "src/core/",
    "src/data/",
    "src/infer/core/",
    "src/kernels/",
    "src/model/",
    "src/paper/",
    "src/plot/",
    "src/ruler/",
    "src/serve/core/",
    "src/serve/http/",
    "tests/data/",
    "tests/infer/core/",
    "tests/kernels/",
    "tests/model/",
    "tests/paper/",
    "tests/plot/",
    "tests/reference/",
    "tests/ruler/",
    "tests/serve/",
    "tests/serve_fuzz/",
)
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")


def layer_of(parts: list) -> str:
    """The layer of a path below src/: its first folder, or its first two where these are a layer of their own."""
    return "/".join(parts[:2]) if "/".join(parts[:2]) in ALLOWED else parts[0]


def check_kernels(parts: list, used: list):
    """Yields (rule, message) for an include within src/kernels/, both paths below it."""
    target, operator, other = "kernels/" + "/".join(used), parts[0], used[0]
    if operator in SHARED:
        if other not in {operator} | SHARED[operator]:
            allowed = ", ".join(sorted({operator} | SHARED[operator]))
            yield "shared", f'"{target}": {operator} is shared by operators and may include {allowed}'
    elif other not in SHARED and other != operator and used[1:] != [f"{other}.h"]:
        yield "operator", f'"{target}" is private to {other}; include "kernels/{other}/{other}.h"'
    elif other == operator and len(parts) == 3 and len(used) == 3 and parts[1] in ROOMS:
        if used[1] not in {parts[1]} | ROOMS[parts[1]]:
            yield "room", f'"{target}": {parts[1]}/ may include {", ".join(sorted(ROOMS[parts[1]])) or "no other room"}'
    on_cpu = parts[1] == "cpu" or parts[-1].endswith((".cc", "_cpu.h"))
    if on_cpu and target.endswith(".cuh"):
        yield "room", f'"{target}" is device code; this file runs on the CPU'


def check_include(root: pathlib.Path, path: str, quote: str, target: str):
    """Yields (rule, message) for one include line of the file at path (relative to root)."""
    parts = path.split("/")
    # Angle brackets never reach src/, so <torch/torch.h> is the framework and "torch/ops.h" our own layer.
    own = quote == '"' and (
        (root / "src" / target).is_file() or target.split("/")[0] in ALLOWED.keys() - {"torch"}
    )

    if ".." in target.split("/"):
        yield "path", f'"{target}" climbs with \'..\'; write the path from src/ or include/'
        return
    if target.startswith(FRAMEWORK) and not own and path.startswith(FRAMEWORK_FREE):
        yield "framework", f"<{target}> is a torch header; only src/torch and above may use one"
        return
    if parts[0] == "include":
        if not target.startswith("gsa/") and (quote == '"' or "/" in target):
            yield "public", f'"{target}": public headers include the standard library and gsa/ only'
        return
    if parts[0] != "src" or len(parts) < 3:
        return
    if quote == '"' and not own and (root / path).parent.joinpath(target).is_file():
        yield "path", f'"{target}" is written from its own folder; write the path from src/'
        return
    if not own:
        return

    layer, used = layer_of(parts[1:]), target.split("/")
    if layer in ALLOWED and layer_of(used) not in {layer} | ALLOWED[layer]:
        yield "layer", f'"{target}": {layer} may include {", ".join(sorted(ALLOWED[layer])) or "itself only"}'
    if layer == "kernels" and used[0] == "kernels":
        yield from check_kernels(parts[2:], used[1:])


def check_file(root: pathlib.Path, path: str):
    """Yields (path, line, rule, message) for each finding in one file."""
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    parts = path.split("/")
    if parts[0] == "src" and (len(parts) < 3 or parts[1] not in ALLOWED):
        yield path, 1, "unknown", f"expected a file in src/<layer>/, layers are {', '.join(ALLOWED)}"
    if parts[:2] == ["src", "kernels"] and len(parts) > 4 and (parts[3] not in ROOMS or len(parts) > 5):
        yield path, 1, "unknown", f"expected a file in src/kernels/<operator>/<room>/, rooms are {', '.join(ROOMS)}"
    if parts[0] in ("src", "include") and len(lines) > MAX_LINES:
        yield path, MAX_LINES + 1, "length", f"expected at most {MAX_LINES} lines, got {len(lines)}"
    for number, line in enumerate(lines, start=1):
        if match := INCLUDE.match(line):
            for rule, message in check_include(root, path, *match.groups()):
                yield path, number, rule, message
        elif parts[0] == "include" and CONDITIONAL.match(line):
            yield path, number, "public", f"conditional compilation in a public header: {line.strip()}"


def check_tree(root: pathlib.Path):
    """Returns (number of files read, findings)."""
    files = sorted(
        file.relative_to(root).as_posix()
        for folder in ("include", "src", "tests")
        for file in (root / folder).rglob("*")
        if file.suffix in SUFFIXES and file.is_file()
    )
    return len(files), [finding for file in files for finding in check_file(root, file)]


# ---- Self-test: a clean tree, and for each rule a file that breaks it.

CLEAN = {
    "include/gsa/error.h": '#pragma once\n#include <string>\n#include "gsa/dtype.h"\n',
    "include/gsa/dtype.h": "#pragma once\n#include <cstddef>\n",
    "src/core/parallel.h": '#pragma once\n#include "gsa/error.h"\n',
    "src/kernels/common/mask.h": '#pragma once\n#include "core/parallel.h"\n',
    "src/kernels/select/select.h": '#pragma once\n#include "kernels/common/mask.h"\n',
    "src/kernels/select/score.h": '#pragma once\n#include "hwy/highway.h"\n',
    "src/kernels/scores/moments.cuh": '#pragma once\n#include "kernels/common/mask.h"\n',
    "src/kernels/select/cpu/rows.cc": '#include "kernels/select/select.h"\n',
    "src/kernels/select/cuda/tile.cuh": '#pragma once\n#include "kernels/scores/moments.cuh"\n',
    "src/kernels/select/hopper/scores.cuh": '#pragma once\n#include "kernels/select/cuda/tile.cuh"\n',
    "src/kernels/select/generic/scores.cu": '#include "kernels/select/cuda/tile.cuh"\n',
    "src/kernels/select/select_cuda.cu": '#include "kernels/select/hopper/scores.cuh"\n',
    "src/kernels/attend/attend.cc": '#include "kernels/select/select.h"\n#include <hwy/highway.h>\n',
    "src/torch/ops.h": '#pragma once\n#include <torch/torch.h>\n#include "kernels/select/select.h"\n',
    "src/nn/attention.h": '#pragma once\n#include "torch/ops.h"\n',
    "src/model/config.h": '#pragma once\n#include "kernels/select/select.h"\n',
    "src/infer/core/sampling.h": '#pragma once\n#include "model/config.h"\n#include "data/dataset.h"\n',
    "src/infer/decode.h": '#pragma once\n#include "nn/attention.h"\n#include "infer/core/sampling.h"\n',
    "src/plot/plot.h": '#pragma once\n#include "core/parallel.h"\n',
    "src/eval/charts.h": '#pragma once\n#include "plot/plot.h"\n#include "infer/core/sampling.h"\n',
    "src/ruler/report.h": '#pragma once\n#include "plot/plot.h"\n',
    "src/data/dataset.h": '#pragma once\n#include "core/parallel.h"\n',
    "src/train/loop.h": '#pragma once\n#include "infer/decode.h"\n#include "data/dataset.h"\n',
    "src/cli/main.cc": '#include "train/loop.h"\n',
    "tests/nn/attention_test.cc": "#include <torch/torch.h>\n",
}
BROKEN = {
    "src/core/up.cc": ("layer", '#include "kernels/select/select.h"\n'),
    "src/torch/up.cc": ("layer", '#include "nn/attention.h"\n'),
    "src/nn/up.cc": ("layer", '#include "infer/decode.h"\n'),
    "src/infer/sideways.cc": ("layer", '#include "train/loop.h"\n'),
    "src/kernels/attend/private.cc": ("operator", '#include "kernels/select/score.h"\n'),
    "src/kernels/common/private.cc": ("shared", '#include "kernels/select/score.h"\n'),
    "src/kernels/common/public.h": ("shared", '#pragma once\n#include "kernels/select/select.h"\n'),
    "src/kernels/common/scored.cuh": ("shared", '#pragma once\n#include "kernels/scores/moments.cuh"\n'),
    "src/kernels/scores/operator.cuh": ("shared", '#pragma once\n#include "kernels/select/select.h"\n'),
    "src/kernels/attention/scored.cuh": ("shared", '#pragma once\n#include "kernels/scores/moments.cuh"\n'),
    "src/kernels/select/generic/wgmma.cu": ("room", '#include "kernels/select/hopper/scores.cuh"\n'),
    "src/kernels/select/hopper/generic.cu": ("room", '#include "kernels/select/generic/scores.cu"\n'),
    "src/kernels/select/cuda/hopper.cu": ("room", '#include "kernels/select/hopper/scores.cuh"\n'),
    "src/kernels/select/cuda/cpu.cu": ("room", '#include "kernels/select/cpu/rows.cc"\n'),
    "src/kernels/select/cpu/device.cc": ("room", '#include "kernels/scores/moments.cuh"\n'),
    "src/kernels/select/select_cpu.h": ("room", '#pragma once\n#include "kernels/scores/moments.cuh"\n'),
    "src/kernels/select/rocm/rows.cc": ("unknown", "\n"),
    "src/kernels/select/framework.cc": ("framework", "#include <ATen/ATen.h>\n"),
    "src/model/up.cc": ("layer", '#include "nn/attention.h"\n'),
    "src/model/framework.cc": ("framework", "#include <torch/torch.h>\n"),
    "tests/model/framework_test.cc": ("framework", "#include <torch/torch.h>\n"),
    "src/infer/core/up.cc": ("layer", '#include "infer/decode.h"\n'),
    "src/infer/core/nn.cc": ("layer", '#include "nn/attention.h"\n'),
    "src/infer/core/framework.cc": ("framework", "#include <ATen/ATen.h>\n"),
    "src/plot/up.cc": ("layer", '#include "eval/charts.h"\n'),
    "src/plot/framework.cc": ("framework", "#include <torch/torch.h>\n"),
    "src/ruler/up.cc": ("layer", '#include "infer/decode.h"\n'),
    "src/ruler/framework.cc": ("framework", "#include <torch/torch.h>\n"),
    "src/data/up.cc": ("layer", '#include "kernels/select/select.h"\n'),
    "src/nn/data.cc": ("layer", '#include "data/dataset.h"\n'),
    "src/core/framework.cc": ("framework", '#include "c10/util/Half.h"\n'),
    "include/gsa/framework.h": ("framework", "#pragma once\n# include <torch/torch.h>\n"),
    "tests/kernels/framework_test.cc": ("framework", "#include <torch/torch.h>\n"),
    "src/kernels/select/wrapper.cc": ("layer", '#include "torch/ops.h"\n'),
    "include/gsa/flag.h": ("public", "#pragma once\n#ifdef GSA_CUDA\n#endif\n"),
    "include/gsa/source.h": ("public", '#pragma once\n#include "core/parallel.h"\n'),
    "include/gsa/simd.h": ("public", "#pragma once\n#include <hwy/highway.h>\n"),
    "src/kernels/select/climb.cc": ("path", '#include "../../core/parallel.h"\n'),
    "src/kernels/select/short.cc": ("path", '#include "select.h"\n'),
    "src/misc/lost.cc": ("unknown", "\n"),
    "src/core/long.cc": ("length", "\n" * (MAX_LINES + 1)),
}


def write_tree(root: pathlib.Path, files: dict) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def self_test() -> int:
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_tree(root, CLEAN)
        count, findings = check_tree(root)
        if count != len(CLEAN) or findings:
            failures.append(f"clean tree: expected {len(CLEAN)} files and no finding, got {count}, {findings}")
        write_tree(root, {name: text for name, (_, text) in BROKEN.items()})
        rules = {}
        for path, _, rule, _ in check_tree(root)[1]:
            rules.setdefault(path, set()).add(rule)
        for name, (rule, _) in BROKEN.items():
            found = rules.pop(name, set())
            if found != {rule}:
                failures.append(f"{name}: expected the finding '{rule}', got {sorted(found) or 'none'}")
        failures += [f"{name}: expected no finding, got {found}" for name, found in rules.items()]
    for failure in failures:
        print(f"self-test: {failure}")
    print(f"check_layers self-test: {len(BROKEN)} broken files, {len(failures)} failures")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()

    count, findings = check_tree(args.root)
    for path, line, rule, message in findings:
        print(f"{path}:{line}: {rule}: {message}")
    if count == 0:
        print(f"check_layers: no source file found under {args.root}")
        return 1
    print(f"check_layers: {count} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

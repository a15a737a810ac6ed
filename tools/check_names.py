#!/usr/bin/env python3
"""Checks that compiling the files of a target as one (GSA_UNITY) cannot change what a call means.

A function of an anonymous namespace is then seen by the files that come after its own. If one of them calls a function
of that name, an overload may be chosen that its author never saw. So such names are unique in a target:

    tools/check_names.py               says which are not
    tools/check_names.py --self-test   checks itself on made-up files
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Globs of the files that are compiled as one, and those left out (SKIP_UNITY_BUILD_INCLUSION).
UNITS = {
    "gsa_kernels": ["src/core/*.cc", "src/kernels/*/*.cc", "src/kernels/*/*/*.cc"],
    "gsa_operators": ["src/torch/*.cc"],
    "gsa": ["src/nn/*.cc"],
    "gsa_serve": ["src/serve/*.cc"],
    "gsa_serve_core": ["src/serve/core/*.cc"],
    "gsa_serve_http": ["src/serve/http/*.cc"],
    "gsa_infer": ["src/infer/*.cc"],
    "gsa_infer_core": ["src/infer/core/*.cc"],
    **{f"gsa_{name}": [f"src/{name}/*.cc"]
       for name in ("model", "data", "plot", "ruler", "paper", "eval", "train", "demo", "cli")},
    **{f"gsa_{name}_tests": [f"tests/{name}/*.cc"]
       for name in ("model", "data", "plot", "ruler", "paper", "serve", "nn", "eval", "train", "demo", "infer")},
    "gsa_infer_core_tests": ["tests/infer/core/*.cc"],
    "gsa_bench": ["bench/*.cc"],
    "gsa_bench_train": ["bench/train/*.cc", "bench/json_file.cc", "bench/machine.cc", "bench/progress.cc",
                        "bench/timing.cc", "bench/trained/overlap.cc", "bench/trained/text_window.cc"],
    "gsa_bench_tensors": ["bench/trained/*.cc"],
}
APART = {"src/cli/paper.cc", "src/cli/ruler.cc"}

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'', re.S)
TOKEN = re.compile(r"namespace\s*(?:[\w:]+\s*)?\{|[{}]")
FUNCTION = re.compile(r"(?<![\w.>:])([a-z]\w*)\s*\(")
CALL = re.compile(r"(?<![\w.:])(?<!->)([a-z]\w*)(?:<[^<>;(){}]*>)?\s*\(")
WORDS = {"if", "for", "while", "switch", "return", "sizeof", "alignof", "decltype", "catch", "operator", "noexcept",
         "alignas", "void", "static_assert", "requires", "defined", "assert"}


def plain(text):
    """The text without comments and the insides of literals, and without lines of the preprocessor."""
    text = NOISE.sub(lambda match: '""' if match.group(0)[0] in "\"R" else " ", text)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.)*", "", text, flags=re.M | re.S)


def hidden_functions(text):
    """Names of the functions that stand directly in an anonymous namespace."""
    found, stack, head = set(), [], 0
    for token in TOKEN.finditer(text):
        if all(kind != "block" for kind in stack) and "hidden" in stack:
            # What stands between the last brace and this one: declarations, and the head of a definition.
            for statement in text[head:token.start()].split(";"):
                names = [name for name in FUNCTION.findall(statement) if name not in WORDS]
                if names and "=" not in statement.split("(")[0] and not re.match(r"\s*(TEST|INSTANTIATE|using)", statement):
                    found.add(names[0])
        head = token.end()
        if token.group(0) == "}":
            if stack:
                stack.pop()
        elif token.group(0) == "{":
            stack.append("block")
        else:
            stack.append("hidden" if re.fullmatch(r"namespace\s*\{", token.group(0)) else "named")
    return found


def findings(files):
    """(name, file that hides it, file that calls it) of files {path: text} that are compiled as one."""
    texts = {path: plain(text) for path, text in files.items()}
    hidden = {path: hidden_functions(text) for path, text in texts.items()}
    called = {path: {name for name in CALL.findall(text) if name not in WORDS} for path, text in texts.items()}
    return sorted((name, path, other) for path in texts for other in texts if other != path
                  for name in hidden[path] & called[other])


def self_test():
    first = "namespace a {\nnamespace {\nint shown(long x) { return helper(x); }\n}  // namespace\n}\n"
    calls = "namespace a {\nint f(double x) { return shown(x); }\n}\n"
    assert findings({"1.cc": first, "2.cc": calls}) == [("shown", "1.cc", "2.cc")]
    assert not findings({"1.cc": first, "2.cc": calls.replace("shown(x)", "text::shown(x) + y.shown(x)")})
    assert not findings({"1.cc": first, "2.cc": calls.replace("return shown(x)", 'return g("shown(x)");  // shown(x)')})
    assert not findings({"1.cc": first.replace("namespace {", "namespace b {"), "2.cc": calls})
    assert hidden_functions("namespace {\nconst int x = f(1);\nstruct S { void g(); };\nvoid h();\n}") == {"h"}
    print("check_names: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = []
    for globs in UNITS.values():
        paths = [path for glob in globs for path in sorted(ROOT.glob(glob))]
        files = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
        files = {path: text for path, text in files.items()
                 if path not in APART and "define HWY_TARGET_INCLUDE" not in text}
        found += [line for line in findings(files) if line not in found]
    for name, path, other in found:
        print(f"{path}: {name}() of its anonymous namespace is called in {other} too: give it a name of its own")
    print(f"check_names: {len(found)} names" if found else "check_names: names are unique in their targets")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

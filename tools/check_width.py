#!/usr/bin/env python3
"""Checks that comments and prose have lines of at most 120 characters.

    tools/check_width.py               checks the repository this script stands in
    tools/check_width.py --self-test   checks itself on made-up files

Prose is a page in Markdown, but for its tables, headings, code blocks (fenced or indented) and lines
that are one link. Of a source file,
C++, CUDA, Python, shell, CMake, Make or TOML, comments count, and Python's docstrings; code is clang-format's business.
"""

import ast
import pathlib
import re
import sys

MAX_WIDTH = 120
ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("bench", "cmake", "configs", "docs", "examples", "include", "python", "src", "tests", "tools")

C_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
HASH_SUFFIXES = {".sh", ".cmake", ".toml"}
HASH_NAMES = {"Makefile", "CMakeLists.txt"}

# Literals stand before comments: what looks like a comment within one is none.
C_TOKEN = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|(?P<comment>//[^\n]*|/\*.*?\*/)', re.S)
HASH_COMMENT = re.compile(r"(^|\s)#[#!]?(\s|$)")
LINK = re.compile(r"\s*([-*] )?!?\[.*\]\(\S+\)[.,;:]?")


def of_markdown(text):
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith(("|", "#")) and not line.startswith("    ") and not LINK.fullmatch(line):
            yield number


def of_c(text):
    for match in C_TOKEN.finditer(text):
        if match.group("comment"):
            first = text.count("\n", 0, match.start()) + 1
            yield from range(first, first + match.group().count("\n") + 1)


def of_hash(text):
    return (number for number, line in enumerate(text.split("\n"), 1) if HASH_COMMENT.search(line))


def of_python(text):
    yield from (number for number, line in enumerate(text.split("\n"), 1) if line.lstrip().startswith("#"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            yield from range(node.body[0].lineno, node.body[0].end_lineno + 1)


def kind_of(path):
    if path.suffix == ".md":
        return of_markdown
    if path.suffix in C_SUFFIXES:
        return of_c
    if path.suffix == ".py":
        return of_python
    return of_hash if path.suffix in HASH_SUFFIXES or path.name in HASH_NAMES else None


def too_wide(kind, text):
    """(line, width) of the comments and the prose that are wider than they may be."""
    lines = text.split("\n")
    return [(n, len(lines[n - 1])) for n in sorted(set(kind(text))) if len(lines[n - 1]) > MAX_WIDTH]


def self_test():
    wide, fits = "word " * 24 + "w", "word " * 23 + "w"
    for kind, text, expected in (
        (of_markdown, f"{fits}\n{wide}\n", [2]),
        (of_markdown, f"# {wide}\n| {wide} |\n```\n{wide}\n```\n- [{wide}](there)\n    {wide}\n", []),
        (of_markdown, f"- [{wide}](there) and more\n", [1]),
        (of_c, f'int a;  // {wide}\n"// {wide}"\n/* {fits}\n{wide} */\n', [1, 4]),
        (of_c, f"f({wide});\n// {fits}\n", []),
        (of_hash, f"# {wide}\ncall {wide}\ntarget: x ## {wide}\n", [1, 3]),
        (of_python, f'"""{fits}\n\n{wide}\n"""\n# {wide}\nx = "# {wide}"\n', [3, 5]),
    ):
        found = [line for line, _ in too_wide(kind, text)]
        assert found == expected, f"{kind.__name__}: expected {expected}, got {found} for {text!r}"
    print("check_width: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    count = found = 0
    paths = [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    for path in sorted(path for path in paths if path.is_file()):
        name, kind = path.relative_to(ROOT), kind_of(path)
        if kind is None:
            continue
        count += 1
        for line, width in too_wide(kind, path.read_text(encoding="utf-8")):
            found += 1
            print(f"{name}:{line}: expected comments and prose of at most {MAX_WIDTH} characters a line, got {width}")
    print(f"check_width: {count} files, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Closes a test run: how many cases each suite ran, which failed, and how to replay them.

    tools/test_summary.py BUILD_DIR

Reads the reports that GoogleTest and pytest leave in BUILD_DIR/reports. Whether the run passed is ctest's word;
this one adds that a suite without a single case is a failure. NAME.skipped says in a line why a whole suite was left
out.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def replay_of(build, report, case) -> str:
    suite, name = case.get("classname"), case.get("name")
    if report.startswith("clients"):
        return f"make clients ARGS=\"-k '{name}'\""
    if report.startswith(("package", "program", "pytest", "python")):
        return f"make pytest ARGS=\"-k '{name}'\""
    return f"{build}/gsa_{report}_tests --gtest_filter='{suite}.{name}'"


def reason_of(case) -> str:
    skipped = case.find("skipped")
    text = "" if skipped is None else skipped.get("message") or skipped.text or ""
    lines = [line for line in text.strip().splitlines() if line]
    return lines[-1] if lines else "no reason given"


def main() -> int:
    build = pathlib.Path(sys.argv[1])
    replay = []
    empty = False
    print("\nsummary")
    for report in sorted((build / "reports").glob("*.xml")):
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
        failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
        skipped = [c for c in cases if c.find("skipped") is not None or c.get("status") == "notrun"]
        passed = len(cases) - len(failed) - len(skipped)
        empty |= passed + len(failed) == 0
        print(f"  {report.stem:<21} {passed:>5} passed {len(failed):>5} failed {len(skipped):>5} skipped")
        for reason, count in collections.Counter(map(reason_of, skipped)).items():
            print(f"    {count:>4} skipped: {reason}")
        replay += [replay_of(build, report.stem, case) for case in failed]
    for file in sorted((build / "reports").glob("*.skipped")):
        print(f"  {file.stem:<21} skipped: {file.read_text(encoding='utf-8').strip()}")
    if replay:
        print("  replay:")
    for command in replay:
        print(f"    {command}")
    if empty:
        print("  a suite ran no case: that is a failure")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())

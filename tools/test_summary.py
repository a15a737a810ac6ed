#!/usr/bin/env python3
"""Closes a test run: how many cases each suite ran, which failed, and how to replay them.

    tools/test_summary.py BUILD_DIR

Reads the reports that GoogleTest and pytest leave in BUILD_DIR/reports. Whether the run passed is ctest's word;
this one adds that a suite without a single case is a failure.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

REPLAY = {
    "kernels": "{build}/gsa_kernels_tests --gtest_filter='{suite}.{name}'",
    "nn": "{build}/gsa_nn_tests --gtest_filter='{suite}.{name}'",
    "pytest": 'make pytest ARGS="-k \'{name}\'"',
}


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
        print(f"  {report.stem:<8} {passed:>5} passed {len(failed):>5} failed {len(skipped):>5} skipped")
        for case in failed:
            suite, name = case.get("classname"), case.get("name")
            replay.append(REPLAY[report.stem].format(build=build, suite=suite, name=name))
    if replay:
        print("  replay:")
    for command in replay:
        print(f"    {command}")
    if empty:
        print("  a suite ran no case: that is a failure")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())

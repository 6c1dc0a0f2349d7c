# SPDX-License-Identifier: Apache-2.0
"""Adds up what ctest's JUnit files say: count_tests.py [--extra-failed NAME]... [--last-line] FILE...

For each file one line with its counts and the names of what failed or was skipped, with the end of a failed test's
output. With --last-line instead the slowest tests of all files, what failed, and as the last line the sum:
'N passed, N failed[, N skipped]'. The exit status is 1 if anything failed or nothing passed. A stage that never came to
its tests is an --extra-failed.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import sys
import xml.etree.ElementTree

OUTPUT_LINES = 40
SLOWEST = 15
UNREADABLE = (OSError, xml.etree.ElementTree.ParseError)


@dataclasses.dataclass
class Counts:
    """How many tests ended how."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other):
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


def cases_of(path: pathlib.Path) -> list[xml.etree.ElementTree.Element]:
    """What one JUnit file says of each test. Raises one of UNREADABLE."""
    return xml.etree.ElementTree.parse(path).getroot().findall("testcase")


def read(path: pathlib.Path, quiet: bool) -> Counts:
    """The counts of one JUnit file; prints what did not pass, or if quiet the names alone of what failed. An unreadable
    file is one failure."""
    try:
        cases = cases_of(path)
    except UNREADABLE as error:
        print(f"    FAILED   {path}: no results: {error}")
        return Counts(failed=1)
    counts = Counts()
    for case in cases:
        skipped = case.find("skipped")
        # A test whose binary or fixture is missing is "skipped" to ctest; it was never asked to be, so it failed.
        asked = case.get("status") == "disabled" or (skipped is not None and skipped.get("message", "").startswith("SKIP_"))
        if case.find("failure") is not None or case.get("status") == "fail" or (skipped is not None and not asked):
            counts.failed += 1
            reason = case.find("failure") if skipped is None else skipped
            print(f"    FAILED   {case.get('name')}  {reason.get('message') if reason is not None else ''}")
            if not quiet:
                output = (case.findtext("system-out") or "").splitlines()[-OUTPUT_LINES:]
                print("\n".join(f"      | {line}" for line in output))
        elif asked:
            counts.skipped += 1
            if not quiet:
                print(f"    skipped  {case.get('name')}")
        else:
            counts.passed += 1
    return counts


def print_slowest(paths: list[pathlib.Path]) -> None:
    """Where the time went. Tests that take two processors, or run beside others, count their whole time."""
    took = []
    for path in paths:
        with contextlib.suppress(*UNREADABLE):
            took += [(float(case.get("time", 0)), path.stem, case.get("name")) for case in cases_of(path)]
    for seconds, stage, name in sorted(took, reverse=True)[:SLOWEST]:
        print(f"    {seconds:6.0f} s  {stage:8} {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--extra-failed", action="append", default=[])
    parser.add_argument("--last-line", action="store_true")
    arguments = parser.parse_args()
    if arguments.last_line:
        print_slowest(arguments.files)
    total = Counts(failed=len(arguments.extra_failed))
    for name in arguments.extra_failed:
        print(f"    FAILED   {name}")
    for path in arguments.files:
        counts = read(path, quiet=arguments.last_line)
        if not arguments.last_line:
            print(f"    {path.stem}: {counts}")
        total += counts
    if arguments.last_line:
        print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())

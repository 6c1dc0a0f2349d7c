# SPDX-License-Identifier: Apache-2.0
"""Adds up what ctest's JUnit files say: count_tests.py [--extra-failed NAME]... [--last-line] FILE...

For each file one line with its counts and the names of what failed or was skipped, with the end of a failed test's
output. With --last-line the sum of all files follows as the last line, 'N passed, N failed[, N skipped]', and the
exit status is 1 if anything failed or nothing passed. A stage that never came to its tests is an --extra-failed.
"""

import argparse
import dataclasses
import pathlib
import sys
import xml.etree.ElementTree

OUTPUT_LINES = 40


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


def read(path: pathlib.Path, quiet: bool) -> Counts:
    """The counts of one JUnit file; prints what did not pass unless quiet. An unreadable file is one failure."""
    try:
        cases = xml.etree.ElementTree.parse(path).getroot().findall("testcase")
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"    FAILED   {path}: no results: {error}")
        return Counts(failed=1)
    counts = Counts()
    for case in cases:
        skipped = case.find("skipped")
        # A test whose binary or fixture is missing is "skipped" to ctest; it was never asked to be, so it failed.
        asked = case.get("status") == "disabled" or (skipped is not None and skipped.get("message", "").startswith("SKIP_"))
        if case.find("failure") is not None or case.get("status") == "fail" or (skipped is not None and not asked):
            counts.failed += 1
            if not quiet:
                output = (case.findtext("system-out") or "").splitlines()[-OUTPUT_LINES:]
                reason = case.find("failure") if skipped is None else skipped
                print(f"    FAILED   {case.get('name')}  {reason.get('message') if reason is not None else ''}")
                print("\n".join(f"      | {line}" for line in output))
        elif asked:
            counts.skipped += 1
            print(f"    skipped  {case.get('name')}")
        else:
            counts.passed += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--extra-failed", action="append", default=[])
    parser.add_argument("--last-line", action="store_true")
    arguments = parser.parse_args()
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

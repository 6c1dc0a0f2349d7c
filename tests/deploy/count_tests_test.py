# SPDX-License-Identifier: Apache-2.0
"""Shows that deploy/count_tests.py counts what passed, failed and was skipped, and takes nothing else for a pass."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "deploy/count_tests.py"
PASSED = '<testcase name="good" status="run"/>'
FAILED = '<testcase name="bad" status="fail"><failure message="Timeout"/><system-out>it broke\n</system-out></testcase>'
SKIPPED = '<testcase name="left" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'
SLOW = '<testcase name="long" status="run" time="125.2"/>'
DISABLED = '<testcase name="off" status="disabled"><skipped message="Disabled"/></testcase>'
NOT_BUILT = '<testcase name="gone" status="notrun"><skipped message="Unable to find executable"/></testcase>'


class CountTests(unittest.TestCase):
    def count(self, *files, arguments=()):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, cases in enumerate(files):
                paths.append(pathlib.Path(folder, f"stage{number}.xml"))
                paths[-1].write_text(f"<testsuite>{''.join(cases)}</testsuite>" if cases is not None else "<testsuite>")
            return subprocess.run([sys.executable, "-B", PROGRAM, *arguments, *paths], text=True, capture_output=True,
                                  check=False)

    def last(self, *files, arguments=()):
        result = self.count(*files, arguments=("--last-line", *arguments))
        return result.stdout.splitlines()[-1], result.returncode

    def test_adds_up_the_files(self):
        self.assertEqual(("3 passed, 0 failed", 0), self.last([PASSED, PASSED], [PASSED]))

    def test_a_failure_fails_and_is_shown_with_its_output(self):
        self.assertEqual(("1 passed, 1 failed", 1), self.last([PASSED, FAILED]))
        shown = self.count([PASSED, FAILED]).stdout
        self.assertIn("FAILED   bad  Timeout", shown)
        self.assertIn("it broke", shown)

    def test_what_was_skipped_is_counted_and_named(self):
        self.assertEqual(("1 passed, 0 failed, 2 skipped", 0), self.last([PASSED, SKIPPED, DISABLED]))
        shown = self.count([PASSED, SKIPPED, DISABLED]).stdout
        self.assertIn("skipped  left", shown)
        self.assertIn("skipped  off", shown)

    def test_the_slowest_and_what_failed_are_named_at_the_end(self):
        result = self.count([PASSED, SLOW], [FAILED], None, arguments=("--last-line",))
        self.assertIn("125 s  stage0   long", result.stdout)
        self.assertIn("FAILED   bad  Timeout", result.stdout)
        self.assertNotIn("it broke", result.stdout)

    def test_a_binary_that_was_not_built_is_a_failure(self):
        self.assertEqual(("1 passed, 1 failed", 1), self.last([PASSED, NOT_BUILT]))

    def test_results_that_cannot_be_read_are_a_failure(self):
        self.assertEqual(("1 passed, 1 failed", 1), self.last([PASSED], None))

    def test_a_stage_that_does_not_build_is_a_failure(self):
        self.assertEqual(("1 passed, 1 failed", 1), self.last([PASSED], arguments=("--extra-failed", "asan")))
        self.assertEqual(("0 passed, 1 failed", 1), self.last(arguments=("--extra-failed", "asan")))

    def test_no_tests_at_all_is_not_a_success(self):
        self.assertEqual(("0 passed, 0 failed", 1), self.last([]))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Shows that every program that is installed answers --version with the project's version, and --help with its name."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TERRACE_BUILD", ROOT / "build/release"))
PROGRAMS = ("terraced", "terracectl", "terrace-bench", "terrace-sim")
LIMIT_SECONDS = 60


def said(program, option):
    """What the program prints for the option, once it has ended well."""
    return subprocess.run([BUILD / program, option], capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS,
                          stdin=subprocess.DEVNULL).stdout


class Commands(unittest.TestCase):
    def test_version(self):
        version = re.search(r"^project\(Terrace VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertEqual(said(program, "--version").strip(), version)

    def test_help(self):
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertRegex(said(program, "--help"), rf"\b{program}\b")


if __name__ == "__main__":
    unittest.main()

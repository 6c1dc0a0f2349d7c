# SPDX-License-Identifier: Apache-2.0
"""Shows that peers_full.py tries every case where nothing may be mounted, that Terrace's daemon is one of those that cannot
write there, and that peers.py shows what was measured before a later part failed.

TERRACED names the daemon; run it by a Python with the terrace package and PyTorch.
"""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import peers
import peers_full

MADE_BEFORE = "terrace: 48 MiB to a file made before"
SPEED = {"bench": "peers.1 MiB tensors.in.torch.save", "unit": "GiB/s", "ratio": 2.0, "interval": [0.9, 1.1],
         "counts": [peers.count("CPU seconds a GiB", 1, 1), peers.count("CPU seconds a GiB, reference", 1, None),
                    peers.count("wrong bytes", 0, 0), peers.count("wrong bytes, reference", 0, None)]}


class Full(unittest.TestCase):
    def setUp(self):
        left = tempfile.TemporaryDirectory(prefix="full-", dir=".")  # on the build's disk, which has O_DIRECT
        self.addCleanup(left.cleanup)
        self.folder = pathlib.Path(left.name).resolve()

    def run_cases(self, *arguments):
        return subprocess.run([sys.executable, "-B", peers_full.__file__, self.folder, *arguments], text=True,
                              capture_output=True)

    def test_every_case_is_tried_where_nothing_is_mounted(self):
        (self.folder / "files").mkdir()  # as a way leaves it
        ran = self.run_cases("--no-mount", "--cases", "terrace,numpy memmap")
        self.assertEqual(0, ran.returncode, ran.stderr)
        terrace, memmap = (json.loads(line) for line in ran.stdout.splitlines())
        self.assertEqual(("terrace", "limit", True), (terrace["way"], terrace["room"], terrace["told"]))
        self.assertIn("ResourceExhausted", terrace["write"])
        self.assertIn("File too large", terrace["write"])
        self.assertEqual(("numpy memmap", "limit", True), (memmap["way"], memmap["room"], memmap["told"]))
        self.assertIn("File too large", memmap["write"])

    def test_a_file_made_before_takes_and_gives_every_byte(self):
        ran = self.run_cases("--cases", MADE_BEFORE)
        if f"there is no case {MADE_BEFORE}" in ran.stderr:
            self.skipTest("nothing may be mounted here")
        self.assertEqual({"way": MADE_BEFORE, "room": "ext4", "write": "success", "read": "success", "wrong_bytes": 0,
                          "told": True}, json.loads(ran.stdout), ran.stderr)

    def test_no_file_system_but_its_own_is_filled(self):
        ran = self.run_cases("--room", "ext4", "--case", MADE_BEFORE)
        self.assertIn("is no file system of this test's own", ran.stderr)
        self.assertFalse((self.folder / "others").exists())


class Shown(unittest.TestCase):
    def test_what_came_before_a_failure(self):
        outcome = {"way": "terrace", "room": "limit", "write": "error", "read": "not tried", "wrong_bytes": None}
        done = subprocess.CompletedProcess([], 1, stdout=json.dumps(outcome | {"told": True}) + "\n")
        with tempfile.TemporaryDirectory() as folder, mock.patch("subprocess.run", return_value=done):
            rows = peers.full(pathlib.Path(folder))
            self.assertEqual("peers.full.terrace", next(rows)["bench"])
            with self.assertRaisesRegex(SystemExit, "status 1"):
                next(rows)

    def test_each_table_alone(self):
        outcome = {"way": "terrace", "room": "limit", "write": "error: full", "read": "not tried", "wrong_bytes": None}
        for rows, said, unsaid in (([SPEED], "1 MiB tensors, in | torch.save | 2.00", "to write"),
                                   ([{"unit": "told the truth", "outcome": outcome}], "| terrace | error: full", "beside")):
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                peers.show(rows)
            self.assertIn(said, text.getvalue())
            self.assertNotIn(unsaid, text.getvalue())


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))

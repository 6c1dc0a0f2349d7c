# SPDX-License-Identifier: Apache-2.0
"""Shows that the demo's line says ok only for a training that ended well, with equal losses and real block traffic."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy"))
import demo_line

GOOD = {"steps": 20, "losses_equal": True, "block_read_bytes": 5, "block_write_bytes": 7, "checksum_failures": 0,
        "overhead": 1.987, "leased_bytes_max": 1, "png": "a.png"}


class DemoLine(unittest.TestCase):
    def test_a_good_run(self):
        self.assertEqual(("demo: ok steps=20 losses_equal=true block_read_bytes=5 block_write_bytes=7 "
                          "checksum_failures=0 overhead=1.99", True), demo_line.line(json.dumps(GOOD), 0))

    def test_everything_that_is_not_a_success(self):
        for fault in ({"losses_equal": False}, {"losses_equal": "yes"}, {"block_read_bytes": 0},
                      {"block_write_bytes": 0}, {"checksum_failures": 1}, {"steps": 0}):
            with self.subTest(fault):
                text, good = demo_line.line(json.dumps({**GOOD, **fault}), 0)
                self.assertFalse(good)
                self.assertTrue(text.startswith("demo: FAILED steps="), text)

    def test_a_training_that_failed(self):
        self.assertEqual((True, False), (demo_line.line(json.dumps(GOOD), 1)[0].startswith("demo: FAILED"),
                                         demo_line.line(json.dumps(GOOD), 1)[1]))
        self.assertEqual(("demo: FAILED the training ended with status 3 and without results", False),
                         demo_line.line(None, 3))


if __name__ == "__main__":
    unittest.main()

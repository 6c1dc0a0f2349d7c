# SPDX-License-Identifier: Apache-2.0
"""Shows that `terrace-bench calibrate` writes a node that terrace-sim and terracectl read, and that `terrace-bench replay` runs
a workload on a live daemon with every byte checked and says beside it what was predicted. No time is judged.

TERRACE_BUILD names the build's folder.
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])
LIMIT_SECONDS = 300
MIB = 2**20
NODE = """[[tier]]
kind = "device"
capacity = "32MiB"
[[tier]]
kind = "memory"
capacity = "64MiB"
[[tier]]
kind = "block"
capacity = "1GiB"
paths = ["/scratch/terrace.block"]
[links]
host_to_device = "8GB/s"
device_to_host = "8GB/s"
block_read = "1GB/s"
block_write = "1GB/s"
"""
STEP_FIELDS = ["workload", "like", "policy", "scale", "time_scale", "step", "kind", "measured_us", "predicted_us",
               "predicted_over_measured", "measured_compute_us", "compute_us", "tensors_checked"]
SUM_FIELDS = [*STEP_FIELDS[:5], "from_step", "measured_us", "predicted_us", "predicted_over_measured", "lower_bound_us",
              "bound_by"]


def workload() -> str:
    """Weights that no tier above the disk holds, of which half is written; one activation that is born and dies in each run;
    a run in host memory, and a step of another kind."""
    weights = 24
    lines = [{"workload": "small", "version": 1, "source": "replay_test"}]
    lines += [{"tensor": i, "bytes": 6 * MIB + 4096 * i, "class": "param", "home": True} for i in range(weights)]
    lines += [{"tensor": weights, "bytes": 3 * MIB, "class": "act", "home": False}]
    for kind in ("train", "eval"):
        for i in range(weights):
            write = [i] if kind == "train" and i % 2 else []
            lines.append({"run": f"{kind} {i}", "us": 200, "place": "host" if i == 5 else "hbm", "read": [i],
                          "write": [*write, *([weights] if i != 5 else [])], "free": [weights] if i != 5 else []})
        lines.append({"step": True, "kind": kind})
    return "".join(json.dumps(line) + "\n" for line in lines)


class Replay(unittest.TestCase):
    def setUp(self):
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="replay-", dir=BUILD))  # has O_DIRECT
        self.temporary = pathlib.Path(tempfile.mkdtemp(prefix="r-"))  # sockets: a short path
        self.files = pathlib.Path(tempfile.mkdtemp(prefix="f-"))
        for folder in (self.disk, self.temporary, self.files):
            self.addCleanup(shutil.rmtree, folder)
        self.like = self.files / "like.toml"
        self.like.write_text(NODE)
        self.workload = self.files / "small.jsonl"
        self.workload.write_text(workload())

    def run_program(self, program, *arguments):
        return subprocess.run([BUILD / program, *arguments], env=os.environ | {"TMPDIR": str(self.temporary)}, text=True,
                              capture_output=True, timeout=LIMIT_SECONDS, check=False)

    def bench(self, *arguments):
        ran = self.run_program("terrace-bench", *arguments, "--dir", self.disk, "--quick", "--force")
        self.assertEqual([], list(self.disk.iterdir()))
        self.assertEqual([], list(self.temporary.iterdir()))
        return ran

    def succeed(self, ran):
        self.assertEqual(0, ran.returncode, ran.stderr)
        return ran.stdout

    def check_lines(self, text, steps):
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(steps + 1, len(lines))
        for number, line in enumerate(lines[:-1], 1):
            self.assertEqual(STEP_FIELDS, list(line))
            self.assertEqual((number, "eval" if number % 2 == 0 else "train"), (line["step"], line["kind"]))
            self.assertEqual(24, line["tensors_checked"])
            self.assertAlmostEqual(24 * 200, line["compute_us"])
            self.assertGreaterEqual(line["measured_us"], line["measured_compute_us"])
            self.assertGreaterEqual(line["predicted_us"], line["compute_us"])
            self.assertAlmostEqual(line["predicted_us"] / line["measured_us"], line["predicted_over_measured"])
        last = lines[-1]
        self.assertEqual(SUM_FIELDS, list(last))
        for field in ("measured_us", "predicted_us"):
            self.assertAlmostEqual(sum(line[field] for line in lines[last["from_step"] - 1:-1]), last[field], delta=1)
        self.assertTrue(math.isfinite(last["predicted_over_measured"]))
        self.assertGreaterEqual(last["lower_bound_us"], 2 * 24 * 200 - 1)

    def test_a_machine_is_measured_and_a_workload_replayed_on_it(self):
        node = self.files / "here.toml"
        self.succeed(self.bench("calibrate", "--device", "32MiB", "--memory", "64MiB", "--block", "1GiB", "--output", node))
        for speed in ("host_to_device", "device_to_host", "block_read", "block_write"):
            self.assertIn(f"{speed} = \"", node.read_text())
        simulated = self.succeed(self.run_program("terrace-sim", "run", "--workload", self.workload, "--node", node, "--json"))
        self.assertEqual(3, len(simulated.splitlines()))
        self.succeed(self.run_program("terracectl", "plan", "--model", "gpt2-1.5b", "--by", "bound", "--node",
                                      self.larger(node)))
        for policy in ("next-use", "lru", "s3-fifo"):
            with self.subTest(policy):
                replayed = self.bench("replay", "--workload", self.workload, "--like", self.like, "--node", node,
                                      "--time-scale", "1", "--steps", "6", "--policy", policy, "--every-byte", "--json")
                self.check_lines(self.succeed(replayed), 6)

    def larger(self, node):
        """The same links on tiers that a model fits."""
        larger = self.files / "larger.toml"
        sizes = {32 * MIB: "40GiB", 64 * MIB: "64GiB", 2**30: "1TB"}
        text = node.read_text()
        for size, written in sizes.items():
            self.assertIn(f"capacity = {size}\n", text)
            text = text.replace(f"capacity = {size}\n", f"capacity = \"{written}\"\n")
        larger.write_text(text)
        return larger

    def test_a_table_after_a_calibration_of_its_own(self):
        text = self.succeed(self.bench("replay", "--workload", self.workload, "--like", self.like, "--scale", "2", "--steps",
                                       "4"))
        self.assertIn("small: bound by ", text)
        self.assertIn("from step 3 on: measured ", text)
        self.assertEqual(4, sum(line.split()[1:2] in (["train"], ["eval"]) for line in text.splitlines()))

    def test_mistakes_are_named(self):
        bad = self.files / "bad.jsonl"
        bad.write_text(workload().replace('"us": 200', '"us": "long"', 1))
        links = self.files / "no-links.toml"
        links.write_text(NODE.split("[links]", maxsplit=1)[0])
        for arguments, said in (
                (["--workload", bad], "bad.jsonl:27: "),
                (["--workload", self.workload, "--like", links], "links.host_to_device: is missing"),
                (["--workload", self.workload, "--like", "nowhere"], "nowhere: there is no such file"),
                (["--workload", self.workload, "--policy", "oracle"], "--policy: oracle not in"),
                (["--workload", self.workload, "--scale", "0.5"], "--scale: "),
                (["--workload", self.workload, "--terraced", "/no/terraced"], "/no/terraced is not a program")):
            with self.subTest(said):
                ran = self.bench("replay", "--node", self.like, *arguments)
                self.assertNotEqual(0, ran.returncode)
                self.assertIn(said, ran.stderr)
        ran = self.bench("calibrate", "--memory", "much")
        self.assertNotEqual(0, ran.returncode)
        self.assertIn("--memory: ", ran.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))

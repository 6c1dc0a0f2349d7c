# SPDX-License-Identifier: Apache-2.0
"""Shows that `terrace-bench all --quick` measures every row with every byte right, draws and prints them, refuses where it
should, and leaves nothing behind; no figure of it is judged.

TERRACE_BUILD names the build's folder; TERRACE_PYTHON a Python with the terrace package, PyTorch and matplotlib.
"""

import contextlib
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])
BENCH = BUILD / "terrace-bench"
PYTHON = os.environ["TERRACE_PYTHON"]
LIMIT_SECONDS = 60
FIELDS = ["bench", "value", "unit", "reference", "reference_value", "ratio", "bar", "better", "interval", "counts", "by",
          "quick"]
# Every figure of docs/internals/measuring.md, with its bar; what is a number by itself is bounded as it is.
BARS = {
    "lease.hit": (500, "higher"), "lease.hit_p50": (100, "lower"), "lease.system_calls": (0, "lower"),
    "lease.all_cores": (0.9, "higher"),
    "miss.smallest": (1.5, "lower"), "miss.wake_ups": (2, "lower"),
    "block.in_64mib": (0.97, "higher"), "block.in_64mib_queue": (0.97, "higher"),
    "block.out_64mib": (0.97, "higher"), "block.out_64mib_queue": (0.97, "higher"),
    "block.mixed": (0.95, "higher"), "block.cpu": (1.3, "lower"),
    "block.random_1mib": (0.95, "higher"), "block.random_64kib": (0.85, "higher"), "block.random_4kib": (0.6, "higher"),
    "block.clients_fair": (0.98, "higher"), "block.clients_sum": (0.97, "higher"),
    "copy.up": (0.95, "higher"), "copy.down": (0.95, "higher"),
    "scale.create": (2, "lower"), "scale.acquire": (2, "lower"), "scale.evict": (2, "lower"),
    "scale.bytes_per_tensor": (256, "lower"), "scale.table_bytes_per_tensor": (64, "lower"),
    "scale.checksum_bytes_per_mib": (8, "lower"),
    "scale.start": (1.1, "lower"), "scale.restart": (1.2, "lower"),
    "engine.requests": (1e6, "higher"),
    "pipeline.block_to_device": (0.95, "higher"),
    "train.in_dram": (1.03, "lower"), "train.in_tiers": (1.15, "lower"),
}
ALONE = {"block.in_64mib_queue", "block.out_64mib_queue", "block.clients_fair", "lease.hit_p50", "lease.system_calls",
         "miss.wake_ups", "scale.bytes_per_tensor", "scale.table_bytes_per_tensor", "scale.checksum_bytes_per_mib", "engine.requests"}
# Rows that lean on a clock and have no count with a limit: they hold by the ratio alone.
WITHOUT_LIMIT = {"block.cpu"}


def reaches(value, limit, better):
    return value >= limit if better == "higher" else value <= limit


def held_by(row):
    """By what the row's bar holds, from the row's own figures."""
    if reaches(row["ratio"], row["bar"], row["better"]):
        return "ratio"
    limited = [count for count in row["counts"] if count["limit"] is not None]
    within = row["interval"] and row["interval"][0] <= row["ratio"] <= row["interval"][1]
    if within and limited and all(reaches(count["value"], count["limit"], count["better"]) for count in limited):
        return "interval"
    return None


class Quick(unittest.TestCase):
    def setUp(self):
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=BUILD))  # has O_DIRECT
        self.temporary = pathlib.Path(tempfile.mkdtemp(prefix="b-"))  # sockets: a short path
        self.environment = os.environ | {"TMPDIR": str(self.temporary), "TERRACE_PYTHON": PYTHON}
        self.addCleanup(shutil.rmtree, self.disk)
        self.addCleanup(shutil.rmtree, self.temporary)

    def command(self, *arguments):
        return [BENCH, *arguments, "--dir", self.disk, "--disk-max", "3GiB"]

    def run_bench(self, *arguments):
        return subprocess.run(self.command(*arguments), env=self.environment, text=True, capture_output=True,
                              check=False)

    def assert_nothing_left(self):
        self.assertEqual([], self.made())

    def check_row(self, row):
        self.assertEqual(FIELDS, list(row))
        self.assertEqual(BARS[row["bench"]], (row["bar"], row["better"]))
        self.assertTrue(row["unit"])
        self.assertIs(True, row["quick"])
        for number in ("value", "ratio"):
            self.assertTrue(math.isfinite(row[number]) and row[number] >= 0, row)
        for count in row["counts"]:
            self.assertEqual(["name", "value", "limit", "better"], list(count))
            self.assertTrue(math.isfinite(count["value"]))
        if row["bench"] in ALONE:
            self.assertEqual((None, None, None), (row["reference"], row["reference_value"], row["interval"]))
            self.assertEqual(row["value"], row["ratio"])
        else:
            self.assertTrue(row["reference"])
            over = row["value"] / row["reference_value"]
            self.assertAlmostEqual(1, row["ratio"] / (1 / over if row["bench"] == "lease.hit" else over))
            low, high = row["interval"]
            self.assertTrue(0 < low <= 1 <= high < math.inf, row["interval"])
            limited = any(count["limit"] is not None for count in row["counts"])
            self.assertEqual(row["bench"] not in WITHOUT_LIMIT, limited)
        self.assertEqual(held_by(row), row["by"])

    def test_every_row_is_measured_and_drawn(self):
        picture = self.temporary / "rows.png"
        ran = self.run_bench("all", "--quick", "--json", "--force", "--plot", picture)
        self.assertEqual(0, ran.returncode, ran.stderr)
        rows = json.loads(ran.stdout)
        self.assertEqual(set(BARS), {row["bench"] for row in rows})
        self.assertEqual(len(BARS), len(rows))
        for row in rows:
            with self.subTest(row["bench"]):
                self.check_row(row)
        counts = next(row["counts"] for row in rows if row["bench"] == "lease.all_cores")
        self.assertIn(("leases that no access log has", 0), [(count["name"], count["value"]) for count in counts])
        calls = next(row for row in rows if row["bench"] == "lease.system_calls")
        self.assertEqual(("ratio", 0), (calls["by"], calls["value"]))
        self.assertEqual(b"\x89PNG", picture.read_bytes()[:4])
        picture.unlink()
        self.assert_nothing_left()
        self.assertIn("round 1 of", ran.stderr)

    def test_tables_for_people(self):
        for arguments, said in ((["--markdown"], "| `engine.requests` |"), ([], "1 rows: ")):
            ran = self.run_bench("engine", "--quick", "--force", *arguments)
            self.assertEqual(0, ran.returncode, ran.stderr)
            self.assertIn(said, ran.stdout)

    def test_rows_that_cannot_be_written_are_an_error_and_leave_nothing(self):
        reader, closed = os.pipe()
        os.close(reader)
        with open("/dev/full", "wb") as full, open(closed, "wb") as nobody_reads:
            for output in (full, nobody_reads):
                ran = subprocess.run(self.command("miss", "--quick", "--force"), env=self.environment, text=True,
                                     stdout=output, stderr=subprocess.PIPE, check=False)
                self.assertEqual(1, ran.returncode, ran.stderr)
                self.assertIn("not all could be written to standard output", ran.stderr)
                self.assert_nothing_left()

    def eventually(self, condition):
        end = time.monotonic() + LIMIT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def begin(self, said, *arguments):
        """A benchmark that has said so much, and has made something."""
        progress = self.temporary.with_suffix(".err")
        self.addCleanup(progress.unlink, missing_ok=True)
        with open(progress, "wb") as errors:
            bench = subprocess.Popen(self.command(*arguments, "--quick", "--force", "--json"), text=True, stderr=errors,
                                     stdout=subprocess.PIPE, env=self.environment)
        for cleanup in (bench.stdout.close, bench.wait, bench.kill):  # from the last to the first
            self.addCleanup(cleanup)
        self.eventually(lambda: bench.poll() is not None or said in progress.read_text() and any(self.made()))
        self.assertIsNone(bench.poll(), progress.read_text())
        return bench

    def made(self):
        """What is in this test's folders: of a daemon without a block tier nothing is on the disk."""
        return [*self.disk.iterdir(), *self.temporary.iterdir()]

    def at_work(self):
        """Processes that were started with something in this test's folders."""
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_text()
                if str(self.disk) in command or str(self.temporary) in command:
                    yield command

    def test_what_takes_nothing_on_the_disk_needs_nothing_there(self):
        ran = subprocess.run([BENCH, "engine", "train", "--without", "train", "--quick", "--force", "--disk-max", "1KiB",
                              "--dir", self.disk], env=self.environment, text=True, capture_output=True, check=False)
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.assertIn("1 rows: ", ran.stdout)
        self.assertIn("(--quick: figures that say little)", ran.stdout)

    def test_a_signal_takes_everything_away_and_has_the_rows_printed(self):
        for number, said, suites in ((signal.SIGTERM, "suite copy", ["engine", "copy"]),
                                     (signal.SIGINT, "laying out", ["block"]),
                                     (signal.SIGHUP, "scale.start: round 1", ["scale"]),
                                     (signal.SIGTERM, "suite train", ["train"])):
            with self.subTest(said):
                bench = self.begin(said, *suites)
                bench.send_signal(number)
                printed, _ = bench.communicate(timeout=LIMIT_SECONDS)
                self.assertEqual(128 + number, bench.returncode)
                self.eventually(lambda: not any(self.at_work()))
                self.assert_nothing_left()
                rows = [row["bench"] for row in json.loads(printed)]
                self.assertEqual(["engine.requests"] if "engine" in suites else rows, rows)
                self.assertTrue(set(rows) < set(BARS))

    def test_what_one_leaves_that_is_killed_goes_at_the_next_start(self):
        for said, suite in (("suite copy", "copy"), ("laying out", "block")):
            with self.subTest(suite):
                bench = self.begin(said, suite)
                bench.kill()
                bench.communicate()
                self.eventually(lambda: not any(self.at_work()))
                self.assertNotEqual([], self.made())
                self.assertEqual(0, self.run_bench("engine", "--quick", "--force").returncode)
                self.assert_nothing_left()

    def test_folders_of_one_that_was_killed_go_at_the_next_start(self):
        left = self.disk / f"terrace-bench-{os.getpid()}-abcdef"
        left.mkdir(mode=0o700)
        (left / "block").write_bytes(b"x")
        of_another = self.disk / "terrace-bench-1-abcdef"
        of_another.mkdir(mode=0o700)
        results = self.disk / "terrace-bench-results"
        results.mkdir(mode=0o700)
        lock = os.open(of_another, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = self.run_bench("engine", "--quick", "--force")
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.assertEqual({of_another, results}, set(self.disk.iterdir()))

    def test_a_loaded_daemon_is_no_neighbour(self):
        busy = self.temporary / "terraced"
        shutil.copy(shutil.which("yes"), busy)
        with subprocess.Popen([busy], stdout=subprocess.DEVNULL) as neighbour:
            try:
                ran = self.run_bench("engine", "--quick")
                self.assertEqual(1, ran.returncode)
                self.assertIn(f"another daemon is loaded: terraced (pid {neighbour.pid}", ran.stderr)
                self.assertEqual("", ran.stdout)
                forced = self.run_bench("engine", "--quick", "--force")
                self.assertEqual(0, forced.returncode)
                for when in ("measured all the same", "at work at the end"):
                    self.assertIn(f"{when}: another daemon is loaded: terraced (pid {neighbour.pid}", forced.stderr)
            finally:
                neighbour.kill()

    def test_processes_that_come_and_go_are_no_neighbours(self):
        loops = [subprocess.Popen(["sh", "-c", "while :; do timeout --foreground 0.3 yes >/dev/null; done"], start_new_session=True)
                 for _ in range(os.cpu_count() // 2 + 1)]
        try:
            ran = self.run_bench("engine", "--quick")
        finally:
            for loop in loops:
                os.killpg(loop.pid, signal.SIGKILL)
                loop.wait()
        self.assertEqual(1, ran.returncode)
        self.assertRegex(ran.stderr, r"the processors are busy for \d+ % of the time: .*came or went meanwhile")

    def test_a_disk_at_work_is_no_neighbour_and_an_idle_daemon_is_one(self):
        device = os.stat(self.disk).st_dev
        if not os.path.exists(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"):
            self.skipTest("the build's folder is on no disk that the kernel counts for")
        settings = self.temporary / "terraced.toml"
        sockets = "\n".join(f'{name} = "{self.temporary / name}"' for name in ("data", "grpc", "admin"))
        settings.write_text(f'metrics_address = ""\n[sockets]\n{sockets}\n[[tier]]\nkind = "memory"\ncapacity = "64MiB"\n')
        file = self.disk / "read"
        file.write_bytes(bytes(64 << 20))
        reads = ["sh", "-c", f"while :; do dd if={file} of=/dev/null bs=16M iflag=direct 2>/dev/null; done"]
        with (subprocess.Popen([BUILD / "terraced", "--config", settings], stderr=subprocess.DEVNULL) as idle,
              subprocess.Popen(reads, start_new_session=True) as at_work):
            try:
                self.eventually((self.temporary / "data").exists)
                ran = self.run_bench("engine", "--quick")
            finally:
                os.killpg(at_work.pid, signal.SIGKILL)
                idle.kill()
        self.assertEqual(1, ran.returncode)
        self.assertRegex(ran.stderr, r"the disk \S+ is busy for \d+ % of the time")
        self.assertNotIn(f"daemon is loaded: terraced (pid {idle.pid},", ran.stderr)  # another test's may be

    def test_what_is_missing_is_said_before_anything_is_measured(self):
        no_ring = self.temporary / "fio"
        no_ring.write_text('#!/bin/sh\n[ "$*" = --version ] && echo fio-3\n')
        no_ring.chmod(0o755)
        for arguments, said in (
                (["engine", "--terraced", "/no/such/terraced"], "/no/such/terraced is not a program"),
                (["train", "--python", "/no/such/python"], "name a Python that can with --python"),
                (["train", "--examples", "/no/such/folder"], "has no train_gpt.py"),
                (["engine", "--plot", "a.png", "--python", "/no/such/python"], "--plot needs a Python with matplotlib"),
                (["engine", "--plot", "/no/such/folder/a.png"], "--plot: /no/such/folder/a.png cannot be written"),
                (["block", "--quick", "--dir", "/proc"], "no folder can be made in /proc"),
                (["block", "--quick", "--fio", no_ring], "cannot read by io_uring"),
                (["pipeline", "--quick", "--fio", "/no/such/fio"], "apt-get install fio"),
                (["engine", "--disk-max", "much"], "--disk-max: "),
                (["scale", "--dir", "/proc"], "which has room for 0 "),
                (["scale", "--quick", "--disk-max", "1MiB"], "more than the 1 MiB that --disk-max allows"),
                (["train", "--quick", "--disk-max", "1GiB"], "train: takes up to 2.06 GiB in "),
                (["all", "--python", "/no/such/python"], "left out with --without, as in: terrace-bench all --without train"),
                (["engine", "--without", "engine"], "--without leaves nothing to measure"),
                (["engine", "lease", "--without", "engine", "--without", "lease"], "--without leaves nothing to measure"),
                (["engine", "--without", "all"], "all not in"),
                (["nothing"], "nothing not in")):
            with self.subTest(said):
                default = {"--disk-max": "3GiB", "--dir": self.disk}
                more = [word for option in default.items() if option[0] not in arguments for word in option]
                ran = subprocess.run([BENCH, *arguments, *more], env=self.environment, text=True, capture_output=True,
                                     check=False)
                self.assertNotEqual(0, ran.returncode)
                self.assertIn(said, ran.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))

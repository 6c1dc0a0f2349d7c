# SPDX-License-Identifier: Apache-2.0
"""Shows that the three commands that deploy/demo ends by printing work as they stand: next_steps_test.py TEST

They are read from the script, so that what is printed is what is run. The demo itself is kept short here (two steps);
its line, its losses and the daemon that it keeps are real.
"""

import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 600
SKIPPED = 77  # the exit status that ctest takes for a skip


def printed_commands() -> list[str]:
    """What the demo prints at its end, as bash would print it: the lines indented by two blanks."""
    ending = re.search(r"^cat <<TEXT\n(.*?)^TEXT$", (ROOT / "deploy/demo").read_text(), re.S | re.M)[1]
    lines = [line[2:] for line in ending.splitlines() if re.match(r"  \S", line)]
    return [re.sub(r"\\([`$\\])", r"\1", line) for line in lines]


class Lines:
    """The lines of a process's output, as they come."""

    def __init__(self, process):
        self.process, self.text = process, ""

    def wait_for(self, pattern):
        """Reads until the pattern is there; fails when the process ends or the limit passes before."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 65536).decode(errors="replace") if ready else ""
            if not chunk:
                raise AssertionError(f"{pattern!r} did not come; what came:\n{self.text}")
            self.text += chunk
        return found


class NextSteps(unittest.TestCase):
    def test_there_are_three(self):
        keep, install, script = printed_commands()
        self.assertEqual("./deploy/demo --keep", keep)
        self.assertIn("pip install ./client/python", install)
        self.assertIn("README.md", script)

    def start(self, command):
        """Starts a command in a process group of its own that heeds Ctrl-C, as a terminal would."""
        process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.addCleanup(process.stdout.close)
        self.addCleanup(self.end, process)
        return process, Lines(process)

    def end(self, process, number=signal.SIGKILL):
        """Sends the signal to the command's process group, and waits for its end."""
        if process.poll() is None:
            os.killpg(process.pid, number)
        return process.wait(LIMIT_SECONDS)

    def test_keep(self):
        command = printed_commands()[0]
        demo, lines = self.start(f"exec {command} --steps 2")
        top_command = lines.wait_for(r"\n\s*(\S*terracectl --socket \S+ top)\n")[1]
        top, screen = self.start(f"exec {top_command}")
        for tier in ("device", "memory", "block"):
            screen.wait_for(tier)
        self.end(top, signal.SIGINT)
        os.killpg(demo.pid, signal.SIGINT)
        lines.wait_for(r"\ndemo: ok steps=2 losses_equal=true block_read_bytes=[1-9]\d* block_write_bytes=[1-9]\d* "
                       r"checksum_failures=0 overhead=\d+\.\d\d\n")
        lines.wait_for(r"Three things to do next")
        self.assertEqual(0, demo.wait(LIMIT_SECONDS))

    def test_pip_install(self):
        command = printed_commands()[1]
        with tempfile.TemporaryDirectory() as folder:
            # A Python of the test's own: the demo's is in use by other tests.
            subprocess.run([ROOT / "build/venv/bin/python", "-m", "venv", folder], check=True)
            command = command.replace("build/venv/bin/pip", f"{folder}/bin/pip")
            self.assertIn(folder, command)
            result = subprocess.run(["bash", "-c", command], cwd=ROOT, text=True, capture_output=True, check=False)
            if "No matching distribution" in result.stderr or "Failed to establish a new connection" in result.stderr:
                print(result.stderr)
                sys.exit(SKIPPED)  # no package registry can be reached from here
            self.assertEqual(0, result.returncode, result.stdout + result.stderr)
            version = subprocess.run([f"{folder}/bin/python", "-c", "import terrace; print(terrace.__file__)"], text=True,
                                     capture_output=True, cwd=folder, check=False)
            self.assertIn(folder, version.stdout, version.stderr)

    def test_readme_script(self):
        result = subprocess.run(["bash", "-o", "pipefail", "-c", printed_commands()[2]], cwd=ROOT, text=True,
                                capture_output=True, check=False, timeout=LIMIT_SECONDS)
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)
        means = dict(line.split() for line in result.stdout.splitlines() if line.startswith("layer"))
        self.assertEqual({f"layer{i}" for i in range(16)}, set(means))
        for i in range(16):
            self.assertAlmostEqual(2.0 * i, float(means[f"layer{i}"]), places=3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], f"NextSteps.test_{sys.argv[1]}"])

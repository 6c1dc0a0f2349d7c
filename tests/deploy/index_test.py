# SPDX-License-Identifier: Apache-2.0
"""Shows that the Python package index is tried before anything is installed, and not asked for where it is not needed."""

import hashlib
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = "/usr/local/bin:/usr/bin:/bin"


def closed_port():
    """A port of this machine on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Index(unittest.TestCase):
    def setUp(self):
        self.tree = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.tree)
        shutil.copytree(ROOT / "deploy", self.tree / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
        self.nobody = f"http://127.0.0.1:{closed_port()}/simple"
        self.server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.server.close)
        self.answers = f"http://127.0.0.1:{self.server.getsockname()[1]}/simple"

    def run_script(self, *command, **environment):
        return subprocess.run([self.tree / "deploy" / command[0], *command[1:]], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=60,
                              env={"PATH": PATH, "HOME": str(self.tree), **environment})

    def test_one_that_does_not_answer_is_named(self):
        done = self.run_script("index", PIP_INDEX_URL=self.nobody)
        self.assertEqual(done.returncode, 1)
        self.assertIn(self.nobody.removeprefix("http://").removesuffix("/simple"), done.stderr)
        self.assertIn("nothing was installed", done.stderr)

    def test_one_that_answers_will_do(self):
        self.assertEqual(self.run_script("index", PIP_INDEX_URL=self.answers).returncode, 0)
        (self.tree / ".pip").mkdir()
        (self.tree / ".pip/pip.conf").write_text(f"[global]\nindex-url = {self.nobody}\n")
        self.assertEqual(self.run_script("index").returncode, 1, "pip's own file says where")
        self.assertEqual(self.run_script("index", PIP_INDEX_URL=self.answers).returncode, 0)

    def test_a_proxy_is_the_way(self):
        where = {"PIP_INDEX_URL": "https://user:secret@nohost.invalid/simple"}
        self.assertEqual(self.run_script("index", https_proxy=self.answers, **where).returncode, 0)
        refused = self.run_script("index", **where)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("nohost.invalid:443", refused.stderr)
        self.assertNotIn("secret", refused.stderr)

    def test_what_is_there_needs_none(self):
        stamps = self.tree / "build/venv/.terrace"
        stamps.mkdir(parents=True)
        digest = hashlib.sha256((ROOT / "deploy/requirements.txt").read_bytes()).hexdigest()
        (stamps / "requirements.txt").write_text(f"{digest}  -\n")
        self.assertEqual(self.run_script("index", PIP_INDEX_URL=self.nobody).returncode, 0)
        self.assertEqual(self.run_script("index", "test", PIP_INDEX_URL=self.nobody).returncode, 1)
        self.assertEqual(self.run_script("index", "test", PIP_INDEX_URL=self.nobody, PIP_NO_INDEX="1").returncode, 0)

    def test_the_demo_tries_it_first(self):
        (self.tree / "deploy/bootstrap").write_text('#!/bin/bash\ntouch "$(dirname "$0")/installed"\nexit 1\n')
        for index, installed in ((self.nobody, False), (self.answers, True)):
            done = self.run_script("demo", PIP_INDEX_URL=index)
            self.assertIn("demo: FAILED", done.stdout)
            self.assertEqual((self.tree / "deploy/installed").exists(), installed, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)

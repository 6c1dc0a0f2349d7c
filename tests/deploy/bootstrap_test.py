# SPDX-License-Identifier: Apache-2.0
"""Shows that deploy/bootstrap does nothing where all is installed, and names what stands in the way before it installs.

It runs against a machine of our own making: a folder of small programs in the place of dpkg-query, apt-get, id, df and
the like, each of which writes down that it was called. What it really installs is shown by running it on a new machine.
"""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = [line.split(None, 1) for line in (ROOT / "deploy/packages.txt").read_text().splitlines()
            if line and not line.startswith("#")]


class Machine:
    """A machine: what is installed, who we are, what is free, whether the network answers."""

    def __init__(self, folder, installed=(), uid=0, free_mib=100000, network=True, known=None):
        self.root = pathlib.Path(folder)
        self.bin = self.root / "bin"
        self.bin.mkdir()
        self.installed, self.uid, self.free_mib, self.network = installed, uid, free_mib, network
        self.tree = self.root / "tree"
        shutil.copytree(ROOT / "deploy", self.tree / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "installed").write_text("\n".join(installed))
        (self.root / "known").write_text("\n".join(known if known is not None else
                                                   [name.strip() for _, line in PACKAGES for name in line.split("|")]))
        self.program("dpkg-query", f'grep -qxF -- "${{@: -1}}" {self.root}/installed && printf installed')
        self.program("apt-cache", f'grep -qxF -- "$2" {self.root}/known && printf "  Candidate: 1.0\\n"')
        self.program("apt-get", f'echo "$*" >>{self.root}/apt-calls; {"true" if network else "false"}')
        self.program("id", f"echo {uid}")
        self.program("df", f'printf "Avail\\n%sM\\n" {free_mib}')
        self.program("tee", "cat >/dev/null")  # nothing of the test's reaches /usr/sbin
        self.program("chmod", "true")
        self.program("rm", "true")
        for name in ("bash", "sed", "grep", "tail", "tr", "dirname", "mkdir", "cat", "env"):
            (self.bin / name).symlink_to(shutil.which(name))

    def program(self, name, body):
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def bootstrap(self, *groups):
        return subprocess.run([self.tree / "deploy/bootstrap", *groups], env={"PATH": str(self.bin)}, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, check=False)

    def apt_calls(self):
        calls = self.root / "apt-calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def installs(self):
        return [call for call in self.apt_calls() if " install " in call and "--download-only" not in call]


def names(*groups):
    return [line.split("|")[0].strip() for group, line in PACKAGES if group in groups]


class Bootstrap(unittest.TestCase):
    def machine(self, **properties):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Machine(folder.name, **properties)

    def test_every_line_of_the_list_has_a_known_group(self):
        self.assertEqual({"run", "build", "test", "wheel", "dev"}, {group for group, _ in PACKAGES})
        for _, line in PACKAGES:
            self.assertRegex(line, r"^[a-z0-9.+-]+( \| [a-z0-9.+-]+)*$")

    def test_does_nothing_where_all_is_installed_and_needs_no_network(self):
        machine = self.machine(installed=names("run", "build"), uid=1000, free_mib=0, network=False)
        result = machine.bootstrap("run", "build")
        self.assertEqual((0, []), (result.returncode, machine.apt_calls()), result.stderr)
        self.assertIn("installed already", result.stdout)

    def test_installs_what_is_missing_and_nothing_else(self):
        machine = self.machine(installed=names("run", "build"))
        result = machine.bootstrap()
        self.assertEqual(0, result.returncode, result.stderr)
        [call] = machine.installs()
        self.assertEqual(names("test"), call.split("--no-install-recommends ")[1].split())

    def test_an_alternative_counts_as_installed_and_is_taken_where_apt_knows_no_other(self):
        with_alternatives = [line for group, line in PACKAGES if group == "run" and "|" in line]
        self.assertTrue(with_alternatives)
        first, second = (name.strip() for name in with_alternatives[0].split("|"))
        machine = self.machine(installed=[second if name == first else name for name in names("run")])
        self.assertEqual((0, []), (machine.bootstrap("run").returncode, machine.apt_calls()))
        machine = self.machine(known=[name for name in names("run") if name != first] + [second])
        self.assertEqual(0, machine.bootstrap("run").returncode)
        self.assertRegex(machine.installs()[0], rf" {re.escape(second)}( |$)")

    def refused(self, machine, message):
        result = machine.bootstrap()
        self.assertNotEqual(0, result.returncode)
        self.assertIn(message, result.stderr)
        self.assertEqual([], machine.installs(), "something was installed all the same")

    def test_names_a_missing_privilege(self):
        self.refused(self.machine(uid=1000), "no privilege")

    def test_names_a_full_disk_and_how_much_it_needs(self):
        self.refused(self.machine(free_mib=100), "100 MiB are free")

    def test_names_a_missing_network(self):
        self.refused(self.machine(network=False), "no network")

    def test_names_a_package_that_apt_does_not_know(self):
        self.refused(self.machine(known=[name for name in names("run", "build", "test") if name != "cmake"]), "cmake")

    def test_names_a_system_without_dpkg(self):
        machine = self.machine()
        os.unlink(machine.bin / "dpkg-query")
        self.refused(machine, "not a Debian or Ubuntu system")

    def test_names_an_unknown_group(self):
        result = self.machine().bootstrap("tests")
        self.assertNotEqual(0, result.returncode)
        self.assertIn("no such group: tests", result.stderr)


if __name__ == "__main__":
    unittest.main()

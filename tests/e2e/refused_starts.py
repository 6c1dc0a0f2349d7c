# SPDX-License-Identifier: Apache-2.0
"""Shows that terraced --check-config refuses what a start refuses, line for line; and that a start which is refused for
what another process holds leaves no block file behind."""

import ctypes
import fcntl
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])
TERRACED = BUILD / "terraced"
LIMIT_SECONDS = 60
MEMORY = '[[tier]]\nkind = "memory"\ncapacity = "32MiB"\n'


class Instruction(ctypes.Structure):
    """One of a BPF program (linux/filter.h)."""
    _fields_ = [("code", ctypes.c_uint16), ("if_true", ctypes.c_uint8), ("if_false", ctypes.c_uint8),
                ("value", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]


def forbid_io_uring():
    """As container runtimes' seccomp profiles do: io_uring_setup is EPERM for this process from now on (seccomp(2))."""
    load, equal, answer = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K
    io_uring_setup, errno_eperm, allow = 425, 0x00050001, 0x7FFF0000
    instructions = (Instruction * 4)((load, 0, 0, 0), (equal, 0, 1, io_uring_setup), (answer, 0, 0, errno_eperm),
                                     (answer, 0, 0, allow))
    program = Program(len(instructions), instructions)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if prctl(no_new_privileges, 1, 0, 0, 0) != 0 or prctl(set_seccomp, filter_mode, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter here")


def lock_little():
    drop_from_bounding_set, ipc_lock = 24, 14  # whoever has CAP_IPC_LOCK has no limit
    ctypes.CDLL(None).prctl(drop_from_bounding_set, ipc_lock, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))


class RefusedStarts(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-"))  # sockets: a short path
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="refused-", dir=BUILD))  # has O_DIRECT
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(shutil.rmtree, self.disk)
        self.file = self.folder / "t.toml"

    def write(self, tiers, metrics="", sockets=None):
        paths = {"data": "d.sock", "grpc": "g.sock", "admin": "a.sock"} | (sockets or {})
        lines = [f'metrics_address = "{metrics}"', "[sockets]",
                 *(f'{key} = "{self.folder / name}"' for key, name in paths.items()), tiers]
        self.file.write_text("\n".join(lines))

    def block(self, path, capacity="16MiB"):
        return f'[[tier]]\nkind = "block"\ncapacity = "{capacity}"\npaths = ["{path}"]\n'

    def run_to_end(self, *arguments, before=(), out=subprocess.PIPE):
        return subprocess.run([*before, TERRACED, *arguments], stdout=out, stderr=subprocess.PIPE, text=True,
                              timeout=LIMIT_SECONDS, check=False)

    def refused(self, *says, before=()):
        """What check and start both say, in lines that all begin with the program's name."""
        checked = self.run_to_end("--check-config", self.file, before=before)
        started = self.run_to_end("--config", self.file, before=before)
        self.assertEqual((checked.returncode, started.returncode), (1, 1), (checked, started))
        self.assertEqual(*(re.sub(r"\d{7,}", "(free bytes)", said) for said in (checked.stderr, started.stderr)))
        for line in checked.stderr.splitlines():
            self.assertTrue(line.startswith("terraced: "), checked.stderr)
        for text in says:
            self.assertIn(text, checked.stderr)

    def test_what_check_config_refuses_a_start_refuses_too(self):
        self.write(MEMORY + MEMORY)
        self.refused("t.toml:9: tier[1]: is a second memory tier")
        self.write(MEMORY.replace("32MiB", "1MiB"))
        self.refused("t.toml:8: tier[0].capacity: ", "2 MiB")
        self.write(MEMORY, metrics="nohost.invalid:9464")
        self.refused("t.toml:1: metrics_address: ", "nohost.invalid")
        self.write(MEMORY, sockets={"grpc": "d.sock", "admin": "d.sock"})
        self.refused("t.toml:4: sockets.grpc: ", "t.toml:5: sockets.admin: ")
        theirs = self.disk / "thesis"
        theirs.write_text("a thesis")
        self.write(MEMORY + self.block(theirs))
        self.refused("t.toml:12: tier[1].paths: ", "that no terraced made is there")
        self.assertEqual(theirs.read_text(), "a thesis")
        self.write(MEMORY + self.block(f'{self.disk}/b", "{self.disk}/./b'))
        self.refused("t.toml:12: tier[1].paths: ", "same file")
        self.write(MEMORY.replace('"32MiB"', '"32MiB"\nhigh_mark = 1.7\nnuma_node = 777'))
        self.refused("t.toml:9: tier[0].high_mark: ", "t.toml:10: tier[0].numa_node: is 777")
        self.assertEqual(list(self.disk.iterdir()), [theirs])

    def test_a_file_system_without_o_direct_is_named(self):
        ram = self.disk / "ram"
        ram.mkdir()
        own_mounts = ("unshare", "--mount", "sh", "-c", f'mount -t ramfs none "{ram}" && exec "$@"', "sh")
        if subprocess.run([*own_mounts, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("mounting a ramfs is not permitted here")
        self.write(MEMORY + self.block(ram / "block"))
        self.refused("t.toml:12: tier[1].paths: ", "ramfs", "has no O_DIRECT", before=own_mounts)

    def test_without_io_uring_the_error_names_it(self):
        self.write(MEMORY + self.block(self.disk / "block"))
        for arguments in (["--check-config", self.file], [self.file]):
            done = subprocess.run([TERRACED, *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS,
                                  check=False, preexec_fn=forbid_io_uring)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("io_uring", done.stderr)
            self.assertIn("Operation not permitted", done.stderr)
        self.assertEqual(list(self.disk.iterdir()), [])

    def test_more_than_the_disk_has_is_named(self):
        self.write(MEMORY + self.block(self.disk / "block", "900TiB"))
        self.refused("tier[1].capacity: ")
        self.assertEqual(list(self.disk.iterdir()), [])

    def test_with_little_memlock_it_runs_and_says_what_that_costs(self):
        self.write(MEMORY + self.block(self.disk / "block"))
        checked = subprocess.run([TERRACED, "--check-config", self.file], capture_output=True, text=True,
                                 timeout=LIMIT_SECONDS, check=False, preexec_fn=lock_little)
        self.assertEqual(checked.returncode, 0, checked)
        self.assertIn("memlock is 64 KiB", checked.stdout)

    def test_the_file_may_stand_without_its_option(self):
        self.write(MEMORY.replace("32MiB", "100MiB"))
        checked = self.run_to_end("--check-config", self.file)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertIn("configuration is good", checked.stdout)
        self.assertIn("memory, 96 MiB", checked.stdout)
        self.assertIn("t.toml:8: tier[0].capacity: of 100 MiB", checked.stdout)
        missing = self.run_to_end("--check-config", self.folder / "no.toml")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("no.toml", missing.stderr)

    def test_an_empty_name_is_no_configuration(self):
        for arguments in (["--check-config", "--config", ""], ["supervise", "--config", ""]):
            done = self.run_to_end(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("is empty; name a TOML file", done.stderr)

    def test_a_verdict_that_nobody_can_read_is_none(self):
        self.write(MEMORY)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = self.run_to_end("--check-config", self.file, out=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn("No space left on device", done.stderr)

    def test_a_refused_start_leaves_no_block_file(self):
        block = self.disk / "block"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.write(MEMORY + self.block(block), metrics=f"127.0.0.1:{taken.getsockname()[1]}")
            started = self.run_to_end(self.file)
            self.assertEqual(started.returncode, 1)
            self.assertIn("cannot be had", started.stderr)
            self.assertFalse(block.exists())
            self.assertEqual(self.run_to_end("--check-config", self.file).returncode, 0, "what others hold is no fault")
        for name in ("d.sock", "g.sock", "a.sock"):
            self.write(MEMORY + self.block(block))
            with open(self.folder / (name + ".lock"), "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                started = self.run_to_end(self.file)
            self.assertEqual(started.returncode, 1)
            self.assertIn("another terraced serves there", started.stderr)
            self.assertFalse(block.exists(), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)

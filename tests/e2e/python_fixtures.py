# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: a folder on a real disk, a private daemon, programs in processes of their
own, and waiting for a condition."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import pytest

import terrace

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 60
MIB = 1 << 20


def _has_localhost():
    try:
        socket.getaddrinfo("localhost", 0)
    except OSError:
        return False
    return True


# torchrun cannot be without the name, whatever address it is given.
under_torchrun = pytest.mark.skipif(not _has_localhost(), reason="`localhost` is no name on this machine, which torchrun needs")


@pytest.fixture
def disk():
    """A folder on the build's disk (a temporary one may be memory, without O_DIRECT)."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="e2e-", dir=os.environ["TERRACE_BUILD"]))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def client(disk):
    """A client of a private daemon with small tiers of every kind: 16 MiB device, 32 MiB memory, 256 MiB block."""
    with terrace.serve("32MiB", device="16MiB", block=f"{disk}:256MiB", metrics=False) as served:
        yield served


def run_program(text: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs a Python program to its end in a process of its own."""
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True,
                          timeout=LIMIT_SECONDS, check=False, **options)


def wait_until(condition, what: str) -> None:
    """Waits for a condition, within the limit."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT_SECONDS} s in vain: {what}"
        time.sleep(0.01)

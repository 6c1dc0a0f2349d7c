# SPDX-License-Identifier: Apache-2.0
"""Shows a block tier on a block device, with loop devices: it takes an explicit format, which refuses whatever may be
somebody's; it serves, also over the daemon's death; and what was formatted and then used otherwise is refused. Loop devices
take privileges: without them the tests are skipped by name."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from grpc_fixtures import BLOCK, BUILD, HOST, LIMIT_SECONDS, MIB, Daemon, Session, wait_until  # noqa: E402

DEVICE_BYTES = 80 * MIB


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run(command, text=True, capture_output=True, timeout=LIMIT_SECONDS, check=False)


@pytest.fixture(name="device")
def _device():
    """A loop device full of zeros, of a file in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="device-", dir=BUILD) as folder:
        backing = pathlib.Path(folder) / "backing"
        with backing.open("wb") as file:
            file.truncate(DEVICE_BYTES)
        made = run("losetup", "--find", "--show", str(backing))
        if made.returncode != 0:
            pytest.skip(f"no loop device: {made.stderr.strip()}")
        device = made.stdout.strip()
        try:
            yield device
        finally:
            run("losetup", "--detach", device)


def terracectl(*arguments) -> subprocess.CompletedProcess:
    return run(str(BUILD / "terracectl"), *arguments)


def content(device: str) -> bytes:
    with open(device, "rb") as raw:
        return raw.read()


def expect_refused(device: str, *parts: str) -> None:
    before = content(device)
    expect_said(device, *parts)
    assert content(device) == before, "nothing was changed"


def expect_said(device: str, *parts: str) -> None:
    result = terracectl("format", device)
    assert result.returncode == 1
    for part in (device, *parts):
        assert part in result.stderr, result.stderr


def expect_no_start(device: str, *parts: str) -> None:
    with pytest.raises(AssertionError) as failed:
        Daemon(block=device).stop()
    for part in parts:
        assert part in str(failed.value), str(failed.value)


def test_a_device_that_was_formatted_serves_also_over_a_death(device):
    expect_no_start(device, device, f"terracectl format {device}")
    formatted = terracectl("format", device)
    assert formatted.returncode == 0, formatted.stderr
    again = terracectl("--json", "format", device)
    assert again.returncode == 0 and '"formatted": true' in again.stdout, "it stays as it is"
    daemon = Daemon(block=device, supervised=True)
    try:
        with daemon.connect() as channel:
            session = Session(channel, label="on a device")
            tensors = [session.create(f"t{index}", MIB) for index in range(40)]
            for index, tensor in enumerate(tensors):
                session.write(tensor, bytes([index]) * MIB)
                session.call("SwapOut", place=BLOCK, tensors=[tensor])
            expect_said(device, "in use")
            assert run("mkfs.ext4", "-q", device).returncode != 0, "the system keeps it from others"
            first = daemon.pid()
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: daemon.pid() not in (None, first), "the next daemon")
        wait_until(daemon.admin.exists, "its sockets")
        with daemon.connect() as channel:
            session = Session.of(channel, session.token)
            for index, tensor in enumerate(tensors):
                wait_until(lambda tensor=tensor: is_up(session, tensor), "the tensor")
                assert session.read(tensor) == bytes([index]) * MIB
    finally:
        daemon.stop()


def is_up(session: Session, tensor: int) -> bool:
    try:
        session.call("SwapIn", place=HOST, tensors=[tensor])
        return True
    except Exception:  # of gRPC: the daemon comes
        return False


def test_what_may_be_somebodys_is_not_formatted(device):
    assert run("mkfs.ext4", "-q", device).returncode == 0
    expect_refused(device, "an ext2, ext3 or ext4 file system")
    expect_no_start(device, "no terraced formatted it")
    with tempfile.TemporaryDirectory() as folder:
        if run("mount", device, folder).returncode == 0:
            try:
                expect_said(device, "mounted")  # its file system writes by itself
                expect_no_start(device, device, "mounted")
            finally:
                run("umount", folder)
    write(device, 0, bytes(DEVICE_BYTES))
    write(device, 510, b"\x55\xaaEFI PART")
    expect_refused(device, "a partition table (GPT)")
    write(device, 0, bytes(DEVICE_BYTES))
    write(device, DEVICE_BYTES - 4096, b"x")
    expect_refused(device, "something at its end")


def write(device: str, offset: int, what: bytes) -> None:
    with open(device, "r+b") as raw:
        raw.seek(offset)
        raw.write(what)


def test_what_was_used_otherwise_since_is_refused(device):
    assert terracectl("format", device).returncode == 0
    write(device, 65536, b"_BHRfS_M")
    expect_no_start(device, "written over the header")
    expect_refused(device, "something")


def test_what_is_no_device_or_too_small_for_the_tier_is_named(device):
    with tempfile.NamedTemporaryFile() as file:
        refused = terracectl("format", file.name)
        assert refused.returncode == 1 and "no block device" in refused.stderr
    assert terracectl("format", device).returncode == 0
    with contextlib.suppress(OSError):
        os.truncate(run("losetup", "-n", "-O", "BACK-FILE", device).stdout.strip(), 32 * MIB)
    run("losetup", "--set-capacity", device)
    expect_no_start(device, "capacity: is 64 MiB", "room for 31 MiB")

# SPDX-License-Identifier: Apache-2.0
"""Shows that a session over gRPC outlives its daemon, by its token, with its tensors and their bytes; that no lease is
left of a call that the death broke off, and a write that it broke off leaves a tensor which says so; and that the session
of a process which died meanwhile ends."""

import os
import pathlib
import signal
import subprocess
import sys

import grpc
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from grpc_fixtures import BLOCK, MIB, Daemon, Session, refused, v1, wait_until  # noqa: E402
from grpc_lifecycle import HOLDER  # noqa: E402

Code = grpc.StatusCode


@pytest.fixture
def daemon():
    one = Daemon(supervised=True)
    try:
        yield one
        one.stop()
    except BaseException:
        sys.stderr.write(one.log.read_text())
        one.kill()
        raise


def serves(daemon) -> bool:
    try:
        with daemon.connect() as channel:
            return daemon.health(channel) == 1
    except grpc.RpcError:
        return False


def kill(daemon) -> None:
    """SIGKILL to the daemon; returns when its successor serves."""
    before = daemon.pid()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: daemon.pid() not in (None, before), "a successor")
    wait_until(lambda: serves(daemon), "the successor serves")


def test_a_session_goes_on_by_its_token(daemon):
    with daemon.connect() as channel:
        session = Session(channel, label="survivor")
        tensors = [session.create(f"t{index}", MIB + index) for index in range(6)]
        for index, tensor in enumerate(tensors):
            session.write(tensor, bytes([index + 1]) * (MIB + index))
        session.call("SwapOut", place=BLOCK, tensors=tensors[:2])
    for death in range(3):
        kill(daemon)
        with daemon.connect() as channel:  # another connection of the same process: the token is what counts
            session = Session.of(channel, session.token)
            for index, tensor in enumerate(tensors):
                assert session.read(tensor) == bytes([index + 1]) * (MIB + index), (death, index)
    with daemon.connect() as channel:
        session = Session.of(channel, session.token)
        with refused(Code.ALREADY_EXISTS, "t0"):
            session.create("t0", 1)
        assert [(one.label, one.leases) for one in daemon.sessions()] == [("survivor", 0)]
        session.call("DeleteTensors", tensors=tensors)
        session.call("CloseSession")
    wait_until(lambda: not daemon.sessions(), "the end of the session")


def test_a_write_that_death_breaks_off_leaves_nothing_half(daemon):
    before = daemon.pid()
    with daemon.connect() as channel:
        session = Session(channel)
        tensor = session.create("half", 4 * MIB)
        session.write(tensor, b"o" * 4 * MIB)

        def half():
            yield v1.WriteRequest(target=v1.WriteRequest.Target(token=session.token, tensor=tensor), data=b"n" * MIB)
            wait_until(lambda: daemon.sessions()[0].leases == 1, "the write's lease")
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: daemon.pid() not in (None, before), "a successor")
        with pytest.raises(grpc.RpcError) as caught:
            session.stub.Write(half(), timeout=60)
        assert caught.value.code() in (Code.UNAVAILABLE, Code.CANCELLED), caught.value
    wait_until(lambda: serves(daemon), "the successor serves")
    with daemon.connect() as channel:
        session = Session.of(channel, session.token)
        assert daemon.sessions()[0].leases == 0
        with refused(Code.FAILED_PRECONDITION, "half"):
            session.read(tensor)
        session.write(tensor, b"z" * 4 * MIB)
        assert session.read(tensor) == b"z" * 4 * MIB


def test_a_session_whose_process_dies_with_the_daemon_ends(daemon):
    stubs = os.path.dirname(os.path.dirname(os.path.dirname(v1.__file__)))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, stubs, str(daemon.grpc)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "holds\n"
    finally:
        os.kill(daemon.pid(), signal.SIGSTOP)  # so that it does not hear of the first death
        holder.kill()
        holder.wait()
        holder.stdout.close()
    kill(daemon)
    wait_until(lambda: not daemon.sessions(), "the session's end")

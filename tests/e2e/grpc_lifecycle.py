# SPDX-License-Identifier: Apache-2.0
"""Shows how sessions and the daemon end over gRPC: with the client's process, with its idleness, by draining, by SIGTERM,
and that deadlines and cancellations give back what was asked for."""

import os
import subprocess
import sys

import grpc
import pytest
from grpc_fixtures import (DEVICE, HOST, LIMIT_SECONDS, MIB, Daemon, Session, admin_pb2, admin_pb2_grpc,  # noqa: F401
                           daemon, refused, session, terrace_pb2_grpc, v1, wait_until)

Code = grpc.StatusCode

# Opens a session, leases a tensor, says so, and holds it until it is killed.
HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import grpc
from terrace.v1 import status_pb2, terrace_pb2 as v1, terrace_pb2_grpc
channel = grpc.insecure_channel("unix:" + sys.argv[2])
stub = terrace_pb2_grpc.TerraceStub(channel)
token = stub.OpenSession(v1.OpenSessionRequest(label="holder")).token
tensor = stub.CreateTensors(v1.CreateTensorsRequest(token=token, tensors=[v1.TensorSpec(name="t", bytes=1 << 20)])).tensors[0]
place = status_pb2.Place(kind=status_pb2.PLACE_KIND_HOST)
stub.Acquire(v1.AcquireRequest(token=token, place=place, mode=v1.LEASE_MODE_WRITE, tensors=[tensor]))
print("holds", flush=True)
time.sleep(600)
"""


def test_a_killed_process_takes_its_session_along(daemon):  # noqa: F811
    stubs = os.path.dirname(os.path.dirname(os.path.dirname(v1.__file__)))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, stubs, str(daemon.grpc)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "holds\n"
        seen = daemon.sessions()
        assert [(one.label, one.pid, one.leases) for one in seen] == [("holder", holder.pid, 1)]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    wait_until(lambda: not daemon.sessions(), "the session's end")
    status = admin_status(daemon)
    assert [tier.used_bytes for tier in status.tiers] == [0, 0, 0]


def admin_status(daemon):  # noqa: F811
    with daemon.connect(daemon.admin) as channel:
        return admin_pb2_grpc.AdminStub(channel).GetStatus(admin_pb2.AdminGetStatusRequest()).status


def test_a_session_outlives_its_connection_and_not_its_idleness():
    daemon = Daemon("session_idle_timeout_ms = 2000")  # noqa: F811
    try:
        with daemon.connect() as channel:
            token = Session(channel).token
        with daemon.connect() as channel:  # the token is what counts
            assert not terrace_pb2_grpc.TerraceStub(channel).ListTensors(v1.ListTensorsRequest(token=token)).tensors
        assert len(daemon.sessions()) == 1
        wait_until(lambda: not daemon.sessions(), "the end of the idle session")
    finally:
        daemon.stop()


def test_draining(daemon, session):  # noqa: F811
    tensor = session.create("kept", 4096)
    session.write(tensor, b"k" * 4096)
    with daemon.connect() as channel, daemon.connect(daemon.admin) as admin:
        assert daemon.health(channel) == 1 and daemon.health(admin) == 1
        drained = admin_pb2_grpc.AdminStub(admin).Drain(admin_pb2.DrainRequest())
        assert drained.sessions == 1
        wait_until(lambda: daemon.health(channel) == 2, "NOT_SERVING")
        with refused(Code.UNAVAILABLE, "drain"):
            Session(channel)
    assert session.read(tensor) == b"k" * 4096  # open sessions go on
    assert admin_status(daemon).draining


def test_sigterm_with_calls_open():
    daemon = Daemon()  # noqa: F811
    with daemon.connect() as channel:
        opened = Session(channel)
        watch = opened.stub.Watch(v1.WatchRequest(token=opened.token))
        next(watch)
        tensor = opened.create("t", 4096)
        opened.write(tensor, b"x" * 4096)
        opened.call("Acquire", place=HOST, mode=v1.LEASE_MODE_READ, tensors=[tensor])
        assert daemon.stop() < 10
        with pytest.raises(grpc.RpcError) as caught:
            next(watch)
        assert caught.value.code() == Code.UNAVAILABLE


def fill(session, name: str) -> list[int]:  # noqa: F811
    """Leases all of the device."""
    tensors = [session.create(f"{name}.{index}", MIB) for index in range(8)]
    session.call("Acquire", place=DEVICE, mode=v1.LEASE_MODE_OVERWRITE, tensors=tensors)
    return tensors


def test_an_acquire_that_waits_keeps_its_deadline_and_can_be_cancelled(session, daemon):  # noqa: F811
    leased = fill(session, "full")
    one = session.create("one", MIB)
    request = v1.AcquireRequest(token=session.token, place=DEVICE, mode=v1.LEASE_MODE_OVERWRITE, tensors=[one])
    with pytest.raises(grpc.RpcError) as caught:
        session.stub.Acquire(request, timeout=0.2)
    assert caught.value.code() in (Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)
    call = session.stub.Acquire.future(request, timeout=LIMIT_SECONDS)
    call.cancel()
    session.call("Release", mode=v1.LEASE_MODE_OVERWRITE, tensors=leased)
    wait_until(lambda: daemon.sessions()[0].leases == 0, "no lease is left over")
    session.call("Acquire", place=DEVICE, mode=v1.LEASE_MODE_OVERWRITE, tensors=[one])


def test_a_read_that_is_dropped_gives_its_lease_back(session, daemon):  # noqa: F811
    tensor = session.create("long", 8 * MIB)
    session.write(tensor, b"l" * 8 * MIB)
    stream = session.stub.Read(v1.ReadRequest(token=session.token, tensor=tensor))
    next(stream)
    stream.cancel()
    wait_until(lambda: daemon.sessions()[0].leases == 0, "the read's lease")
    session.call("DeleteTensors", tensors=[tensor])


def test_a_client_killed_while_it_writes(session, daemon):  # noqa: F811
    tensor = session.create("half", 8 * MIB)
    session.write(tensor, b"o" * 8 * MIB)

    def half():
        yield v1.WriteRequest(target=v1.WriteRequest.Target(token=session.token, tensor=tensor), data=b"n" * MIB)
        wait_until(lambda: daemon.sessions()[0].leases == 1, "the write's lease")
        call.cancel()
        yield v1.WriteRequest(data=b"n")
    call = session.stub.Write.future(half())
    with pytest.raises(grpc.FutureCancelledError):
        call.result()
    wait_until(lambda: daemon.sessions()[0].leases == 0, "the write's lease to end")

    def torn():
        try:
            session.read(tensor)
        except grpc.RpcError as error:
            return error.code() == Code.FAILED_PRECONDITION
        return False
    wait_until(torn, "the content is given up")


def test_two_daemons_on_one_socket(daemon):  # noqa: F811
    second = subprocess.run([str(daemon.process.args[0]), "--config", str(daemon.disk / "terraced.toml")],
                            capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert second.returncode == 1
    assert str(daemon.sockets) in second.stderr or str(daemon.disk) in second.stderr, second.stderr
    with daemon.connect() as channel:
        assert daemon.health(channel) == 1


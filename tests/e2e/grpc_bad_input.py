# SPDX-License-Identifier: Apache-2.0
"""Shows what bad input gets over gRPC: each a status that says what to do, a message that names what was wrong, and a
daemon that serves on and has lost nothing."""

import socket

import grpc
import pytest
from grpc_fixtures import (BLOCK, DEVICE, HOST, LIMIT_SECONDS, MIB, Session, refused, run_daemon, session,  # noqa: F401
                           status_pb2, terrace_pb2_grpc, v1)

Code = grpc.StatusCode
NOWHERE_DEVICE = status_pb2.Place(kind=status_pb2.PLACE_KIND_DEVICE, device=5)
ABSURD_DEVICE = status_pb2.Place(kind=status_pb2.PLACE_KIND_DEVICE, device=4_000_000_000)
NO_PLACE = status_pb2.Place()


def spec(**fields):
    return {"tensors": [v1.TensorSpec(**fields)]}


@pytest.fixture(scope="module")
def daemon():
    """One for all of them: whatever it was asked, the next one finds it serving."""
    yield from run_daemon()


@pytest.fixture
def tensor(session):  # noqa: F811
    """A tensor with content, which no bad call may change."""
    handle = session.create("good", 4096)
    session.write(handle, b"g" * 4096)
    yield handle
    assert session.read(handle) == b"g" * 4096


@pytest.mark.parametrize("fields, code, part", [
    ({}, Code.INVALID_ARGUMENT, "tensors has 0 entries"),
    (spec(name="", bytes=1), Code.INVALID_ARGUMENT, "tensors[0].name"),
    (spec(name="x" * 176, bytes=1), Code.INVALID_ARGUMENT, "tensors[0].name"),
    (spec(name="zero"), Code.INVALID_ARGUMENT, "tensors[0]"),
    (spec(name="empty", shape=[3, 0]), Code.INVALID_ARGUMENT, "tensors[0]"),
    (spec(name="negative", shape=[3, -1]), Code.INVALID_ARGUMENT, "shape holds -1"),
    (spec(name="backwards", shape=[3], strides=[-1]), Code.INVALID_ARGUMENT, "strides holds -1"),
    (spec(name="uneven", shape=[3], strides=[1, 1]), Code.INVALID_ARGUMENT, "strides"),
    (spec(name="deep", shape=[1] * 9), Code.INVALID_ARGUMENT, "shape has 9 dimensions"),
    (spec(name="type", bytes=1, dtype=99), Code.INVALID_ARGUMENT, "dtype is 99"),
    (spec(name="overflow", shape=[2**62, 8], dtype=v1.DATA_TYPE_FLOAT64), Code.INVALID_ARGUMENT, "2^64"),
    (spec(name="short", shape=[4], dtype=v1.DATA_TYPE_FLOAT64, bytes=31), Code.INVALID_ARGUMENT, "bytes is 31"),
    (spec(name="good", bytes=1), Code.ALREADY_EXISTS, "good"),
    (spec(name="huge", bytes=2**63), None, "huge"),
    (spec(name="larger than any tier", bytes=65 * MIB), None, "larger than any tier"),
])
def test_creating(session, tensor, fields, code, part):  # noqa: F811
    with pytest.raises(grpc.RpcError) as caught:
        session.call("CreateTensors", **fields)
    assert part in caught.value.details(), caught.value.details()
    assert caught.value.code() in ((code,) if code else (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED))
    assert [one.spec.name for one in session.call("ListTensors").tensors] == ["good"]


def test_a_batch_is_created_whole_or_not(session, tensor):  # noqa: F811
    with refused(Code.ALREADY_EXISTS, "good"):
        session.call("CreateTensors", tensors=[v1.TensorSpec(name="new", bytes=1), v1.TensorSpec(name="good", bytes=1)])
    with refused(Code.RESOURCE_EXHAUSTED):
        session.call("CreateTensors", tensors=[v1.TensorSpec(name=f"n{index}", bytes=13 * MIB) for index in range(5)])
    assert len(session.call("ListTensors").tensors) == 1


def test_a_quota_holds(daemon):
    with daemon.connect(daemon.other_grpc) as channel, Session(channel) as limited:
        limited.create("fits", 512 * 1024)
        with refused(Code.RESOURCE_EXHAUSTED, "quota"):
            limited.create("does not", 600 * 1024)


@pytest.mark.parametrize("method, fields", [
    ("Acquire", {"place": HOST, "mode": v1.LEASE_MODE_READ}), ("Release", {"mode": v1.LEASE_MODE_READ}),
    ("SwapIn", {"place": HOST}), ("SwapOut", {"place": BLOCK}), ("Prefetch", {"place": HOST}), ("Evict", {}),
    ("DontNeed", {}), ("Pin", {"place": HOST}), ("Unpin", {}), ("DeleteTensors", {})])
def test_sets(session, tensor, method, fields):  # noqa: F811
    with refused(Code.INVALID_ARGUMENT, "tensors is empty"):
        session.call(method, **fields)
    with refused(Code.INVALID_ARGUMENT, "twice"):
        session.call(method, tensors=[tensor, tensor], **fields)
    with refused(Code.FAILED_PRECONDITION if method == "Release" else Code.NOT_FOUND):  # the good one is left alone
        session.call(method, tensors=[tensor, 60_000], **fields)
    with refused(Code.NOT_FOUND):
        session.call(method, tensors=[2**64 - 1], **fields)


def test_a_handle_of_a_deleted_tensor(session, tensor):  # noqa: F811
    old = session.create("old", 4096)
    session.call("DeleteTensors", tensors=[old])
    new = session.create("new", 4096)
    assert new != old
    for method, fields in (("Acquire", {"place": HOST, "mode": v1.LEASE_MODE_WRITE}), ("DeleteTensors", {})):
        with pytest.raises(grpc.RpcError) as caught:
            session.call(method, tensors=[old], **fields)
        assert caught.value.code() in (Code.ABORTED, Code.NOT_FOUND)


@pytest.mark.parametrize("method, place, code, part", [
    ("Acquire", None, Code.INVALID_ARGUMENT, "place is missing"), ("Acquire", NO_PLACE, Code.INVALID_ARGUMENT, "place"),
    ("Acquire", BLOCK, Code.INVALID_ARGUMENT, "place"), ("Acquire", NOWHERE_DEVICE, Code.NOT_FOUND, "device"),
    ("Acquire", ABSURD_DEVICE, Code.NOT_FOUND, "device"), ("SwapIn", BLOCK, Code.INVALID_ARGUMENT, "place"),
    ("SwapIn", NOWHERE_DEVICE, Code.NOT_FOUND, "device"), ("SwapOut", DEVICE, Code.INVALID_ARGUMENT, "place"),
    ("Pin", BLOCK, Code.INVALID_ARGUMENT, "place"), ("Prefetch", NOWHERE_DEVICE, Code.NOT_FOUND, "device")])
def test_places(session, tensor, method, place, code, part):  # noqa: F811
    mode = {"mode": v1.LEASE_MODE_READ} if method == "Acquire" else {}
    with refused(code, part):
        session.call(method, place=place, tensors=[tensor], **mode)


def test_leases(session, tensor):  # noqa: F811
    with refused(Code.INVALID_ARGUMENT, "mode is 0"):
        session.call("Acquire", place=HOST, tensors=[tensor])
    with refused(Code.FAILED_PRECONDITION):
        session.call("Release", mode=v1.LEASE_MODE_READ, tensors=[tensor])
    session.call("Acquire", place=HOST, mode=v1.LEASE_MODE_READ, tensors=[tensor])
    with refused(Code.FAILED_PRECONDITION):  # in one place at a time
        session.call("Acquire", place=DEVICE, mode=v1.LEASE_MODE_READ, tensors=[tensor])
    session.call("Release", mode=v1.LEASE_MODE_READ, tensors=[tensor])
    with refused(Code.FAILED_PRECONDITION):  # twice
        session.call("Release", mode=v1.LEASE_MODE_READ, tensors=[tensor])


@pytest.mark.parametrize("method, where", [("Acquire", {"place": HOST}), ("Release", {})])
def test_modes(session, tensor, method, where):  # noqa: F811
    read = v1.LEASE_MODE_READ
    for given, part in (({"mode": read, "modes": [read]}, "mode and modes are both given"),
                        ({"modes": [read, read]}, "modes has 2 entries for 1 tensors"),
                        ({"modes": [7]}, "modes[0] is 7"), ({"modes": [v1.LEASE_MODE_UNSPECIFIED]}, "modes[0] is 0")):
        with refused(Code.INVALID_ARGUMENT, part):
            session.call(method, tensors=[tensor], **where, **given)


def test_more_than_can_be_leased_at_once(session, tensor):  # noqa: F811
    many = [session.create(f"m{index}", 4 * MIB) for index in range(5)]
    with pytest.raises(grpc.RpcError) as caught:  # 20 MiB of 16
        session.call("Acquire", place=HOST, mode=v1.LEASE_MODE_OVERWRITE, tensors=many)
    assert caught.value.code() in (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT)
    assert {one.writers for one in session.call("ListTensors").tensors} == {0}


def test_reading_what_was_never_written(session, tensor):  # noqa: F811
    blank = session.create("blank", 4096)
    with refused(Code.FAILED_PRECONDITION, "blank"):
        session.read(blank)
    with refused(Code.FAILED_PRECONDITION):
        session.call("Acquire", place=HOST, mode=v1.LEASE_MODE_READ, tensors=[blank])
    session.write(blank, b"n" * 4096)
    assert session.read(blank) == b"n" * 4096
    session.call("DontNeed", tensors=[blank])
    with refused(Code.FAILED_PRECONDITION):
        session.read(blank)


def test_reads_and_writes_beyond_the_end(session, tensor):  # noqa: F811
    for offset, size in ((4096, 0), (4095, 2), (2**64 - 1, 2), (0, 4097)):
        with refused(Code.INVALID_ARGUMENT, "4096"):
            session.read(tensor, offset, size)
    with refused(Code.INVALID_ARGUMENT, "4096"):
        session.write(tensor, b"12", offset=4095)
    with refused(Code.NOT_FOUND):
        session.read(60_000)


def test_a_broken_overwrite_leaves_no_content(session, tensor):  # noqa: F811
    torn = session.create("torn", 3 * MIB)
    session.write(torn, b"o" * 3 * MIB)
    with refused(Code.INVALID_ARGUMENT, "of 3145728 bytes came"):
        session.write(torn, b"n" * MIB)
    with refused(Code.FAILED_PRECONDITION, "torn"):
        session.read(torn)
    session.write(torn, b"w" * 3 * MIB)
    with refused(Code.INVALID_ARGUMENT, "more than"):
        session.write(torn, b"n" * 4 * MIB)
    session.write(torn, b"w" * 3 * MIB)
    assert session.read(torn) == b"w" * 3 * MIB


def test_write_streams_out_of_order(session, tensor):  # noqa: F811
    target = v1.WriteRequest.Target(token=session.token, tensor=tensor, offset_bytes=0, bytes=4)
    for requests, part in (([], "no message"), ([v1.WriteRequest(data=b"x")], "target is missing"),
                           ([v1.WriteRequest(target=target, data=b"gg"), v1.WriteRequest(target=target)], "again")):
        with refused(Code.INVALID_ARGUMENT, part):
            session.stub.Write(iter(requests), timeout=LIMIT_SECONDS)


def test_tokens(session, tensor, daemon):  # noqa: F811
    request = v1.ListTensorsRequest(token=b"short")
    with refused(Code.INVALID_ARGUMENT, "token has 5 bytes"):
        session.stub.ListTensors(request, timeout=LIMIT_SECONDS)
    request.token = b"0123456789abcdef"
    with refused(Code.UNAUTHENTICATED):
        session.stub.ListTensors(request, timeout=LIMIT_SECONDS)
    with refused(Code.UNAUTHENTICATED):
        list(session.stub.Read(v1.ReadRequest(token=request.token, tensor=tensor), timeout=LIMIT_SECONDS))
    request.token = session.token
    with daemon.connect(daemon.other_grpc) as channel:  # stolen by another tenant
        with refused(Code.UNAUTHENTICATED):
            terrace_pb2_grpc.TerraceStub(channel).ListTensors(request, timeout=LIMIT_SECONDS)
    with daemon.connect() as channel:
        closed = Session(channel)
        closed.call("CloseSession")
        with refused(Code.UNAUTHENTICATED):
            closed.call("ListTensors")


def test_impossible_guarantees(daemon, session, tensor):  # noqa: F811
    for guarantees, code in (([v1.Guarantee(bytes=1)], Code.INVALID_ARGUMENT),
                             ([v1.Guarantee(place=HOST, bytes=1)] * 2, Code.INVALID_ARGUMENT),
                             ([v1.Guarantee(place=NOWHERE_DEVICE, bytes=1)], Code.NOT_FOUND),
                             ([v1.Guarantee(place=BLOCK, bytes=1)], Code.INVALID_ARGUMENT)):
        with daemon.connect() as channel, refused(code):
            Session(channel, guarantees=guarantees)
    with daemon.connect() as channel, pytest.raises(grpc.RpcError) as caught:
        stub = terrace_pb2_grpc.TerraceStub(channel)
        stub.OpenSession(v1.OpenSessionRequest(guarantees=[v1.Guarantee(place=HOST, bytes=2**62)]),
                         timeout=LIMIT_SECONDS)
    assert caught.value.code() in (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT)


def test_garbage_on_the_socket(daemon, session, tensor):  # noqa: F811
    for garbage in (b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64,
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 8192):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(LIMIT_SECONDS)
            raw.connect(str(daemon.grpc))
            try:
                raw.sendall(garbage)
                while raw.recv(65536):  # until the daemon hangs up
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert daemon.process.poll() is None


def test_a_message_that_is_none(daemon, session, tensor):  # noqa: F811
    with daemon.connect() as channel:
        raw = channel.unary_unary("/terrace.v1.Terrace/Acquire", request_serializer=lambda message: message,
                                  response_deserializer=lambda message: message)
        with pytest.raises(grpc.RpcError) as caught:
            raw(b"\xff" * 100, timeout=LIMIT_SECONDS)
        assert caught.value.code() in (Code.INTERNAL, Code.UNIMPLEMENTED)  # gRPC's own answers
        with pytest.raises(grpc.RpcError) as caught:
            raw(b"\0" * (17 * MIB), timeout=LIMIT_SECONDS)
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/terrace.v1.Terrace/Nonsense")(b"", timeout=LIMIT_SECONDS)
        assert caught.value.code() == Code.UNIMPLEMENTED

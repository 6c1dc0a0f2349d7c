# SPDX-License-Identifier: Apache-2.0
"""Shows that what is malformed or immoderate on the gRPC sockets costs its sender the connection or the call, and nobody
else anything: HTTP/2 that is none, or that floods; messages that are no protobuf; messages of 1 GiB. After each the
daemon's memory is what it was, but for a bound that would catch one which keeps what it is sent, and another client's
calls were answered all the while."""

import os
import pathlib
import random
import sys
import threading

import grpc
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from grpc_fixtures import LIMIT_SECONDS, MIB, Daemon, Session, admin_pb2, terrace_pb2, wait_until  # noqa: E402
from http2_client import (ACKNOWLEDGES, CONTINUATION, DATA, ENDS_HEADERS, HEADERS, PING,  # noqa: E402
                          PREFACE, PRIORITY, RESET, SETTINGS, WINDOW_UPDATE, Attacker, call_headers, frame, integer,
                          literal)

Code = grpc.StatusCode
GIB = 1 << 30
GROWTH_MAX = 64 * MIB
INCOMPLETE_MAX = 128 * MIB  # of messages that may still be completed: half of GrpcOptions::memory_bytes_max
SANITIZED = "asan" in pathlib.Path(os.environ["TERRACE_BUILD"]).name  # freed memory is kept there
FRESH_SEED = random.SystemRandom().getrandbits(32)
GREETING = PREFACE + frame(SETTINGS, 0, 0)
POLITE = GREETING + frame(SETTINGS, ACKNOWLEDGES, 0)
CREATE = "/terrace.v1.Terrace/CreateTensors"


class Neighbour:
    """Another client, which asks without a pause; every answer must come."""

    def __init__(self, daemon):
        self.channel = daemon.connect()
        self.session = Session(self.channel, label="neighbour")
        self.tensor = self.session.create("kept", 100_000)
        self.session.write(self.tensor, b"k" * 100_000)
        self.answers = 0
        self.failure = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self) -> None:
        try:
            while not self.ended.wait(0.001):
                assert self.session.read(self.tensor) == b"k" * 100_000
                self.answers += 1
        except BaseException as failure:
            self.failure = failure

    def is_answered(self) -> None:
        """Once more, from now on."""
        answers = self.answers
        wait_until(lambda: self.answers > answers + 1 or self.failure, "an answer to the neighbour")
        assert self.failure is None, self.failure

    def stop(self) -> None:
        self.ended.set()
        self.thread.join()
        self.session.call("CloseSession")
        self.channel.close()


@pytest.fixture(scope="module")
def daemon():
    one = Daemon()
    try:
        yield one
        one.stop()
    except BaseException:
        sys.stderr.write(one.log.read_text())
        one.kill()
        raise


@pytest.fixture(scope="module")
def neighbour(daemon):
    one = Neighbour(daemon)
    yield one
    one.stop()
    assert one.failure is None, one.failure


class Memory:
    """The daemon's resident memory, in bytes: before, at its peak since then, and now."""

    def __init__(self, daemon):
        self.folder = pathlib.Path(f"/proc/{daemon.pid()}")
        (self.folder / "clear_refs").write_text("5")  # the peak begins anew
        self.before = self.line("VmRSS")

    def line(self, key: str) -> int:
        for line in (self.folder / "status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        raise KeyError(key)

    def judge(self, what: str, growth_max: int) -> None:
        peak, after = self.line("VmHWM"), self.line("VmRSS")
        print(f"{what}: {self.before // MIB} MiB before, {peak // MIB} at its peak, {after // MIB} after")
        growths.setdefault(growth_max, []).append((peak - self.before, what))
        assert SANITIZED or peak - self.before < growth_max


growths: dict[int, list[tuple[int, str]]] = {}  # by what was allowed


@pytest.fixture
def attacked(daemon, neighbour, request):
    """What every case ends with: bounded memory, and a neighbour who is answered."""
    memory = Memory(daemon)
    outcome: dict = {"growth_max": GROWTH_MAX}
    yield outcome
    memory.judge(outcome.get("what", request.node.name), outcome["growth_max"])
    neighbour.is_answered()


def for_ever(first: bytes, again: bytes):
    yield first
    while True:
        yield again


def resets():
    """Calls that are taken back as soon as they are made: 1500 of them."""
    yield POLITE
    for stream in range(1, 3000, 2):
        yield frame(HEADERS, ENDS_HEADERS, stream, call_headers(CREATE)) + frame(RESET, 0, stream, b"\0\0\0\x08")


def made_to_reset():
    """Calls that gRPC itself has to reset, since a window that grows by nothing is an error."""
    yield POLITE
    for stream in range(1, 3000, 2):
        yield (frame(HEADERS, ENDS_HEADERS, stream, call_headers(CREATE)) +
               frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\0"))


def calls(greeting: bytes):
    """Calls that never end, without end."""
    yield greeting
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, ENDS_HEADERS, stream, call_headers(CREATE))


def bombs():
    """Header lists of 40 MB in a few kilobytes: one long entry of the table, named again and again."""
    yield POLITE
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, ENDS_HEADERS, stream,
                    call_headers(CREATE) + b"\x40" + literal(b"a", b"b" * 4000)[1:] + b"\xbe" * 10_000)


def message(length: int):
    """One message of `length` bytes in a call, whatever the windows say."""
    yield POLITE + frame(HEADERS, ENDS_HEADERS, 1, call_headers(CREATE)) + frame(DATA, 0, 1,
                                                                               b"\0" + length.to_bytes(4, "big"))
    while True:
        yield frame(DATA, 0, 1, b"x" * 16384) * 16


def block(start: bytes, again: bytes):
    """A header block that begins and never ends."""
    return for_ever(POLITE + frame(HEADERS, 0, 1, call_headers(CREATE) + start), frame(CONTINUATION, 0, 1, again) * 16)


# What is sent, how much of it at most, and whether the answers are read.
FLOODS = {
    "garbage": (lambda: for_ever(b"", random.Random(1).randbytes(MIB)), GIB, True),
    "no greeting but zeros": (lambda: for_ever(b"", bytes(MIB)), GIB, True),
    "garbage after the greeting": (lambda: for_ever(PREFACE, random.Random(2).randbytes(MIB)), GIB, True),
    "a message of 1 GiB": (lambda: message(GIB), GIB + MIB, True),
    "a message of 4 GiB": (lambda: message(2**32 - 1), GIB // 4, True),
    "frames of unknown types": (lambda: for_ever(POLITE, frame(77, 0, 0, b"z" * 16384) * 16), GIB, True),
    "a data frame that claims 16 MiB": (lambda: for_ever(
        POLITE + frame(HEADERS, ENDS_HEADERS, 1, call_headers(CREATE)) + frame(DATA, 0, 1, b"", 2**24 - 1),
        b"x" * MIB), GIB, True),
    "headers that claim 16 MiB": (lambda: for_ever(POLITE + frame(HEADERS, ENDS_HEADERS, 1, b"", 2**24 - 1),
                                                   bytes(MIB)), GIB, True),
    "an unknown frame that claims 16 MiB": (lambda: for_ever(POLITE + frame(77, 0, 1, b"", 2**24 - 1), bytes(MIB)),
                                            GIB, True),
    "settings": (lambda: for_ever(GREETING, frame(SETTINGS, 0, 0) * 5000), 2 * MIB, True),
    "settings, answers unread": (lambda: for_ever(GREETING, frame(SETTINGS, 0, 0) * 5000), 2 * MIB, False),
    "pings": (lambda: for_ever(GREETING, frame(PING, 0, 0, b"12345678") * 5000), 4 * MIB, True),
    "pings, answers unread": (lambda: for_ever(GREETING, frame(PING, 0, 0, b"12345678") * 5000), 4 * MIB, False),
    "window updates": (lambda: for_ever(POLITE, frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\0") * 5000), 64 * MIB, True),
    "priorities": (lambda: for_ever(POLITE, frame(PRIORITY, 0, 1, b"\0\0\0\0\x01") * 5000), 64 * MIB, True),
    "calls reset at once": (resets, GIB, True),
    "calls that gRPC resets": (made_to_reset, GIB, True),
    "calls without end": (lambda: calls(POLITE), 64 * MIB, True),
    "calls without end, settings not acknowledged": (lambda: calls(GREETING), 64 * MIB, True),
    "empty continuations": (lambda: block(b"", b""), 64 * MIB, True),
    "continuations of many headers": (lambda: block(b"", literal(b"a", b"b" * 4000) * 4), 64 * MIB, True),
    "a header without end": (lambda: block(b"\0\x01a" + integer(2**31, 7), b"x" * 16384), 64 * MIB, True),
    "a number without end": (lambda: block(b"\0\x01a\x7f", b"\x80" * 16384), 64 * MIB, True),
    "compressed header bombs": (bombs, 64 * MIB, True),
}


@pytest.mark.parametrize("what", FLOODS)
@pytest.mark.parametrize("door", ["grpc", "admin"])
def test_floods(daemon, neighbour, attacked, door, what):
    make, most, reads = FLOODS[what]
    with Attacker(getattr(daemon, door)) as attacker:
        end = attacker.flood(make(), most, reads)
        neighbour.is_answered()  # the attacker is still there
        attacked["what"] = f"{what}, {door} socket: {attacker.sent / MIB:.1f} MiB sent, then {end}"


@pytest.mark.parametrize("seed", [*range(20), FRESH_SEED])
def test_random_frames(daemon, attacked, seed):
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(20):
        frames = bytearray(POLITE if draw.random() < 0.8 else GREETING)
        for _ in range(draw.randrange(1, 60)):
            payload = draw.randbytes(draw.choice((0, 1, 4, 5, 6, 8, 9, draw.randrange(2000))))
            if draw.random() < 0.3:
                payload = call_headers(CREATE) + payload[:draw.randrange(8)]
            length = draw.randrange(2**24) if draw.random() < 0.05 else len(payload)
            stream = draw.choice((0, 1, 2, 3, 5, 7, 2**31 - 1, draw.getrandbits(32)))
            frames += frame(draw.choice((*range(11), draw.randrange(256))), draw.choice((0, 1, 4, 5, draw.randrange(256))),
                            stream, payload, length)
        with Attacker(daemon.grpc if draw.random() < 0.7 else daemon.admin) as attacker:
            attacker.flood(iter([bytes(frames)]), GIB, draw.random() < 0.8)


def methods():
    for pool, service in ((terrace_pb2, "Terrace"), (admin_pb2, "Admin")):
        for method in pool.DESCRIPTOR.services_by_name[service].methods:
            yield service, method.name


@pytest.mark.parametrize("service, method", list(methods()))
def test_messages_that_are_no_protobuf(daemon, attacked, service, method):
    described = (terrace_pb2 if service == "Terrace" else admin_pb2).DESCRIPTOR.services_by_name[service].methods_by_name[
        method]
    harmless = (Code.INVALID_ARGUMENT, Code.INTERNAL, Code.UNIMPLEMENTED)
    with daemon.connect(daemon.grpc if service == "Terrace" else daemon.admin) as channel:
        shape = ("stream" if described.client_streaming else "unary") + (
            "_stream" if described.server_streaming else "_unary")
        call = getattr(channel, shape)(f"/terrace.v1.{service}/{method}", request_serializer=bytes,
                                       response_deserializer=bytes)
        for seed in (1, 2, 3, FRESH_SEED):
            draw = random.Random(seed)
            # A tag of wire type 7, which there is not, so that this never happens to be a message (of Drain, say).
            garbage = b"\x07" + draw.randbytes(draw.randrange(5000))
            with pytest.raises(grpc.RpcError) as caught:
                answer = call(iter([garbage]) if described.client_streaming else garbage, timeout=LIMIT_SECONDS)
                list(answer if described.server_streaming else [])
            assert caught.value.code() in harmless, (seed, caught.value)


@pytest.mark.parametrize("size", [17 * MIB, GIB])
@pytest.mark.parametrize("door", ["grpc", "admin"])
def test_a_message_beyond_the_limit(daemon, attacked, door, size):
    with daemon.connect(getattr(daemon, door)) as channel:
        call = channel.unary_unary(CREATE if door == "grpc" else "/terrace.v1.Admin/ListSessions",
                                   request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(size), timeout=LIMIT_SECONDS)
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED
        attacked["what"] = f"a call with {size // MIB} MiB, {door} socket: {caught.value.code().name}"


@pytest.mark.parametrize("packing", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_message_that_unpacks_to_256_mib(daemon, attacked, packing):
    with daemon.connect() as channel:
        call = channel.unary_unary(CREATE, request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(256 * MIB), timeout=LIMIT_SECONDS, compression=packing)
        assert caught.value.code() in (Code.UNIMPLEMENTED, Code.INTERNAL)
        attacked["what"] = f"a message that unpacks to 256 MiB, {packing.name}: {caught.value.code().name}"


def test_many_messages_within_the_limit_that_never_end(daemon, neighbour, attacked):
    """Each of them may still be completed: what gRPC keeps of them has a bound over all connections."""
    attacked["growth_max"] = GROWTH_MAX + INCOMPLETE_MAX
    with Attacker(daemon.grpc) as attacker:
        end = attacker.send_unfinished(CREATE, calls=64, size=15 * MIB)
        neighbour.is_answered()
        attacked["what"] = f"64 messages of 15 MiB that lack a byte: {attacker.sent // MIB} MiB taken, then {end}"


def test_a_session_afterwards(daemon):
    with daemon.connect() as channel, Session(channel, label="later") as later:
        tensor = later.create("t", MIB)
        later.write(tensor, b"t" * MIB)
        assert later.read(tensor) == b"t" * MIB
    assert daemon.process.poll() is None
    for cases in growths.values():
        growth, what = max(cases)
        print(f"\ncase 19: the worst of {len(cases)} cost the daemon {growth // MIB} MiB of memory ({what})")

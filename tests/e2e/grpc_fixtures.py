# SPDX-License-Identifier: Apache-2.0
"""What the tests of the gRPC API share: stubs generated from the .proto files, as a user in another language would do it,
a daemon in a folder of its own, and a session in a few lines. Nothing of our own client library is used."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import grpc
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])
LIMIT_SECONDS = 60
MIB = 1 << 20


def _generate() -> None:
    folder = tempfile.TemporaryDirectory(prefix="terrace-stubs-")
    protos = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto/terrace/v1").glob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}/proto", f"--python_out={folder.name}",
                    f"--grpc_python_out={folder.name}", *protos], check=True, timeout=LIMIT_SECONDS)
    for package in ("terrace", "terrace/v1"):  # so that they come before an installed package of the same name
        (pathlib.Path(folder.name) / package / "__init__.py").touch()
    sys.path.insert(0, folder.name)
    globals()["_stubs"] = folder  # until the interpreter ends


_generate()
from terrace.v1 import (admin_pb2, admin_pb2_grpc, error_pb2, status_pb2, terrace_pb2,  # noqa: E402, F401
                        terrace_pb2_grpc)

v1 = terrace_pb2
HOST = status_pb2.Place(kind=status_pb2.PLACE_KIND_HOST)
DEVICE = status_pb2.Place(kind=status_pb2.PLACE_KIND_DEVICE, device=0)
BLOCK = status_pb2.Place(kind=status_pb2.PLACE_KIND_BLOCK)


def wait_until(condition, what: str):
    """Waits for a condition, within the limit, and returns what it came to."""
    end = time.monotonic() + LIMIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {LIMIT_SECONDS} s in vain: {what}"
        time.sleep(0.01)
    return value


class Daemon:
    """A terraced with 8 MiB of device, 16 MiB of memory and 64 MiB of block, and two tenants; `supervised`: by
    `terraced supervise`, which starts it again whenever it ends."""

    def __init__(self, settings: str = "", supervised: bool = False, policy: str = "next-use",
                 block: pathlib.Path | None = None):
        self.supervised = supervised
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="terrace-"))  # socket paths are short
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="e2e-", dir=BUILD))  # on a file system with O_DIRECT
        self.grpc, self.other_grpc, self.admin = (self.sockets / name for name in ("g.sock", "o.sock", "a.sock"))
        self.log = self.disk / "log"
        (self.disk / "terraced.toml").write_text(f"""
            metrics_address = "127.0.0.1:0"
            policy = "{policy}"
            [sockets]
            data = "{self.sockets}/d.sock"
            grpc = "{self.grpc}"
            admin = "{self.admin}"
            [limits]
            stop_timeout_ms = 4000
            {settings}
            [[tier]]
            kind = "device"
            capacity = "8MiB"
            [[tier]]
            kind = "memory"
            capacity = "16MiB"
            [[tier]]
            {self.block_keys}
            kind = "block"
            capacity = "64MiB"
            paths = ["{block or self.disk / 'block'}"]
            [[tenant]]
            name = "default"
            [[tenant]]
            name = "other"
            data_socket = "{self.sockets}/od.sock"
            grpc_socket = "{self.other_grpc}"
            quota = "1MiB"
            """)
        with self.log.open("wb") as log:
            supervise = ["supervise", "--restart-delay-max-ms", "20"] if supervised else []
            self.process = subprocess.Popen([BUILD / "terraced", *supervise, "--config", self.disk / "terraced.toml"],
                                            stdout=log, stderr=log)
        wait_until(lambda: self.admin.exists() or self.process.poll() is not None, "the daemon's sockets")
        assert self.process.poll() is None, self.log.read_text()

    block_keys = ""  # further keys of the block tier

    def pid(self) -> int | None:
        """Of the daemon itself; None while the supervisor has none."""
        pid = self.process.pid
        if not self.supervised:
            return pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def connect(self, path: pathlib.Path | None = None) -> grpc.Channel:
        """A connection of its own."""
        return grpc.insecure_channel(f"unix:{path or self.grpc}",
                                     options=[("grpc.use_local_subchannel_pool", 1),
                                              ("grpc.max_receive_message_length", 64 * MIB)])

    def metrics_address(self) -> str:
        line = wait_until(lambda: [line for line in self.log.read_text().splitlines() if "metrics on http://" in line],
                          "the address of /metrics")
        return line[0].split("http://")[1].split("/")[0]

    def metrics(self) -> dict[str, float]:
        """Every series as Prometheus's text names it."""
        with urllib.request.urlopen(f"http://{self.metrics_address()}/metrics", timeout=LIMIT_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def sessions(self):
        """As the administrator sees them."""
        with self.connect(self.admin) as channel:
            return admin_pb2_grpc.AdminStub(channel).ListSessions(admin_pb2.ListSessionsRequest()).sessions

    def health(self, channel: grpc.Channel) -> int:
        """1: SERVING, 2: NOT_SERVING (grpc.health.v1, whose messages need no stubs: one number)."""
        check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=lambda message: message,
                                    response_deserializer=lambda message: message)
        return check(b"", timeout=LIMIT_SECONDS)[1]

    def stop(self) -> float:
        """Stops it as systemd would, and returns how long that took in seconds. It must have served to the end."""
        assert self.process.poll() is None, self.log.read_text()
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(LIMIT_SECONDS) == 0, self.log.read_text()
        finally:
            self.kill()
        return time.monotonic() - start

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.sockets)
        shutil.rmtree(self.disk)


class Session:
    """A session over one connection; closed with the block that it heads, if any."""

    def __init__(self, channel: grpc.Channel, **request):
        self.stub = terrace_pb2_grpc.TerraceStub(channel)
        self.opened = self.stub.OpenSession(v1.OpenSessionRequest(**request), timeout=LIMIT_SECONDS)
        self.token = self.opened.token

    @classmethod
    def of(cls, channel: grpc.Channel, token: bytes) -> "Session":
        """One that is open already, over another connection."""
        session = cls.__new__(cls)
        session.stub, session.token = terrace_pb2_grpc.TerraceStub(channel), token
        return session

    def __enter__(self):
        return self

    def __exit__(self, *_raised) -> None:
        self.call("CloseSession")

    def call(self, method: str, **fields):
        """A unary method whose request carries the token."""
        request = getattr(v1, f"{method}Request")(token=self.token, **fields)
        return getattr(self.stub, method)(request, timeout=LIMIT_SECONDS)

    def create(self, name: str, size: int, **spec) -> int:
        return self.call("CreateTensors", tensors=[v1.TensorSpec(name=name, bytes=size, **spec)]).tensors[0]

    def write(self, tensor: int, data: bytes, offset: int | None = None) -> int:
        """The whole tensor, or, from `offset`, a part of it."""
        target = v1.WriteRequest.Target(token=self.token, tensor=tensor)
        if offset is not None:
            target.offset_bytes, target.bytes = offset, len(data)
        pieces = [data[at:at + MIB] for at in range(0, len(data), MIB)]
        requests = [v1.WriteRequest(target=target if index == 0 else None, data=piece)
                    for index, piece in enumerate(pieces)]
        return self.stub.Write(iter(requests), timeout=LIMIT_SECONDS).bytes

    def read(self, tensor: int, offset: int = 0, size: int = 0) -> bytes:
        request = v1.ReadRequest(token=self.token, tensor=tensor, offset_bytes=offset, bytes=size)
        return b"".join(piece.data for piece in self.stub.Read(request, timeout=LIMIT_SECONDS))


@contextlib.contextmanager
def refused(code: grpc.StatusCode, *parts: str):
    """What happens inside fails with this code; its message has these parts, and its details name it too."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    error = caught.value
    assert error.code() == code, f"{error.code()}: {error.details()}"
    for part in parts:
        assert part in error.details(), error.details()
    trailer = dict(error.trailing_metadata())["grpc-status-details-bin"]
    details = error_pb2.StatusDetails.FromString(trailer)
    assert details.code == code.value[0] and details.message == error.details()
    assert details.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    info = error_pb2.ErrorInfo.FromString(details.details[0].value)
    assert (info.reason, info.domain) == (code.name, "terrace")


def run_daemon(**options):
    """A daemon for a fixture: it must have served to the end, and stop when it is told to."""
    one = Daemon(**options)
    try:
        yield one
        one.stop()
    except BaseException:
        if one.sockets.exists():
            sys.stderr.write(one.log.read_text())
            one.kill()
        raise


@pytest.fixture
def daemon():
    yield from run_daemon()


@pytest.fixture
def session(daemon):
    with daemon.connect() as channel, Session(channel, label="test") as one:
        yield one

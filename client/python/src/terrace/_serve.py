# SPDX-License-Identifier: Apache-2.0
"""A private daemon for one program: started as the user, and gone with all it made when the program is."""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from . import _checks, _terrace
from ._client import Client
from ._errors import Error, InvalidArgument, Unavailable

SOCKET_PATH_BYTES_MAX = 107
PORT_MAX = 65535
LOG_LINES_SHOWN = 15
_CALL = "terrace.serve"
_TO_GET_ONE = ("install the wheel again (pip install --force-reinstall terrace)" if not _terrace.SOURCE_TREE else
               "build it (cmake --preset release && cmake --build --preset release)")
T = TypeVar("T")


class ServedClient(Client):
    """The client of a private daemon.

    `socket` is the daemon's data socket: other processes of the job connect with terrace.Client(socket).
    """

    daemon_pid: int
    """The daemon's process id."""
    metrics_url: str
    """Where it answers Prometheus; empty where metrics are off."""
    admin_socket: str
    """For `terracectl --socket`."""
    grpc_socket: str
    """For clients in other languages."""
    log: pathlib.Path
    """What the daemon has said; gone with it."""


class _OwnStack(contextlib.ExitStack):
    """An ExitStack that undoes nothing in a forked child: what was made is its parent's."""

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def __exit__(self, *details: Any) -> bool:
        if os.getpid() != self._process:
            self.pop_all()
        return super().__exit__(*details)


class _Daemon:
    """The daemon's process, through its keeper (_keeper.py)."""

    def __init__(self, folders: list[pathlib.Path], command: list[str], configuration: "_Configuration"):
        self._configuration = configuration
        self.log = folders[0] / "daemon.log"
        keeper = pathlib.Path(__file__).with_name("_keeper.py")
        trainer = os.pidfd_open(os.getpid())
        try:
            keeping = subprocess.Popen(
                [sys.executable, "-I", "-S", str(keeper), str(trainer), json.dumps([str(folder) for folder in folders]),
                 "--", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, pass_fds=[trainer])
        finally:
            os.close(trainer)
        assert keeping.stdin is not None and keeping.stdout is not None
        self._keeper, self._hold, self._said = keeping, keeping.stdin, keeping.stdout
        first = self._line()
        if not first.startswith("started "):
            self.stop()
            raise Unavailable(f"terraced could not be started: {first}: {' '.join(command)}")
        self.pid = int(first.split()[1])

    def _line(self) -> str:
        return self._said.readline().decode().strip()

    def ended(self) -> Error | None:
        """Why the daemon ended by itself: InvalidArgument for a configuration it refused, else Unavailable with the end
        of its log; None while it runs."""
        if not select.select([self._said], [], [], 0)[0]:
            return None
        said = self.log.read_text(errors="replace")
        if (refusal := self._configuration.refusal(said)) is not None:
            return InvalidArgument(f"{_CALL}: {refusal}")
        lines = said.splitlines()[-LOG_LINES_SHOWN:]
        status = self._line().removeprefix("ended ") or "unknown"
        return Unavailable(f"terraced ended with status {status}; it said last:\n" +
                           "\n".join(f"  {line}" for line in lines))

    def stop(self) -> None:
        """Stops the daemon, removes what it made, and returns when both are done."""
        with contextlib.suppress(BrokenPipeError):  # the keeper was killed
            self._hold.write(b"\n")  # a child that was forked meanwhile holds it open, too
        self._hold.close()
        self._keeper.wait()
        self._said.close()


def _of_the_wheel() -> str | None:
    """The daemon that came in the wheel, of the package's own version; None if none did, or it is gone."""
    try:
        installed = importlib.metadata.files("terrace") or []
    except importlib.metadata.PackageNotFoundError:
        installed = []
    beside = pathlib.Path(__file__).parents[1] / "bin" / "terraced"  # where `pip install --target` puts it, whatever it records
    listed = [str(file.locate()) for file in installed if file.name == "terraced"]
    return next(filter(None, map(shutil.which, [*listed, str(beside)])), None)


def find_terraced(path: str | os.PathLike[str] | None = None) -> str:
    """The daemon's binary: `path`, $TERRACED, the one of the wheel, the PATH's terraced, or the one in the tree that the
    package was built in."""
    named = path or os.environ.get("TERRACED")
    if named:
        found = shutil.which(named)
        where = f"{named} is not an executable file"
    else:
        built = os.path.join(_terrace.SOURCE_TREE, "build", "release", "terraced") if _terrace.SOURCE_TREE else ""
        found = _of_the_wheel() or shutil.which("terraced") or (shutil.which(built) if built else None)
        where = "it is not on the PATH, nor " + (f"at {built}" if built else "where the wheel put it")
    if found is None:
        raise Unavailable(f"terraced was not found: {where}; {_TO_GET_ONE}, or name it in TERRACED")
    return os.path.abspath(found)


def _private_folder() -> pathlib.Path:
    """A new folder that nobody else can enter, with a path short enough for sockets in it."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if parent and os.access(parent, os.W_OK | os.X_OK) and len(parent) + 40 < SOCKET_PATH_BYTES_MAX:
            return pathlib.Path(tempfile.mkdtemp(prefix="terrace-", dir=parent))
    raise Unavailable("no folder for the daemon's sockets: neither XDG_RUNTIME_DIR nor TMPDIR nor /tmp is writable")


def _block_file(block: str) -> tuple[pathlib.Path, str]:
    """Makes a private folder for a block file in the folder of "FOLDER:SIZE"; gives it, and the size."""
    folder, _, size = block.rpartition(":")
    if not folder or not size or not os.path.isdir(folder):
        raise InvalidArgument(f'{_CALL}: block is "{block}"; it must be FOLDER:SIZE with a folder that exists, as in '
                              '"/scratch:50GiB"')
    try:
        return pathlib.Path(tempfile.mkdtemp(prefix="terrace-block-", dir=os.path.abspath(folder))), size
    except OSError as error:
        raise InvalidArgument(f"{_CALL}: no block file can be made in {folder}: {error.strerror}") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Configuration:
    """The daemon's configuration (docs/reference/configuration.md), and which argument of serve() each of its lines is from.
    JSON's strings, numbers and lists are TOML's."""

    def __init__(self, path: pathlib.Path, metrics_address: str, policy: str | None):
        self.path = path
        self._lines: list[str] = []
        self._from: list[str] = []
        if policy is not None:
            self._add("policy", f"policy = {json.dumps(policy)}")
        self._add("metrics", f"metrics_address = {json.dumps(metrics_address)}")
        self._add("", "[sockets]", *(f"{name} = {json.dumps(f'{path.parent}/{name}.sock')}" for name in ("data", "grpc", "admin")))

    def _add(self, argument: str, *lines: str) -> None:
        self._lines += lines
        self._from += [argument] * len(lines)

    def add_tier(self, argument: str, capacity: str | int, **rest: Any) -> None:
        self._add(argument, "[[tier]]", f"capacity = {json.dumps(capacity)}")
        for key, value in rest.items():
            self._add("gpu" if key == "device" else argument, f"{key} = {json.dumps(value)}")

    def write(self) -> None:
        self.path.write_text("\n".join(self._lines) + "\n")

    def refusal(self, said: str) -> str | None:
        """What the daemon found wrong with it, in the words of serve()'s arguments; None if it said nothing of it."""
        found = []
        complaint = rf"^terraced: {re.escape(str(self.path))}:(\d+): ([^ :]+): (.+)"  # not the warnings, which come first
        for line, key, what in re.findall(complaint, said, re.MULTILINE):
            argument = self._from[int(line) - 1] if 0 < int(line) <= len(self._from) else ""
            if key.startswith("tier") != (argument in ("memory", "device", "gpu", "block")):
                argument = ""  # of several lines together
            found.append(f"{argument}: {what}" if argument else what)
        return "; ".join(found) or None


def _as_soon_as(attempt: Callable[[], T], daemon: _Daemon, deadline: float) -> T:
    """What the attempt gives when the daemon has come up; its end's error if it ends; Unavailable at the deadline."""
    while True:
        try:
            return attempt()
        except (Unavailable, OSError) as error:
            if (ended := daemon.ended()) is not None:
                raise ended from None
            if time.monotonic() > deadline:
                raise Unavailable(f"terraced runs (pid {daemon.pid}) but does not serve: {error}") from error
            time.sleep(0.02)


@contextlib.contextmanager
def serve(memory: str | int = "4GiB", *, device: str | int | None = None, gpu: str = "emulated",
          block: str | None = None, metrics: bool | int = True, terraced: str | os.PathLike[str] | None = None,
          policy: str | None = None, guarantees: Mapping[str, int] | None = None, label: str = "",
          timeout: float = 60.0) -> Iterator[ServedClient]:
    """Starts a daemon of one's own, without root or systemd, and gives a client of it; at the end of the `with` the
    daemon stops and everything that it made is removed. So it is, too, if this process is killed.

    memory: DRAM for the memory tier, as "4GiB", "25%" or bytes.
    device: a device tier of that size; None: none.
    gpu: what the device tier is: "emulated" (ordinary memory, managed as HBM is), "cuda:N", "cuda:all", or "auto".
    block: "FOLDER:SIZE": a block file of that size in the folder, on a disk that can do O_DIRECT; None: none.
    metrics: a port on the loopback for Prometheus; True: a free one; False: none.
    terraced: the daemon's binary; None: $TERRACED, else the wheel's, else the PATH's, else the one in the source tree.
    policy: what decides what leaves fast memory: "next-use", which learns the steps that are marked, "lru" or "s3-fifo";
        None: the daemon's default, which is the first.
    guarantees, label: as for terrace.Client. timeout: seconds until it must serve.

    InvalidArgument, naming the argument, for what the daemon cannot be configured with here; TypeError for arguments of
    another kind. Unavailable if there is no terraced, or it ends for another reason, with its last words.
    """
    memory = _checks.capacity(_CALL, "memory", memory)
    device = None if device is None else _checks.capacity(_CALL, "device", device)
    for name, value in (("gpu", gpu), ("label", label), ("block", "" if block is None else block),
                        ("policy", "" if policy is None else policy)):
        _checks.text(_CALL, name, value)
    if not isinstance(metrics, bool):
        _checks.count(_CALL, "metrics", metrics, PORT_MAX)
    if terraced is not None:
        _checks.is_a(_CALL, "terraced", terraced, str | os.PathLike, "a path, or None")
    _checks.guarantees(_CALL, guarantees)
    timeout = _checks.seconds(_CALL, "timeout", timeout)
    binary = find_terraced(terraced)
    with _OwnStack() as made:
        folders = [_private_folder()]
        made.callback(shutil.rmtree, folders[0], ignore_errors=True)
        port = _free_port() if metrics is True else int(metrics)
        address = f"127.0.0.1:{port}" if port else ""
        configuration = _Configuration(folders[0] / "terraced.toml", address, policy)
        if device is not None:
            configuration.add_tier("device", device, kind="device", device=gpu)
        configuration.add_tier("memory", memory, kind="memory")
        if block is not None:
            folder, size = _block_file(block)
            made.callback(shutil.rmtree, folder, ignore_errors=True)
            folders.append(folder)
            configuration.add_tier("block", size, kind="block", paths=[str(folder / "block")])
        configuration.write()
        daemon = _Daemon(folders, [binary, "--config", str(configuration.path)], configuration)
        made.callback(daemon.stop)
        deadline = time.monotonic() + timeout
        client = _as_soon_as(lambda: ServedClient(str(folders[0] / "data.sock"), guarantees=guarantees, label=label,
                                                  timeout=max(1.0, deadline - time.monotonic()),
                                                  reconnect_timeout=0),  # nobody restarts the daemon
                             daemon, deadline)
        made.callback(client.close)
        if address:
            _as_soon_as(lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close(), daemon, deadline)
        client.daemon_pid = daemon.pid
        client.metrics_url = f"http://{address}/metrics" if address else ""
        client.admin_socket = str(folders[0] / "admin.sock")
        client.grpc_socket = str(folders[0] / "grpc.sock")
        client.log = daemon.log
        yield client

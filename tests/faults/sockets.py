# SPDX-License-Identifier: Apache-2.0
"""Shows what becomes of the daemon's sockets where a node misbehaves. Somebody removes their folder, or puts a file in its
place: they are there again, and nobody who is inside is dropped. Connections that are refused by the thousand make a few
lines with their count, and each is counted by user and reason."""

import os
import pathlib
import re
import shutil
import signal
import socket
import sys

import grpc
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from grpc_fixtures import LIMIT_SECONDS, MIB, Daemon, Session, wait_until  # noqa: E402

CONNECTIONS = 3000
NOBODY = 65534


@pytest.fixture(name="daemon")
def _daemon():
    daemon = Daemon()
    yield daemon
    if daemon.process.poll() is None:
        daemon.stop()


def modes(folder: pathlib.Path) -> dict[str, int]:
    return {str(path): path.stat().st_mode for path in (folder, *folder.iterdir())}


def is_served(daemon) -> bool:
    """By a connection that is new."""
    with daemon.connect() as channel, Session(channel, label="new") as session:
        tensor = session.create("t", 4096)
        session.write(tensor, b"n" * 4096)
        return session.read(tensor) == b"n" * 4096


def test_a_folder_that_is_removed_is_there_again_and_nobody_is_dropped(daemon):
    before = modes(daemon.sockets)
    with daemon.connect() as channel, Session(channel, label="inside") as session:
        tensor = session.create("t", MIB)
        session.write(tensor, b"a" * MIB)
        shutil.rmtree(daemon.sockets)
        wait_until(lambda: daemon.sockets.exists() and modes(daemon.sockets) == before, "the sockets, as they were")
        assert session.read(tensor) == b"a" * MIB
        assert is_served(daemon)
        assert daemon.sessions()[0].label == "inside"
    assert daemon.log.read_text().count("somebody removed") == len(list(daemon.sockets.glob("*.sock")))


def test_sockets_that_a_cleaner_removes_one_by_one_are_there_again(daemon):
    for path in sorted(daemon.sockets.iterdir()):
        before = path.stat().st_ino
        path.unlink()
        wait_until(lambda: path.exists() and path.stat().st_ino != before, f"{path} again")
    assert is_served(daemon)


def test_where_they_cannot_be_made_it_is_said_once_and_tried_again(daemon):
    with daemon.connect() as channel, Session(channel, label="inside") as session:
        shutil.rmtree(daemon.sockets)
        daemon.sockets.write_text("a file")
        sockets = 5
        wait_until(lambda: daemon.log.read_text().count("cannot be made again") == sockets, "a line for each")
        daemon.sockets.unlink()
        wait_until(daemon.admin.exists, "the sockets")
        assert daemon.log.read_text().count("cannot be made again") == sockets
        session.create("t", 4096)
    assert is_served(daemon)


def notify_socket(pid: int) -> pathlib.Path:
    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return pathlib.Path(next(line for line in environment if line.startswith(b"NOTIFY_SOCKET="))[14:].decode())


def test_a_supervisor_whose_folder_is_removed_starts_the_next_daemon_all_the_same():
    daemon = Daemon(supervised=True)
    try:
        with daemon.connect() as channel:
            session = Session(channel, label="inside")
            tensor = session.create("t", MIB)
            session.write(tensor, b"a" * MIB)
        first = daemon.pid()
        shutil.rmtree(notify_socket(first).parent)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: daemon.pid() not in (None, first), "the next daemon")
        wait_until(lambda: is_up(daemon), "its sockets")
        assert notify_socket(daemon.pid()).exists()
        with daemon.connect() as channel:
            assert Session.of(channel, session.token).read(tensor) == b"a" * MIB
    finally:
        daemon.stop()


def is_up(daemon) -> bool:
    try:
        return is_served(daemon)
    except grpc.RpcError:
        return False


def say_garbage(path: pathlib.Path, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as connection:
        connection.settimeout(LIMIT_SECONDS)
        connection.connect(str(path))
        try:
            connection.send(b"this is no greeting of anybody's" * 4)
            while connection.recv(4096):
                pass
        except OSError:
            pass  # closed at once


def told(log: str, what: str) -> int:
    """Lines of this kind, and those that were left out."""
    left_out = sum(int(count) for count in re.findall(rf"(\d+) lines were left out like this one: {what}", log))
    before = sum(int(count) for count in re.findall(rf"{what}.*\((\d+) lines like it were left out before\)", log))
    said = len(re.findall(rf"\] {what}", log))
    return said + left_out + before


def test_thousands_of_bad_connections_are_a_few_lines_with_their_count(daemon):
    log = daemon.log
    for _ in range(CONNECTIONS):
        say_garbage(daemon.sockets / "d.sock", socket.SOCK_SEQPACKET)
    for _ in range(CONNECTIONS // 10):
        say_garbage(daemon.grpc, socket.SOCK_STREAM)
    metrics = wait_until(lambda: (found := refusals(daemon)) and sum(found.values()) >= CONNECTIONS * 11 // 10 and found,
                         "the refusals' count")
    assert metrics[str(os.getuid()), "INVALID_ARGUMENT"] >= CONNECTIONS
    assert is_served(daemon)
    keep = log.with_name("kept")
    os.link(log, keep)
    kept = keep.open()
    daemon.stop()
    text = kept.read()
    assert text.count("\n") <= 100, text
    assert told(text, "session of pid") == CONNECTIONS, text
    assert told(text, "a gRPC connection of pid") == CONNECTIONS // 10, text


def refusals(daemon) -> dict[tuple[str, str], float]:
    series = re.compile(r'terrace_refused_connections_total\{(.*)\}')
    found = {}
    for name, value in daemon.metrics().items():
        if match := series.fullmatch(name):
            labels = dict(re.findall(r'(\w+)="(.*?)"', match[1]))
            found[labels["uid"], labels["reason"]] = value
    return found


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process takes root")
def test_a_user_who_is_refused_leaves_a_line_and_a_count(daemon):
    daemon.sockets.chmod(0o755)
    (daemon.sockets / "d.sock").chmod(0o666)
    # From within the folder, whose parents, and Python, may be closed to others.
    process = os.fork()
    if process == 0:
        try:
            os.chdir(daemon.sockets)
            os.setuid(NOBODY)
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect("d.sock")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(process, 0)[1] == 0
    wait_until(lambda: refusals(daemon).get((str(NOBODY), "PERMISSION_DENIED")) == 1, "its count")
    assert re.search(rf"uid {NOBODY} on .*d.sock was refused: uid {NOBODY} is not admitted", daemon.log.read_text())

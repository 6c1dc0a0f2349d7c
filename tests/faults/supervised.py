# SPDX-License-Identifier: Apache-2.0
"""A real terraced under `terraced supervise`, to be killed: with a folder, sockets and a log of its own, and gone with
them at the end of the `with`."""

import ctypes
import http.client
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple

from gpt_report import Metrics

LIMIT_SECONDS = 60
SAMPLE_SECONDS = 0.02
PR_SET_PDEATHSIG = 1
PORTS = range(15000, 32000)  # below those that the kernel gives out by itself, so that nobody takes it between two lives
WENT_ON = re.compile(r"goes on for a former daemon: (\d+) sessions, (\d+) tensors; "
                     r"(\d+) requests unanswered, (\d+) transfers broken off")


class WentOn(NamedTuple):
    """What a daemon said of its predecessor's end."""

    sessions: int
    tensors: int
    unanswered: int
    transfers: int


def free_port() -> int:
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().choice(PORTS)))
                return int(probe.getsockname()[1])
            except OSError:
                continue


def dies_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Supervised:
    """The supervisor and its daemon. `tiers`: (kind, capacity) pairs, fastest first; `disk`: where the block file goes;
    `policy`: as in the configuration."""

    def __init__(self, terraced: pathlib.Path, tiers: list[tuple[str, str]], disk: pathlib.Path, policy: str = "next-use"):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-kill-"))
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="kill-", dir=disk))
        self.socket = str(self.folder / "data.sock")
        port = free_port()
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"
        more = {"device": 'device = "emulated"\n', "block": f'paths = ["{self.disk}/block"]\n', "memory": ""}
        sockets = "".join(f'{name} = "{self.folder}/{name}.sock"\n' for name in ("data", "grpc", "admin"))
        (self.folder / "terraced.toml").write_text(
            f'metrics_address = "127.0.0.1:{port}"\npolicy = "{policy}"\n[sockets]\n{sockets}' + "".join(
                f'[[tier]]\nkind = "{kind}"\ncapacity = "{capacity}"\n{more[kind]}' for kind, capacity in tiers))
        self._command = [str(terraced), "supervise", "--restart-delay-max-ms", "20", "--config",
                         str(self.folder / "terraced.toml")]

    def __enter__(self) -> "Supervised":
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             preexec_fn=dies_with_parent)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder)
        shutil.rmtree(self.disk)

    def wait_for_socket(self) -> None:
        """Until trainers can connect."""
        end = time.monotonic() + LIMIT_SECONDS
        while not os.path.exists(self.socket):
            assert self._process.poll() is None and time.monotonic() < end, self.log()
            time.sleep(0.005)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def went_on(self) -> list[WentOn]:
        """What each daemon that found a predecessor's catalog said of it, in their order."""
        return [WentOn(*map(int, found)) for found in WENT_ON.findall(self.log())]

    def daemon(self) -> int | None:
        """The daemon's process id; None between two lives."""
        pid = self._process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def kill(self) -> None:
        """SIGKILL to the daemon; returns when another one runs (which need not serve yet)."""
        end = time.monotonic() + LIMIT_SECONDS
        while (before := self.daemon()) is None:
            assert time.monotonic() < end, "no daemon runs"
            time.sleep(0.001)
        os.kill(before, signal.SIGKILL)
        while self.daemon() in (None, before):
            assert time.monotonic() < end, "no other daemon was started"
            time.sleep(0.001)


class Lives:
    """The last reading of /metrics in each life of the daemon, taken all the time on a thread of its own."""

    def __init__(self, url: str):
        self.readings: dict[int, Metrics] = {}
        self.begun: dict[int, float] = {}  # when the first reading came
        self.life = 0
        self._url = url
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def next(self) -> None:
        """The daemon was replaced: what is read from now on is of the next one."""
        with self._lock:
            self.life += 1

    def wait_for_reading(self) -> None:
        """Until there is one of this life."""
        end = time.monotonic() + LIMIT_SECONDS
        while self.life not in self.readings:
            assert time.monotonic() < end, f"nobody served for {LIMIT_SECONDS} s"
            time.sleep(0.001)

    def sum(self, name: str, **labels: str) -> int:
        """The sum over all lives of a counter's last readings: no more than what was counted."""
        with self._lock:
            return int(sum(reading.sum(name, **labels) for reading in self.readings.values()))

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            life = self.life
            try:
                reading = Metrics(self._url)
            except (OSError, http.client.HTTPException, ValueError):
                continue  # between two lives, or in the midst of an answer
            with self._lock:
                if life == self.life and reading.sum("terrace_up") == 1:
                    self.readings[life] = reading
                    self.begun.setdefault(life, time.monotonic())

    def __enter__(self) -> "Lives":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

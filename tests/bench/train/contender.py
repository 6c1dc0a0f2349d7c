# SPDX-License-Identifier: Apache-2.0
"""A contender: a process of its own, in a memory room of its own, that is asked to do steps and says what they took."""

import contextlib
import dataclasses
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

import memory_room

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_SECONDS = 3600.0
LOG_LINES = 6
HEAP = ("glibc.malloc.tcache_max=24:glibc.malloc.mxfast=0:"  # as docs/guides/pytorch.md says; for all contenders
        "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=17179869184")


class Ended(Exception):
    """A contender failed; the text says how."""


@dataclasses.dataclass
class Place:
    """Where contenders run."""

    python: str  # the interpreter that has them all
    folder: pathlib.Path  # on the disk that all of them use
    cgroups: tuple[str, pathlib.Path | None]  # as memory_room.find() gives it
    threads: int

    def free_bytes(self) -> int:
        """Of the disk."""
        return shutil.disk_usage(self.folder).free


@dataclasses.dataclass
class Turn:
    """What some steps in a row came to."""

    seconds: list[float]
    losses: dict[int, str]  # by step, as float.hex() writes them
    read_bytes: int
    written_bytes: int


class Contender:
    """Starts with start(), ends with stop(); in between it does what it is asked for."""

    def __init__(self, place: Place, name: str, kind: str, *, limit_bytes: int | None = None,
                 expected_bytes: int = 0, otherwise: Sequence[dict[str, object]] = (), **options: object):
        """kind, options: see worker.py. expected_bytes: about what it is going to need of the machine's memory.
        otherwise: options to go on with where it fails with these, one after the other."""
        self.name = name
        self.expected_bytes = expected_bytes
        self.ready: dict[str, object] = {}  # what it said of itself when it had started
        self.room: memory_room.Room | None = None
        self.limit_bytes = limit_bytes  # until it starts
        self.options = options | {"kind": kind}  # what it runs with
        self.given_up: list[tuple[dict[str, object], str]] = []  # what it ran with before, and how that failed
        self._otherwise = list(otherwise)
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = b""

    def start(self) -> None:
        """Starts it and waits until it is ready for its first step."""
        folder = self._place.folder / self.name
        folder.mkdir()
        spec = {"threads": self._place.threads} | self.options | {"folder": str(folder)}
        self.room = memory_room.Room(*self._place.cgroups, self.name, self.limit_bytes)
        self._answer_pipe, child_end = os.pipe()
        command = self.room.command([self._place.python, "-B", str(HERE / "worker.py"), str(child_end),
                                     json.dumps(spec)])
        environment = os.environ | {"DS_ACCELERATOR": "cpu", "GLIBC_TUNABLES": HEAP}
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder,
                                                 env=environment, pass_fds=(child_end,), start_new_session=True)
        finally:
            os.close(child_end)
        self.room.begin(self._process.pid)
        try:
            with self.room.at_work():
                self.ready = self._answer()
            self.room.processes()  # who is known now is ended later, whoever its parent is then
        except BaseException:
            self.stop(at_once=True)
            raise

    def try_otherwise(self, why: str) -> bool:
        """It failed, and was stopped: it is to run with the next of its other options. Whether there are any."""
        if not self._otherwise:
            return False
        self.given_up.append((self.options, why))
        self.options = self.options | self._otherwise.pop(0)
        return True

    @property
    def running(self) -> bool:
        """Whether it has started and was not stopped."""
        return self._process is not None

    @property
    def peak_bytes(self) -> int:
        """The most memory that it has had so far."""
        assert self.room is not None
        return self.room.peak_bytes

    @property
    def _log(self) -> pathlib.Path:
        return self._place.folder / f"{self.name}.log"

    def ask(self, **command: object) -> dict[str, object]:
        """Has it do something; what it says of it. Ended if it fails."""
        assert self._process is not None and self._process.stdin is not None and self.room is not None
        with self.room.at_work():
            try:
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise Ended(self._why()) from None
            return self._answer()

    def turn(self, steps: int) -> Turn:
        """Has it do some steps in a row, and come to rest."""
        said = self.ask(do="turn", steps=steps)
        return Turn(said["seconds"], {int(step): loss for step, loss in said["losses"].items()}, said["read_bytes"],
                    said["written_bytes"])

    def _answer(self) -> dict[str, object]:
        deadline = time.monotonic() + LIMIT_SECONDS
        while b"\n" not in self._answers:
            if not select.select([self._answer_pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Ended(f"{self.name} said nothing for {LIMIT_SECONDS:.0f} s")
            read = os.read(self._answer_pipe, 1 << 16)
            if not read:
                raise Ended(self._why())
            self._answers += read
        line, _, self._answers = self._answers.partition(b"\n")
        said = json.loads(line)
        if "failed" in said:
            raise Ended(f"{self.name}: {said['failed']}")
        return said

    def _why(self) -> str:
        assert self._process is not None and self.room is not None
        status = self._process.wait()
        if self.room.killed_for_memory():
            return f"{self.name} was killed for want of memory"
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"{self.name} ended {how}: {' / '.join(lines)}"

    def stop(self, at_once: bool = False) -> None:
        """Ends it and all that it has started, and removes its files; at_once: whatever it does. Can be called again.
        """
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            if at_once:
                process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(memory_room.END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(self._answer_pipe)
            self._answers = b""
        if self.room is not None:
            self.room.close()
        shutil.rmtree(self._place.folder / self.name, ignore_errors=True)

    def __enter__(self) -> "Contender":
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(at_once=kind is not None)

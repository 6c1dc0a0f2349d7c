# SPDX-License-Identifier: Apache-2.0
"""How much memory a contender's processes may have together, and how much they had.

A memory cgroup of version 1 or 2 where this process may make one (as root); else the processes' PSS is summed, and
there is no limit. What is counted is the same in all cases: anonymous and shared memory, without the page cache, which
the kernel takes back when it wants to. Linux's Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst
describe the files.
"""

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator

PREFIX = "terrace-train-peers"
SAMPLE_SECONDS = {"v1": 0.02, "v2": 0.02, "pss": 0.2}
END_SECONDS = 30.0  # for what ends by itself
KILL_SECONDS = 30.0


def _mounts(kind: str) -> list[tuple[pathlib.Path, list[str]]]:
    found = []
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, folder, filesystem, options, *_ = line.split()
        if filesystem == kind:
            found.append((pathlib.Path(folder), options.split(",")))
    return found


def _makeable(root: pathlib.Path, limit_file: str) -> bool:
    probe = root / f"{PREFIX}-{os.getpid()}-probe"
    try:
        probe.mkdir()
        try:
            return (probe / limit_file).exists()
        finally:
            probe.rmdir()
    except OSError:
        return False


def find() -> tuple[str, pathlib.Path | None]:
    """What there is: ("v1", folder), ("v2", folder), or ("pss", None) where no memory cgroup can be made."""
    for folder, options in _mounts("cgroup"):
        if "memory" in options and _makeable(folder, "memory.limit_in_bytes"):
            return "v1", folder
    for folder, _ in _mounts("cgroup2"):
        with contextlib.suppress(OSError):
            if "memory" in (folder / "cgroup.controllers").read_text().split():
                (folder / "cgroup.subtree_control").write_text("+memory")
                if _makeable(folder, "memory.max"):
                    return "v2", folder
    return "pss", None


def remove_stale(root: pathlib.Path | None) -> None:
    """Removes the cgroups of runs that are gone."""
    for folder in [] if root is None else root.glob(f"{PREFIX}-*"):
        number = folder.name.removeprefix(f"{PREFIX}-").split("-")[0]
        if number.isdecimal() and not os.path.exists(f"/proc/{number}"):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _stat(path: pathlib.Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split()[:2] for line in path.read_text().splitlines())}


def descendants(process: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = pathlib.Path("/proc", entry.name, "stat").read_text().rpartition(")")[2].split()
                below.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [process]
    for one in found:
        found += below.get(one, [])
    return found


def _pss(processes: list[int]) -> int:
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) << 10
    return total


class Room:
    """One contender's memory. Thread-safe."""

    def __init__(self, kind: str, root: pathlib.Path | None, name: str, limit_bytes: int | None):
        """limit_bytes: None: no limit. Where there are no cgroups, there is none either: see `limited`."""
        self._kind = kind
        self._folder = None if root is None else root / f"{PREFIX}-{os.getpid()}-{name}"
        self.limited = limit_bytes is not None and self._folder is not None
        self._leader = 0
        self._known: set[int] = set()
        self.peak_bytes = 0
        self._over = threading.Event()
        self._at_work = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        if self._folder is not None:
            self._folder.mkdir()
            if limit_bytes is not None:
                file = "memory.limit_in_bytes" if kind == "v1" else "memory.max"
                (self._folder / file).write_text(str(limit_bytes))
                swap = self._folder / "memory.swap.max"  # what goes there would not count
                if kind == "v2" and swap.exists():  # not where the kernel has no swap
                    swap.write_text("0")

    def command(self, command: list[str]) -> list[str]:
        """The command, entering the room before it runs."""
        if self._folder is None:
            return command
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

    def begin(self, leader: int) -> None:
        """The contender's first process runs."""
        self._leader = leader
        self._sampler.start()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While it does something its memory is looked at; while it waits for its turn it is not, which would be the
        others' loss."""
        self._at_work.set()
        try:
            yield
        finally:
            self._at_work.clear()

    def processes(self) -> list[int]:
        """What runs in it."""
        if self._folder is None:
            self._known.update(descendants(self._leader) if self._leader else [])
            return [one for one in self._known if os.path.exists(f"/proc/{one}")]
        try:
            return [int(line) for line in (self._folder / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def now_bytes(self) -> int:
        """Anonymous and shared memory of all processes."""
        if self._folder is None:
            return _pss(self.processes())
        stat = _stat(self._folder / "memory.stat")
        return stat["rss"] + stat["shmem"] if self._kind == "v1" else stat["anon"] + stat["shmem"]

    def killed_for_memory(self) -> bool:
        """Whether the kernel killed something in it for want of memory."""
        if self._folder is None:
            return False
        file = "memory.oom_control" if self._kind == "v1" else "memory.events"
        return _stat(self._folder / file).get("oom_kill", 0) > 0

    def reset_peak(self) -> None:
        """The most is counted from now on."""
        self.peak_bytes = self.now_bytes()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS[self._kind]):
            self._at_work.wait()
            with contextlib.suppress(OSError):
                self.peak_bytes = max(self.peak_bytes, self.now_bytes())

    def close(self) -> None:
        """Waits for what ends by itself, kills the rest, and removes the cgroup."""
        self._over.set()
        self._at_work.set()
        if self._sampler.is_alive():
            self._sampler.join()
        deadline = time.monotonic() + END_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        deadline = time.monotonic() + KILL_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass  # those that were handed to us
            time.sleep(0.05)
        while self._folder is not None and self._folder.exists():
            try:
                self._folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

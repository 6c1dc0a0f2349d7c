# SPDX-License-Identifier: Apache-2.0
"""How fast the disk is, by fio: what the bound on a step's time rests on; and what a step takes while the disk is busy."""

import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

from contender import Contender, Ended, Turn

FILE_BYTES = 1 << 30
SECONDS = 3
DEPTHS = (8, 32)


WARM_SECONDS = 1.0  # from fio's start until it reads and writes
END_SECONDS = 60.0


class NoLink(Exception):
    """The disk's speed cannot be measured; the text says why."""


class Carrying(Contender):
    """A contender while whose turns fio reads and writes so many bytes a second on the same disk, O_DIRECT, 4 MiB at a time:
    what the link takes of a step by itself, whoever has it carry them."""

    def __init__(self, *arguments: object, read_rate: float, written_rate: float, **options: object):
        super().__init__(*arguments, **options)
        self._file = self._place.folder / f"{self.name}.carried"
        self._rates = {"read": read_rate, "write": written_rate}

    def _fio(self, *jobs: str) -> list[str]:
        fio = shutil.which("fio")
        if fio is None:
            raise Ended("fio is not installed: deploy/bootstrap test")
        return [fio, f"--filename={self._file}", f"--size={FILE_BYTES}", "--direct=1", "--bs=4M", "--iodepth=2",
                "--ioengine=io_uring", "--thread", *jobs]

    def start(self) -> None:
        """The file is written once: what was never written is read without the disk."""
        subprocess.run(self._fio("--name=fill", "--rw=write"), capture_output=True, check=True)
        super().start()

    @contextlib.contextmanager
    def _carried(self) -> Iterator[None]:
        jobs = [word for way, rate in self._rates.items()
                for word in (f"--name={way}", f"--rw={way}", f"--rate={max(1, round(rate))}", "--time_based",
                             "--runtime=1h")]
        with subprocess.Popen(self._fio(*jobs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as busy:
            try:
                time.sleep(WARM_SECONDS)
                yield
                if busy.poll() is not None:
                    raise Ended(f"fio ended with status {busy.returncode}")
            finally:
                busy.send_signal(signal.SIGINT)
                try:
                    busy.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    busy.kill()

    def turn(self, steps: int) -> Turn:
        """As any contender's, with the disk busy."""
        with self._carried():
            return super().turn(steps)

    def stop(self, at_once: bool = False) -> None:
        """As any contender's; its file goes, too."""
        super().stop(at_once)
        self._file.unlink(missing_ok=True)


def bytes_a_second(folder: pathlib.Path, read_bytes: int, written_bytes: int, depth: int = DEPTHS[0]) -> float:
    """Reads and writes of 1 MiB together, O_DIRECT, in the proportion of these bytes: their sum in a second."""
    fio = shutil.which("fio")
    if fio is None:
        raise NoLink("fio is not installed: deploy/bootstrap test")
    share = round(100 * read_bytes / max(1, read_bytes + written_bytes))
    file = folder / "link"
    command = [fio, "--name=link", f"--filename={file}", f"--size={FILE_BYTES}", "--direct=1", "--bs=1M",
               "--ioengine=io_uring", f"--iodepth={depth}", "--rw=rw", f"--rwmixread={share}", "--time_based",
               f"--runtime={SECONDS}", "--randrepeat=0", "--output-format=json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoLink(f"fio failed: {done.stderr.strip()[-300:]}")
        job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
        return float(job["read"]["bw_bytes"] + job["write"]["bw_bytes"])
    finally:
        file.unlink(missing_ok=True)


class Link:
    """Measurements of one disk in one proportion."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self.speeds: list[float] = []

    def measure(self, read_bytes: int, written_bytes: int) -> None:
        """Measures once: the best of a few depths."""
        self.speeds.append(max(bytes_a_second(self._folder, read_bytes, written_bytes, depth) for depth in DEPTHS))

# SPDX-License-Identifier: Apache-2.0
"""How fast the disk is, by fio: what the bound on a step's time rests on."""

import json
import pathlib
import shutil
import subprocess

FILE_BYTES = 1 << 30
SECONDS = 3
DEPTHS = (8, 32)


class NoLink(Exception):
    """The disk's speed cannot be measured; the text says why."""


def bytes_a_second(folder: pathlib.Path, read_bytes: int, written_bytes: int, depth: int = DEPTHS[0]) -> float:
    """Reads and writes of 1 MiB together, O_DIRECT, in the proportion of these bytes: their sum in a second."""
    fio = shutil.which("fio")
    if fio is None:
        raise NoLink("fio is not installed")
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

# SPDX-License-Identifier: Apache-2.0
"""How much memory is free for this process: of a GPU, or of the host, as far as its cgroup lets it."""

import os
import pathlib
from collections.abc import Iterator

import torch

from ..._errors import InvalidArgument
from .accelerators import in_force

# A cgroup's limit and what is used of it, in cgroups of both versions, and what of the use the kernel can take back.
_FILES = (("memory.max", "memory.current", "inactive_file"),
          ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
_NO_LIMIT = 1 << 60


def free_bytes(device: torch.device) -> int:
    """Of a device's memory, for this process; of the host's, this rank's part where torchrun has started several."""
    if device.type != "cpu":
        return in_force().free_bytes(device)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not (ranks.isdecimal() and int(ranks)):
        raise InvalidArgument(f"LOCAL_WORLD_SIZE is {ranks!r}; it is the number of ranks on this node, 1 at least")
    return min(_available(), *_within_cgroups()) // int(ranks)


def _available() -> int:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _within_cgroups() -> Iterator[int]:
    """What is free in each of this process's cgroups that has a limit, and in those around them."""
    yield _NO_LIMIT
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, name = line.split(":", 2)
        root = pathlib.Path("/sys/fs/cgroup", "memory" if "memory" in kinds.split(",") else "")
        if kinds and "memory" not in kinds.split(","):
            continue
        folder = root / name.lstrip("/")
        for one in (folder, *folder.parents):
            if root in (one, *one.parents):
                yield _free_in(one)


def _free_in(folder: pathlib.Path) -> int:
    for limit, used, reclaimable in _FILES:
        try:
            most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # no such cgroup, or of the other version
        if most != "max" and int(most) < _NO_LIMIT:
            return max(0, int(most) - now + int(statistics.get(reclaimable, 0)))
    return _NO_LIMIT

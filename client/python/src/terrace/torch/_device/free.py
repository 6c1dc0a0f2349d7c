# SPDX-License-Identifier: Apache-2.0
"""How much memory is free for this process: of a GPU, or of the host, as far as its cgroup lets it."""

import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..._errors import InvalidArgument
from .accelerators import in_force

# A cgroup's limit and what is used of it, in cgroups of both versions; what of the use the kernel can take back, and what is
# shared memory.
_FILES = (("memory.max", "memory.current", "inactive_file", "shmem"),
          ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_shmem"))
_NO_LIMIT = 1 << 60


class Tiers(NamedTuple):
    """What a daemon may take of the host's memory."""

    nbytes: int = 0  # of which it has a part already, which counts as shared memory, or as huge pages
    beside: bool = False  # it is in this process's cgroups


def free_bytes(device: torch.device, tiers: Tiers = Tiers()) -> int:
    """Of a device's memory, for this process; of the host's, less what a daemon's tiers may yet take, this rank's part where
    torchrun has started several."""
    if device.type != "cpu":
        return in_force().free_bytes(device)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not (ranks.isdecimal() and int(ranks)):
        raise InvalidArgument(f"LOCAL_WORLD_SIZE is {ranks!r}; it is the number of ranks on this node, 1 at least")
    return min(_available(tiers.nbytes), *_within_cgroups(tiers.nbytes if tiers.beside else 0)) // int(ranks)


def _available(tier_bytes: int) -> int:
    lines = (line.split() for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    said = {name: int(number) << (10 if unit else 0) for name, number, *unit in lines}
    huge = said.get("HugePages_Total:", 0) * said.get("Hugepagesize:", 0)
    return max(0, said["MemAvailable:"] - max(0, tier_bytes - said.get("Shmem:", 0) - huge))


def _within_cgroups(tier_bytes: int) -> Iterator[int]:
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
                yield _free_in(one, tier_bytes)


def _free_in(folder: pathlib.Path, tier_bytes: int = 0) -> int:
    for limit, used, reclaimable, shared in _FILES:
        try:
            most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # no such cgroup, or of the other version
        if most != "max" and int(most) < _NO_LIMIT:
            coming = max(0, tier_bytes - int(statistics.get(shared, 0)))
            return max(0, int(most) - now + int(statistics.get(reclaimable, 0)) - coming)
    return _NO_LIMIT

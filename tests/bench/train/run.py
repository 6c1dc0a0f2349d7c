# SPDX-License-Identifier: Apache-2.0
"""What all suites share in one run: the sizes, where contenders run, what was found so far."""

import dataclasses
from collections.abc import Callable, Sequence

from contender import Contender, Place
from link import Carrying
from peers import Peers
from report import Report
from rounds import AVAILABLE_PART, Measured, available_bytes
from rows import Losses, Missing, Row, compare_losses
from sizes import GIB, MIB, Model, Sizes

BASE_BYTES = 500 * MIB  # Python, PyTorch and a peer
SPARE_DISK_BYTES = 2 * GIB


@dataclasses.dataclass
class Declared:
    """A row that there is going to be."""

    bench: str
    what: str
    bar: float


class Run:
    """One run of the comparison."""

    def __init__(self, sizes: Sizes, place: Place, peers: Peers, say: Callable[[str], None], report: Report):
        self.sizes = sizes
        self.place = place
        self.peers = peers
        self.say = say
        self.losses: list[Losses] = []  # of the suite at hand
        self._report = report

    def contender(self, name: str, kind: str, model: Model, *, limit_bytes: int | None = None,
                  otherwise: Sequence[dict[str, object]] = (), carried: tuple[float, float] | None = None,
                  **options: object) -> Contender:
        """A contender that trains or runs a model; expected to need its state, or its tiers. carried: bytes a second
        that the disk reads and writes meanwhile for somebody else."""
        shape = dataclasses.asdict(model)
        expected = BASE_BYTES + (int(options["memory"]) if "memory" in options else 0)
        if kind == "deepspeed":
            expected += 3 * model.state_bytes
        elif kind in ("plain", "activations"):
            expected += model.state_bytes // (4 if options.get("weights_only") else 1)
        everything = options | {"limit_bytes": limit_bytes, "expected_bytes": expected, "otherwise": otherwise,
                                "shape": shape}
        if carried is None:
            return Contender(self.place, name, kind, **everything)
        return Carrying(self.place, name, kind, read_rate=carried[0], written_rate=carried[1], **everything)

    def limit(self, crew: Sequence[Contender]) -> str:
        """Gives all of a row's contenders the same memory limit, each with its daemon: a quarter more than the largest
        of them is expected to need, as far as the machine has it. Words for the row: the limit, or why there is none.
        """
        if self.place.cgroups[1] is None:
            return "no memory limit: no cgroup can be made here"
        wanted = max(one.expected_bytes for one in crew) * 5 // 4
        limit = int(min(wanted, AVAILABLE_PART * available_bytes()))
        for one in crew:
            one.limit_bytes = limit
        return f"{limit / MIB:.0f} MiB of memory for each"

    def add(self, row: Row) -> None:
        """A row was measured. What the suite has compared of losses by now belongs to it."""
        row.losses_equal = all(one.equal for one in self.losses) if self.losses else None
        self._report.add(row)

    def missing(self, declared: Declared, reason: str) -> None:
        """A row cannot be measured."""
        self._report.add(Missing(declared.bench, declared.what, declared.bar, reason,
                                 None if all(one.equal for one in self.losses) else False))

    def compare(self, who: str, ours: Measured, plain: Measured) -> None:
        """Losses of one of ours against plain PyTorch's."""
        if ours.losses and plain.losses:
            found = compare_losses(who, ours.losses, plain.losses)
            self.losses.append(found)
            if not found.equal:
                self.say(f"{who}: the losses DIFFER from step {found.first_difference} on")

    def short_of_disk(self, needed_bytes: int) -> str | None:
        """Why a suite that needs so much of the disk cannot run."""
        free = self.place.free_bytes()
        if free >= needed_bytes + SPARE_DISK_BYTES:
            return None
        return (f"needs {needed_bytes / GIB:.1f} GiB of disk and {SPARE_DISK_BYTES / GIB:.0f} GiB to spare; "
                f"{free / GIB:.1f} GiB are free in {self.place.folder}")

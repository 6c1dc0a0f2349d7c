# SPDX-License-Identifier: Apache-2.0
"""What all suites share in one run: the sizes, where contenders run, what was found so far."""

import dataclasses
from collections.abc import Callable

from contender import Contender, Place
from peers import Peers
from rounds import Measured
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

    def __init__(self, sizes: Sizes, place: Place, peers: Peers, say: Callable[[str], None]):
        self.sizes = sizes
        self.place = place
        self.peers = peers
        self.say = say
        self.rows: list[Row | Missing] = []
        self.losses: list[Losses] = []
        self.deepspeed: dict[str, object] | None = None  # its best settings found

    def contender(self, name: str, kind: str, model: Model, *, limit_bytes: int | None = None,
                  **options: object) -> Contender:
        """A contender that trains or runs a model; expected to need its state, or its tiers."""
        shape = dataclasses.asdict(model)
        expected = BASE_BYTES + (int(options["memory"]) if "memory" in options else 0)
        if kind == "deepspeed":
            expected += 3 * model.state_bytes
        elif kind in ("plain", "activations"):
            expected += model.state_bytes // (4 if options.get("weights_only") else 1)
        return Contender(self.place, name, kind, limit_bytes=limit_bytes, expected_bytes=expected, shape=shape,
                         **options)

    def missing(self, declared: Declared, reason: str) -> None:
        """A row cannot be measured."""
        self.say(f"{declared.bench}: {reason}")
        self.rows.append(Missing(declared.bench, declared.what, declared.bar, reason))

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

# SPDX-License-Identifier: Apache-2.0
"""Room that is asked for before it is needed, several tensors at a time: what is laid away next finds it there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._client import TIMEOUT_SECONDS, Client
from .._terrace import ComingLeases, Lease

if TYPE_CHECKING:
    from ._shelf import Slot


class _Group:
    """Slots that were asked for together."""

    def __init__(self, coming: ComingLeases):
        self._coming = coming
        self._leases: list[Lease | None] | None = None

    def take(self, at: int) -> Lease:
        """Waits for the lease."""
        if self._leases is None:
            self._leases = list(self._coming.take())
        lease, self._leases[at] = self._leases[at], None
        assert lease is not None
        return lease

    def give_up(self, at: int) -> None:
        """The lease is not needed. Those that are on their way are given back as they come, once all are given up."""
        if self._leases is not None:
            self.take(at).abandon()


class Ahead:
    """Slots that are leased to be overwritten, in the order in which they are going to be. Its user has a lock."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Slot, _Group, int]] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, client: Client, slots: Sequence[Slot]) -> None:
        """These come after the others."""
        group = _Group(client._acquire_later([slot.tensor for slot in slots], "overwrite", "host", TIMEOUT_SECONDS))
        self._waiting += [(slot, group, at) for at, slot in enumerate(slots)]
        self.nbytes += sum(slot.size for slot in slots)

    def next(self, size: int) -> tuple[Slot, _Group, int] | None:
        """The next one, if it is of this size."""
        if not self._waiting or self._waiting[0][0].size != size:
            return None
        self.nbytes -= size
        return self._waiting.popleft()

    def give_up(self) -> list[Slot]:
        """None of them is needed: the slots, whose leases end."""
        slots = [slot for slot, _, _ in self._waiting]
        for _, group, at in self._waiting:
            group.give_up(at)
        self._waiting.clear()
        self.nbytes = 0
        return slots

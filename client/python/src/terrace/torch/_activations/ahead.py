# SPDX-License-Identifier: Apache-2.0
"""Room that is asked for before it is needed, several tensors at a time: what is laid away next finds it there."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..._client import TIMEOUT_SECONDS, Client
from ..._errors import Error, FailedPrecondition
from ..._terrace import ComingLeases, Lease

if TYPE_CHECKING:
    from .shelf import Slot


class _Group:
    """Slots that were asked for together. Thread-safe."""

    def __init__(self, coming: ComingLeases):
        self._coming = coming
        self._leases: list[Lease | None] | None = None
        self._lock = threading.Lock()

    def _came(self) -> list[Lease | None]:
        if self._leases is None:
            self._leases = list(self._coming.take())
        return self._leases

    def take(self, at: int) -> Lease:
        """Waits for the lease."""
        with self._lock:
            leases = self._came()
            lease, leases[at] = leases[at], None
        if lease is None:
            raise FailedPrecondition("the lease was taken already")
        return lease

    def give_up(self, at: int) -> None:
        """Waits for the lease, if nobody took it, and abandons it. Interrupted, it can be given up again."""
        with self._lock, contextlib.suppress(Error):
            leases = self._came()
            lease = leases[at]
            if lease is not None:
                lease.abandon()
                leases[at] = None


class Asked:
    """One slot's lease, which was asked for with others'."""

    __slots__ = ("_at", "_group")

    def __init__(self, group: _Group, at: int):
        self._group = group
        self._at = at

    def take(self) -> Lease:
        """Waits for the lease."""
        return self._group.take(self._at)

    def give_up(self) -> None:
        """The lease is not needed: returns once it ended, or will never come."""
        self._group.give_up(self._at)


class Ahead:
    """Slots that are leased to be overwritten, in the order in which they are going to be. Its user has a lock."""

    def __init__(self) -> None:
        self._waiting: deque[Slot] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, client: Client, slots: Sequence[Slot]) -> None:
        """These come after the others."""
        group = _Group(client._acquire_later([slot.tensor for slot in slots], "overwrite", "host", TIMEOUT_SECONDS))
        for at, slot in enumerate(slots):
            slot.asked = Asked(group, at)
        self._waiting += slots
        self.nbytes += sum(slot.size for slot in slots)

    def next(self, size: int) -> Slot | None:
        """The next one, if it is of this size."""
        if not self._waiting or self._waiting[0].size != size:
            return None
        self.nbytes -= size
        return self._waiting.popleft()

    def clear(self) -> list[Slot]:
        """None of them is needed: the slots, which are leased until they are given up."""
        slots = list(self._waiting)
        self._waiting.clear()
        self.nbytes = 0
        return slots

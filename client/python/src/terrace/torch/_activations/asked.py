# SPDX-License-Identifier: Apache-2.0
"""Leases that were asked for together, before they are needed: each is taken, or given up, by itself."""

import contextlib
import threading

from ..._errors import Error, FailedPrecondition
from ..._terrace import ComingLeases, Lease


class Together:
    """Leases that were asked for together. Thread-safe."""

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
    """One box's lease, which was asked for with others'."""

    __slots__ = ("_at", "_group")

    def __init__(self, group: Together, at: int):
        self._group = group
        self._at = at

    def take(self) -> Lease:
        """Waits for the lease."""
        return self._group.take(self._at)

    def give_up(self) -> None:
        """The lease is not needed: returns once it ended, or will never come."""
        self._group.give_up(self._at)

# SPDX-License-Identifier: Apache-2.0
"""What was leased, and what was waited for."""

from __future__ import annotations

from collections.abc import Sequence

from ..._terrace import Lease


class Waits:
    """The leases of a tensor, or of several, so far."""

    __slots__ = ("fetch_seconds", "fetched_bytes", "leased_bytes", "leases", "room_seconds", "seconds")

    def __init__(self) -> None:
        self.leases = 0
        self.leased_bytes = 0
        self.fetched_bytes = 0  # of them, what was not there
        self.seconds = 0.0  # that taking them took
        self.fetch_seconds = 0.0  # of these, in waiting for what was not there
        self.room_seconds = 0.0  # in waiting where nothing had to be brought


def note(each: Sequence[Waits], leases: Sequence[Lease], seconds: float) -> None:
    """A set was leased; of each tensor its own counts. The time was that of those that had to be brought, if any."""
    for waits, lease in zip(each, leases, strict=True):
        waits.leases += 1
        waits.leased_bytes += lease.nbytes
    if not leases[0].waited:
        for waits in each:
            waits.seconds += seconds / len(each)
        return
    late = [(waits, lease.nbytes) for waits, lease in zip(each, leases, strict=True) if lease.fetched]
    for waits, size in late:
        waits.seconds += seconds / len(late)
        waits.fetch_seconds += seconds / len(late)
        waits.fetched_bytes += size
    for waits in () if late else each:
        waits.seconds += seconds / len(each)
        waits.room_seconds += seconds / len(each)

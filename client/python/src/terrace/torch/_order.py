# SPDX-License-Identifier: Apache-2.0
"""The order in which a step uses its tensors, learned from the step before, and what is fetched ahead by it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .._errors import Error

if TYPE_CHECKING:
    from .._client import Client
    from ._slot import Slot

_SEARCH_MAX = 64
_USES_MAX = 1 << 20


class Order:
    """Notes each use of a step, and declares what the step before used next. A step ends with the optimizer's."""

    def __init__(self, client: Client, place: str):
        self._client = client
        self._place = place
        self._before: list[Slot] = []
        self._now: list[Slot] = []
        self._at = 0  # what is expected next, of the step before
        self._ahead = 0  # what is declared already
        self.ahead_bytes = 0  # how much is declared ahead of its use; 0: nothing

    def used(self, slots: list[Slot]) -> None:
        """Slots were leased that nothing showed."""
        if not self.ahead_bytes:
            return
        if len(self._now) >= _USES_MAX:
            self.step()
        self._now += slots
        before = self._before
        if not before:
            return
        last = slots[-1]
        for at in range(self._at, min(self._at + _SEARCH_MAX, len(before))):
            if before[at] is last:
                self._at = at + 1
                self._declare()
                return

    def _declare(self) -> None:
        """Declares what comes within the next bytes, once half of what was declared is used."""
        before, at = self._before, self._at
        begin = max(self._ahead, at)
        pending = sum(slot.nbytes for slot in before[at:begin])
        if 2 * pending > self.ahead_bytes:
            return
        end = begin
        wanted: dict[Slot, None] = {}
        while end < len(before) and pending < self.ahead_bytes:
            slot = before[end]
            pending += slot.nbytes
            if not slot.shown:
                wanted[slot] = None
            end += 1
        self._ahead = end
        if wanted:
            with contextlib.suppress(Error):  # a hint
                self._client.prefetch([slot.tensor for slot in wanted], place=self._place)

    def step(self) -> None:
        """A step is over: what it used is what the next one is expected to use."""
        self._before, self._now = self._now, []
        self._at = self._ahead = 0

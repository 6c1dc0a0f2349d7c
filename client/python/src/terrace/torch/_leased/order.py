# SPDX-License-Identifier: Apache-2.0
"""The order in which a step uses its tensors, learned from the last of its kind, and what is fetched ahead by it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..._errors import Error

if TYPE_CHECKING:
    from ..._client import Client
    from .slot import Slot

_SEARCH_MAX = 64
_USES_MAX = 1 << 20
_STEPS_AFTER_A_MISS = 8


class Order:
    """Notes each use of a step, and declares what the last step of its kind used next.

    After its end the same kind is expected to begin again. Nothing is declared where nothing was missed for a while:
    where all of a job stays in memory, hints would cost and bring nothing. Passes of evaluation, one after the other,
    go round: what was used last is needed last, so that of what memory does not hold it is what has to go.
    """

    def __init__(self, client: Client, place: str, *, alone: bool = True):
        """alone: nobody else uses these tensors, so that what is used up may be sent down."""
        self._client = client
        self._place = place
        self._alone = alone
        self._orders: dict[str, list[Slot]] = {}  # of the last step of each kind
        self._kind = ""
        self._expected: list[Slot] = []
        self._now: list[Slot] = []
        self._at = 0  # what is expected next
        self._ahead = 0  # what is declared already; past the end: of the next step
        self._steps_to_declare = 0
        self._passing: set[Slot] = set()  # what goes once it was used
        self._gone: list[Slot] = []  # of it, what was used since it was said
        self.ahead_bytes = 0  # how much is declared ahead of its use; 0: nothing
        self.room_bytes = 0  # what this job may count on

    def begin(self, kind: str) -> None:
        """A step begins."""
        if self._now:
            self._orders[self._kind] = self._now
        again = kind == self._kind
        declared = self._ahead - len(self._expected) if again else 0
        self._kind = kind
        self._gone = self._gone if again else []
        self._expected, self._now = self._orders.get(kind, []), []
        self._at, self._ahead = 0, max(0, declared)
        self._passing = self._beyond_room() if again and kind == "eval" and self._goes_round() else set()
        self._steps_to_declare = max(0, self._steps_to_declare - 1)

    def _goes_round(self) -> bool:
        return self._alone and self.ahead_bytes > 0

    def _beyond_room(self) -> set[Slot]:
        """What is used last of more than there is room for, beside what is fetched ahead and what goes."""
        total = 0
        beyond = set()
        for slot in dict.fromkeys(self._expected):
            total += slot.nbytes
            if total > self.room_bytes - 2 * self.ahead_bytes:
                beyond.add(slot)
        return beyond if total > self.room_bytes else set()

    def missed(self) -> None:
        """What is used next had to be waited for."""
        self._steps_to_declare = _STEPS_AFTER_A_MISS

    def used(self, slots: list[Slot]) -> None:
        """Slots were leased that nothing showed."""
        if not self.ahead_bytes:
            return
        if len(self._now) >= _USES_MAX:
            self.begin(self._kind)
        self._now += slots
        expected = self._expected
        last = slots[-1]
        for at in range(self._at, min(self._at + _SEARCH_MAX, len(expected))):
            if expected[at] is last:
                self._at = at + 1
                if self._steps_to_declare:
                    self._declare(expected, at + 1)
                    self._gone += [slot for slot in slots if slot in self._passing]  # these are not shown yet
                return

    def _declare(self, expected: list[Slot], at: int) -> None:
        """Declares what comes within the next bytes, once half of what was declared is used."""
        count = len(expected)
        begin = max(self._ahead, at)
        pending = sum(expected[number % count].nbytes for number in range(at, begin))
        if 2 * pending > self.ahead_bytes:
            return
        end = begin
        while end < at + count and pending < self.ahead_bytes:
            pending += expected[end % count].nbytes
            end += 1
        self._ahead = end
        self._send_down({expected[number % count] for number in range(at, end)})
        wanted = dict.fromkeys(expected[number % count] for number in range(begin, end))
        fetched = [slot.tensor for slot in wanted if not slot.shown]
        if fetched:
            with contextlib.suppress(Error):  # a hint
                self._client.prefetch(fetched, place=self._place)

    def _send_down(self, soon: set[Slot]) -> None:
        """Makes room of what is gone, but for what is used again soon."""
        gone = [slot.tensor for slot in self._gone if slot not in soon and not slot.shown]
        self._gone = [slot for slot in self._gone if slot.shown]
        if gone:
            with contextlib.suppress(Error):  # a hint
                self._client.evict(gone)

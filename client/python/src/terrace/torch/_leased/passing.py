# SPDX-License-Identifier: Apache-2.0
"""What is read once, as by whoever saves a job, and is not to drive out what the training needs.

What was in memory stays as it is. What has to be fetched leaves again once it was read, so that all of it together takes
no more room than the largest of them, and the next one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..._client import Client
from ..._errors import Error

if TYPE_CHECKING:
    from .slot import Slot


class Passing:
    """What of one place passes through it. Where two threads save at a time, some may be fetched twice."""

    def __init__(self, client: Client, place: str):
        self._client = client
        self._place = place
        self._brought: list[Slot] = []

    def turn_to(self, slot: Slot) -> None:
        """It is leased now; those before it are read, and leave where nothing shows them any more."""
        self.leave(slot)
        self._note(slot)

    def expect(self, slot: Slot) -> None:
        """It is leased next: begins to fetch it."""
        if self._note(slot):
            with contextlib.suppress(Error):  # a hint
                self._client.prefetch([slot.tensor], place=self._place)

    def leave(self, besides: Slot | None = None) -> None:
        """Lets all go that nothing shows."""
        gone = [slot for slot in self._brought if slot is not besides and not slot.shown]
        if gone:
            self._brought = [slot for slot in self._brought if slot not in gone]
            with contextlib.suppress(Error):  # a hint
                self._client.evict([slot.tensor for slot in gone])

    def _note(self, slot: Slot) -> bool:
        """Whether it has to be fetched, and was not noted already."""
        if slot in self._brought or slot.shown or self._client._resident(slot.tensor, self._place):
            return False
        self._brought.append(slot)
        return True

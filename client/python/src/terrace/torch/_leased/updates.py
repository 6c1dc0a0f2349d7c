# SPDX-License-Identifier: Apache-2.0
"""What a thread of its own writes to slots meanwhile. Whoever leases one of them waits for it, and for no other."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol


_untold: set[Work] = set()  # what has ended with an error that nobody was told of


@atexit.register
def _tell() -> None:
    """The script has ended, and waits for nothing any more."""
    for work in list(_untold):
        work.tell()


class Written(Protocol):
    """A slot."""

    update: Update | None  # what is being written to it


class Work:
    """What is under way in one thread: updates, one after the other."""

    def __init__(self) -> None:
        self.thread = 0  # which, once it runs
        self._process = os.getpid()
        self._ended = threading.Event()
        self._lock = threading.Lock()  # over who is told of the error
        self._error: BaseException | None = None
        self._updates: list[Update] = []

    def update(self, slots: Iterable[Written]) -> Update:
        """A part of it, which is to write to these slots, and whoever leases one waits for from now on."""
        made = Update(self, list(slots))
        self._updates.append(made)
        for slot in made.slots:
            slot.update = made
        return made

    @property
    def is_own(self) -> bool:
        """Whether the caller does the work itself, or is a process where nobody does: a forked child, whose leases raise."""
        return threading.get_ident() == self.thread or os.getpid() != self._process

    @property
    def ended(self) -> bool:
        """Whether it is over, and nobody is to be told of an error any more."""
        return self._ended.is_set() and self._error is None

    def end(self, error: BaseException | None) -> None:
        """It is over. error: what ended it before all was done: the next who waits is told."""
        self._error = error
        if error is not None:
            _untold.add(self)
        self._ended.set()
        for one in self._updates:
            if error is None:
                one.forget()
            one.done.set()

    def check(self) -> None:
        """Raises what ended it, unless somebody was told; waits for nothing."""
        if self._ended.is_set():
            self.tell()

    def await_end(self) -> None:
        """Waits for all of it, however it ends."""
        self._ended.wait()

    def wait(self) -> None:
        """Waits for all of it, and raises what ended it, unless somebody was told."""
        if not self.is_own:
            self._ended.wait()
            self.tell()

    def tell(self) -> None:
        """Raises what ended it, to the first who asks; nobody waits for the rest any more."""
        with self._lock:
            error, self._error = self._error, None
        _untold.discard(self)
        if error is not None:
            for one in self._updates:
                one.forget()
            raise error


class Update:
    """A part of it: it writes to some slots."""

    def __init__(self, work: Work, slots: Sequence[Written]):
        self.slots = slots
        self.done = threading.Event()
        self._work = work

    def wait(self) -> None:
        """Waits until it is done."""
        if not self._work.is_own:
            self.done.wait()
            self._work.tell()

    def finish(self) -> None:
        """It is done: what it wrote may be leased."""
        self.forget()
        self.done.set()

    def forget(self) -> None:
        """Nobody waits for it any more."""
        for slot in self.slots:
            if slot.update is self:
                slot.update = None

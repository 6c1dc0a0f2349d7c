# SPDX-License-Identifier: Apache-2.0
"""The tensors in Terrace that others are laid into: made when first needed, by classes of size, and used again step
after step, so that a step like the one before creates none."""

import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from ..._client import Client
from ..._errors import AlreadyExists, Error, FailedPrecondition, ResourceExhausted
from ..._terrace import Said, Tensor
from .._leased.waits import Waits
from .ahead import Ahead
from .box import Box, class_bytes

STEPS_UNUSED_MAX = 16
UNNEEDED_PARTS = 16  # what is not needed any more is said once it is this part of the guarantee
SAID_MAX = 8  # times that it is said before an answer is waited for
AHEAD_PARTS = 4  # room for what is laid away next is asked for up to this part of the guarantee


class Shelf:
    """The boxes of one client. Thread-safe."""

    def __init__(self, client: Client, name: str):
        self._client = weakref.ref(client)
        self._name = name
        self._lock = threading.Lock()
        self._free: dict[int, list[Box]] = {}
        self._lingering: list[Box] = []
        self._unneeded: list[Tensor] = []
        self._unneeded_bytes = 0
        self._said: deque[Said] = deque()  # of these, what may not be answered yet
        self._ahead = Ahead()
        self._refused_in_step = -1  # what was asked for ahead
        self._given_up: deque[Box] = deque()  # that are not needed, and whose leases may still be on their way
        self._returned: deque[Box] = deque()
        self._step = 0
        self._names = itertools.count()
        self._other_bytes = 0
        self.guarantee_bytes = next((place.guarantee_bytes for place in client.places() if place.name == "host"), 0)
        self.stored, self.read = Waits(), Waits()
        self.boxes = 0
        self.box_bytes = 0
        self.used_bytes = 0
        client._at_close.append(self._let_go)

    def client(self) -> Client:
        """The client; FailedPrecondition when it is gone."""
        client = self._client()
        if client is None:
            raise FailedPrecondition(f"{self._name}: the client is gone; keep it while its tensors are used")
        return client

    @property
    def crowded(self) -> bool:
        """Whether the client's tensors are more than the host's guarantee: bytes may have to come from below."""
        return self._other_bytes + self.box_bytes > self.guarantee_bytes

    def take(self, size: int) -> Box:
        """A box of at least `size` bytes, the caller's until put_back. ResourceExhausted where Terrace is full."""
        with self._lock:
            return self._take(class_bytes(size))

    def _take(self, wanted: int) -> Box:
        self._collect(wanted)
        free = self._free.get(wanted)
        # The one that was used last is the likeliest to be in memory still.
        box = free.pop() if free else self._create(wanted)
        box.used_in_step = self._step
        self.used_bytes += box.size
        return box

    def lay(self, size: int) -> Box:
        """As take(), for what comes next: its room may have been asked for before."""
        with self._lock:
            found = self._ahead.next(class_bytes(size))
        if found is not None:
            return found
        self._give_up_ahead()
        return self.take(size)

    def ask_ahead(self, following: Callable[[int], list[int]]) -> None:
        """Asks for the room of some of what comes next. To be called once what is needed now was leased.

        Not where others lease of the session: they may need it all. Nor for more than the guarantee leaves beside what is
        leased: it would be waited for by those whose leases it waits for.

        following: gives, up to so many bytes, the sizes that are likely to be laid away next.
        """
        most = self.guarantee_bytes // AHEAD_PARTS
        client = self._client()
        with self._lock:
            if (client is None or not self.crowded or self._other_bytes or 2 * self._ahead.nbytes > most
                    or self._given_up or self._refused_in_step == self._step):
                return
            left = self.guarantee_bytes - client.leased_bytes - self._ahead.nbytes
            boxes = []
            for size in map(class_bytes, following(most)[len(self._ahead):]):
                left -= size
                if left < 0 or not self._free.get(size):
                    break
                boxes.append(self._take(size))
            if boxes:
                self._ahead.ask(client, boxes)

    def _give_up_ahead(self) -> None:
        """What was asked for ahead is not needed. Waits for its leases, without the lock, before the boxes are put back:
        one that came later would tear what was laid there meanwhile."""
        with self._lock:
            self._given_up += self._ahead.clear()
        while True:
            try:
                box = self._given_up.popleft()
            except IndexError:  # none, or another thread has the last
                return
            try:
                box.give_up()
            except BaseException:  # an interrupt: its lease may still come
                self._given_up.append(box)
                raise
            self._returned.append(box)

    def _let_go(self) -> None:
        """The client is closed: nothing is waited for any more. From any thread, at any time: takes no lock."""
        self._said, self._ahead, self._given_up = deque(), Ahead(), deque()

    def refused(self) -> None:
        """What was asked for ahead was not to be had."""
        self._refused_in_step = self._step
        self._give_up_ahead()

    def put_back(self, box: Box) -> None:
        """The box's content is not needed any more. Called from anywhere, finalizers included: takes no lock."""
        (self._returned if box.asked is None else self._given_up).append(box)

    def tidy(self) -> None:
        """Says which content is not needed any more, where room is scarce. Nothing more is laid away."""
        if self._returned or self._ahead or self._given_up:
            self._give_up_ahead()
            with self._lock:
                self._collect(0)

    def begin_step(self) -> None:
        """A step begins: boxes that none of the last steps used are deleted."""
        self._give_up_ahead()
        with self._lock:
            self._step += 1
            self._collect(0)
            self._measure()
            if self._step % STEPS_UNUSED_MAX == 0:
                self._delete([box for boxes in self._free.values() for box in boxes
                              if box.used_in_step <= self._step - STEPS_UNUSED_MAX])

    def prefetch(self, boxes: Sequence[Box]) -> None:
        """A hint that these are read next, in this order."""
        client = self._client()
        if boxes and client is not None:
            with contextlib.suppress(Error):
                client._prefetch_later([box.tensor for box in boxes], "host")

    def is_here(self, box: Box) -> bool:
        """Whether its content is in the host's memory."""
        client = self._client()
        return client is not None and client._resident(box.tensor, "host")

    def leased_bytes(self) -> int:
        """What the client holds leased now."""
        client = self._client()
        return 0 if client is None else client.leased_bytes

    def in_use(self) -> int:
        """Boxes whose content is needed, or shown."""
        self._give_up_ahead()
        with self._lock:
            self._collect(0)
            self._recheck()
            return self.boxes - sum(map(len, self._free.values()))

    def clear(self) -> None:
        """Deletes the boxes that are not in use."""
        self._give_up_ahead()
        with self._lock:
            self._collect(0)
            self._recheck()
            self._delete([box for boxes in self._free.values() for box in boxes])

    def _measure(self) -> None:
        client = self._client()
        if client is not None:
            self._other_bytes = client._tensor_bytes() - self.box_bytes

    def _collect(self, wanted: int) -> None:
        """Sorts in what was put back. What is shown still waits until it is not."""
        while self._returned:
            box = self._returned.popleft()
            self.used_bytes -= box.size
            if box.is_shown():
                self._lingering.append(box)
            else:
                self._shelve(box)
        if wanted and not self._free.get(wanted) and self._lingering:
            self._recheck()
        # What is taken again must not be said to be unneeded afterwards.
        if self._unneeded and (wanted or self._unneeded_bytes * UNNEEDED_PARTS > self.guarantee_bytes):
            self._say_unneeded()
        self._wait_until_said(0 if wanted else SAID_MAX)

    def _recheck(self) -> None:
        self._wait_until_said(0)
        lingering, self._lingering = self._lingering, []
        for box in lingering:
            if box.is_shown():
                self._lingering.append(box)
            else:
                self._shelve(box)

    def _shelve(self, box: Box) -> None:
        self._free.setdefault(box.size, []).append(box)
        if self.crowded:
            self._unneeded.append(box.tensor)
            self._unneeded_bytes += box.size

    def _say_unneeded(self) -> None:
        """So that the daemon does not write out what nobody will read. A hint: refused, it costs time alone."""
        unneeded, self._unneeded, self._unneeded_bytes = self._unneeded, [], 0
        client = self._client()
        if client is not None:
            with contextlib.suppress(Error):
                self._said.append(client._dont_need_later(unneeded))

    def _wait_until_said(self, left: int) -> None:
        """Until no more than so many are without an answer; what is laid away meanwhile could be taken for unneeded."""
        said = self._said  # which a close() of the client replaces
        while len(said) > left:
            with contextlib.suppress(Error):
                said[0].wait()
            said.popleft()

    def _create(self, size: int) -> Box:
        try:
            tensor = self._new_tensor(size)
        except ResourceExhausted:
            idle = [box for boxes in self._free.values() for box in boxes]
            if not idle:
                raise
            self._delete(idle)
            tensor = self._new_tensor(size)
        self.boxes += 1
        self.box_bytes += size
        return Box(tensor, size, self.stored, self.read)

    def _new_tensor(self, size: int) -> Tensor:
        client = self.client()
        while True:
            with contextlib.suppress(AlreadyExists):  # a name that the script took
                return client.create(f"{self._name}/{next(self._names)}", size, "uint8")

    def _delete(self, boxes: list[Box]) -> None:
        gone = {id(box) for box in boxes}
        for size, free in list(self._free.items()):
            self._free[size] = [box for box in free if id(box) not in gone]
        self.boxes -= len(boxes)
        self.box_bytes -= sum(box.size for box in boxes)
        self._unneeded, self._unneeded_bytes = [], 0
        client = self._client()
        if boxes and client is not None:
            client.delete([box.tensor for box in boxes])

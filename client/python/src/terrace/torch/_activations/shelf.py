# SPDX-License-Identifier: Apache-2.0
"""The tensors in Terrace that others are laid into: made when first needed, by classes of size, and used again step
after step, so that a step like the one before creates none."""

import contextlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import torch

from ..._client import Client
from ..._errors import AlreadyExists, Error, FailedPrecondition, ResourceExhausted
from ..._terrace import Lease, Said, Tensor
from .._device.device import check_not_captured, follow
from .._leased.waits import Waits, note
from .._pytorch.storages import StorageReference, shown
from .ahead import Ahead, Asked

PAGE_BYTES = 4096
STEPS_UNUSED_MAX = 16
UNNEEDED_PARTS = 16  # what is not needed any more is said once it is this part of the guarantee
SAID_MAX = 8  # times that it is said before an answer is waited for
AHEAD_PARTS = 4  # room for what is laid away next is asked for up to this part of the guarantee


def class_bytes(size: int) -> int:
    """The size of the tensor that `size` bytes are laid into: eight classes to a doubling, in whole pages."""
    step = max(PAGE_BYTES, 1 << max(0, (size - 1).bit_length() - 4))
    return -(-size // step) * step


class Slot:
    """A tensor in Terrace, and what shows it here."""

    __slots__ = ("asked", "copies", "read", "shown", "size", "stored", "stream", "tensor", "used_in_step")

    def __init__(self, tensor: Tensor, size: int, stored: Waits, read: Waits):
        self.tensor = tensor
        self.size = size
        self.stored = stored  # of all slots: what was leased to be laid into them
        self.read = read  # and to be read again
        self.shown: list[StorageReference] = []
        self.copies: list[Lease] = []  # of a GPU's, that were under way
        self.stream: torch.cuda.Stream | None = None  # of the last of them
        self.asked: Asked | None = None  # a lease to overwrite it, which may be on its way
        self.used_in_step = 0

    def lease(self, device: torch.device, size: int) -> torch.UntypedStorage:
        """A storage with the bytes: on a CPU the leased ones, whose lease it owns; elsewhere a copy of them."""
        begin = time.perf_counter()
        with self.tensor.read(writable_view=True) as lease:
            note([self.read], [lease], time.perf_counter() - begin)
            leased = shown(lease)
            if device.type != "cpu":
                check_not_captured(device)
                copied = self.copy_behind(lease, device, lambda: leased[:size].to(device, non_blocking=True))
                return copied.untyped_storage()
        storage = leased.untyped_storage()
        self.shown.append(StorageReference(storage))
        return storage

    def overwrite(self) -> Lease:
        """A lease to lay bytes into it: the one that was asked for before, if one was."""
        begin = time.perf_counter()
        try:
            lease = self.tensor.overwrite() if self.asked is None else self.asked.take()
        except Error:  # it will not come any more
            self.asked = None
            raise
        self.asked = None
        note([self.stored], [lease], time.perf_counter() - begin)
        return lease

    def copy_behind(self, lease: Lease, device: torch.device, copy: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Begins a copy between the leased memory and a GPU on its current stream, behind those before; the lease ends
        behind it."""
        stream = self.stream = follow(device, self.stream)
        self.copies = [one for one in self.copies if one.shown]
        self.copies.append(lease)
        try:
            copied = copy()
            lease.release(stream)
        except BaseException:  # nobody is to have the memory while it is copied
            stream.synchronize()
            raise
        return copied

    def give_up(self) -> None:
        """Ends the lease that was asked for, if one was: waits for it."""
        if self.asked is not None:
            self.asked.give_up()
            self.asked = None

    def is_shown(self) -> bool:
        """Whether a storage of an earlier lease is still there, or a GPU still copies: then its bytes must not change."""
        self.shown = [storage for storage in self.shown if not storage.expired()]
        self.copies = [lease for lease in self.copies if lease.shown]
        return bool(self.shown or self.copies)


class Shelf:
    """The slots of one client. Thread-safe."""

    def __init__(self, client: Client, name: str):
        self._client = weakref.ref(client)
        self._name = name
        self._lock = threading.Lock()
        self._free: dict[int, list[Slot]] = {}
        self._lingering: list[Slot] = []
        self._unneeded: list[Tensor] = []
        self._unneeded_bytes = 0
        self._said: deque[Said] = deque()  # of these, what may not be answered yet
        self._ahead = Ahead()
        self._refused_in_step = -1  # what was asked for ahead
        self._given_up: deque[Slot] = deque()  # that are not needed, and whose leases may still be on their way
        self._returned: deque[Slot] = deque()
        self._step = 0
        self._names = itertools.count()
        self._other_bytes = 0
        self.guarantee_bytes = next((place.guarantee_bytes for place in client.places() if place.name == "host"), 0)
        self.stored, self.read = Waits(), Waits()
        self.slots = 0
        self.slot_bytes = 0
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
        return self._other_bytes + self.slot_bytes > self.guarantee_bytes

    def take(self, size: int) -> Slot:
        """A slot of at least `size` bytes, the caller's until put_back. ResourceExhausted where Terrace is full."""
        with self._lock:
            return self._take(class_bytes(size))

    def _take(self, wanted: int) -> Slot:
        self._collect(wanted)
        free = self._free.get(wanted)
        # The one that was used last is the likeliest to be in memory still.
        slot = free.pop() if free else self._create(wanted)
        slot.used_in_step = self._step
        self.used_bytes += slot.size
        return slot

    def lay(self, size: int) -> Slot:
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
            slots = []
            for size in map(class_bytes, following(most)[len(self._ahead):]):
                left -= size
                if left < 0 or not self._free.get(size):
                    break
                slots.append(self._take(size))
            if slots:
                self._ahead.ask(client, slots)

    def _give_up_ahead(self) -> None:
        """What was asked for ahead is not needed. Waits for its leases, without the lock, before the slots are put back:
        one that came later would tear what was laid there meanwhile."""
        with self._lock:
            self._given_up += self._ahead.clear()
        while True:
            try:
                slot = self._given_up.popleft()
            except IndexError:  # none, or another thread has the last
                return
            try:
                slot.give_up()
            except BaseException:  # an interrupt: its lease may still come
                self._given_up.append(slot)
                raise
            self._returned.append(slot)

    def _let_go(self) -> None:
        """The client is closed: nothing is waited for any more. From any thread, at any time: takes no lock."""
        self._said, self._ahead, self._given_up = deque(), Ahead(), deque()

    def refused(self) -> None:
        """What was asked for ahead was not to be had."""
        self._refused_in_step = self._step
        self._give_up_ahead()

    def put_back(self, slot: Slot) -> None:
        """The slot's content is not needed any more. Called from anywhere, finalizers included: takes no lock."""
        (self._returned if slot.asked is None else self._given_up).append(slot)

    def tidy(self) -> None:
        """Says which content is not needed any more, where room is scarce. Nothing more is laid away."""
        if self._returned or self._ahead or self._given_up:
            self._give_up_ahead()
            with self._lock:
                self._collect(0)

    def begin_step(self) -> None:
        """A step begins: slots that none of the last steps used are deleted."""
        self._give_up_ahead()
        with self._lock:
            self._step += 1
            self._collect(0)
            self._measure()
            if self._step % STEPS_UNUSED_MAX == 0:
                self._delete([slot for slots in self._free.values() for slot in slots
                              if slot.used_in_step <= self._step - STEPS_UNUSED_MAX])

    def prefetch(self, slots: Sequence[Slot]) -> None:
        """A hint that these are read next, in this order."""
        client = self._client()
        if slots and client is not None:
            with contextlib.suppress(Error):
                client._prefetch_later([slot.tensor for slot in slots], "host")

    def leased_bytes(self) -> int:
        """What the client holds leased now."""
        client = self._client()
        return 0 if client is None else client.leased_bytes

    def in_use(self) -> int:
        """Slots whose content is needed, or shown."""
        self._give_up_ahead()
        with self._lock:
            self._collect(0)
            self._recheck()
            return self.slots - sum(map(len, self._free.values()))

    def clear(self) -> None:
        """Deletes the slots that are not in use."""
        self._give_up_ahead()
        with self._lock:
            self._collect(0)
            self._recheck()
            self._delete([slot for slots in self._free.values() for slot in slots])

    def _measure(self) -> None:
        client = self._client()
        if client is not None:
            self._other_bytes = client._tensor_bytes() - self.slot_bytes

    def _collect(self, wanted: int) -> None:
        """Sorts in what was put back. What is shown still waits until it is not."""
        while self._returned:
            slot = self._returned.popleft()
            self.used_bytes -= slot.size
            if slot.is_shown():
                self._lingering.append(slot)
            else:
                self._shelve(slot)
        if wanted and not self._free.get(wanted) and self._lingering:
            self._recheck()
        # What is taken again must not be said to be unneeded afterwards.
        if self._unneeded and (wanted or self._unneeded_bytes * UNNEEDED_PARTS > self.guarantee_bytes):
            self._say_unneeded()
        self._wait_until_said(0 if wanted else SAID_MAX)

    def _recheck(self) -> None:
        self._wait_until_said(0)
        lingering, self._lingering = self._lingering, []
        for slot in lingering:
            if slot.is_shown():
                self._lingering.append(slot)
            else:
                self._shelve(slot)

    def _shelve(self, slot: Slot) -> None:
        self._free.setdefault(slot.size, []).append(slot)
        if self.crowded:
            self._unneeded.append(slot.tensor)
            self._unneeded_bytes += slot.size

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

    def _create(self, size: int) -> Slot:
        try:
            tensor = self._new_tensor(size)
        except ResourceExhausted:
            idle = [slot for slots in self._free.values() for slot in slots]
            if not idle:
                raise
            self._delete(idle)
            tensor = self._new_tensor(size)
        self.slots += 1
        self.slot_bytes += size
        return Slot(tensor, size, self.stored, self.read)

    def _new_tensor(self, size: int) -> Tensor:
        client = self.client()
        while True:
            with contextlib.suppress(AlreadyExists):  # a name that the script took
                return client.create(f"{self._name}/{next(self._names)}", size, "uint8")

    def _delete(self, slots: list[Slot]) -> None:
        gone = {id(slot) for slot in slots}
        for size, free in list(self._free.items()):
            self._free[size] = [slot for slot in free if id(slot) not in gone]
        self.slots -= len(slots)
        self.slot_bytes -= sum(slot.size for slot in slots)
        self._unneeded, self._unneeded_bytes = [], 0
        client = self._client()
        if slots and client is not None:
            client.delete([slot.tensor for slot in slots])

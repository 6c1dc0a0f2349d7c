# SPDX-License-Identifier: Apache-2.0
"""The tensors of one offloaded job: where they are made, and leased as sets."""

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from ..._client import Client
from ..._errors import Error, FailedPrecondition, ResourceExhausted
from ..._terrace import Lease, Tensor
from .._device.device import give_back_free, wait_for_leases
from .._device.heap import give_back_freed_memory
from .._device.streams import check_not_captured, has_streams
from .._pytorch.modes import ordinary
from .place import Place
from .slot import Slot, dtype_in_terrace, shape_in_terrace
from .steps import Steps
from .waits import note

NAME_BYTES_MAX = 175
Wanted = tuple[str, str, torch.Tensor]  # a name and a module, for people, and a tensor of the geometry
_numbers = itertools.count()


class Leased(NamedTuple):
    """What a job has leased so far, beside what was leased already."""

    sets: int = 0  # to be read or written
    hits: int = 0  # of them, those whose tensors were all there
    wait_seconds: float = 0.0
    nbytes: int = 0


class Tally:
    """Counts what a job leases, in all of its stores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.leased = Leased()

    def add(self, leases: Sequence[Lease], looked_for: bool, seconds: float) -> None:
        """A set was leased. looked_for: what was there before is needed."""
        with self._lock:
            so_far = self.leased
            self.leased = Leased(so_far.sets + looked_for, so_far.hits + (looked_for and not leases[0].waited),
                                 so_far.wait_seconds + seconds, so_far.nbytes + sum(lease.nbytes for lease in leases))


class Operations(Protocol):
    """What runs PyTorch's functions on tensors whose bytes are in Terrace."""

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """As a script calls one."""

    def operate(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """As PyTorch's own C++ comes to one."""


class Store:
    """Makes slots in one client's session and leases them: each in the place that is the memory of its tensor's device."""

    writable = True  # what is in it may change
    ranks = 1  # that lease what is in it
    refusals_that_pass: tuple[type[Error], ...] = (ResourceExhausted,)  # once leases have ended that are behind streams

    def __init__(self, client: Client, place: str | Sequence[str], timeout: float, bytes_expected: int, operations: Operations,
                 tally: Tally | None = None):
        """place: where it leases; several, if what is in it is of several devices. bytes_expected: in each."""
        self.client = client
        self.operations = operations
        self.timeout = timeout
        names = [place] if isinstance(place, str) else place
        self.places = [Place(client, name, bytes_expected, alone=self.writable) for name in names]
        self._on = {one.device: one for one in self.places}
        self.prefix = f"torch{next(_numbers)}"
        self._count = itertools.count()
        self.slots: list[Slot] = []
        self._lock = threading.RLock()  # between taking a lease and showing it; other threads may want the same one
        self.showing = threading.RLock()  # over who uses a parameter, and what it shows; never while memory is awaited
        self.steps = Steps(client, [one.order for one in self.places])
        self.guarantee_bytes = min(one.guarantee_bytes for one in self.places)  # of each place this at least
        self.tally = tally or Tally()
        self._tensors: list[Tensor] = []
        weakref.finalize(self, self._end, client, self._tensors).atexit = False
        self.left_alone: list[tuple[str, str]] = []  # parameters that stay in memory, and why

    @property
    def leased(self) -> Leased:
        """What the job has leased so far."""
        return self.tally.leased

    @property
    def bytes(self) -> int:
        """Of all that is in it."""
        return sum(one.bytes for one in self.places)

    @property
    def place(self) -> str:
        """Where it leases; of several places, where the first of the model's weights is."""
        return self.places[0].name

    @property
    def device(self) -> torch.device:
        """Whose memory that is."""
        return self.places[0].device

    def place_on(self, device: torch.device) -> Place:
        """Where what is on a device is leased."""
        return self._on.get(device, self.places[0])

    def place_of(self, slot: Slot) -> Place:
        """Where a slot is leased."""
        return self.places[0] if len(self.places) == 1 else self.place_on(slot.device)

    def _by_place(self, slots: Sequence[Slot]) -> list[tuple[Place, Sequence[Slot]]]:
        if len(self.places) == 1:
            return [(self.places[0], slots)]
        return [(place, its) for place in self.places if (its := [slot for slot in slots if self.place_of(slot) is place])]

    def create(self, wanted: Sequence[Wanted], devices: Sequence[torch.device] | None = None) -> list[Slot]:
        """Makes slots. devices: whose memory each is to be leased in, where the tensors of their geometries do not tell."""
        specs = []
        for name, _, like in wanted:
            tail = name.encode()[-(NAME_BYTES_MAX - 40):].decode(errors="ignore")
            specs.append((f"{self.prefix}.{next(self._count)}/{tail}", shape_in_terrace(like), dtype_in_terrace(like.dtype)))
        return self._over(wanted, self.client.create_many(specs, timeout=self.timeout), devices)

    def _over(self, wanted: Sequence[Wanted], tensors: list[Tensor], devices: Sequence[torch.device] | None = None) -> list[Slot]:
        """Slots over tensors that are there."""
        on = [like.device for _, _, like in wanted] if devices is None else devices
        with ordinary():
            made = [Slot(name, owner, tensor, self.place_on(device).space.take(like.shape, like.stride(), like.dtype))
                    for (name, owner, like), tensor, device in zip(wanted, tensors, on, strict=True)]
        with self._lock:
            self.slots += made
            self._tensors += tensors
            for slot in made:
                self.place_of(slot).bytes += slot.nbytes
        if any(place.bytes > place.guarantee_bytes for place in self.places):
            give_back_freed_memory()
        return made

    def hand_over(self, slots: Iterable[Slot], to: "Store") -> None:
        """Slots belong to another store of the same client from now on."""
        leaving = list(slots)
        to.slots += leaving
        to._tensors += [slot.tensor for slot in leaving]
        for slot in leaving:
            to.place_of(slot).bytes += slot.nbytes
        self._remove(leaving)

    def forget(self, slots: Iterable[Slot]) -> None:
        """Deletes slots; what still shows one keeps its bytes."""
        gone = list(slots)
        if gone:
            self._remove(gone)
            self._end(self.client, [slot.tensor for slot in gone])

    def _remove(self, slots: list[Slot]) -> None:
        removed = set(slots)
        handles = {slot.tensor.handle for slot in slots}
        with self._lock:
            for place in self.places:
                place.unneeded -= removed
            self.slots = [slot for slot in self.slots if slot not in removed]
            self._tensors[:] = [tensor for tensor in self._tensors if tensor.handle not in handles]
            for slot in removed:
                self.place_of(slot).bytes -= slot.nbytes

    def plan(self) -> None:
        """Fetches ahead from now on, if not everything fits."""
        for place in self.places:
            place.plan()

    def destroy(self) -> None:
        """Deletes all tensors; what still shows one keeps its bytes."""
        self.slots.clear()
        for place in self.places:
            place.bytes = 0
        self._end(self.client, self._tensors)

    def lease(self, slots: Iterable[Slot], mode: str | Sequence[str] = "read", *, noted: bool = True) -> list[torch.Tensor]:
        """Leases slots as one set in each of their places; tensors that show them, in order. Each ends its lease with its memory's
        last user.

        mode: "read", "write", or "overwrite" (of slots that nothing shows, and of all of a set: what they hold is lost); or
            one for each slot. Of a slot that is there twice, the first one's.
        noted: as a use of this step, which the next one is expected to repeat.
        """
        slots = list(slots)
        for place, _ in self._by_place(slots):
            if has_streams(place.device):
                check_not_captured(place.device)
        for slot in slots:
            slot.wait()
        modes = [mode] * len(slots) if isinstance(mode, str) else mode
        shown: dict[Slot, torch.Tensor] = {}
        absent: dict[Slot, str] = {}
        with self._lock, ordinary():
            for slot, wanted in zip(slots, modes, strict=True):
                if slot not in shown and slot.resume(wanted != "read"):
                    shown[slot] = slot.show()
                elif slot not in shown:
                    absent.setdefault(slot, wanted)
        for place, its in self._by_place(list(absent)) if absent else ():
            leases = self._acquire(place, its, [absent[slot] for slot in its], noted)
            with self._lock, ordinary():
                for slot, lease in zip(its, leases, strict=True):
                    slot.take(lease, absent[slot] != "read")
                    shown[slot] = slot.show()
        return [shown[slot] for slot in slots]

    def read_once(self, slot: Slot) -> torch.Tensor:
        """Leases a slot for whoever reads it and does not come back; to be dropped before the next one is."""
        self.place_of(slot).passing.turn_to(slot)
        return self.lease([slot], noted=False)[0]

    def expect_once(self, slot: Slot) -> None:
        """It is the next one that is read once: begins to fetch it."""
        self.place_of(slot).passing.expect(slot)

    def leave_read(self) -> None:
        """What was to be read once is read."""
        for place in self.places:
            place.passing.leave()

    def _acquire(self, place: Place, slots: Sequence[Slot], modes: list[str], noted: bool) -> list[Lease]:
        begin = time.perf_counter()
        looked_for = "overwrite" not in modes
        try:
            leases = self._ask_for(place, slots, modes, passing=not noted and set(modes) == {"read"})
        except Error as error:
            error.add_note(f"terrace.torch leased {sum(slot.nbytes for slot in slots)} bytes of "
                           f"{', '.join(slot.name for slot in slots[:4])}{', ...' if len(slots) > 4 else ''}; "
                           f"{self.client.leased_bytes} bytes are leased already, and the session is guaranteed "
                           f"{place.guarantee_bytes} of {place.name}")
            if isinstance(error, ResourceExhausted):
                error.add_note("what holds many tensors at once holds them leased: terrace.torch.save(), torch.save(), "
                               "torch.distributed.checkpoint and save_pretrained() write a model of any size")
            raise
        seconds = time.perf_counter() - begin
        note([slot.waits for slot in slots], leases, seconds)
        self.tally.add(leases, looked_for, seconds)
        if noted and looked_for:
            if leases[0].waited:
                place.order.missed()
            place.order.used(slots)
        return leases

    def _ask_for(self, place: Place, slots: Sequence[Slot], modes: list[str], passing: bool) -> list[Lease]:
        mode = modes[0] if len(set(modes)) == 1 else modes
        wanted = [slot.tensor for slot in slots], mode, place.name, self.timeout, True, passing
        try:
            return self.client._acquire(*wanted)
        except self.refusals_that_pass:
            if not has_streams(place.device):
                raise
        wait_for_leases(self.client, place.device)  # of what Python has run ahead of
        give_back_free(place.device)  # the daemon may want to grow into what PyTorch keeps of the GPU's memory
        return self.client._acquire(*wanted)

    def written(self, slot: Slot) -> None:
        """Says that what is shown was written: it counts as written until nothing shows it."""
        if not slot.writing:
            leases = self.client._acquire([slot.tensor], "write", self.place_of(slot).name, self.timeout, True)
            with self._lock:
                slot.take(leases[0], True)
                slot.let_go()

    def may_be_written(self, slot: Slot) -> None:
        """Says that what is shown may be written to, unseen."""
        self.written(slot)

    def may_be_written_to_later(self, slot: Slot) -> None:
        """The same of what somebody has been given, past the parameter whose it is: its other forms may then be others, too."""
        self.may_be_written(slot)
        slot.aliases += 1
        if slot.parameter is not None:
            slot.parameter.aliases += 1

    def refuse_writes(self, slot: Slot, *, done: bool = False) -> None:
        """Raises where nothing is to be written: here it may. done: it was."""

    def unneed(self, slot: Slot) -> None:
        """Its content is of no use any more."""
        self.place_of(slot).unneeded.add(slot)

    def need(self, slot: Slot) -> None:
        """It is of use again, as somebody is about to write to it."""
        self.place_of(slot).unneeded.discard(slot)

    def drop_unneeded(self) -> None:
        """Tells Terrace which contents are of no use any more. Where all fits it makes no difference, but that room would
        have to be asked for again."""
        for place in self.places:
            if place.unneeded and (not has_streams(place.device) or place.passed()):
                self._drop_in(place)

    def _drop_in(self, place: Place) -> None:
        told = list(place.unneeded)  # to which other threads add
        place.unneeded.difference_update(told)
        slots = [slot for slot in told if not slot.shown]
        if not slots or self.fits():
            return
        try:
            self.client.dont_need([slot.tensor for slot in slots])
        except FailedPrecondition:
            if not has_streams(place.device):
                raise
            place.unneeded.update(slots)  # some are still leased, behind a stream

    def fits(self) -> bool:
        """Whether all of the session, activations and the script's own tensors included, is guaranteed room at once."""
        others = self.client._tensor_bytes() - self.bytes
        return all(place.bytes + others <= place.guarantee_bytes for place in self.places)

    @staticmethod
    def _end(client: Client, tensors: list[Tensor]) -> None:
        """Tensors that no store has any more."""
        with contextlib.suppress(Error):  # a client that is closed has none
            client.delete(tensors)
        tensors.clear()

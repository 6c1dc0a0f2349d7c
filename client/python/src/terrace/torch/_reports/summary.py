# SPDX-License-Identifier: Apache-2.0
"""What offloaded jobs and activations have leased so far, where it was, and what they waited for, for people."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, overload

from torch import nn

from ... import _checks
from .._activations.activations import shelves
from .._device import heap
from .._leased.waits import Waits
from .._offload.job import Job, job_of, jobs, was_left

if TYPE_CHECKING:
    from .._activations.shelf import Shelf
    from .._leased.slot import Slot
    from .._leased.store import Store

_CALL = "terrace.torch.summary"
_MIB = 1 << 20
_NAME = 34


@dataclasses.dataclass(kw_only=True)
class LeaseSummary:
    """Leases that were taken, and what they waited for."""

    leases: int = 0
    leased_bytes: int = 0
    wait_seconds: float = 0.0  # in taking them
    fetched_bytes: int = 0  # that were not where they were leased, and came from below
    fetch_seconds: float = 0.0  # of wait_seconds, waiting for these
    room_seconds: float = 0.0  # of it, waiting where nothing was to come: for room, or for other leases to end

    def add(self, waits: Waits) -> None:
        """Counts those of some tensors."""
        self.leases += waits.leases
        self.leased_bytes += waits.leased_bytes
        self.wait_seconds += waits.seconds
        self.fetched_bytes += waits.fetched_bytes
        self.fetch_seconds += waits.fetch_seconds
        self.room_seconds += waits.room_seconds


@dataclasses.dataclass
class ModuleSummary(LeaseSummary):
    """One module's own tensors: parameters, their gradients and optimizer states."""

    name: str
    nbytes: int = 0
    kept_bytes: int = 0  # that something of the script keeps leased now
    place_bytes: dict[str, int] = dataclasses.field(default_factory=dict)  # by place what can be leased there at once

    @property
    def below_bytes(self) -> int:
        """What is in no place to lease it now: on the block tier, on its way, or without content."""
        return self.nbytes - sum(self.place_bytes.values())


@dataclasses.dataclass
class Summary:
    """One job. As a string it is a table."""

    modules: list[ModuleSummary]
    left_alone: list[tuple[str, str]]  # parameters that stay in the process's memory, and why
    kept: list[str]  # tensors that something of the script keeps leased outside their modules
    nbytes: int
    guarantee_bytes: int
    leased_bytes: int
    name: str = ""  # of the model's class
    place: str = "host"  # where its tensors are leased; several, joined by "+", for a model on several devices
    shared_bytes: int = 0  # of them, what other ranks have as well, and is there once
    closed: bool = False  # its client is, so that nothing can be leased any more
    step: str = ""  # where its optimizer steps, "device" or "host"; "": it has none
    step_why: str = ""  # of step="auto", why there

    def __str__(self) -> str:
        lines = [f"{'module':{_NAME}} {'MiB':>9} {'in ' + self.place:>9} {'leases':>7} {'fetched':>9} {'waited s':>9} "
                 f"{'to fetch':>9} {'for room':>9} {'kept MiB':>9}"]
        lines += [_row(one.name or "(the model)", one, self.place) for one in self.modules]
        lines.append(_row("all", self._sum(), self.place))
        lines.append(f"guaranteed {self.guarantee_bytes / _MIB:.0f} MiB, leased now {self.leased_bytes / _MIB:.2f} MiB")
        if self.step == "host" or self.step_why:
            lines.append(f"step={self.step!r}{': ' if self.step_why else ''}{self.step_why}")
        if self.closed:
            lines.append("its client is closed: nothing of it can be leased any more")
        if self.shared_bytes:
            lines.append(f"{self.shared_bytes / _MIB:.2f} MiB are shared with this node's other ranks")
        if self.kept:
            lines.append(f"kept leased by references of the script: {', '.join(self.kept)}")
        if self.left_alone:
            lines.append(f"{len(self.left_alone)} parameters stay in the process's memory: "
                         f"{', '.join(f'{name} ({why})' for name, why in self.left_alone[:4])}"
                         f"{', ...' if len(self.left_alone) > 4 else ''}")
        return "\n".join(lines)

    def _sum(self) -> ModuleSummary:
        total = ModuleSummary("")
        for one in self.modules:
            for counted in dataclasses.fields(one):
                value = getattr(one, counted.name)
                if isinstance(value, int | float):
                    setattr(total, counted.name, getattr(total, counted.name) + value)
            for place, size in one.place_bytes.items():
                total.place_bytes[place] = total.place_bytes.get(place, 0) + size
        return total


@dataclasses.dataclass
class ActivationsSummary:
    """What one client's activations() have done."""

    nbytes: int  # of the tensors that are kept for them, in use or not
    used_bytes: int  # whose content a backward pass still needs
    stored: LeaseSummary  # to lay them there
    read: LeaseSummary  # for backward

    def __str__(self) -> str:
        stored, read = self.stored, self.read
        return (f"activations: {self.nbytes / _MIB:.2f} MiB, of it {self.used_bytes / _MIB:.2f} in use; "
                f"{stored.leases} times stored, waited {stored.wait_seconds:.3f} s, of it {stored.room_seconds:.3f} "
                f"for room; {read.leases} times read, waited {read.wait_seconds:.3f} s, of it "
                f"{read.fetch_seconds:.3f} to fetch {read.fetched_bytes / _MIB:.2f} MiB and {read.room_seconds:.3f} "
                "for room")


@dataclasses.dataclass
class Overview:
    """All that terrace.torch has of this process. As a string it is a table for each job."""

    jobs: list[Summary]
    activations: list[ActivationsSummary]
    heap: str = ""  # what giving freed memory back takes, and how it takes less

    def __str__(self) -> str:
        parts = [f"{job.name}\n{job}" for job in self.jobs] + [str(one) for one in self.activations]
        parts += [self.heap] if parts and self.heap else []
        return "\n\n".join(parts) or "nothing is in Terrace: call terrace.torch.offload(model, optimizer)"


def _row(name: str, one: ModuleSummary, place: str) -> str:
    there = sum(one.place_bytes.get(each, 0) for each in place.split("+"))
    return (f"{name:{_NAME}} {one.nbytes / _MIB:9.2f} {there / _MIB:9.2f} {one.leases:7} "
            f"{one.fetched_bytes / _MIB:9.2f} {one.wait_seconds:9.3f} {one.fetch_seconds:9.3f} {one.room_seconds:9.3f} "
            f"{one.kept_bytes / _MIB:9.2f}")


@overload
def summary(model: nn.Module) -> Summary: ...
@overload
def summary(model: None = None) -> Overview: ...
def summary(model: nn.Module | None = None) -> Summary | Overview:
    """What was leased for an offloaded model so far: module by module where its bytes are now, what had to be fetched,
    how long that and finding room took, and what the script keeps leased.

    model: None: all jobs of this process, and activations().

    FailedPrecondition for a model that was not offloaded.
    """
    if model is not None:
        _checks.is_a(_CALL, "model", model, nn.Module, "a torch.nn.Module, or None for all jobs")
        return _of_left(model) if was_left(model) else _of_job(model, job_of(model))
    return Overview([_of_job(one, job) for one, job in jobs()], [_of_shelf(shelf) for shelf in shelves()],
                    heap.price())


def _of_left(model: nn.Module) -> Summary:
    return Summary([], [(name, "there is room for all") for name, _ in model.named_parameters()], [], 0, 0, 0,
                   type(model).__name__)


def _of_job(model: nn.Module, job: Job) -> Summary:
    for optimizer in job.optimizers:
        optimizer.wait()
    modules: dict[str, ModuleSummary] = {}
    kept: list[str] = []
    stores = [*job.stores, *(() if job.shared is None else (job.shared,))]
    for store in stores:
        places = [offer.name for offer in store.client.places()] if store.client.session else []
        for slot in store.slots:
            one = modules.setdefault(slot.owner, ModuleSummary(slot.owner))
            one.nbytes += slot.nbytes
            one.add(slot.waits)
            _note_place(one, store, slot, places)
            in_use = slot.parameter is not None and slot.parameter.uses
            if slot.shown and not in_use:
                one.kept_bytes += slot.nbytes
                kept.append(slot.name)
    return Summary(list(modules.values()), list(job.store.left_alone), kept, sum(store.bytes for store in stores),
                   sum(place.guarantee_bytes for place in job.store.places), sum(store.client.leased_bytes for store in stores),
                   type(model).__name__, "+".join(place.name for place in job.store.places), 0 if job.shared is None else job.shared.bytes,
                   not all(store.client.session for store in stores), job.where.step if job.optimizers else "", job.where.why)


def _note_place(one: ModuleSummary, store: Store, slot: Slot, places: list[str]) -> None:
    for place in places:
        if store.client._resident(slot.tensor, place):
            one.place_bytes[place] = one.place_bytes.get(place, 0) + slot.nbytes
            return


def _of_shelf(shelf: Shelf) -> ActivationsSummary:
    stored, read = LeaseSummary(), LeaseSummary()
    stored.add(shelf.stored)
    read.add(shelf.read)
    return ActivationsSummary(shelf.box_bytes, shelf.used_bytes, stored, read)

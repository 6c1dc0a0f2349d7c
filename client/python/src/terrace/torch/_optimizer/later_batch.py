# SPDX-License-Identifier: Apache-2.0
"""What a step that goes on in a thread of its own is at: parameters of its own over leased memory, with gradients and states."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from ..._errors import Error, FailedPrecondition
from .._device.streams import copied_down, wait_for_stream
from .._leased.slot import Slot
from .._leased.updates import Update
from .._parameters.casts import write_casts_of
from .._parameters.masters import Master
from .._parameters.parameter import ManagedParameter
from .._pytorch.bits import same_bits
from .._pytorch.private import set_data
from .._tensors.offloaded import OffloadedTensor
from .slices import Casts, can_be_sliced, slices
from .states import States
from .trace import said_of
from .waiting import as_they_are


@dataclasses.dataclass
class Member:
    """One parameter that is stepped later."""

    weight: nn.Parameter  # the script's
    managed: ManagedParameter
    master: Master | None
    gradient: torch.Tensor | None  # in Terrace, or in memory; None: it was used
    state: dict[str, Any]  # the optimizer's
    kept: dict[str, OffloadedTensor]  # what of that is in Terrace
    counts: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)  # what of it is in memory, as the step found it

    @property
    def slots(self) -> list[Slot]:
        """All that is read or written."""
        return [*self._weights, *self._own]

    @property
    def _weights(self) -> list[Slot]:
        return [self.managed.slot, *([self.gradient.terrace_slot] if isinstance(self.gradient, OffloadedTensor) else [])]

    @property
    def _own(self) -> list[Slot]:
        master = [] if self.master is None or self.master.managed is None else [self.master.managed.slot]
        return [*master, *(one.terrace_slot for one in self.kept.values())]

    @property
    def weight_bytes(self) -> int:
        """What the weight and its gradient take where they are leased."""
        return sum(slot.room_bytes for slot in self._weights)

    @property
    def own_bytes(self) -> int:
        """What the master and the states take there."""
        return sum(slot.room_bytes for slot in self._own)

    @property
    def stepped_slot(self) -> Slot:
        """Where what is stepped is: the master, or the weight."""
        return self.managed.slot if self.master is None or self.master.managed is None else self.master.managed.slot

    def note_stepped(self, counted: str | None) -> None:
        """It counts as stepped from now on: what was saved of it is of the weights before, and the script, which may have its
        count of steps, finds that to be of this one. counted: how that is called; None: nobody knows."""
        self.managed.noticed_write()
        self.managed.writes += 1
        self.counts = {name: value.clone() for name, value in self.state.items() if type(value) is torch.Tensor}
        if counted in self.counts:
            self.state[counted].add_(1)

    def keep(self, made: dict[str, Any]) -> None:
        """Has the state be what the step has made of it."""
        for name in [name for name in self.state if name not in made]:
            del self.state[name]
        for name, value in made.items():
            if name in self.counts:
                self._keep_count(name, value)
            elif value is not self.kept.get(name) and value is not self.state.get(name):
                self.state[name] = value

    def restore(self) -> None:
        """It was not stepped."""
        for name, value in self.counts.items():
            self._keep_count(name, value)

    def _keep_count(self, name: str, value: Any) -> None:
        theirs = self.state.get(name)
        if type(theirs) is not torch.Tensor or not has_geometry_of(theirs, value):
            self.state[name] = value
        elif not same_bits(theirs, value):
            theirs.data.copy_(value)  # not as a write by the script


def has_geometry_of(one: torch.Tensor, other: Any) -> bool:
    """Whether what one has can be copied to the other as it is."""
    return bool(type(other) is torch.Tensor and one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
                and one.layout == torch.strided == other.layout and one.stride() == other.stride())


def _alias(gradient: torch.Tensor | None) -> torch.Tensor:
    """Another tensor over its memory."""
    assert gradient is not None
    return gradient.detach()


class LaterBatch:
    """Some of them, stepped together."""

    def __init__(self, states: States, members: Sequence[Member]):
        self.members = members
        self.done = False  # the weights are those that the step makes of them
        self.update: Update | None = None  # who waits for it, once the step has begun
        self._of = states
        self._store, self._weights = states.own_store, states.store
        self._stepped: list[nn.Parameter] = []
        self._states: defaultdict[Any, dict[str, Any]] = defaultdict(dict)  # by what is stepped
        self._shown: list[dict[str, torch.Tensor]] = []  # of each one's states, what is leased
        self._gradients: list[torch.Tensor] = []  # as they are leased
        self._made: set[int] = set()  # members by id, whose weights have been made of their masters
        self._versions: list[tuple[nn.Parameter, torch.Tensor, int]] = []  # of them, as the step is given them

    @property
    def slots(self) -> list[Slot]:
        """All that is read or written."""
        return [slot for member in self.members for slot in member.slots]

    def _has_state_of(self, one: Member) -> bool:
        return one.weight in as_they_are(self._of.optimizer.state)

    def enter(self) -> None:
        """Leases it."""
        members = self.members
        slots = [slot for one in members for slot in (one.stepped_slot, *(held.terrace_slot for held in one.kept.values()))]
        modes = ["write"] * len(slots)
        gradients = [one.gradient.terrace_slot for one in members if isinstance(one.gradient, OffloadedTensor)]
        if self._store is self._weights:
            leased = self._store.lease(slots + gradients, modes + ["read"] * len(gradients), noted=False)
        else:
            leased = self._store.lease(slots, modes, noted=False) + self._weights.lease(gradients, noted=False)
        shown = iter(leased)
        for one in members:
            stepped = nn.Parameter(next(shown))
            vars(stepped).update(said_of(one.weight))
            self._stepped.append(stepped)
            self._shown.append({name: next(shown) for name in one.kept})
            if one.state or self._has_state_of(one):  # else the step makes it, or not
                self._states[stepped] = one.state | one.counts | self._shown[-1]
        self._gradients += [next(shown) if isinstance(one.gradient, OffloadedTensor) else _alias(one.gradient) for one in members]

    def shown(self, by_element: bool, fused: bool, casts: Casts) -> Iterator[tuple[list[nn.Parameter], MutableMapping[Any, Any]]]:
        """What the step is to step, one after the other: parameters with their gradients, and the states of each.

        by_element: the step treats each element by itself: it is given large ones in slices, where memory is passed over more
            than once.
        fused: it is one kernel. It is followed by the weight's, where that is made of a master beside it.
        casts: of slices of gradients.
        """
        whole: list[nn.Parameter] = []
        for one, stepped, held in zip(self.members, self._stepped, self._gradients, strict=True):
            state = self._states.get(stepped, {})
            apart = one.master is not None and held.device != stepped.device
            given = copied_down(held) if apart else held
            weight = one.managed.slot if one.master is not None and not apart else None
            if by_element and not (fused and weight is None) and can_be_sliced(stepped, given, state, one.kept):
                yield from self._sliced(one, weight, stepped, given, state, casts)
            else:
                stepped.grad = given if one.master is None else one.master.made_for_step(given)
                self._versions.append((stepped, stepped.grad, stepped.grad._version))
                whole.append(stepped)
        if whole:
            yield whole, self._states

    def _sliced(self, one: Member, made: Slot | None, stepped: nn.Parameter, held: torch.Tensor, state: dict[str, Any],
                casts: Casts) -> Iterator[tuple[list[nn.Parameter], MutableMapping[Any, Any]]]:
        """One of them, in slices. made: its weight, if each slice of that is made of the master's while this is in the cache."""
        weight = None if made is None else self._weights.lease([made], "overwrite", noted=False)[0].view(-1)
        at = 0
        try:
            for piece, its in slices(stepped, held, state, one.kept, casts):
                yield [piece], {piece: its} if stepped in self._states else {}
                if weight is not None:
                    weight[at:at + piece.numel()].copy_(piece.detach())
                at += piece.numel()
        finally:
            if weight is not None:
                weight[at:].copy_(stepped.detach().view(-1)[at:])  # nothing, but for a step that failed: its content is gone
                self._made.add(id(one))

    def fetch(self) -> None:
        """Begins to fetch it: it comes next."""
        slots = [one.stepped_slot for one in self.members]
        slots += [held.terrace_slot for one in self.members for held in one.kept.values()]
        with contextlib.suppress(Error):  # a hint
            self._store.client.prefetch([slot.tensor for slot in slots], place=self._store.place)

    def check_gradients(self, name: str) -> None:
        """Raises where the step, of an optimizer with this name, has written to gradients: in its trial it has not."""
        if any(stepped.grad is not gradient or gradient._version != version for stepped, gradient, version in self._versions):
            raise FailedPrecondition(
                f"terrace.torch.offload(step='host'): the step of {name} writes to gradients, which it did not do in its trial: declare "
                "it with terrace.torch.declare(), and it is stepped before step() returns. This step's weights are of no use")

    def write_back(self) -> None:
        """Makes weights, and casts of them, anew of what was stepped. States that the step has replaced go where they were."""
        for stepped, leased in zip(self._stepped, self._shown, strict=True):
            state = self._states.get(stepped, {})
            for name, shown in leased.items():
                value = state.get(name)
                if value is not shown and type(value) is torch.Tensor and has_geometry_of(value, shown):
                    shown.copy_(value)
                    state[name] = shown
        masters = [one for one in self.members if one.master is not None and id(one) not in self._made]
        shown = self._weights.lease([one.managed.slot for one in masters], "overwrite", noted=False)
        of = dict(zip(map(id, masters), shown, strict=True))
        shown.clear()
        with torch.no_grad():
            for one, stepped in zip(self.members, self._stepped, strict=True):
                value = stepped.detach()
                if one.master is None:
                    write_casts_of(one.managed, value)
                else:
                    if (target := of.pop(id(one), None)) is not None:
                        target.copy_(value if value.device == target.device else value.to(target.dtype))
                    one.master.note_same()
                    one.master.note_written()
        wait_for_stream(self._weights.device)  # who has waited for this uses the weights in a stream of its own
        self.done = True

    def leave(self) -> None:
        """Ends the leases: the step has what it was shown in lists until it comes to the next. Keeps what it has made of
        states that are in memory. Who waits for it goes on, if it is done."""
        self._versions.clear()
        for one, stepped, leased in zip(self.members, self._stepped, self._shown, strict=False):
            state = self._states.get(stepped, {})
            for name, shown in leased.items():
                if state.get(name) is shown:
                    state[name] = one.kept[name]
                set_data(shown, shown.new_empty(0))
            if self.done:
                if stepped in self._states and not self._has_state_of(one):
                    as_they_are(self._of.optimizer.state)[one.weight] = one.state
                one.keep(state)
            gradient, stepped.grad = stepped.grad, None
            for tensor in (stepped,) if gradient is None else (stepped, gradient):
                set_data(tensor, tensor.new_empty(0))
            one.gradient = None
        for gradient in self._gradients:
            set_data(gradient, gradient.new_empty(0))
        self._stepped, self._states, self._shown, self._gradients = [], defaultdict(dict), [], []
        if self.update is not None and self.done:
            self.update.finish()

    def give_up(self) -> None:
        """It was not stepped."""
        for one in self.members:
            one.gradient = None
            one.restore()

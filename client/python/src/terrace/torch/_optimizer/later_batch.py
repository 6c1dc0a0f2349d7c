# SPDX-License-Identifier: Apache-2.0
"""What a step that goes on in a thread of its own is at: parameters of its own over leased memory, with gradients and states."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..._errors import Error
from .._device.streams import wait_for_stream
from .._leased.slot import Slot
from .._leased.updates import Update
from .._parameters.casts import write_casts_of
from .._parameters.masters import Master
from .._parameters.parameter import ManagedParameter
from .._pytorch.bits import same_bits
from .._pytorch.private import set_data
from .._tensors.offloaded import OffloadedTensor
from .slices import can_be_sliced, slices
from .states import States


_COUNT = "step"  # of PyTorch's optimizers, which each step makes one more


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

    def note_stepped(self) -> None:
        """It counts as stepped from now on: what was saved of it is of the weights before, and the script, which may have its
        count of steps, finds that to be of this one."""
        self.managed.noticed_write()
        self.managed.writes += 1
        self.counts = {name: value.clone() for name, value in self.state.items() if type(value) is torch.Tensor}
        if _COUNT in self.counts:
            self.state[_COUNT].add_(1)

    def keep_counts(self, counts: dict[str, Any]) -> None:
        """Has the state be what the step has made of what of it is in memory."""
        for name, value in counts.items():
            theirs = self.state.get(name)
            if name in self.counts and theirs is not None and not same_bits(theirs, value):
                theirs.data.copy_(value)  # not as a write by the script
            elif name not in self.counts and name not in self.kept:
                self.state[name] = value


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
        self._store, self._weights = states.own_store, states.store
        self._stepped: list[nn.Parameter] = []
        self._states: list[dict[str, Any]] = []
        self._gradients: list[torch.Tensor] = []  # as they are leased

    @property
    def slots(self) -> list[Slot]:
        """All that is read or written."""
        return [slot for member in self.members for slot in member.slots]

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
            self._stepped.append(nn.Parameter(next(shown)))
            self._states.append(one.state | one.counts | {name: next(shown) for name in one.kept})
        self._gradients += [next(shown) if isinstance(one.gradient, OffloadedTensor) else _alias(one.gradient) for one in members]

    def shown(self, by_element: bool) -> Iterator[dict[nn.Parameter, dict[str, Any]]]:
        """What the step is to step, one after the other: parameters with their gradients, and the state of each.

        by_element: the step treats each element by itself, in one kernel after the other: it is given large ones in slices.
        """
        whole: dict[nn.Parameter, dict[str, Any]] = {}
        for one, stepped, state, held in zip(self.members, self._stepped, self._states, self._gradients, strict=True):
            apart = one.master is not None and held.device != stepped.device
            if by_element and not apart and can_be_sliced(stepped, held, state, one.kept):
                yield from (dict([each]) for each in slices(stepped, held, state, one.kept))
            else:
                stepped.grad = held if one.master is None else one.master.made_for_step(held)
                whole[stepped] = state
        if whole:
            yield whole

    def fetch(self) -> None:
        """Begins to fetch it: it comes next."""
        slots = [one.stepped_slot for one in self.members]
        slots += [held.terrace_slot for one in self.members for held in one.kept.values()]
        with contextlib.suppress(Error):  # a hint
            self._store.client.prefetch([slot.tensor for slot in slots], place=self._store.place)

    def write_back(self) -> None:
        """Makes weights, and casts of them, anew of what was stepped."""
        masters = [one for one in self.members if one.master is not None]
        shown = self._weights.lease([one.managed.slot for one in masters], "overwrite", noted=False)
        of = dict(zip(map(id, masters), shown, strict=True))
        shown.clear()
        with torch.no_grad():
            for one, stepped in zip(self.members, self._stepped, strict=True):
                value = stepped.detach()
                if one.master is None:
                    write_casts_of(one.managed, value)
                else:
                    target = of.pop(id(one))
                    target.copy_(value if value.device == target.device else value.to(target.dtype))
                    one.master.note_same()
                    one.master.note_written()
        wait_for_stream(self._weights.device)  # who has waited for this uses the weights in a stream of its own
        self.done = True

    def leave(self) -> None:
        """Ends the leases: the step has what it was shown in lists until it comes to the next. Keeps what it has made of
        states that are in memory. Who waits for it goes on, if it is done."""
        for one, stepped, state in zip(self.members, self._stepped, self._states, strict=False):
            for name in one.kept:
                set_data(state[name], state[name].new_empty(0))
            if self.done:
                one.keep_counts(state)
            gradient, stepped.grad = stepped.grad, None
            for tensor in (stepped,) if gradient is None else (stepped, gradient):
                set_data(tensor, tensor.new_empty(0))
            one.gradient = None
        for gradient in self._gradients:
            set_data(gradient, gradient.new_empty(0))
        self._stepped, self._states, self._gradients = [], [], []
        if self.update is not None and self.done:
            self.update.finish()

    def give_up(self) -> None:
        """It was not stepped."""
        for one in self.members:
            one.gradient = None
            one.keep_counts(one.counts)

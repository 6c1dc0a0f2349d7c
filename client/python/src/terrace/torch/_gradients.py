# SPDX-License-Identifier: Apache-2.0
"""Gradients in Terrace: autograd accumulates into leased memory, and `.grad` leases when it is used."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from ._lazy import OffloadedTensor

if TYPE_CHECKING:
    from ._parameters import ManagedParameter
    from ._slot import Slot

_raw = torch._C.DisableTorchFunctionSubclass
_queue = torch.autograd.Variable._execution_engine.queue_callback


class Gradient:
    """The gradient of one parameter. A gradient that the script has set itself is the script's, and left alone."""

    def __init__(self, managed: ManagedParameter, slot: Slot):
        self._reference = weakref.ref(managed)
        self._slots = [slot]
        self._fresh = False  # there was none before this accumulation
        self._attached: tuple[OffloadedTensor, torch.Tensor] | None = None  # what .grad was, and what it is meanwhile
        self._watched = False

    @property
    def _managed(self) -> ManagedParameter:
        found = self._reference()
        assert found is not None  # the parameter, which called us, has it
        return found

    def watch(self) -> None:
        """Hooks the parameter, which requires a gradient."""
        if self._watched:
            return
        self._watched = True
        parameter = self._managed.parameter
        with _raw():
            parameter.register_hook(self._before)
            parameter.register_post_accumulate_grad_hook(self._after)

    def slot_of_step(self) -> Slot:
        """A place for a new gradient: the script may have kept the one before."""
        for slot in self._slots:
            if not slot.lazies and not slot.shown:
                return slot
        store = self._managed.store
        first = self._slots[0]
        made = store.create([(f"{first.name}/{len(self._slots)}", first.owner, first.placeholder)])
        self._slots += made
        return made[0]

    def _before(self, _incoming: torch.Tensor) -> None:
        """Autograd is about to accumulate, or to hand the gradient to whoever asked for it."""
        parameter = self._managed.parameter
        with _raw():
            held: Any = parameter.grad
            self._fresh = held is None
            if type(held) is OffloadedTensor and self._attached is None:
                (shown,) = held.terrace_store.lease([held.terrace_slot], "write")
                self._attached = (held, shown)
                parameter.grad = shown
                _queue(self._detach)

    def _after(self, parameter: torch.Tensor) -> None:
        """Autograd has accumulated."""
        if self._attached is not None:
            self._detach()
            return
        with _raw():
            made = parameter.grad
        if not self._fresh or made is None or not self._offloadable(made):
            return
        self._fresh = False
        store = self._managed.store
        slot = self.slot_of_step()
        store.unneeded.discard(slot)
        (shown,) = store.lease([slot], "overwrite")
        shown.copy_(made)
        with _raw():
            parameter.grad = OffloadedTensor.of(slot, store)

    def _offloadable(self, made: torch.Tensor) -> bool:
        """Whether it is an ordinary tensor as the optimizer is going to want it: not sparse, and without a graph."""
        geometry = self._slots[0].placeholder
        return (type(made) is torch.Tensor and not made.requires_grad and made.layout == torch.strided
                and made.dtype == geometry.dtype and made.stride() == geometry.stride())

    def _detach(self) -> None:
        """Lets .grad be what it was, once what it was is accumulated into."""
        if self._attached is None:
            return
        held, shown = self._attached
        self._attached = None
        parameter = self._managed.parameter
        with _raw():
            if parameter.grad is shown:
                parameter.grad = held

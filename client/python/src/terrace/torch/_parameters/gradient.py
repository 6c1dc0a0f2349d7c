# SPDX-License-Identifier: Apache-2.0
"""Gradients in Terrace: autograd accumulates into leased memory, and `.grad` leases when it is used."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..._errors import FailedPrecondition
from .._pytorch.private import call_at_end, raw
from .._tensors.offloaded import OffloadedTensor, SpentTensor

if TYPE_CHECKING:
    from .._leased.slot import Slot
    from .._leased.store import Store
    from .like import Like


_SPENT = ("this gradient was used while it was at hand, and is not kept. What needs all gradients before the step "
          "(clipping, a GradScaler, looking at them) cannot be had with it; a GradScaler has stepped with what it "
          "scaled, so that this step's weights are of no use. Offload without step_in_backward")
_SPENT_AGAIN = ("a second gradient of a parameter before optimizer.zero_grad(). Gradient accumulation, and reentrant "
                "checkpointing of blocks that share weights, need all gradients before the step: offload without "
                "step_in_backward. Where another model's backward pass only comes by, as a generator's through its "
                "discriminator, have these weights not require gradients meanwhile (requires_grad_(False))")
_AT_ONCE = ("two threads' backward passes have come to this parameter at once: when one steps it, the other would go on "
            "with another weight. Run one after the other, or offload without step_in_backward")
_CHANGED = ("the backward pass has stepped it with its gradient, which was dropped, replaced or set to zero before "
            "optimizer.step(). What changes gradients before the step cannot be had with step_in_backward; this step's "
            "weights are of no use")
_WRITTEN = ("was written to, or given to a function that writes in place, between the backward pass, which has stepped it, "
            "and optimizer.step(), which was to step what is written: write before the backward pass or after the step, "
            "or offload without step_in_backward; this step's weights are of no use")
_NOT_KEPT = ("optimizer.step() would step it once more with a gradient that an earlier step has used, and that is not "
             "kept: call optimizer.zero_grad() after each step, or offload without step_in_backward")


class Room:
    """Where the gradients of one parameter go."""

    def __init__(self, like: Like, slots: list[Slot]):
        self._like = like
        self.slots = slots

    def reserve(self, store: Store) -> None:
        """Makes a slot, so that it is not missing later."""
        if not self.slots:
            self._make(store)

    def take(self, store: Store, made: torch.Tensor) -> OffloadedTensor:
        """Moves a gradient to Terrace."""
        slot = self._free_slot(store)
        store.need(slot)
        (shown,) = store.lease([slot], "overwrite")
        shown.copy_(made)
        return OffloadedTensor.of(slot, store)

    def _free_slot(self, store: Store) -> Slot:
        """The script may have kept the gradient before."""
        for slot in self.slots:
            if not slot.lazies and not slot.shown:
                return slot
        return self._make(store)

    def _make(self, store: Store) -> Slot:
        like = self._like
        (made,) = store.create([(f"{like.name}/grad{len(self.slots)}", like.owner, like.placeholder)])
        self.slots.append(made)
        return made

    def fits(self, made: torch.Tensor) -> bool:
        """Whether it is an ordinary tensor as the optimizer is going to want it: not sparse, and without a graph."""
        geometry = self._like.placeholder
        return (type(made) is torch.Tensor and not made.requires_grad and made.layout == torch.strided
                and made.dtype == geometry.dtype and made.device == geometry.device
                and made.shape == geometry.shape and made.stride() == geometry.stride())


@dataclasses.dataclass(slots=True)
class SteppedAs:
    """How a parameter was as a backward pass had stepped it, before the optimizer.step() that this is part of."""

    writes: int  # the parameter's
    version: int  # the parameter's, which whoever writes to it changes
    replaced: bool = False  # all of the parameter was written since, so that nothing is left of that step


class Gradient:
    """The gradient of one parameter. A gradient that the script has set itself is the script's, and left alone."""

    def __init__(self, parameter: nn.Parameter, store: Store, room: Room | None,
                 step: Callable[[nn.Parameter, torch.Tensor], bool] | None = None):
        """room: None: it stays in memory. step: steps the parameter with the gradient, in this backward pass or not at
        all; whether it does."""
        self._reference = weakref.ref(parameter)
        self._store = store
        self._room = room
        self.sum_in: torch.dtype | None = None  # it is added up in this type, pass by pass; None: as autograd does
        self._before_pass: torch.Tensor | None = None  # what was added up so far
        self.widened = False  # it may be of a wider type than autograd makes it, as a GradScaler unscales it
        self._wide: Room | None = None  # where it goes then
        self._step = step
        self._lock = threading.RLock()  # of what follows: passes in other threads accumulate, too
        self._begun: list[tuple[int, int]] = []  # passes that are about to accumulate: which, and in which thread
        self._passes = 0  # counts them
        self._fresh = False  # there was none before they accumulate
        self._attached: tuple[OffloadedTensor, torch.Tensor] | None = None  # what .grad was, and what it is meanwhile
        self._watched = False
        self._handles: list[Any] = []
        self._zeroed = False  # it was used up, and then set to zero
        self._zeros: SpentTensor | None = None  # in whose place there are zeros, while optimizer.step() is under way
        self.ahead: SteppedAs | None = None  # the parameter was stepped, and its optimizer.step() is yet to come

    @property
    def slots(self) -> list[Slot]:
        """Where it has been in Terrace."""
        return [slot for room in (self._room, self._wide) if room is not None for slot in room.slots]

    @property
    def in_backward(self) -> bool:
        """Whether the parameter is stepped in the backward pass."""
        return self._step is not None

    def step_with(self, step: Callable[[nn.Parameter, torch.Tensor], bool]) -> None:
        """Another optimizer steps the parameter in the backward pass."""
        self._step = step

    def reserve(self) -> None:
        """Makes the gradient's slot, where it is to have one: the parameter may have been unfrozen."""
        if self._room is not None and not self.in_backward:
            self._room.reserve(self._store)

    def take_wide(self, like: Like, made: torch.Tensor, in_terrace: bool) -> torch.Tensor:
        """What `.grad` is to be for a gradient that was made of a wider type."""
        if self._room is None or not in_terrace:
            return made
        if self._room.fits(made):
            return self._room.take(self._store, made)
        if self._wide is None:
            self._wide = Room(like, [])
        return self._wide.take(self._store, made) if self._wide.fits(made) else made

    @property
    def _parameter(self) -> nn.Parameter:
        found = self._reference()
        assert found is not None  # it called us
        return found

    def watch(self) -> None:
        """Hooks the parameter, which requires a gradient."""
        if self._watched:
            return
        self._watched = True
        parameter: Any = self._parameter
        with raw():
            self._handles = [parameter.register_hook(self._before),
                             parameter.register_post_accumulate_grad_hook(self._after)]

    def unwatch(self) -> None:
        """Undoes watch()."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched = False

    def _before(self, incoming: torch.Tensor) -> torch.Tensor | None:
        """Autograd is about to accumulate, or to hand the gradient to whoever asked for it."""
        with self._lock:
            thread = threading.get_ident()
            if self._step is not None and any(where != thread for _, where in self._begun):
                raise FailedPrecondition(f"terrace.torch.offload(step_in_backward=True): {_AT_ONCE}")
            self._passes += 1
            self._begun.append((self._passes, thread))
            call_at_end(_End(self, self._passes))
            if len(self._begun) == 1:
                self._prepare()
        if self.sum_in is None or incoming.dtype == self._parameter.dtype:
            return None
        return incoming.to(self._parameter.dtype)  # as autograd has it where a gradient may not be of any type

    def _prepare(self) -> None:
        """Has .grad be what autograd can accumulate into."""
        parameter = self._parameter
        if self.sum_in is not None:
            with raw():
                self._before_pass, parameter.grad = parameter.grad, None
            return
        self._zeroed = self.widened and self._narrow(parameter)
        with raw():
            held: Any = parameter.grad
            self._fresh = held is None
            self._zeroed |= type(held) is SpentTensor and held.terrace_zeroed
            if self._zeroed:
                parameter.grad = None
                self._fresh = True
            elif type(held) is SpentTensor:
                raise FailedPrecondition(f"terrace.torch.offload(step_in_backward=True): {_SPENT_AGAIN}")
            if type(held) is OffloadedTensor and self._attached is None:
                (shown,) = held.terrace_store.lease([held.terrace_slot], "write")
                self._attached = (held, shown)
                parameter.grad = shown

    def _narrow(self, parameter: nn.Parameter) -> bool:
        """Has gradients be of the parameter's type again, where one that was made of a wider type was dropped, or set to
        zero: whether it was set to zero. Else it is added to as it is."""
        held = parameter.grad
        if held is not None and bool(held.count_nonzero()):
            return False
        with raw():
            parameter.grad = None
            parameter.grad_dtype = parameter.dtype
        self.widened = False
        return held is not None

    def _after(self, _parameter: torch.Tensor) -> None:
        """Autograd has accumulated."""
        self._store.steps.gradient()
        thread = threading.get_ident()
        with self._lock:
            which = next((which for which, where in reversed(self._begun) if where == thread), 0)
            self._leave(which)

    def _leave(self, which: int) -> None:
        """A pass has accumulated. The last of those that are about to has .grad be what it is to be."""
        self._begun = [begun for begun in self._begun if begun[0] != which]
        if self._begun:
            return
        if self.sum_in is not None:
            self._add_up(self._parameter, self.sum_in)
        elif self._attached is not None:
            self._detach()
        else:
            self._keep(self._parameter)

    def _add_up(self, parameter: nn.Parameter, dtype: torch.dtype) -> None:
        """Adds what a pass has made to what is there, in a wider type."""
        held: Any = self._before_pass
        with raw():
            made = parameter.grad
        if made is None:
            total = held
        elif held is None:
            total = made.to(dtype)
            if self._room is not None and self._room.fits(total):
                total = self._room.take(self._store, total)
        elif made.requires_grad or made.layout != torch.strided or held.layout != torch.strided or held.dtype != dtype:
            total = held.to(dtype) + made
        else:
            total = held
            shown = (held.terrace_store.lease([held.terrace_slot], "write")[0] if type(held) is OffloadedTensor else held)
            with torch.no_grad():
                shown.add_(made)
        with raw():
            parameter.grad = total
        self._before_pass = None

    def _keep(self, parameter: nn.Parameter) -> None:
        with raw():
            made = parameter.grad
        if not self._fresh or made is None or self._room is None or not self._room.fits(made):
            return
        self._fresh = False
        if self._zeroed:
            with torch.no_grad():
                made.add_(0.0)  # as to a gradient of zeros: a negative zero becomes a positive one
        if self._step is not None and self._step(parameter, made):
            with raw():
                parameter.grad = SpentTensor.of(made, f"terrace.torch.offload(step_in_backward=True): {_SPENT}")
            return
        held = self._room.take(self._store, made)
        with raw():
            parameter.grad = held

    def left_to_step(self, stepped: bool) -> bool:
        """Whether optimizer.step() itself is to step the parameter: with a gradient that the backward pass could not step
        with, as it is sparse or the script's own, or with one that was set to zero.

        stepped: a backward pass has stepped it, since the last optimizer.step(). FailedPrecondition where the step would
        be another one without step_in_backward.
        """
        parameter = self._parameter
        with raw():
            held = parameter.grad
        spent = held if type(held) is SpentTensor else None
        used = spent is not None and not spent.terrace_zeroed
        if stepped != used:
            raise FailedPrecondition(
                f"terrace.torch.offload(step_in_backward=True): the parameter '{parameter.terrace.name}': "  # type: ignore[attr-defined]
                f"{_CHANGED if stepped else _NOT_KEPT}")
        if used and self._written_since():
            raise FailedPrecondition(
                f"terrace.torch.offload(step_in_backward=True): the parameter "
                f"'{parameter.terrace.name}' {_WRITTEN}")  # type: ignore[attr-defined]
        if spent is not None and not used:
            with raw():
                parameter.grad = torch.zeros_like(spent, memory_format=torch.contiguous_format)
            self._zeros = spent
        return held is not None and not used

    def _written_since(self) -> bool:
        """Whether somebody wrote to the parameter since the backward pass stepped it."""
        parameter: Any = self._parameter
        with raw():
            now = (parameter.terrace.writes, parameter._version)
        return self.ahead is not None and now != (self.ahead.writes, self.ahead.version)

    def step_is_over(self) -> None:
        """Gives up the zeros that the step was given."""
        zeros, self._zeros = self._zeros, None
        if zeros is not None:
            with raw():
                self._parameter.grad = zeros

    def _detach(self) -> None:
        """Lets .grad be what it was, once what it was is accumulated into."""
        attached, self._attached = self._attached, None
        parameter = self._reference()
        if attached is None or parameter is None:
            return
        held, shown = attached
        with raw():
            if parameter.grad is shown:
                parameter.grad = held

    def end(self, which: int, *, failed: bool) -> None:
        """A pass has ended that was about to accumulate, and may not have."""
        with self._lock:
            if not any(begun[0] == which for begun in self._begun):
                return
            if not failed and self._reference() is not None:
                self._leave(which)
                return
            self._begun = [begun for begun in self._begun if begun[0] != which]
            if not self._begun:
                self._detach()
                self._forget_pass()

    def _forget_pass(self) -> None:
        """A pass has failed: what was added up before it is there again."""
        held, self._before_pass = self._before_pass, None
        parameter = self._reference()
        if held is not None and parameter is not None:
            with raw():
                parameter.grad = held


class _End:
    """What autograd calls at the end of a pass, and drops where there is none: a pass that fails must not leave the
    gradient leased that it was about to accumulate into."""

    def __init__(self, gradient: Gradient, which: int):
        self._gradient = gradient
        self._which = which

    def __call__(self) -> None:
        self._gradient.end(self._which, failed=False)

    def __del__(self) -> None:
        self._gradient.end(self._which, failed=True)

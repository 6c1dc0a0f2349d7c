# SPDX-License-Identifier: Apache-2.0
"""This rank's shard of a parameter that is split over ranks (a DTensor): what belongs to it in its job, and its gradient.

A split parameter is referred to by whatever has it in the model, and never weakly: what moves a module swaps it for another
one, and PyTorch cannot swap what is referred to weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._device.streams import current_stream, has_streams, use_in
from .._pytorch.private import raw
from .._pytorch.split import is_split, local_of, split_as
from .gradient import Room

if TYPE_CHECKING:
    from .._leased.slot import Slot
    from .._leased.store import Store
    from .like import Like

Reference = Callable[[], nn.Parameter | None]  # gives a parameter, for as long as the model has it


class ShardGradient:
    """The shard of one parameter's gradient, which goes to Terrace as soon as it was made."""

    in_backward = False  # what is split is stepped by optimizer.step() alone
    ahead = None

    def __init__(self, reference: Reference, store: Store, room: Room | None):
        """room: None: it stays in memory."""
        self._reference = reference
        self._store = store
        self._room = room
        self.sum_in: torch.dtype | None = None  # it is added up in this type, pass by pass; None: in the parameter's
        self.widened = False  # it may be of a wider type than the parameter's, as a GradScaler unscales it
        self._wide: Room | None = None  # where it goes then
        self._zeroed = False  # it was of a wider type, and then set to zero
        self._handle: Any = None

    def watch(self) -> None:
        """Takes gradients from now on, if the parameter has any. FSDP calls these hooks itself."""
        parameter = self._reference()
        if parameter is not None and parameter.requires_grad and not self._is_hook_of(parameter):
            hook: Any = parameter.register_post_accumulate_grad_hook
            self._handle = hook(self._after)

    def unwatch(self) -> None:
        """Undoes watch()."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _is_hook_of(self, parameter: nn.Parameter) -> bool:
        """What moves a module swaps the parameter's hooks for those of another one."""
        return self._handle is not None and self._handle.id in (parameter._post_accumulate_grad_hooks or {})

    def begin(self) -> None:
        """A pass begins: has gradients be of the parameter's type again, where one that was made of a wider type was dropped
        or set to zero. Else it is added to as it is."""
        parameter = self._reference()
        if not self.widened or parameter is None:
            return
        held = parameter.grad
        if held is None or not bool(local_of(held).count_nonzero()):
            self._zeroed = held is not None
            with raw():
                parameter.grad = None
                parameter.grad_dtype = parameter.dtype
            self.widened = False

    def take_wide(self, like: Like, made: torch.Tensor, in_terrace: bool) -> torch.Tensor:
        """What `.grad` is to be for a gradient that was made of a wider type. like: of the shard, in that type."""
        if self._room is not None and in_terrace:
            if self._wide is None:
                self._wide = self._room if self._room.fits(local_of(made)) else Room(like, [])
            self._take(self._wide, made)
        return made

    def _after(self, parameter: torch.Tensor) -> None:
        self._store.steps.gradient()
        made = parameter.grad
        if made is None or not is_split(made):
            return
        if self._zeroed:
            with torch.no_grad():
                local_of(made).add_(0.0)  # as to a gradient of zeros: a negative zero becomes a positive one
            self._zeroed = False
        if self.sum_in is not None and made.dtype != self.sum_in:
            made = self._widen(parameter, made, self.sum_in)
        if self._room is not None:
            self._take(self._room, made)

    @staticmethod
    def _widen(parameter: Any, made: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        with torch.no_grad(), raw():
            wide: torch.Tensor = split_as(made, local_of(made).to(dtype))
            parameter.grad_dtype = None  # any
            parameter.grad = wide
        return wide

    def _take(self, room: Room, made: Any) -> None:
        local = made._local_tensor
        if room.fits(local):
            if has_streams(local.device):
                use_in(local, current_stream(local.device))  # FSDP may have made it in another one, and goes without it now
            made._local_tensor = room.take(self._store, local)


class ManagedShard:
    """This rank's shard of one parameter: its slot in Terrace, and whether it is shown. That of a parameter that FSDP gathers
    never is."""

    def __init__(self, reference: Reference, slot: Slot, store: Store, gradient: ShardGradient):
        self.reference = reference
        self.slot = slot
        self.store = store
        self.gradient = gradient
        self.casts: dict[torch.dtype | None, Any] = {}  # its ShardCasts, by what it is cast to
        self.uses = 0  # that are under way
        self._hidden: Any = None  # the local tensor otherwise
        self._shown: Any = None  # and meanwhile
        self._seen = (0, 0)  # their versions
        slot.shard = weakref.ref(self)
        self._steps = 0  # that wrote to it, of which the version need not tell

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter. It is there: nothing asks for one that is gone."""
        found = self.reference()
        assert found is not None
        return found

    @property
    def gone(self) -> bool:
        """Whether the model has lost it."""
        return self.reference() is None

    @property
    def aliased(self) -> bool:
        """Whether something shows it, and may write to it unseen."""
        return self.slot.shown

    @property
    def aliases(self) -> int:
        """Uses that something outlived."""
        return self.slot.aliases

    @property
    def writes(self) -> int:
        """To it, that the parameter's version need not tell of."""
        return self._steps + self.slot.writes

    def show(self, shown: torch.Tensor) -> None:
        """Has the parameter be over leased memory from now on."""
        found: Any = self.parameter
        self._hidden, found._local_tensor = found._local_tensor, shown
        self._shown, self._seen = shown, (found._version, shown._version)

    def hide(self) -> None:
        """Has it lease whenever it is used from now on."""
        found: Any = self.reference()
        hidden, shown, self._hidden, self._shown = self._hidden, self._shown, None, None
        if found is None or found._local_tensor is not shown:
            return
        found._local_tensor = hidden
        if (found._version, shown._version) != self._seen:
            self.stepped()
            self.store.may_be_written(self.slot)
        del shown
        if self.slot.shown:
            self.store.may_be_written_to_later(self.slot)

    def stepped(self) -> None:
        """A step has written to what it was shown of it."""
        self._steps += 1

    def noticed_write(self) -> None:
        """Bytes were written by another way than the parameter: autograd is to know."""
        torch.autograd.graph.increment_version(self.parameter)


def enter_shards(store: Store, shards: Sequence[ManagedShard]) -> None:
    """Shows shards, which are leased as one set. One leave_shards() each."""
    counted: list[ManagedShard] = []
    try:
        with store.showing:
            hidden = [one for one in shards if not one.uses]
        shown = store.lease([one.slot for one in hidden]) if hidden else []
        with store.showing:
            for one, tensor in zip(hidden, shown, strict=True):
                if not one.uses:
                    one.show(tensor)
            for one in shards:
                one.uses += 1
                counted.append(one)
    except BaseException:
        leave_shards(counted)
        raise
    for one in shards:
        one.gradient.watch()  # it may have been unfrozen
        one.gradient.begin()


def leave_shards(shards: Sequence[ManagedShard]) -> None:
    """Ends a use of each."""
    for one in shards:
        with one.store.showing:
            one.uses -= 1
            if not one.uses:
                one.hide()

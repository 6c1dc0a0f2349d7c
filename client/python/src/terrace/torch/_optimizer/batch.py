# SPDX-License-Identifier: Apache-2.0
"""What one round of an optimizer's step is at: some parameters with their gradients and states, leased meanwhile."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..._errors import Error
from .._leased.shown import owner_of
from .._parameters.casts import write_casts
from .._parameters.masters import Masters
from .._parameters.parameter import ManagedParameter, enter, leave
from .._parameters.shard_casts import ShardCast, write_casts_of
from .._pytorch.private import raw
from .._pytorch.split import is_split
from .._tensors.offloaded import LeasedParameter, OffloadedTensor
from . import kinds
from .holders import AsGradient, Holder, InDTensor, holder_of
from .kept import kept_in
from .masters import MastersOfBatch, OfWeight
from .states import States


AnyHolder = Holder | OfWeight


def _holder_of_gradient(parameter: nn.Parameter, masters: Masters) -> AnyHolder:
    master = masters.master_of(parameter)
    if master is None:
        return holder_of(parameter.grad, AsGradient(parameter))
    held = OfWeight(master)
    whole = held.get()
    return InDTensor(whole) if is_split(whole) else held


def _whole(holder: AnyHolder, tensor: torch.Tensor) -> torch.Tensor:
    """What the version of which tells of writes to a tensor."""
    return holder.whole if isinstance(holder, InDTensor) else tensor


def _references(_holder: Any, held: Any, _tensor: Any) -> int:
    """To what stood for a state, while that is put back."""
    return sys.getrefcount(held)


_OF_ITS_STATE = _references(*deque([(None, object(), None)])[0])  # where nothing else has it


def _is_alike(value: Any, tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor of the same geometry."""
    return (type(value) is torch.Tensor and value.layout == torch.strided and value.shape == tensor.shape
            and value.stride() == tensor.stride() and value.dtype == tensor.dtype and value.device == tensor.device)


class Batch:
    """Parameters with their gradients and states, leased for one round of the step."""

    def __init__(self, states: States, parameters: Sequence[nn.Parameter], stepped: Callable[[ManagedParameter], None],
                 keeps: bool):
        """stepped: is told of each parameter in Terrace, as the round has written to it. keeps: the step may come back to
        what it was shown."""
        self._states = states
        self._stepped = stepped
        self._store = states.own_store
        self._weights = states.store
        self.parameters = parameters
        with raw():  # what has no gradient is leased if it is used all the same
            self._leased = [parameter for parameter in parameters if states.masters.own(parameter).grad is not None]
        self._managed = [managed for parameter in self._leased if (managed := states.managed_of(parameter)) is not None]
        self._shards = [shard for parameter in self._leased if (shard := states.shard_of(parameter)) is not None]
        self._masters = MastersOfBatch(states.store, states.masters, self._leased, keeps, stepped)
        self._written: deque[tuple[Holder, OffloadedTensor, torch.Tensor]] = deque()  # states, and shards of parameters
        self._gradients: deque[tuple[AnyHolder, OffloadedTensor, torch.Tensor, torch.Tensor, int]] = deque()
        self._addresses: list[int] = []  # of the parameters in Terrace, while they are shown
        self._writes_gradients = False
        self._entered = False

    def enter(self) -> None:
        """Leases all of it as one set, and shows it where the step looks."""
        read = self._masters.begin()
        with raw():
            found = [one for parameter in self._leased for one in self._offloaded(parameter)]
            gradients = [(holder, held) for parameter in self._leased
                         if isinstance(held := (holder := _holder_of_gradient(parameter, self._states.masters)).get(),
                                       OffloadedTensor)]
        self._writes_gradients = kinds.writes_gradients_unseen(self._states.optimizer)
        modes = (["write"] * len(found) + ["write" if self._writes_gradients else "read"] * len(gradients)
                 + ["read"] * len(read))
        slots = [held.terrace_slot for _, held in (*found, *gradients)]
        if self._store is self._weights:
            shown = enter(self._store, self._managed, slots + read, "write", modes)
        else:
            shown = enter(self._store, self._managed, slots, "write", modes[:len(slots)])
        self._entered = True
        try:
            if self._store is not self._weights:
                shown += self._weights.lease(read)
            self._show(found, gradients, shown)
        except BaseException:
            shown.clear()
            self.leave()  # who entered it does not come to that
            raise

    def _show(self, found: Sequence[tuple[Holder, OffloadedTensor]], gradients: Sequence[tuple[AnyHolder, OffloadedTensor]],
              shown: Sequence[torch.Tensor]) -> None:
        """Puts what is leased where the step looks. shown: it, of states, then of gradients, then what masters asked for."""
        with raw():
            for (holder, held), tensor in zip(found, shown, strict=False):
                holder.put(tensor)
                self._written.append((holder, held, tensor))
            for (holder, held), tensor in zip(gradients, shown[len(found):], strict=False):
                holder.put(tensor)
                seen = _whole(holder, tensor)
                self._gradients.append((holder, held, tensor, seen, seen._version))
            for managed in self._managed:
                managed.parameter.__class__ = nn.Parameter  # to choose its kernels the step asks for this very type
            self._addresses = [managed.parameter.data_ptr() for managed in self._managed]
        self._masters.show(shown[len(found) + len(gradients):])

    def _offloaded(self, parameter: nn.Parameter) -> Iterator[tuple[Holder, OffloadedTensor]]:
        """What is in Terrace of a parameter's states, and of this rank's part of it, and where it belongs."""
        if is_split(parameter) and isinstance(parameter._local_tensor, OffloadedTensor):
            yield InDTensor(parameter), parameter._local_tensor
        for holder, _, held in kept_in(self._states.state_of(parameter)):
            if isinstance(held, OffloadedTensor):
                yield holder, held

    def leave(self) -> None:
        """Puts everything back, and moves to Terrace what the step has made."""
        if not self._entered:
            return
        refused = None
        masters, cast = self._masters.shards(), [one for one in self._shards if one.casts]
        shown = self._store.lease(masters)  # goes on until other forms are made of them
        shards = self._weights.lease([one.slot for one in cast])
        written: list[ShardCast] = []
        try:
            try:
                self._put_back()
            except KeyboardInterrupt:
                self._put_back()  # what is left of it
                raise
            refused = self._keep_replaced()
        finally:
            try:
                self._masters.write_back()
            finally:
                for managed in self._managed:
                    managed.writes += 1
                    self._stepped(managed)
                    if managed.uses > 1 and not managed.compiled:
                        managed.parameter.__class__ = LeasedParameter
                for shard in self._shards:
                    shard.stepped()
                try:
                    write_casts(self._managed)
                    written += write_casts_of(cast, shards)
                finally:
                    self._entered = False
                    leave(self._managed)
            shown.clear()
            shards.clear()
            self._masters.note_left()
            for form in written:
                form.note_same()
        self._states.adopt(self.parameters)
        if refused is not None:
            raise refused

    def _put_back(self) -> None:
        """Ends the leases of gradients and states. An interrupt may come at any point: it is called again then."""
        with raw():
            while self._gradients:
                holder, held, tensor, seen, version = self._gradients[0]
                if self._writes_gradients or seen._version != version:
                    held.terrace_store.written(held.terrace_slot)
                if holder.get() is tensor:
                    holder.put(held)
                self._end_lease(held, tensor)
                self._gradients.popleft()
        self._masters.put_back_gradients(self._writes_gradients)
        while self._written:
            self._put_back_state(*self._written[0])
            self._written.popleft()

    def _put_back_state(self, holder: Holder, held: OffloadedTensor, tensor: torch.Tensor) -> None:
        """A step may have put another tensor in a state's place. It goes where that was, unless something has that yet."""
        value = holder.get()
        if value is not tensor and _is_alike(value, tensor) and sys.getrefcount(held) == _OF_ITS_STATE:
            tensor.copy_(value)
            value = tensor
        if value is tensor:
            holder.put(held)
        self._end_lease(held, tensor)

    @staticmethod
    def _end_lease(held: OffloadedTensor, shown: torch.Tensor) -> None:
        """A step has what it was shown in lists until it comes to the next batch, which is leased before that."""
        owner = owner_of(shown)
        if owner is not None and owner() is held.terrace_slot:
            OffloadedTensor.take_place_of(shown, held.terrace_slot, held.terrace_store)

    def _keep_replaced(self) -> Error | None:
        """Takes over what a step has put in the place of parameters (`p.data = ...`); what could not be."""
        refused = None
        for managed, address in zip(self._managed, self._addresses, strict=False):
            try:
                managed.keep_replaced(address)
            except Error as error:  # the others are to be put back in any case
                refused = refused or error
        return refused

# SPDX-License-Identifier: Apache-2.0
"""What of an optimizer is in Terrace: the states that it keeps of each parameter."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn, optim

from ..._errors import FailedPrecondition, InvalidArgument
from .._leased.placeholder import elements_spanned
from .._leased.shown import owner_of
from .._leased.slot import Slot, copy_bits, dtype_in_terrace, nobody
from .._leased.place import Place
from .._leased.store import Store
from .._parameters.in_memory import ParameterInMemory
from .._parameters.like import Like
from .._parameters.masters import Masters, Wanted
from .._parameters.parameter import ManagedParameter, is_kept_part
from .._parameters.shard import ManagedShard
from .._pytorch.storages import users_of
from .._ranks.shards import Shards
from .._tensors.offloaded import OffloadedTensor
from . import kinds
from .holders import Holder, InAttribute, InDTensor
from .kept import Path, is_made_of_tensors, kept_in, made_anew
from .trace import said_of
from .waiting import as_they_are

_OTHERS_BYTES_MIN = 4096
_Copied = tuple[Callable[[], Any], OffloadedTensor]  # a reference to a state, and what stands for it in Terrace


class States:
    """Those of one optimizer."""

    def __init__(self, optimizer: optim.Optimizer, store: Store, shards: Shards, in_memory: Sequence[ParameterInMemory],
                 parts: frozenset[str], bytes_min: int, masters: Masters):
        """in_memory: the parameters that stay there. parts: of PARTS, those that are in Terrace. masters: the job's."""
        self._reference = weakref.ref(optimizer)
        self.store = store  # of the weights and their gradients
        self.own_store = store if masters.host is None else masters.host  # of the states, and of what is stepped
        self.masters = masters
        self._shards = shards
        self._in_memory = {id(one.parameter): one for one in in_memory}
        self._parts = parts
        self._of_itself = ("parameters" in parts) + ("gradients" in parts)  # tensors in Terrace, beside the states
        self._bytes_min = bytes_min
        self._reserved: dict[tuple[int, Path], Slot] = {}
        self._slots: list[Slot] = []  # of all states

    @property
    def optimizer(self) -> optim.Optimizer:
        """The script's optimizer. FailedPrecondition where the script has it no more."""
        found = self._reference()
        if found is None:
            raise FailedPrecondition(
                "terrace.torch.offload: the optimizer that this model was offloaded with is gone, and no other one steps "
                "in its place: keep it for as long as the model is trained, or call terrace.torch.offload(model, "
                "optimizer, step_in_backward=True) with the new one")
        return found

    @property
    def gone(self) -> bool:
        """Whether the script has the optimizer no more."""
        return self._reference() is None

    def know(self, in_memory: Iterable[ParameterInMemory]) -> None:
        """There are more parameters that stay in memory."""
        self._in_memory |= {id(one.parameter): one for one in in_memory}

    def managed_of(self, parameter: nn.Parameter) -> ManagedParameter | None:
        """What belongs to a parameter, if it is in Terrace."""
        managed: ManagedParameter | None = parameter.__dict__.get("terrace")
        return managed if managed is not None and managed.store in (self.store, self.own_store) else None

    def shard_of(self, parameter: nn.Parameter) -> ManagedShard | None:
        """What belongs to this rank's shard of a parameter, if that is in Terrace."""
        return self._shards.shard_of(parameter)

    def like_of(self, parameter: nn.Parameter) -> Like | None:
        """What the states of a parameter, or of this rank's shard of it, are made like, if the job has it."""
        parameter = self.masters.own(parameter)
        master = self.masters.of(parameter)
        return self._own_like(parameter) if master is None else master.like

    def _own_like(self, parameter: nn.Parameter) -> Like | None:
        managed = self.managed_of(parameter)
        if managed is not None:
            return managed.slot
        in_memory = self._in_memory.get(id(parameter))
        if in_memory is not None and in_memory.stands_for(parameter):
            return in_memory.like
        return self._shards.slot_of(parameter)

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """The optimizer's state of a parameter; empty before its first step."""
        state: dict[str, Any] = as_they_are(self.optimizer.state).get(self.masters.own(parameter), {})
        return state

    def stepped_as(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """What the optimizer's step sees in the place of parameters: of each its master, if it has one. One that was
        unfrozen, or added to a group, is given one where it is to be stepped."""
        if not self.masters:
            return list(parameters)
        found = list(parameters)
        late = [one for one in found if self.masters.wants(one) and one.grad is not None]
        if late:
            self.make_masters(late)
            self.masters.accumulate_wide()
        seen = [self.masters.stepped_as(one) for one in found]
        for one, stepped in zip(found, seen, strict=True):
            if stepped is not one:
                vars(stepped).update(said_of(one))
        return seen

    def make_masters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Makes masters of these parameters."""
        self.masters.make([Wanted(one, self._shards.reference_to(one) or weakref.ref(one),
                                  self.managed_of(one) or self._in_memory.get(id(one)) or self.shard_of(one),
                                  self._own_like(one)) for one in parameters])

    def make_all_masters(self) -> None:
        """Makes those of all parameters that are to have one and have none."""
        if self.masters:
            self.make_masters([one for group in self.optimizer.param_groups for one in group["params"]
                               if self.masters.wants(one)])

    def widen_gradients(self) -> None:
        """Has the gradients of what has masters, or is to have, be of the masters' type until they are dropped."""
        parameters = [one for group in self.optimizer.param_groups for one in group["params"]]
        self.stepped_as(parameters)
        for one in parameters:
            master = self.masters.of(one)
            if master is not None:
                master.widened()

    def reserve(self) -> None:
        """Makes room for the states that there are going to be and have none, so that it is not missing later."""
        if "states" not in self._parts:
            return
        keys: list[tuple[int, Path]] = []
        wanted: list[tuple[str, str, torch.Tensor]] = []
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                of = self.like_of(parameter)
                if of is None:
                    continue
                for key in kinds.states(self.optimizer, group, of.placeholder.dim()):
                    if (id(parameter), (key,)) in self._reserved:
                        continue
                    keys.append((id(parameter), (key,)))
                    wanted.append((f"{of.name}/{key}", of.owner, self._made_like(of)))
        if wanted:
            made = self.own_store.create(wanted)
            self._slots += made
            self._reserved |= dict(zip(keys, made, strict=True))

    def largest(self, store: Store, place: Place) -> tuple[int, str]:
        """Bytes of the largest set of a store that a step must lease at once in one of its places, and the parameter's name."""
        found = [(self._leased_from(store, parameter, of, of.room_bytes * self._named(group, of)), of.name)
                 for group in self.optimizer.param_groups for parameter in group["params"]
                 if (of := self.like_of(parameter)) is not None and store.place_on(of.placeholder.device) is place]
        return max(found, default=(0, ""))

    def _leased_from(self, store: Store, parameter: nn.Parameter, of: Like, states_bytes: int) -> int:
        master = self.masters.of(self.masters.own(parameter))
        if self.own_store is self.store or master is None:
            return self._leased_bytes(parameter, of, states_bytes)
        if store is self.store:
            return master.weight_room_bytes("gradients" in self._parts)
        return master.master_room_bytes + states_bytes

    def _named(self, group: dict[str, Any], of: Like) -> int:
        """How many states of a parameter like this are in Terrace, of those that are named."""
        return len(kinds.states(self.optimizer, group, of.placeholder.dim())) if "states" in self._parts else 0

    def leased_in(self, group: dict[str, Any]) -> Callable[[nn.Parameter], int]:
        """What gives the bytes that a step leases of a parameter of a group, with its gradient and its states; 0 of what
        the job does not have."""
        more = kinds.may_keep_more(self.optimizer)

        def leased(parameter: nn.Parameter) -> int:
            of = self.like_of(parameter)
            if of is None:
                return 0
            states_bytes = of.room_bytes * self._named(group, of)
            return self._leased_bytes(parameter, of, max(states_bytes, self._states_bytes(parameter)) if more else states_bytes)

        return leased

    @staticmethod
    def _made_like(of: Like) -> torch.Tensor:
        """What the states of a parameter that are known by name are made like: each is of its shape and type."""
        return of.placeholder

    def _leased_bytes(self, parameter: nn.Parameter, of: Like, states_bytes: int) -> int:
        """What a parameter takes where it is leased: with its master, its gradient, and states of so many bytes. of: what
        these are made like."""
        master = self.masters.of(self.masters.own(parameter))
        itself = of.room_bytes * self._of_itself if master is None else master.room_bytes("gradients" in self._parts)
        return itself + states_bytes

    def _states_bytes(self, parameter: nn.Parameter) -> int:
        """What those states of a parameter take, where they are leased, that are in Terrace."""
        return sum(held.terrace_slot.room_bytes for _, _, held in kept_in(self.state_of(parameter))
                   if isinstance(held, OffloadedTensor))

    def adopt(self, parameters: Sequence[nn.Parameter], copied: dict[int, _Copied] | None = None) -> None:
        """Moves to Terrace the states of parameters that are in memory. Who has one beside them has what is there.

        copied: who has one beside them, as a state dict that was loaded, keeps what it has. These are the states, by id,
            that were moved so, of which several parameters may have one; more are added.
        """
        for holder, of, where, held in self._in_memory_states(parameters):
            if copied is None:
                self._take(holder, of, where, held)
                continue
            before, made = copied.get(id(held), (nobody, None))
            if made is None or before() is not held:
                made = OffloadedTensor.of(self._moved(of, where, held), self.own_store)
                copied[id(held)] = weakref.ref(held), made
            holder.put(made)

    def _take(self, holder: Holder, of: Like, where: tuple[int, Path], held: torch.Tensor) -> None:
        _check_not_shown(of, ".".join(where[1]), held)
        slot = self._moved(of, where, held)
        if held.requires_grad or held._is_view() or isinstance(holder, InAttribute | InDTensor):  # its whole may come to it by C++
            holder.put(OffloadedTensor.of(slot, self.own_store))
        else:
            OffloadedTensor.take_place_of(held, slot, self.own_store)
            if holder.get() is not held:
                holder.put(held)

    def adopt_all(self) -> None:
        """Moves to Terrace the states that are in memory. If there are any, none is the script's too from then on."""
        copied: dict[int, _Copied] = {}
        self._make_anew()
        for group in self.optimizer.param_groups:
            self.adopt(group["params"], copied)
        if copied:
            kinds.make_states_own(self.optimizer)

    def _make_anew(self) -> None:
        """Of states that are made of other tensors, has the optimizer have its own: a state dict that was loaded goes on
        having those that it has."""
        for group in self.optimizer.param_groups if "states" in self._parts else ():
            for parameter in group["params"]:
                state = self.state_of(parameter)
                for key, value in state.items():
                    if is_made_of_tensors(value) and self.like_of(parameter) is not None:
                        state[key] = made_anew(value)

    def _in_memory_states(
            self, parameters: Sequence[nn.Parameter]) -> Iterator[tuple[Holder, Like, tuple[int, Path], torch.Tensor]]:
        """Those that are to be in Terrace, each with what holds it, what it is like, and whose it is under which name."""
        for parameter in parameters if "states" in self._parts else ():
            of = self.like_of(parameter)
            if of is None:
                continue
            for holder, path, held in list(kept_in(self.state_of(parameter))):
                if isinstance(held, OffloadedTensor) and held.terrace_store is not self.own_store:
                    held = held.clone()  # of another job: from now on this one's own
                if _can_be_moved(of, held, self._bytes_min):
                    yield holder, of, (id(self.masters.own(parameter)), path), held

    def bring_down(self) -> Callable[[], None]:
        """Has the states that there are on a GPU be on the CPU, where the step is the CPU's. What undoes it."""
        before: list[tuple[Holder, Any]] = []

        def undo() -> None:
            for holder, value in before:
                holder.put(value)

        for state in self.optimizer.state.values() if self.own_store is not self.store else ():
            for holder, _, held in list(kept_in(state)) if isinstance(state, dict) else ():
                if held.device != self.own_store.device:
                    before.append((holder, held))
                    holder.put(held.to(self.own_store.device))
        return undo

    def give_back(self) -> None:
        """Brings the states back that were moved to Terrace."""
        for state in self.optimizer.state.values():
            for holder, _, held in list(kept_in(state)) if isinstance(state, dict) else ():
                if isinstance(held, OffloadedTensor) and held.terrace_store is self.own_store:
                    holder.put(held.clone())

    def let_go(self) -> bool:
        """Deletes what its states are in, but for what the script has kept of them. Whether it has."""
        kept = [slot for slot in self._slots if slot.lazies or slot.shown]
        self.own_store.forget(set(self._slots).difference(kept))
        self._slots = kept
        self._reserved.clear()
        return bool(kept)

    def _moved(self, of: Like, where: tuple[int, Path], value: torch.Tensor) -> Slot:
        """Where a state is in Terrace from now on."""
        slot = self._reserved.get(where)
        if slot is not None and not slot.lazies and not slot.shown and not _has_geometry_of(slot, value):
            self._slots.remove(slot)
            self.own_store.forget([slot])
            slot = None
        if slot is None or slot.lazies or slot.shown:
            (slot,) = self.own_store.create([(f"{of.name}/{'.'.join(where[1])}", of.owner, value)])
            self._slots.append(slot)
        self._reserved[where] = slot  # for what is loaded in its place
        self.own_store.need(slot)
        (shown,) = self.own_store.lease([slot], "overwrite")
        copy_bits(shown, value)
        return slot


def _can_be_moved(of: Like, value: torch.Tensor, bytes_min: int) -> bool:
    """Whether a state is one to move: an ordinary tensor with its memory to itself, that is not too small. Of another size
    than the parameter's are counts, and tables that optimizers share."""
    least = bytes_min if value.numel() == of.placeholder.numel() else max(bytes_min, _OTHERS_BYTES_MIN)
    if (type(value) is not torch.Tensor or value.layout != torch.strided or value.nbytes < least
            or value.device != of.placeholder.device or not _is_known(value.dtype)
            or elements_spanned(value.shape, value.stride()) != value.numel()):
        return False
    if owner_of(value) is not None:  # it shows what is leased
        return True
    return users_of(value) == 1 + value._is_view() and not is_kept_part(value)


@functools.cache
def _is_known(dtype: torch.dtype) -> bool:
    """Whether elements of a type can be in Terrace."""
    try:
        dtype_in_terrace(dtype)
    except InvalidArgument:
        return False
    return True


def _check_not_shown(of: Like, key: str, value: torch.Tensor) -> None:
    """Raises for a state that is the memory of a parameter."""
    owner = owner_of(value)
    slot = owner() if isinstance(owner, weakref.ref) else None
    if isinstance(slot, Slot) and slot.parameter is not None:
        raise FailedPrecondition(
            f"terrace.torch.offload: the state '{key}' of the parameter '{of.name}' is the memory of '{slot.name}' itself (.data, "
            ".detach() or a view), and would not change with it any more once both are in Terrace: clone() what is kept, or "
            "use the parameter in its place")


def _has_geometry_of(slot: Slot, value: torch.Tensor) -> bool:
    geometry = slot.placeholder
    return bool(geometry.stride() == value.stride() and geometry.shape == value.shape and geometry.dtype == value.dtype)

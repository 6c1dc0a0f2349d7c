# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps over leased memory: PyTorch's own step, given its parameters batch by batch.

A hook of the step hands the step, in the optimizer's place, an object that is the optimizer but for its parameter
groups: these are leased, batch by batch, as the step comes to them. So the step runs PyTorch's own kernels, schedulers
and GradScaler find everything where they expect it, and other hooks run when they would.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim

from .._errors import Error, FailedPrecondition
from . import _optimizers, _scaling
from ._due import DUE_BYTES_MAX, DUE_PARTS, DueParameters
from ._lazy import LeasedParameter, OffloadedTensor
from ._locals import is_split
from ._managed import owner_of
from ._modes import check_not_compiled
from ._parameters import ManagedParameter, enter, leave
from ._places import AsGradient, InDTensor, InState, Place, place_of
from ._slot import Slot

if TYPE_CHECKING:
    from ._gradients import Gradient
    from ._parts import Like, ParameterInMemory
    from ._shards import Shards
    from ._store import Store

BATCH_BYTES_MAX = 256 << 20
_IN_BACKWARD = "terrace.torch.offload(step_in_backward=True)"
_COMPILED = ("the step of an offloaded optimizer was compiled, or is run by compiled code, in which nothing can be leased: "
             "call optimizer.step() as it is; it runs PyTorch's fused or foreach kernels")
_raw = torch._C.DisableTorchFunctionSubclass


_managed: weakref.WeakKeyDictionary[optim.Optimizer, ManagedOptimizer] = weakref.WeakKeyDictionary()


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """A group's hyperparameters, as they are now."""
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in group.items() if name != "params"}


def unwrapped(optimizer: Any) -> Any:
    """The optimizer that steps: of Accelerate's wrapper what is in it."""
    while type(optimizer).__name__ == "AcceleratedOptimizer" and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def managed_optimizer(optimizer: optim.Optimizer) -> ManagedOptimizer | None:
    """What belongs to an offloaded optimizer; None for another one."""
    return _managed.get(unwrapped(optimizer))


class _Batch:
    """Parameters with their gradients and states, leased for one round of the step."""

    def __init__(self, owner: ManagedOptimizer, parameters: Sequence[nn.Parameter]):
        self._owner = owner
        self._store = owner.store
        self.parameters = parameters
        self._managed = [managed for parameter in parameters if (managed := owner.managed_of(parameter)) is not None]
        self._written: list[tuple[Place, OffloadedTensor, torch.Tensor]] = []  # states, and shards of parameters
        self._gradients: list[tuple[Place, OffloadedTensor, torch.Tensor, torch.Tensor, int]] = []
        self._addresses: list[int] = []  # of the parameters in Terrace, while they are shown
        self._entered = False

    def enter(self) -> None:
        """Leases all of it, and shows it where the step looks."""
        found = [one for parameter in self.parameters for one in self._offloaded(parameter)]
        shown = enter(self._store, self._managed, [held.terrace_slot for _, held in found], "write")
        self._entered = True
        for (place, held), tensor in zip(found, shown, strict=True):
            place.put(tensor)
            self._written.append((place, held, tensor))
        with _raw():
            for managed in self._managed:
                managed.parameter.__class__ = nn.Parameter  # to choose its kernels the step asks for this very type
            self._addresses = [managed.parameter.data_ptr() for managed in self._managed]
            self._enter_gradients()

    def _offloaded(self, parameter: nn.Parameter) -> Iterator[tuple[Place, OffloadedTensor]]:
        """What is in Terrace of a parameter's states, and of this rank's part of it, and where it belongs."""
        if is_split(parameter) and isinstance(parameter._local_tensor, OffloadedTensor):
            yield InDTensor(parameter), parameter._local_tensor
        state = self._owner.state_of(parameter)
        for key, value in state.items():
            if isinstance(value, OffloadedTensor):
                yield InState(state, key), value
            elif is_split(value) and isinstance(value._local_tensor, OffloadedTensor):
                yield InDTensor(value), value._local_tensor

    def _enter_gradients(self) -> None:
        places = [place_of(parameter.grad, AsGradient(parameter)) for parameter in self.parameters]
        offloaded = [(place, held) for place in places if isinstance(held := place.get(), OffloadedTensor)]
        shown = self._store.lease([held.terrace_slot for _, held in offloaded])
        for (place, held), tensor in zip(offloaded, shown, strict=True):
            place.put(tensor)
            seen = place.whole if isinstance(place, InDTensor) else tensor  # whose version tells of writes
            self._gradients.append((place, held, tensor, seen, seen._version))

    def leave(self) -> None:
        """Puts everything back, and moves to Terrace what the step has made."""
        if not self._entered:
            return
        writes = _optimizers.writes_gradients_unseen(self._owner.optimizer)
        with _raw():
            for place, held, tensor, seen, version in self._gradients:
                if writes or seen._version != version:
                    self._store.written(held.terrace_slot)
                if place.get() is tensor:
                    place.put(held)
                self._end_lease(held, tensor)
        self._gradients.clear()
        for place, held, tensor in self._written:
            value = place.get()
            if value is None or value is tensor or not _optimizers.state_like(tensor, value, 0):
                pass
            elif value.stride() == tensor.stride():
                tensor.copy_(value)
                value = tensor
            if value is tensor:
                place.put(held)
            self._end_lease(held, tensor)
        self._written.clear()
        refused = self._keep_replaced()
        for managed in self._managed:
            managed.writes += 1
            self._owner.note_ahead(managed)
            if managed.uses > 1 and not managed.compiled:
                managed.parameter.__class__ = LeasedParameter
        leave(self._managed)
        self._owner.adopt(self.parameters)
        if refused is not None:
            raise refused

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


class ManagedOptimizer:
    """An optimizer whose states live in Terrace."""

    def __init__(self, optimizer: optim.Optimizer, store: Store, shards: Shards, in_memory: Sequence[ParameterInMemory],
                 parts: frozenset[str], bytes_min: int, in_backward: bool):
        """in_memory: the parameters that stay there. parts: of PARTS, those that are in Terrace."""
        self.in_backward = in_backward  # parameters in Terrace are stepped as their gradients come
        self._reference = weakref.ref(optimizer)
        self.store = store
        self._shards = shards
        self._in_memory = {id(one.parameter): one for one in in_memory}
        self._parts = parts
        self._of_itself = ("parameters" in parts) + ("gradients" in parts)  # tensors in Terrace, beside the states
        self._bytes_min = bytes_min
        self._stepped: Callable[[], None] = lambda: None
        self._ahead: list[Gradient] = []  # of parameters that were stepped before the step() that they are part of
        self._stepped_now: set[int] = set()  # parameters, by id, that were stepped in backward since the last step()
        self._group_of: dict[int, int] = {}  # that each parameter, by id, is in, since the first of those was stepped
        self._options_used: dict[int, dict[str, Any]] = {}  # by group: what they were stepped with
        self._reserved: dict[tuple[int, str], Slot] = {}
        self._slots: list[Slot] = []  # of all states
        self._proxy_class = _proxy_class(type(optimizer), weakref.ref(self))
        self.batch_bytes = max(1, min(store.guarantee_bytes // 4, BATCH_BYTES_MAX))
        self._due = DueParameters(max(1, min(store.guarantee_bytes // DUE_PARTS, DUE_BYTES_MAX)))

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

    def managed_of(self, parameter: nn.Parameter) -> ManagedParameter | None:
        """What belongs to a parameter, if it is in Terrace."""
        managed: ManagedParameter | None = parameter.__dict__.get("terrace")
        return managed if managed is not None and managed.store is self.store else None

    def like_of(self, parameter: nn.Parameter) -> Like | None:
        """What the states of a parameter, or of this rank's shard of it, are made like, if the job has it."""
        managed = self.managed_of(parameter)
        if managed is not None:
            return managed.slot
        in_memory = self._in_memory.get(id(parameter))
        if in_memory is not None and in_memory.stands_for(parameter):
            return in_memory.like
        return self._shards.slot_of(parameter)

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """The optimizer's state of a parameter; empty before its first step."""
        state: dict[str, Any] = self.optimizer.state.get(parameter, {})
        return state

    def reserve(self) -> None:
        """Makes room for the states that there are going to be, so that it is not missing later."""
        if "states" not in self._parts:
            return
        keys: list[tuple[int, str]] = []
        wanted: list[tuple[str, str, torch.Tensor]] = []
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                of = self.like_of(parameter)
                if of is None:
                    continue
                for key in _optimizers.states(self.optimizer, group):
                    keys.append((id(parameter), key))
                    wanted.append((f"{of.name}/{key}", of.owner, of.placeholder))
        if wanted:
            self._slots = self.store.create(wanted)
            self._reserved = dict(zip(keys, self._slots, strict=True))

    def largest(self) -> tuple[int, str]:
        """Bytes of the largest set that a step must lease at once, and the parameter's name."""
        found = [(of.nbytes * self._tensors_of(group), of.name)
                 for group in self.optimizer.param_groups for parameter in group["params"]
                 if (of := self.like_of(parameter)) is not None]
        return max(found, default=(0, ""))

    def _tensors_of(self, group: dict[str, Any]) -> int:
        """Of each parameter, what is in Terrace of itself, its gradient, and its states that are named."""
        states = len(_optimizers.states(self.optimizer, group)) if "states" in self._parts else 0
        return self._of_itself + states

    def _states_kept(self, parameter: nn.Parameter) -> int:
        """How many states of a parameter are in Terrace."""
        state = self.state_of(parameter)
        return sum(isinstance(place_of(value, InState(state, key)).get(), OffloadedTensor)
                   for key, value in state.items())

    def attach(self, stepped: Callable[[], None]) -> None:
        """Runs the optimizer's steps over leased memory from now on. stepped: called after each."""
        self._stepped = stepped
        optimizer = self.optimizer
        _managed[optimizer] = self
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_load_state_dict_post_hook(self._after_load)
        if self.in_backward:
            _scaling.refuse_for(self)

    def adopt(self, parameters: Sequence[nn.Parameter]) -> None:
        """Moves to Terrace the states of parameters that are in memory."""
        for parameter in parameters if "states" in self._parts else ():
            of = self.like_of(parameter)
            if of is None:
                continue
            state = self.state_of(parameter)
            for key, value in list(state.items()):
                place = place_of(value, InState(state, key))
                held = place.get()
                if isinstance(held, OffloadedTensor) and held.terrace_store is not self.store:
                    held = held.clone()  # of another job: from now on this one's own
                if _optimizers.state_like(of.placeholder, held, self._bytes_min):
                    place.put(self._moved(of, self._reserved.get((id(parameter), key)), key, held))

    def give_back(self) -> None:
        """Brings the states back that were moved to Terrace."""
        for state in self.optimizer.state.values():
            for key, value in list(state.items()):
                place = place_of(value, InState(state, key))
                held = place.get()
                if isinstance(held, OffloadedTensor) and held.terrace_store is self.store:
                    place.put(held.clone())

    def let_go(self) -> bool:
        """Deletes the places of its states, but for what the script has kept of them. Whether it has."""
        kept = [slot for slot in self._slots if slot.lazies or slot.shown]
        self.store.forget(set(self._slots).difference(kept))
        self._slots = kept
        self._reserved.clear()
        return bool(kept)

    def _moved(self, of: Like, slot: Slot | None, key: str, value: torch.Tensor) -> OffloadedTensor:
        geometry = None if slot is None else slot.placeholder
        if (slot is None or geometry is None or slot.lazies or slot.shown or geometry.stride() != value.stride()
                or geometry.shape != value.shape or geometry.dtype != value.dtype):
            (slot,) = self.store.create([(f"{of.name}/{key}", of.owner, value)])
            self._slots.append(slot)
        self.store.unneeded.discard(slot)
        (shown,) = self.store.lease([slot], "overwrite")
        shown.copy_(value)
        return OffloadedTensor.of(slot, self.store)

    def step_soon(self, parameter: nn.Parameter, gradient: torch.Tensor) -> bool:
        """Steps a parameter, whose gradient has come, in this backward pass. Whether it is one of the optimizer's."""
        groups = self.optimizer.param_groups
        if not self._stepped_now:
            self._group_of = {id(one): index for index, group in enumerate(groups) for one in group["params"]}
        if id(parameter) not in self._group_of:
            return False
        if id(parameter) in self._stepped_now:
            raise FailedPrecondition(f"{_IN_BACKWARD}: optimizer.step() was left out after a backward pass, which has "
                                     "stepped already; offload without step_in_backward to leave steps out")
        self._stepped_now.add(id(parameter))
        self._due.add(parameter, gradient, self._step_due, self._leave_out)
        return True

    def note_ahead(self, managed: ManagedParameter) -> None:
        """A parameter was stepped. In a backward pass that is before its time: what was saved of it is of the weights
        before."""
        if self.in_backward and managed.gradient is not None:
            managed.gradient.ahead_at = managed.writes
            with _raw():
                managed.gradient.ahead_version = managed.parameter._version
            self._ahead.append(managed.gradient)

    def _leave_out(self, parameters: Sequence[nn.Parameter]) -> None:
        self._stepped_now.difference_update(map(id, parameters))

    def _step_due(self, parameters: Sequence[nn.Parameter]) -> None:
        for index in {self._group_of[id(one)] for one in parameters}:
            self._options_used.setdefault(index, _options(self.optimizer.param_groups[index]))
        step = type(self.optimizer).step
        getattr(step, "__wrapped__", step)(self._proxy(parameters))  # without the hooks, which are for the script's own step

    def groups(self, only: Sequence[nn.Parameter] | None = None) -> Iterator[dict[str, Any]]:
        """The parameter groups as a step sees them: in batches, each leased while the step is at it.

        only: of these, those that are stepped with their gradients at hand.
        """
        self.store.drop_unneeded()
        for group, members in self._members(only):
            for parameters in self._batches(members, group):
                batch = _Batch(self, parameters)
                part = {**group, "params": parameters}
                try:
                    batch.enter()
                    yield part
                finally:
                    batch.leave()
                self._check_unwritten(part, group)

    def _check_unwritten(self, part: dict[str, Any], group: dict[str, Any]) -> None:
        """Raises where a step wrote to its group, of which it had a part."""
        missing = object()
        for key in part.keys() | group.keys():
            if key != "params" and part.get(key, missing) is not group.get(key, missing):
                raise FailedPrecondition(
                    f"terrace.torch.offload: the step of {type(self.optimizer).__name__} wrote '{key}' to its "
                    "parameter group, which it is shown in parts, so that this would happen once a part: keep it in self.state "
                    "of each parameter. The parameters of this part are stepped, and the others are not")

    def _members(self, only: Sequence[nn.Parameter] | None) -> Iterator[tuple[dict[str, Any], list[nn.Parameter]]]:
        for index, group in enumerate(self.optimizer.param_groups):
            if only is None:
                yield group, self.members_of(group, None)
            elif members := [one for one in only if self._group_of[id(one)] == index]:
                yield group, members

    def members_of(self, group: dict[str, Any], only: Sequence[nn.Parameter] | None) -> list[nn.Parameter]:
        """Which parameters of a group a step is to see; only: as in groups()."""
        if only is not None:
            wanted = {id(one) for one in only}
            return [one for one in group["params"] if id(one) in wanted]
        return [one for one in group["params"] if not self.in_backward or self.managed_of(one) is None]

    def _batches(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> Iterator[list[nn.Parameter]]:
        if len(parameters) == 1:  # as a large one is that is stepped in backward
            yield parameters
            return
        batch: list[nn.Parameter] = []
        total, named = 0, self._tensors_of(group)
        more = _optimizers.may_keep_more(self.optimizer)
        for parameter in parameters:
            of = self.like_of(parameter)
            tensors = max(named, self._of_itself + self._states_kept(parameter)) if more else named
            size = 0 if of is None else of.nbytes * tensors
            if batch and total + size > self.batch_bytes:
                yield batch
                batch, total = [], 0
            batch.append(parameter)
            total += size
        if batch:
            yield batch

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if hasattr(type(optimizer), "terrace_proxy"):
            return None  # a step that calls its base class's
        check_not_compiled(_COMPILED)
        used, self._options_used = self._options_used, {}
        for index, before in used.items():
            now = _options(self.optimizer.param_groups[index])
            changed = [name for name in now if name in before and now[name] != before[name]]
            if changed:
                raise FailedPrecondition(
                    f"{_IN_BACKWARD}: {', '.join(changed)} changed after the backward pass, which has stepped with "
                    "what was there before it: change it before the backward pass, or offload without step_in_backward")
        return (self._proxy(None), *args[1:]), kwargs

    def _proxy(self, only: Sequence[nn.Parameter] | None) -> optim.Optimizer:
        proxy: Any = object.__new__(self._proxy_class)
        object.__setattr__(proxy, "terrace_only", only)
        proxy.__dict__ = self.optimizer.__dict__
        made: optim.Optimizer = proxy
        return made

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if hasattr(type(optimizer), "terrace_proxy"):
            return
        self._stepped_now.clear()
        while self._ahead:
            self._ahead.pop().ahead_at = None
        self._options_used.clear()  # of a backward pass within the step, in its closure
        self.store.steps.stepped()
        self._stepped()

    def _after_load(self, optimizer: Any) -> None:
        self._stepped_now.clear()  # what was stepped is of a training that goes on no more
        self._options_used.clear()
        for group in optimizer.param_groups:
            self.adopt(group["params"])


def _proxy_class(kind: type[optim.Optimizer], owner: weakref.ref[ManagedOptimizer]) -> type[optim.Optimizer]:
    """A class of what a step is given in its optimizer's place: the same, but for its groups."""

    def groups(proxy: Any) -> _Groups:
        found = owner()
        assert found is not None  # it waits for the step
        return _Groups(found, proxy.terrace_only)

    # The slot is the proxy's own; its __dict__ is the optimizer's.
    return type(kind.__name__, (kind,), {"param_groups": property(groups), "terrace_proxy": True,
                                         "__slots__": ("terrace_only",)})


class _Groups(Sequence[dict[str, Any]]):
    """What a step finds as `self.param_groups`."""

    def __init__(self, owner: ManagedOptimizer, only: Sequence[nn.Parameter] | None):
        self._owner = owner
        self._only = only

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._owner.groups(self._only)

    def __len__(self) -> int:
        return len(self._owner.optimizer.param_groups)

    def __getitem__(self, index: Any) -> Any:
        found = self._owner.optimizer.param_groups[index]
        if not isinstance(found, dict) or not self._owner.in_backward:
            return found
        return {**found, "params": self._owner.members_of(found, self._only)}

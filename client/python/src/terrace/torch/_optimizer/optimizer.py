# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps over leased memory: PyTorch's own step, given its parameters batch by batch.

A hook of the step hands the step, in the optimizer's place, an object that is the optimizer but for its parameter
groups: these are leased, batch by batch, as the step comes to them. So the step runs PyTorch's own kernels, schedulers
and GradScaler find everything where they expect it, and other hooks run when they would.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim

from ..._errors import FailedPrecondition
from .._leased.shown import owner_of
from .._leased.slot import Slot, nobody
from .._parameters.parameter import ManagedParameter
from .._pytorch.modes import check_not_compiled
from .._tensors.offloaded import OffloadedTensor
from . import kinds, scaling
from .due import DUE_BYTES_MAX, DUE_PARTS, DueParameters
from .groups import proxy_class
from .holders import InState, Place, place_of
from .own import Own
from .trace import trace

if TYPE_CHECKING:
    from .._leased.store import Store
    from .._parameters.gradient import Gradient
    from .._parameters.in_memory import ParameterInMemory
    from .._parameters.like import Like
    from .._ranks.shards import Shards

BATCH_BYTES_MAX = 256 << 20
_IN_BACKWARD = "terrace.torch.offload(step_in_backward=True)"
_COMPILED = ("the step of an offloaded optimizer was compiled, or is run by compiled code, in which nothing can be leased: "
             "call optimizer.step() as it is; it runs PyTorch's fused or foreach kernels")
_Copied = tuple[Callable[[], Any], OffloadedTensor]  # a reference to a state, and what stands for it in Terrace
_raw = torch._C.DisableTorchFunctionSubclass


_managed: weakref.WeakKeyDictionary[optim.Optimizer, ManagedOptimizer] = weakref.WeakKeyDictionary()


def _options(group: dict[str, Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    """A group's hyperparameters, as they are now."""
    return {name: trace(value) for name, value in group.items() if name != "params"}


def unwrapped(optimizer: Any) -> Any:
    """The optimizer that steps: of Accelerate's wrapper what is in it."""
    while type(optimizer).__name__ == "AcceleratedOptimizer" and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def managed_optimizer(optimizer: optim.Optimizer) -> ManagedOptimizer | None:
    """What belongs to an offloaded optimizer; None for another one."""
    return _managed.get(unwrapped(optimizer))


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
        self._left: list[Gradient] = []  # of parameters that step() itself is to step
        self._ahead: list[Gradient] = []  # of parameters that were stepped before the step() that they are part of
        self._stepped_now: set[int] = set()  # parameters, by id, that were stepped in backward since the last step()
        self._group_of: dict[int, int] = {}  # that each parameter, by id, is in, since the first of those was stepped
        self._options_used: dict[int, dict[str, tuple[list[Any], list[Any]]]] = {}  # by group: what they were stepped with
        self._left_as: dict[int, list[tuple[str, Any, Any]]] = {}  # by parameter: the states that backward has left
        self.waiting: deque[list[nn.Parameter]] = deque()  # what a step has not come to of the group that it is at
        self._reserved: dict[tuple[int, str], Slot] = {}
        self._slots: list[Slot] = []  # of all states
        self._proxy_class = proxy_class(type(optimizer), weakref.ref(self))
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
                for key in kinds.states(self.optimizer, group):
                    keys.append((id(parameter), key))
                    wanted.append((f"{of.name}/{key}", of.owner, of.placeholder))
        if wanted:
            self._slots = self.store.create(wanted)
            self._reserved = dict(zip(keys, self._slots, strict=True))

    def largest(self) -> tuple[int, str]:
        """Bytes of the largest set that a step must lease at once, and the parameter's name."""
        found = [(of.room_bytes * self._tensors_of(group), of.name)
                 for group in self.optimizer.param_groups for parameter in group["params"]
                 if (of := self.like_of(parameter)) is not None]
        return max(found, default=(0, ""))

    def _tensors_of(self, group: dict[str, Any]) -> int:
        """Of each parameter, what is in Terrace of itself, its gradient, and its states that are named."""
        states = len(kinds.states(self.optimizer, group)) if "states" in self._parts else 0
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
            scaling.refuse_for(self)

    def adopt(self, parameters: Sequence[nn.Parameter], copied: dict[int, _Copied] | None = None) -> None:
        """Moves to Terrace the states of parameters that are in memory. Who has one beside them has what is there.

        copied: who has one beside them, as a state dict that was loaded, keeps what it has. These are the states, by id,
            that were moved so, of which several parameters may have one; more are added.
        """
        for place, of, where, held in self._in_memory_states(parameters):
            if copied is None:
                self._take(place, of, where, held)
                continue
            before, made = copied.get(id(held), (nobody, None))
            if made is None or before() is not held:
                made = OffloadedTensor.of(self._moved(of, where, held), self.store)
                copied[id(held)] = weakref.ref(held), made
            place.put(made)

    def _take(self, place: Place, of: Like, where: tuple[int, str], held: torch.Tensor) -> None:
        _check_not_shown(of, where[1], held)
        slot = self._moved(of, where, held)
        if held.requires_grad or held._is_view():
            place.put(OffloadedTensor.of(slot, self.store))
        else:
            OffloadedTensor.take_place_of(held, slot, self.store)
            place.put(held)

    def adopt_all(self) -> None:
        """Moves to Terrace the states that are in memory. If there are any, none is the script's too from then on."""
        copied: dict[int, _Copied] = {}
        for group in self.optimizer.param_groups:
            self.adopt(group["params"], copied)
        if copied:
            kinds.make_states_own(self.optimizer)

    def _in_memory_states(
            self, parameters: Sequence[nn.Parameter]) -> Iterator[tuple[Place, Like, tuple[int, str], torch.Tensor]]:
        """Those that are to be in Terrace, each with its place, what it is like, and whose it is under which name."""
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
                if kinds.state_like(of.placeholder, held, self._bytes_min):
                    yield place, of, (id(parameter), key), held

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

    def _moved(self, of: Like, where: tuple[int, str], value: torch.Tensor) -> Slot:
        """Where a state is in Terrace from now on."""
        slot = self._reserved.get(where)
        if slot is not None and not slot.lazies and not slot.shown and not _has_geometry_of(slot, value):
            self._slots.remove(slot)
            self.store.forget([slot])
            slot = None
        if slot is None or slot.lazies or slot.shown:
            (slot,) = self.store.create([(f"{of.name}/{where[1]}", of.owner, value)])
            self._slots.append(slot)
        self._reserved[where] = slot  # for what is loaded in its place
        self.store.unneeded.discard(slot)
        (shown,) = self.store.lease([slot], "overwrite")
        shown.copy_(value)
        return slot

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
            managed.gradient.ahead_replaced = False
            with _raw():
                managed.gradient.ahead_version = managed.parameter._version
            self._ahead.append(managed.gradient)

    def _leave_out(self, parameters: Sequence[nn.Parameter]) -> None:
        self._stepped_now.difference_update(map(id, parameters))
        with _raw():
            for parameter in parameters:
                parameter.grad = None  # of a pass that has failed, nothing is kept

    def _step_due(self, parameters: Sequence[nn.Parameter]) -> None:
        for index in {self._group_of[id(one)] for one in parameters}:
            if index not in self._options_used:
                self._options_used[index] = _options(self.optimizer.param_groups[index])
        step = type(self.optimizer).step
        own = Own(self.optimizer) if kinds.may_keep_more(self.optimizer) else None
        getattr(step, "__wrapped__", step)(self._proxy(parameters))  # without the hooks, which are for the script's own step
        if own is not None and (changed := own.changed()):
            raise FailedPrecondition(
                f"{_IN_BACKWARD}: the step of {type(self.optimizer).__name__} changes {', '.join(changed)}, and is run "
                "for a few parameters at a time, so that this would happen many times a step: keep it in self.state of each "
                "parameter, or offload without step_in_backward. This step's weights are of no use")
        self._left_as |= {id(one): self._states_now(one) for one in parameters}

    def _states_now(self, parameter: nn.Parameter) -> list[tuple[str, Any, Any]]:
        """A parameter's states, and what tells of writes to them."""
        with _raw():
            return [(key, value, value.terrace_slot.writes if isinstance(value, OffloadedTensor) else
                     value._version if isinstance(value, torch.Tensor) else trace(value)[0])
                    for key, value in self.state_of(parameter).items()]

    def _has_states(self, parameter: nn.Parameter, left: Sequence[tuple[str, Any, Any]]) -> bool:
        """Whether they are as they were left."""
        now = self._states_now(parameter)
        return len(now) == len(left) and all(
            key == was and count == counted and (value is before or not isinstance(value, torch.Tensor))
            for (key, value, count), (was, before, counted) in zip(now, left, strict=True))

    def _check_left_as(self) -> None:
        """Raises where groups or states are not as the backward pass has left them, which has stepped with them."""
        left, self._left_as = self._left_as, {}
        members = {id(one): (index, one) for index, group in enumerate(self.optimizer.param_groups)
                   for one in group["params"]}
        for key, states in left.items():
            index, parameter = members.get(key, (-1, None))
            what = ("a parameter was taken out of its group, or put into another one" if index != self._group_of.get(key) else
                    "the optimizer's states of a parameter changed" if parameter is not None
                    and not self._has_states(parameter, states) else "")
            if what:
                self._forget_step()  # who goes on all the same can
                raise FailedPrecondition(
                    f"{_IN_BACKWARD}: {what} between the backward pass, which has stepped it, and optimizer.step(): do so "
                    "before the backward pass or after the step, or offload without step_in_backward. This step's weights "
                    "are of no use")

    def members(self, only: Sequence[nn.Parameter] | None) -> Iterator[tuple[dict[str, Any], list[nn.Parameter]]]:
        """The groups, each with what a step is to see of it. only: of these, those that are stepped with their gradients at
        hand."""
        self.store.drop_unneeded()
        for index, group in enumerate(self.optimizer.param_groups):
            yield group, (self.members_of(group, None) if only is None else
                          [one for one in only if self._group_of[id(one)] == index])

    def members_of(self, group: dict[str, Any], only: Sequence[nn.Parameter] | None) -> list[nn.Parameter]:
        """Which parameters of a group a step is to see; only: as in members()."""
        if only is not None:
            wanted = {id(one) for one in only}
            return [one for one in group["params"] if id(one) in wanted]
        return [one for one in group["params"] if not self.in_backward or self._is_left(one)]

    def _is_left(self, parameter: nn.Parameter) -> bool:
        """Whether optimizer.step() is to step a parameter, though parameters in Terrace are stepped in backward."""
        managed = self.managed_of(parameter)
        if managed is None or managed.gradient is None:
            return True
        try:
            left: bool = managed.gradient.left_to_step(id(parameter) in self._stepped_now)
        except FailedPrecondition:
            self._forget_step()  # who goes on all the same can
            raise
        if left:
            self._left.append(managed.gradient)
        return left

    def batches(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> Iterator[list[nn.Parameter]]:
        """Of a group, what is leased at once."""
        if len(parameters) == 1:  # as a large one is that is stepped in backward
            yield parameters
            return
        batch: list[nn.Parameter] = []
        total, named = 0, self._tensors_of(group)
        more = kinds.may_keep_more(self.optimizer)
        for parameter in parameters:
            of = self.like_of(parameter)
            tensors = max(named, self._of_itself + self._states_kept(parameter)) if more else named
            size = 0 if of is None else of.room_bytes * tensors
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
        self.waiting = deque()
        used, self._options_used = self._options_used, {}
        for index, before in used.items():
            now = _options(self.optimizer.param_groups[index])
            changed = [name for name in now if name in before and now[name][0] != before[name][0]]
            if changed:
                raise FailedPrecondition(
                    f"{_IN_BACKWARD}: {', '.join(changed)} changed after the backward pass, which has stepped with "
                    "what was there before it: change it before the backward pass, or offload without step_in_backward")
        self._check_left_as()
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
        self._forget_step()
        self.store.steps.stepped()
        self._stepped()
        if self.waiting:
            raise FailedPrecondition(
                f"terrace.torch.offload: the step of {type(self.optimizer).__name__} collects the parameters of a group before it "
                "steps them, so that it is shown the group in parts, and ended before the last of these: step each parameter "
                "in the loop over group['params']. Some parameters are stepped, and the others are not")

    def _forget_step(self) -> None:
        """Forgets what backward passes have stepped before a step, but for those that are under way in other threads."""
        self._stepped_now &= self._due.parameters()
        while self._ahead:
            self._ahead.pop().ahead_at = None
        while self._left:
            self._left.pop().step_is_over()
        self._options_used.clear()  # of a backward pass within the step, in its closure
        self._left_as.clear()

    def _after_load(self, optimizer: Any) -> None:
        self._stepped_now.clear()  # what was stepped is of a training that goes on no more
        self._left_as.clear()
        self._options_used.clear()
        self.adopt_all()


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

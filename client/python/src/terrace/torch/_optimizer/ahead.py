# SPDX-License-Identifier: Apache-2.0
"""What backward passes have stepped before the optimizer.step() that it is part of: it begins with the first gradient that
comes after a step, and ends with the next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn, optim

from ..._errors import FailedPrecondition
from .._parameters.gradient import Gradient, SteppedAs
from .._parameters.parameter import ManagedParameter
from .._pytorch.private import raw
from .._tensors.offloaded import OffloadedTensor
from . import kinds
from .once import OnceAStep
from .states import States
from .trace import trace

IN_BACKWARD = "terrace.torch.offload(step_in_backward=True)"

_Options = dict[str, tuple[list[Any], list[Any]]]
_StatesOf = dict[int, list[tuple[str, Any, Any]]]  # by parameter, by id


def _options(group: dict[str, Any]) -> _Options:
    """A group's hyperparameters, as they are now."""
    return {name: trace(value) for name, value in group.items() if name != "params"}


def _group_of(optimizer: optim.Optimizer) -> dict[int, int]:
    """The number of the group that each parameter, by id, is in."""
    return {id(one): index for index, group in enumerate(optimizer.param_groups) for one in group["params"]}


class SteppedAhead:
    """That of one optimizer."""

    def __init__(self, states: States):
        self._states = states
        self.group_of = _group_of(states.optimizer)
        self.stepped: set[int] = set()  # parameters, by id
        self._options_used: dict[int, _Options] = {}  # by group: what they were stepped with
        self._left_as: _StatesOf = {}  # that backward has left
        self._found_as: _StatesOf = {}  # of those that backward has not come to
        self._stepped_as: _StatesOf = {}  # what step() is to leave as it is: backward has stepped it
        self.put_off: OnceAStep | None = None  # what was written once a run, and is to be once a step
        self._ahead: list[Gradient] = []  # of what was stepped
        self._left: list[Gradient] = []  # of parameters that step() itself is to step

    def take(self, parameter: nn.Parameter) -> bool:
        """A parameter is to be stepped, whose gradient has come. Whether it is one of the optimizer's."""
        optimizer = self._states.optimizer
        if not self.stepped:
            self.group_of = _group_of(optimizer)
        if id(parameter) not in self.group_of:
            return False
        if id(parameter) in self.stepped:
            raise FailedPrecondition(f"{IN_BACKWARD}: optimizer.step() was left out after a backward pass, which has "
                                     "stepped already; offload without step_in_backward to leave steps out")
        self.stepped.add(id(parameter))
        return True

    def leave_out(self, parameters: Iterable[nn.Parameter]) -> None:
        """These were not stepped after all: their pass has failed."""
        self.stepped.difference_update(map(id, parameters))

    def note_options(self, parameters: Iterable[nn.Parameter]) -> None:
        """These are stepped now, with what their groups say."""
        for index in {self.group_of[id(one)] for one in parameters}:
            if index not in self._options_used:
                self._options_used[index] = _options(self._states.optimizer.param_groups[index])

    def note_put_back(self, names: Iterable[Any]) -> None:
        """What a run has written to groups under these names is what it was before: of a tensor that is not the CPU's, a version
        alone tells, and does not tell that."""
        for index, noted in self._options_used.items():
            now = _options(self._states.optimizer.param_groups[index])
            noted.update({name: now[name] for name in names if name in noted and name in now})

    def note_stepped(self, managed: ManagedParameter) -> None:
        """A parameter was stepped before its time: what was saved of it is of the weights before."""
        gradient: Gradient = managed.gradient
        with raw():
            gradient.ahead = SteppedAs(managed.writes, managed.parameter._version)
        self._ahead.append(gradient)

    def note_found(self) -> None:
        """A step is run that may change states of parameters that it does not step."""
        if not self._left_as and not self._found_as:  # the first of this pass
            self._found_as = {id(one): self._states_now(one) for group in self._states.optimizer.param_groups
                              for one in group["params"]}

    def changed_ahead(self, parameters: Iterable[nn.Parameter]) -> list[str]:
        """Whether states of these, which are stepped now, are others than the backward pass has found, in words."""
        found = [(one, self._found_as.pop(id(one))) for one in parameters if id(one) in self._found_as]
        return [] if all(self._has_states(*one) for one in found) else ["self.state of another parameter than it steps"]

    def note_left(self, parameters: Iterable[nn.Parameter]) -> None:
        """Their states are what they were stepped to."""
        self._left_as |= {id(one): self._states_now(one) for one in parameters}

    def is_left(self, managed: ManagedParameter, parameter: nn.Parameter) -> bool:
        """Whether optimizer.step() is to step a parameter, though parameters in Terrace are stepped in backward."""
        gradient: Gradient = managed.gradient
        left = gradient.left_to_step(id(parameter) in self.stepped)
        if left:
            self._left.append(gradient)
        return left

    def check_options(self) -> None:
        """Raises where a group's options are not those that its parameters were stepped with."""
        used, self._options_used = self._options_used, {}
        for index, before in used.items():
            now = _options(self._states.optimizer.param_groups[index])
            changed = [name for name in now if name in before and now[name][0] != before[name][0]]
            if changed:
                raise FailedPrecondition(
                    f"{IN_BACKWARD}: {', '.join(changed)} changed after the backward pass, which has stepped with "
                    "what was there before it: change it before the backward pass, or offload without step_in_backward")

    def odd_since(self) -> str:
        """What of groups or states is not as the backward pass has left it, which has stepped with them, in words; empty
        where all is."""
        left, self._left_as = self._left_as, {}
        found, self._found_as = self._found_as, {}
        members = {id(one): (index, one) for index, group in enumerate(self._states.optimizer.param_groups)
                   for one in group["params"]}
        self._stepped_as = left if kinds.may_keep_more(self._states.optimizer) else {}
        for key, states in (*left.items(), *(one for one in found.items() if one[0] in members)):
            index, parameter = members.get(key, (-1, None))
            what = ("a parameter was taken out of its group, or put into another one"
                    if key in left and index != self.group_of.get(key) else
                    "the optimizer's states of a parameter changed" if parameter is not None
                    and not self._has_states(parameter, states) else "")
            if what:
                return what
        return ""

    def changed_in_step(self) -> bool:
        """Whether step() has changed states of what backward has stepped."""
        stepped, self._stepped_as = self._stepped_as, {}
        members = ({id(one): one for group in self._states.optimizer.param_groups for one in group["params"]}
                   if stepped else {})
        return any(key in members and not self._has_states(members[key], states) for key, states in stepped.items())

    def _states_now(self, parameter: nn.Parameter) -> list[tuple[str, Any, Any]]:
        """A parameter's states, and what tells of writes to them."""
        with raw():
            return [(key, value, value.terrace_slot.writes if isinstance(value, OffloadedTensor) else
                     value._version if isinstance(value, torch.Tensor) else trace(value)[0])
                    for key, value in self._states.state_of(parameter).items()]

    def _has_states(self, parameter: nn.Parameter, left: Sequence[tuple[str, Any, Any]]) -> bool:
        """Whether they are as they were left."""
        now = self._states_now(parameter)
        return len(now) == len(left) and all(
            key == was and count == counted and (value is before or not isinstance(value, torch.Tensor))
            for (key, value, count), (was, before, counted) in zip(now, left, strict=True))

    def loaded(self) -> None:
        """Other states were loaded: what was stepped is of a training that goes on no more."""
        self.stepped.clear()
        self.put_off = None
        self._left_as.clear()
        self._found_as.clear()
        self._options_used.clear()

    def end(self, under_way: set[int]) -> SteppedAhead | None:
        """The step has come. What is ahead of the next one already: parameters, by id, that passes in other threads have
        begun to step; None where there are none."""
        while self._ahead:
            self._ahead.pop().ahead = None
        while self._left:
            self._left.pop().step_is_over()
        self.stepped &= under_way
        self.put_off = None
        self._left_as.clear()
        self._found_as.clear()
        self._options_used.clear()  # of a backward pass within the step, in its closure
        return self if self.stepped else None

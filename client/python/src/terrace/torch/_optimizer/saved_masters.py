# SPDX-License-Identifier: Apache-2.0
"""Masters in what an optimizer's state_dict() gives, and load_state_dict() takes: a tensor more in the state of each
parameter, under a name of its own.

PyTorch casts loaded states to the type of their parameters, which is the weights' narrow one; here they are cast to the
masters'.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn, optim

from ..._errors import InvalidArgument
from .._parameters.masters import Master
from .._pytorch.bits import same_bits
from .._pytorch.private import cast_as_loaded, make_subclass, raw
from .._pytorch.split import is_split, local_of, split_as
from .._tensors.offloaded import OffloadedTensor
from .states import States

MASTER = "terrace.master"  # its name in a parameter's state
_CALL = "load_state_dict()"


class _Uncast(torch.Tensor):
    """A tensor of a state as it was given: load_state_dict() casts it, and has it as it is."""

    terrace_given: torch.Tensor

    @staticmethod
    def of(given: torch.Tensor) -> _Uncast:
        """What is given to load_state_dict() in a tensor's place."""
        made: _Uncast = make_subclass(_Uncast, torch.empty(0))
        made.terrace_given = given
        return made

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is torch.Tensor.to:
            return args[0]
        with raw():
            return func(*args, **(kwargs or {}))


def with_masters(states: States, saved: dict[str, Any]) -> dict[str, Any]:
    """What state_dict() gives, with the masters. One that no step has been at is what its weight is, and left out."""
    found = dict(saved["state"])
    for number, parameter in _numbered(states, saved["param_groups"]):
        master = states.masters.of(parameter)
        if master is not None and master.made and master.is_kept:
            found[number] = {**found.get(number, {}), MASTER: _shown(master)}
    return {**saved, "state": found}


def _shown(master: Master) -> torch.Tensor:
    slot = master.slot
    if slot is None:
        return master.stepped.detach()
    shown: torch.Tensor = split_as(master.stepped, OffloadedTensor.of(slot, master.store, master.managed), slot.placeholder)
    return shown


def _numbered(states: States, groups: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, nn.Parameter]]:
    """The optimizer's parameters, each by its number in saved groups."""
    for saved, group in zip(groups, states.optimizer.param_groups, strict=False):
        yield from zip(saved["params"], group["params"], strict=False)


def uncast(states: States, given: dict[str, Any]) -> dict[str, Any]:
    """What load_state_dict() is to go on with, so that it does not cast the states of what has masters. InvalidArgument,
    before anything is loaded, for masters that are not of this optimizer."""
    found = dict(given["state"])
    for number, parameter in _numbered(states, given["param_groups"]):
        state = found.get(number)
        if not isinstance(state, dict):
            continue
        what = f"{_CALL}: the state of parameter {number}"
        check_master(states, parameter, getattr(state.get(MASTER), "shape", None), what)
        _check_split(parameter, state.get(MASTER), what)
        if _has_master(states, parameter):
            found[number] = _each_tensor(state, lambda one, _: _Uncast.of(one))
    return {**given, "state": found}


def check_master(states: States, parameter: nn.Parameter, shape: Any, what: str) -> None:
    """Raises InvalidArgument for a master that cannot be a parameter's. shape: its; None: there is none. what: in words, has
    it."""
    if shape is not None and states.masters.dtype is None:
        raise InvalidArgument(f"{what} has a master ('{MASTER}'), and this optimizer steps weights themselves: give "
                              "masters=torch.float32 to terrace.torch.offload(), or take these out of the state")
    if shape is not None and tuple(shape) != tuple(parameter.shape):
        raise InvalidArgument(f"{what} has a master of shape {tuple(shape)}, and the parameter's is {tuple(parameter.shape)}")


def _check_split(parameter: nn.Parameter, master: Any, what: str) -> None:
    """Raises InvalidArgument for a master that is not split over ranks as its parameter is."""
    if isinstance(master, torch.Tensor) and (is_split(master) != is_split(parameter)
                                             or local_of(master).shape != local_of(parameter).shape):
        raise InvalidArgument(f"{what} has a master that is not split over ranks as the parameter is: load it with "
                              "torch.distributed.checkpoint, which splits it anew")


def _has_master(states: States, parameter: nn.Parameter) -> bool:
    return states.masters.of(parameter) is not None or states.masters.wants(parameter)


def take_loaded(states: States) -> None:
    """load_state_dict() has loaded what uncast() gave: casts it, and takes masters over. Those that were not given are made
    of the weights."""
    states.make_all_masters()
    of_parameter = states.optimizer.state
    for group in states.optimizer.param_groups:
        for parameter in group["params"]:
            found = of_parameter.get(parameter, {})
            made = as_loaded(states, group, parameter, found)
            if found:
                of_parameter[parameter] = made


def as_loaded(states: States, group: Mapping[str, Any], parameter: nn.Parameter, state: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's state that was loaded, as PyTorch would have it of a parameter that is the master, which is taken over
    from it. group: the parameter's."""
    rest = dict(state)
    given = rest.pop(MASTER, None)
    master = states.masters.of(parameter)
    if master is None:
        return rest
    groups = [{**group, "params": [0]}]

    def made(one: torch.Tensor, key: str) -> torch.Tensor:
        return cast_as_loaded(master.stepped, _given(one), 0, groups, key)

    master.load(None if given is None else _given(given))
    found: dict[str, Any] = _each_tensor(rest, made)
    return found


def _given(one: torch.Tensor) -> torch.Tensor:
    return one.terrace_given if isinstance(one, _Uncast) else one


def _each_tensor(value: Any, made: Callable[[torch.Tensor, str], torch.Tensor], key: str = "") -> Any:
    """A state with another tensor in the place of each, as load_state_dict() looks for them."""
    if isinstance(value, torch.Tensor):
        return made(value, key)
    if isinstance(value, dict):
        return {name: _each_tensor(part, made, name) for name, part in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_each_tensor(part, made) for part in value)
    return value


def resumed_state(optimizer: optim.Optimizer, files: Iterable[pathlib.Path]) -> dict[str, Any] | None:
    """Of files that torch.save() may have written the state that an optimizer has loaded, as it is there: it is not cast to
    the weights' type. None where there is none, or the optimizer has none."""
    for file in files if optimizer.state else ():
        if file.is_file():
            saved: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            if _is_loaded(optimizer, saved):
                return saved
    return None


def _is_loaded(optimizer: optim.Optimizer, saved: dict[str, Any]) -> bool:
    """Whether the optimizer's states are these, or what they are cast to."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    if len(parameters) != len(numbers):
        return False
    for number, parameter in zip(numbers, parameters, strict=True):
        there, here = saved["state"].get(number, {}), optimizer.state.get(parameter, {})
        if there.keys() != here.keys() or not all(same_bits(value, there[key]) for key, value in here.items()
                                                  if isinstance(value, torch.Tensor)):
            return False
    return True

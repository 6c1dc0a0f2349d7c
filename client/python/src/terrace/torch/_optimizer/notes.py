# SPDX-License-Identifier: Apache-2.0
"""What a small copy of an optimizer came to, noted so that it can be compared with another one's."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import nn, optim

from .._device.streams import generators
from .._pytorch.bits import same_bits
from .kept import is_made_of_tensors
from .trace import PLAIN
from .twin import Twin


def what_it_is(twin: Twin) -> dict[str, Any]:
    """All that a copy has, by names for people."""
    found = {words % name: value for words, place in twin.places() for name, value in noted_of(twin, place).items()}
    numbers = numbers_of(twin)
    for number, member in enumerate(twin.members):
        shape = list(member.parameter.shape)
        found[f"a parameter of shape {shape} (number {number})"] = member.parameter.detach().clone()
        found[f"what is kept of a parameter of shape {shape} (number {number})"] = noted(twin.state_of(member), numbers)
    for one in twin.optimizers:
        found |= {f"what it keeps of parameters in '{name}'": noted(vars(one).get(name), numbers)
                  for name in twin.kept_by_parameter()}
    return found


def numbers_of(twin: Twin) -> dict[int, int]:
    """The number of each parameter, by its id."""
    return {id(member.parameter): number for number, member in enumerate(twin.members)}


def noted_of(twin: Twin, place: dict[Any, Any]) -> dict[Any, Any]:
    """What belongs to no parameter, of what an optimizer keeps in one place."""
    numbers = numbers_of(twin)
    return {name: noted(value, numbers) for name, value in place.items() if twin.is_kept(name, value)}


def noted(value: Any, numbers: dict[int, int], depth: int = 8) -> Any:
    """A copy of it that can be compared with that of another optimizer's: of tensors, numbers, and what has them in it.

    numbers: of parameters, by id."""
    if id(value) in numbers:
        return "parameter", numbers[id(value)]
    if isinstance(value, PLAIN):
        return value
    if is_made_of_tensors(value):
        return type(value), {name: noted(getattr(value, name), numbers) for name in value.__tensor_flatten__()[0]}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if not depth or callable(value) or isinstance(value, nn.Module | optim.Optimizer | torch.Generator):
        return type(value)
    if isinstance(value, dict):
        return {numbers.get(id(key), key if isinstance(key, PLAIN) else str(key)): noted(one, numbers, depth - 1)
                for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset | numpy.ndarray) or hasattr(value, "popleft"):
        return [noted(one, numbers, depth - 1) for one in value]
    return type(value), noted(getattr(value, "__dict__", None), numbers, depth - 1)


def same(one: Any, other: Any) -> bool:
    """Whether two notes are the same, tensors by their bits."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and same_bits(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def in_words(together: Any, alone: Any) -> str:
    """How two notes differ."""
    if is_number(together) and is_number(alone):
        return f"is {short(together)} together, and {short(alone)} one by one"
    return "differs"


def is_number(value: Any) -> bool:
    """Whether it can be said in a few words."""
    return isinstance(value, PLAIN) or (type(value) is torch.Tensor and value.numel() == 1)


def short(value: Any) -> str:
    """It, in a few words."""
    return repr(value.item() if type(value) is torch.Tensor and value.numel() == 1 else value)[:60]


def gradients_of(twin: Twin) -> list[Any]:
    """Those of its parameters, and how often each was written to."""
    found = [member.parameter.grad for member in twin.members]
    return [None if one is None else (one._version, one.detach().clone()) for one in found]


def drawn_so_far() -> list[Any]:
    """How far random numbers are drawn."""
    of_numpy = [one.tolist() if isinstance(one, numpy.ndarray) else one for one in numpy.random.get_state()]
    return [random.getstate(), of_numpy, *(one.get_state() for one in (torch.default_generator, *generators()))]


def groups_without_states(twin: Twin) -> frozenset[int]:
    """The numbers of groups of whose parameters nothing is kept."""
    keeping = {member.number for member in twin.members if any(twin.state_of(member))}
    return frozenset(number for number, at in enumerate(twin.group_of) if at not in keeping)


def named_states(twin: Twin) -> dict[tuple[int, int], tuple[str, ...]]:
    """The states of a parameter's shape and type, by the number of its group, and its dimensions."""
    found: dict[tuple[int, int], list[str]] = {}
    for member in twin.members:
        parameter, state = member.parameter, twin.optimizer.state.get(member.parameter, {})
        its = [str(key) for key, value in state.items() if type(value) is torch.Tensor and value.shape == parameter.shape
               and value.dtype == parameter.dtype and value.stride() == parameter.stride()]
        key = member.number, parameter.dim()
        found[key] = [name for name in found.get(key, its) if name in its]
    return {(number, dimensions): tuple(names) for number, at in enumerate(twin.group_of)
            for (its, dimensions), names in found.items() if its == at}

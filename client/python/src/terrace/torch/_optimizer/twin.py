# SPDX-License-Identifier: Apache-2.0
"""A small copy of an optimizer: of the same class and with the same options, over small parameters of its own."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn, optim

from .._parameters.masters import NARROW
from .._pytorch.split import local_of
from .kept import is_made_of_tensors
from .trace import PLAIN, own_of, said_of

GROUPS_MAX = 12
_GROUPS_ALIKE_MAX = 3
_PARAMETERS_MAX = 3  # of a group
_LENGTHS_MAX = {1: (96,), 2: (32, 160)}  # by dimensions; quantized states begin at 4096 elements
_LENGTHS_OF_MORE = (32, 16)
_OTHER_LENGTHS_MAX = 3
_BYTES_MAX = 16 << 20  # of what is copied as it is
_MUTABLE = (list, dict, set, torch.Tensor)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)


class Untried(Exception):
    """No copy can be made, or it cannot be stepped; why, in words."""


@dataclasses.dataclass
class Member:
    """A parameter of the copy."""

    number: int  # of its group, in the copy
    parameter: nn.Parameter


class Twin:
    """One copy. All copies of an optimizer begin with the same values."""

    def __init__(self, optimizer: optim.Optimizer, as_they_are: bool, masters: torch.dtype | None,
                 by_parameter: frozenset[str] = frozenset()):
        """as_they_are: parameters keep their shapes, and the states that there are already; else they are made small, and
        have no states. masters: the type of what is stepped in the place of weights in a narrow one, if that is so.
        by_parameter: what it keeps itself that is of parameters. Untried where it cannot be made."""
        self._by_parameter = by_parameter
        self.group_of = _groups_chosen(optimizer)
        numbers = sorted(set(self.group_of))
        chosen = {number: _chosen(optimizer, optimizer.param_groups[number], as_they_are) for number in numbers}
        self.members: list[Member] = []
        self._memo: dict[int, Any] = {}
        for at, number in enumerate(numbers):
            for one in chosen[number]:
                made = _made(one, len(self.members), as_they_are, _stepped_in(one, masters))
                self._memo[id(one)] = made
                self.members.append(Member(at, made))
        for group in optimizer.param_groups:
            for one in group["params"]:
                if id(one) not in self._memo:
                    self._memo[id(one)] = nn.Parameter(
                        torch.zeros(1, dtype=_stepped_in(one, masters), device=_device_of(one)), one.requires_grad)
        self.group_of = [numbers.index(number) for number in self.group_of]
        self._groups = {number: self._group(optimizer.param_groups[number], chosen[number]) for number in numbers}
        self._shared = list(self._groups.values())
        self.optimizer = self._copied(optimizer, as_they_are)
        self.optimizers = [self.optimizer, *(one for one in vars(self.optimizer).values() if isinstance(one, optim.Optimizer))]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Its parameter groups."""
        found: list[dict[str, Any]] = self.optimizer.param_groups
        return found

    def state_of(self, member: Member) -> list[Any]:
        """What is kept of a parameter, by each optimizer in it."""
        return [dict(one.state.get(member.parameter, {})) for one in self.optimizers]

    def places(self) -> list[tuple[str, dict[Any, Any]]]:
        """Where it keeps what belongs to no parameter: each with words for what is there under a name."""
        found: list[tuple[str, dict[Any, Any]]] = [(f"'%s' of parameter group {number}", group)
                                                   for number, group in enumerate(self.groups)]
        found += [("its own '%s'", vars(one)) for one in self.optimizers]
        return found + [("self.state['%s']", one.state) for one in self.optimizers]

    def kept_by_parameter(self) -> frozenset[str]:
        """The names of what it keeps itself that is of parameters, as its state is."""
        return frozenset(name for one in self.optimizers for name, value in vars(one).items()
                         if name != "state" and _is_by_parameter(value))

    def is_kept(self, name: Any, value: Any) -> bool:
        """Whether something in one of these places belongs to no parameter."""
        return _is_kept(name, value) and name not in self._by_parameter and not _is_by_parameter(value)

    def _group(self, group: dict[str, Any], chosen: list[nn.Parameter]) -> dict[str, Any]:
        places = [next(at for at, one in enumerate(group["params"]) if one is chosen_one) for chosen_one in chosen]
        made: dict[str, Any] = {"params": [self._memo[id(one)] for one in chosen]}
        for name, value in group.items():
            if name != "params":
                if isinstance(value, list) and len(value) == len(group["params"]):  # as 'param_names': one for each
                    value = [value[at] for at in places]
                made[name] = self._copy(f"'{name}' of a parameter group", value)
        return made

    def _copied(self, optimizer: optim.Optimizer, as_they_are: bool) -> optim.Optimizer:
        made: optim.Optimizer = object.__new__(type(optimizer))
        self._memo[id(optimizer)] = made
        known = vars(made)
        of_parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for name, value in own_of(optimizer).items():
            if _is_the_only_one(value):
                known[name] = _without_content(value)
            elif name != "step":  # a scheduler's, around the class's own
                known[name] = self._copied(value, as_they_are) if isinstance(value, optim.Optimizer) else self._copy(
                    f"its own '{name}'", value)
        if "param_groups" in vars(optimizer):
            known["param_groups"] = self._shared
        if "state" in vars(optimizer):
            known["state"] = collections.defaultdict(dict)
            for key, value in optimizer.state.items():
                if id(key) not in of_parameters:
                    known["state"][key] = self._copy(f"self.state[{key!r}]", value)
                elif as_they_are and any(key is one for one in self._originals(optimizer)):
                    known["state"][self._memo[id(key)]] = self._copy("a state", value)
        for name in vars(optimizer):
            if name.startswith("_optimizer_"):
                known[name] = collections.OrderedDict()
        return made

    def _originals(self, optimizer: optim.Optimizer) -> Iterator[nn.Parameter]:
        """The parameters that it has copies of."""
        mine = {id(one.parameter) for one in self.members}
        for group in optimizer.param_groups:
            for one in group["params"]:
                if id(self._memo[id(one)]) in mine:
                    yield one

    def _copy(self, what: str, value: Any) -> Any:
        if sum(_bytes_of(what, value, self._memo)) > _BYTES_MAX:
            raise Untried(f"{what} is too large to be copied")
        for one in _made_of_tensors(value):  # which need not say how they are copied
            names, context = one.__tensor_flatten__()
            parts = {name: getattr(one, name).clone() for name in names}
            self._memo[id(one)] = type(one).__tensor_unflatten__(parts, context, one.size(), one.stride())
        try:
            return copy.deepcopy(value, self._memo)
        except Exception as error:  # whatever it says
            raise Untried(f"{what} cannot be copied ({type(error).__name__}: {error})") from error


def _bytes_of(what: str, value: Any, memo: dict[int, Any], depth: int = 4) -> Iterator[int]:
    """Of the tensors in what is to be copied. Untried for modules."""
    if isinstance(value, nn.Module):
        raise Untried(f"{what} is a module, or has one")
    if _keeps(value):
        raise Untried(f"{what} is a function that keeps something")
    if id(value) in memo or isinstance(value, PLAIN) or not depth:
        return
    if is_made_of_tensors(value):
        for name in value.__tensor_flatten__()[0]:
            yield from _bytes_of(what, getattr(value, name), memo, depth - 1)
    elif isinstance(value, torch.Tensor):
        yield value.nbytes
    elif isinstance(value, dict):
        for one in value.values():
            yield from _bytes_of(what, one, memo, depth - 1)
    elif isinstance(value, _CONTAINERS):
        for one in value:
            yield from _bytes_of(what, one, memo, depth - 1)


def _keeps(value: Any) -> bool:
    """Whether it is a function that a copy would share what it keeps with."""
    if isinstance(value, functools.partial):
        return any(isinstance(one, _MUTABLE) for one in (*value.args, *value.keywords.values()))
    if not isinstance(value, types.FunctionType):
        return False
    cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    return any(isinstance(one, _MUTABLE) for one in (*cells, *(value.__defaults__ or ())))


def _made_of_tensors(value: Any, depth: int = 4) -> Iterator[Any]:
    if is_made_of_tensors(value):
        yield value
    elif depth and isinstance(value, (dict, *_CONTAINERS)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _made_of_tensors(one, depth - 1)


def _groups_chosen(optimizer: optim.Optimizer) -> list[int]:
    """For each group, the number of the one that stands for it in the copy: itself, or one with the same options."""
    chosen: dict[str, list[int]] = {}
    found = []
    for number, group in enumerate(optimizer.param_groups):
        alike = repr([(name, value if isinstance(value, (str, bool, type(None))) else type(value))
                      for name, value in group.items() if name != "params"])
        numbers = chosen.setdefault(alike, [])
        if len(numbers) < _GROUPS_ALIKE_MAX and sum(map(len, chosen.values())) < GROUPS_MAX and group["params"]:
            numbers.append(number)
        if not numbers:
            numbers.append(number)
        found.append(number if number in numbers else numbers[-1])
    return found


def _chosen(optimizer: optim.Optimizer, group: dict[str, Any], as_they_are: bool) -> list[nn.Parameter]:
    """The parameters of a group that are to have copies: of different kinds, and two at least where there are two."""
    parameters: list[nn.Parameter] = group["params"]
    if as_they_are:
        chosen = sorted(parameters, key=lambda one: local_of(one).nbytes)[:_PARAMETERS_MAX]
        if sum(local_of(one).nbytes for one in chosen) > _BYTES_MAX:
            raise Untried("its parameters have states already, and are too large to be copied")
        return [one for one in parameters if any(one is other for other in chosen)]
    kinds: dict[Any, nn.Parameter] = {}
    for one in parameters:
        kinds.setdefault((_small(one), one.dtype, one.requires_grad), one)
    chosen = list(kinds.values())[:_PARAMETERS_MAX]
    more = [one for one in parameters if not any(one is other for other in chosen)]
    return chosen + more[:max(0, 2 - len(chosen))]


def _small(parameter: torch.Tensor) -> tuple[int, ...]:
    """The shape of its copy."""
    shape = tuple(local_of(parameter).shape)
    most: Iterable[int] = _LENGTHS_MAX.get(len(shape), _LENGTHS_OF_MORE)
    most = (*most, *[_OTHER_LENGTHS_MAX] * len(shape))[:len(shape)]
    return tuple(map(min, shape, most))


def _device_of(parameter: torch.Tensor) -> torch.device:
    """Where its copy is: beside it, or in memory, where it has none."""
    return torch.device("cpu") if parameter.is_meta else parameter.device


def _stepped_in(parameter: nn.Parameter, masters: torch.dtype | None) -> torch.dtype:
    """The type of what is stepped: the parameter's, or its master's."""
    return masters if masters is not None and parameter.dtype in NARROW and parameter.requires_grad else parameter.dtype


def _made(parameter: nn.Parameter, number: int, as_they_are: bool, dtype: torch.dtype) -> nn.Parameter:
    chance = torch.Generator().manual_seed(1000 + number)
    shape = tuple(local_of(parameter).shape) if as_they_are else _small(parameter)
    value = torch.randn(shape, generator=chance, device="cpu").mul_(0.1).to(_device_of(parameter), dtype)
    made = nn.Parameter(value, parameter.requires_grad)
    vars(made).update(said_of(parameter))
    return made


def _is_the_only_one(value: Any) -> bool:
    """Whether its class keeps it for all optimizers of the process, as bitsandbytes' managers are kept."""
    return not isinstance(value, (*PLAIN, enum.Enum)) and hasattr(value, "__dict__") and any(
        one is value for kind in type(value).__mro__ for one in vars(kind).values())


def _without_content(value: Any) -> Any:
    """One like it that knows of nothing. What such a one has is of the script's models, their modules among it, and is looked
    up by what the copy has not: ids of parameters, and their places in the groups."""
    made = object.__new__(type(value))
    vars(made).update({name: type(one)() if type(one) in (dict, list, set) else one for name, one in vars(value).items()})
    return made


def _is_kept(name: Any, value: Any) -> bool:
    """Whether it is of no parameter, where an optimizer keeps such things, and is no means of it."""
    return not (isinstance(name, torch.Tensor) or name in ("params", "param_groups", "state") or str(name).startswith(
        "_optimizer_") or callable(value) or isinstance(value, optim.Optimizer))


def _is_by_parameter(value: Any) -> bool:
    """Whether it is a dictionary of parameters, as self.state is."""
    return isinstance(value, dict) and any(isinstance(key, nn.Parameter) for key in value)

# SPDX-License-Identifier: Apache-2.0
"""What a step writes to a group, or to its optimizer, takes effect once, however many parts of the group it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import optim

from .._pytorch.bits import same_bits
from .trace import PLAIN

_NOTHING = object()
_ELEMENTS_MAX = 4096  # of a tensor that is put back


def can_be_put_back(value: Any) -> bool:
    """Whether what is written in a value's place, or to it, can be undone: of numbers, words, and small tensors."""
    if isinstance(value, tuple):
        return all(map(can_be_put_back, value))
    if type(value) is torch.Tensor:
        return value.layout == torch.strided and value.numel() <= _ELEMENTS_MAX
    return value is _NOTHING or isinstance(value, PLAIN)


class Writes(NamedTuple):
    """The names under which a step writes what belongs to no parameter."""

    of_groups: frozenset[Any]
    of_itself: frozenset[Any]
    of_states: frozenset[Any]  # keys of its state that are no parameters


class Place:
    """Some names of a dictionary, in which a step writes: what they had before, and what it has left there."""

    def __init__(self, names: Iterable[Any], of: dict[Any, Any]):
        self._of = of
        self._before = _values(names, of)
        self._after = self._before

    def put_back(self) -> None:
        """Has them be what they were, and remembers what the step has left."""
        self._after = _values(self._before, self._of)
        _set(self._of, self._before)

    def write(self) -> None:
        """Has those be what the step has left that are what they were: another run of it has not written them."""
        now = _values(self._before, self._of)
        _set(self._of, {name: left for name, left in self._after.items() if _is_same(now[name], self._before[name])})


_Value = tuple[Any, torch.Tensor | None]  # and of a tensor what it holds


def _values(names: Iterable[Any], of: dict[Any, Any]) -> dict[Any, _Value]:
    found = {name: of.get(name, _NOTHING) for name in names}
    return {name: (value, value.detach().clone() if type(value) is torch.Tensor else None) for name, value in found.items()}


def _set(of: dict[Any, Any], values: dict[Any, _Value]) -> None:
    for name, (value, content) in values.items():
        if value is _NOTHING:
            of.pop(name, None)
            continue
        if content is not None and not same_bits(value, content):
            with torch.no_grad():
                value.copy_(content)
        of[name] = value


def _is_same(one: _Value, other: _Value) -> bool:
    if one[1] is not None and other[1] is not None:
        return one[0] is other[0] and same_bits(one[1], other[1])
    return one[0] is other[0] or bool(type(one[0]) is type(other[0]) and one[0] == other[0])


def _places(optimizer: optim.Optimizer, groups: Iterable[dict[str, Any]], writes: Writes) -> list[Place]:
    return [*(Place(writes.of_groups, group) for group in groups), Place(writes.of_itself, vars(optimizer)),
            Place(writes.of_states, optimizer.state)]


class Once:
    """That of one group that a step is shown in several parts."""

    def __init__(self, optimizer: optim.Optimizer, group: dict[str, Any], writes: Writes):
        self._places = _places(optimizer, [group], writes)

    def again(self) -> None:
        """Another part comes, which is to find what the first one found."""
        for place in self._places:
            place.put_back()


class OnceAStep:
    """That of a step that is run several times before it is due, each time for a few parameters."""

    def __init__(self, optimizer: optim.Optimizer, writes: Writes):
        self._places = _places(optimizer, optimizer.param_groups, writes)
        self.names = writes.of_groups
        self.words = {f"'{name}' of parameter group {number}" for number in range(len(optimizer.param_groups))
                      for name in writes.of_groups}
        self.words |= {f"its own '{name}'" for name in writes.of_itself} | {f"self.state[{key!r}]" for key in writes.of_states}

    def put_off(self) -> None:
        """What a run has written is there no more."""
        for place in self._places:
            place.put_back()

    def take_effect(self) -> None:
        """The step is due: what was written is there, where it has not written it itself."""
        for place in self._places:
            place.write()

# SPDX-License-Identifier: Apache-2.0
"""What an optimizer has that belongs to no parameter, as it was before its step: its part that goes on when step() has returned
finds that, and what it writes there itself is lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import optim

from . import kinds
from .once import Writes
from .waiting import as_they_are

Group = dict[str, Any]
_NO_WRITES = Writes(frozenset(), frozenset(), frozenset())


class Before:
    """That of an optimizer that was tried."""

    def __init__(self, optimizer: optim.Optimizer):
        tried = kinds.tried(optimizer)
        self._writes = _NO_WRITES if tried is None else tried.writes
        self._own = _copied_at(self._writes.of_itself, vars(optimizer))
        self._groups = [_copied_at(self._writes.of_groups, {name: group[name] for name in group if name in self._writes.of_groups})
                        for group in optimizer.param_groups]
        self._states = {key: copied(value) for key, value in as_they_are(optimizer.state).items() if not isinstance(key, torch.Tensor)}

    def options(self, optimizer: optim.Optimizer, group: Group) -> Group:
        """Of a group, as it is now, but for what the step writes there."""
        (number,) = (number for number, one in enumerate(optimizer.param_groups) if one is group)
        as_now = {name: copied(value) for name, value in group.items() if name != "params" and name not in self._writes.of_groups}
        return as_now | self._groups[number]

    def copied(self, group: Group) -> Group:
        """Of a group as the step is shown it, another one to write to."""
        return {name: value if name == "params" else copied(value) for name, value in group.items()}

    def own(self) -> dict[str, Any]:
        """What it has itself."""
        return _copied_at(self._writes.of_itself, self._own)

    def states(self) -> dict[Any, Any]:
        """What it keeps in its state under other keys than parameters."""
        return {key: copied(value) for key, value in self._states.items()}


def _copied_at(names: Iterable[Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """The same, but for copies of what is under these names."""
    return values | {name: copied(values[name]) for name in names if name in values}


def copied(value: Any) -> Any:
    """A copy of numbers, tensors, and what has them in it; of anything else, which no step writes to, itself."""
    if type(value) is torch.Tensor:
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return {key: copied(one) for key, one in value.items()} if type(value) is dict else value

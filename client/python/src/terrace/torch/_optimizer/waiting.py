# SPDX-License-Identifier: Apache-2.0
"""An optimizer's states, where a step may go on when step() has returned: who looks at them waits for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from torch import optim


class WaitingStates(defaultdict[Any, Any]):
    """The dictionary of an optimizer's states. A copy, or what a pickle has, is an ordinary one."""

    terrace_wait: Callable[[], None] | None = None

    def __reduce__(self) -> Any:
        return defaultdict, (self.default_factory,), None, None, iter(self.items())

    def copy(self) -> defaultdict[Any, Any]:
        return defaultdict(self.default_factory, self.items())

    __copy__ = copy


def _waiting(name: str) -> Callable[..., Any]:
    theirs = getattr(defaultdict, name)

    def call(self: WaitingStates, *arguments: Any, **options: Any) -> Any:
        if self.terrace_wait is not None:
            self.terrace_wait()
        return theirs(self, *arguments, **options)

    call.__name__ = name
    return call


for _name in ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__", "__eq__", "__ne__", "__repr__",
              "__or__", "__ror__", "__ior__", "__reversed__", "get", "items", "keys", "values", "pop", "popitem", "setdefault", "update",
              "clear"):
    setattr(WaitingStates, _name, _waiting(_name))


class AsTheyAre(MutableMapping[Any, Any]):
    """The same states for who steps, and does not wait: whatever it comes to is of parameters that no thread is at."""

    def __init__(self, states: WaitingStates):
        self._states = states

    def __getitem__(self, key: Any) -> Any:
        return defaultdict.__getitem__(self._states, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        defaultdict.__setitem__(self._states, key, value)

    def __delitem__(self, key: Any) -> None:
        defaultdict.__delitem__(self._states, key)

    def __iter__(self) -> Iterator[Any]:
        return defaultdict.__iter__(self._states)

    def __len__(self) -> int:
        return defaultdict.__len__(self._states)

    def __contains__(self, key: Any) -> bool:
        return defaultdict.__contains__(self._states, key)

    def get(self, key: Any, default: Any = None) -> Any:
        return defaultdict.get(self._states, key, default)


def as_they_are(states: Any) -> Any:
    """An optimizer's states, for who does not wait."""
    return AsTheyAre(states) if isinstance(states, WaitingStates) else states


def wait_in(optimizer: optim.Optimizer, wait: Callable[[], None]) -> None:
    """Has whoever looks at an optimizer's states call this first."""
    if type(optimizer.state) is defaultdict:
        made = WaitingStates(optimizer.state.default_factory, optimizer.state)
        made.terrace_wait = wait
        optimizer.state = made

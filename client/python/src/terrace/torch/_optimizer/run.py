# SPDX-License-Identifier: Apache-2.0
"""One run of an optimizer's own step: which parameters it is to see, and what of them is leased at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn, optim

from .._parameters.masters import Master
from .._parameters.parameter import ManagedParameter
from . import kinds
from .batch import Batch
from .carried import Carried
from .later import Later
from .masters import StatesByMaster, let_gradients_go, settle, show_gradients
from .states import States
from .waiting import as_they_are

Group = dict[str, Any]


class Run:
    """The run that the script has called for: it sees what no backward pass has stepped."""

    def __init__(self, states: States, batch_bytes: int, stepped: Callable[[ManagedParameter], None],
                 is_left: Callable[[nn.Parameter], bool] | None, later: Later | None = None):
        """stepped: is told of each parameter in Terrace that was stepped. is_left: whether one is to be stepped in this run,
        as some are in the backward pass; None: all are. later: what is to go on when the script's step() has returned."""
        self._states = states
        self._batch_bytes = batch_bytes
        self._stepped = stepped
        self._is_left = is_left
        self.later = later
        self.keeps = False  # the step is none of PyTorch's own: it may come back to what it was shown
        self.loops = 0  # over groups, that the step has begun
        self.looks = 0  # that it has taken at them in other ways

    @property
    def optimizer(self) -> optim.Optimizer:
        """The script's optimizer, whose step this is."""
        return self._states.optimizer

    @property
    def tried(self) -> kinds.Tried | None:
        """What a trial has shown of the optimizer."""
        return kinds.tried(self.optimizer)

    @property
    def in_backward(self) -> bool:
        """Whether the optimizer steps parameters in the backward pass."""
        return self._is_left is not None

    def members(self) -> Iterator[tuple[Group, list[nn.Parameter]]]:
        """The groups, each with what the step is to see of it."""
        for store in dict.fromkeys((self._states.store, self._states.own_store)):
            store.drop_unneeded()
        for index, group in enumerate(self.optimizer.param_groups):
            yield group, self._members_at(index, group)

    def _members_at(self, _index: int, group: Group) -> list[nn.Parameter]:
        return self.members_of(group)

    def members_of(self, group: Group) -> list[nn.Parameter]:
        """Which parameters of a group the step is to see, and what it sees in their place."""
        found = map(self._states.masters.own, group["params"])
        return self._states.stepped_as(one for one in found if self._is_left is None or self._is_left(one))

    def show_all(self) -> None:
        """The step is none of PyTorch's own, and may look at anything at any time."""
        if not self.keeps:
            self.keeps = True
            if self.translates:
                show_gradients(self._states.masters, (one for group in self.optimizer.param_groups
                                                      for one in self.members_of(group)))

    @property
    def translates(self) -> bool:
        """Whether the step may see others than the script's parameters."""
        return bool(self._states.masters)

    def states(self) -> MutableMapping[Any, dict[str, Any]]:
        """The optimizer's states, as the step is to find them."""
        return StatesByMaster(as_they_are(self.optimizer.state), self._states.masters)

    def batches(self, parameters: list[nn.Parameter], group: Group) -> Iterator[list[nn.Parameter]]:
        """Of a group, what is leased at once."""
        if len(parameters) == 1:  # as a large one is that is stepped in backward
            yield parameters
            return
        batch: list[nn.Parameter] = []
        total, leased_bytes = 0, self._states.leased_in(group)
        for parameter in parameters:
            size = leased_bytes(parameter)
            if batch and total + size > self._batch_bytes:
                yield batch
                batch, total = [], 0
            batch.append(parameter)
            total += size
        if batch:
            yield batch

    def batch(self, parameters: Sequence[nn.Parameter]) -> Batch:
        """What is leased of these at once, for one round."""
        return Batch(self._states, parameters, self._stepped, self.keeps)

    def end(self) -> None:
        """The step is over: weights are what it has made of them."""
        if self.translates and self.keeps:
            settle(self._states.store, self._seen(), self._stepped)
        self.abandon()

    def abandon(self) -> None:
        """The step is over, or has failed: it is shown nothing any more."""
        if self.translates:
            let_gradients_go(self._seen())

    def _seen(self) -> list[Master]:
        """The masters that the step was shown."""
        return list(self._states.masters.all)


class DueRun(Run):
    """A run in the backward pass, over a few parameters whose gradients have come and are at hand."""

    def __init__(self, states: States, batch_bytes: int, stepped: Callable[[ManagedParameter], None],
                 due: Sequence[nn.Parameter], group_of: Mapping[int, int]):
        """due: those. group_of: the number of the group that each parameter, by id, is in."""
        wanted = set(map(id, due))
        super().__init__(states, batch_bytes, stepped, lambda one: id(one) in wanted)
        self._due = due
        self._group_of = group_of
        self.carried = Carried(type(states.optimizer).__name__)
        self.by_number: list[tuple[Group, Group, Group]] = []  # a group that the step asked for by number, and what of it the
        # step was given and has made
        self.loops_left = 0  # over groups, that the step has begun and not ended

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For as long as it goes on: what it has looked at and shown goes with it, at once."""
        try:
            with self.carried.looking():
                yield
        finally:
            self.by_number.clear()

    def _members_at(self, index: int, group: Group) -> list[nn.Parameter]:
        return self._states.stepped_as(one for one in self._due if self._group_of[id(one)] == index)

    def _seen(self) -> list[Master]:
        return [found for one in self._due if (found := self._states.masters.of(one)) is not None]

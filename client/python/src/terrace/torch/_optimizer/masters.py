# SPDX-License-Identifier: Apache-2.0
"""Masters in a step: what the step is shown in the place of weights, and what is made of it when the step has been there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from .._leased.slot import Slot
from .._leased.store import Store
from .._parameters.forms import InTerrace
from .._parameters.masters import Master, Masters
from .._parameters.parameter import ManagedParameter, enter, leave
from .._parameters.shard import ManagedShard
from .._pytorch.bits import same_bits
from .._pytorch.private import make_subclass, raw, set_data
from .._pytorch.split import local_of, split_as
from .._tensors.offloaded import OffloadedTensor


class GradientToCast(OffloadedTensor):
    """A weight's gradient, as a step finds it that is not at it: of the master's type, once something asks for more than its
    shape."""

    terrace_master: Master

    @classmethod
    def of_master(cls, master: Master, store: Store) -> torch.Tensor:
        """A new one, for a gradient in Terrace; split over ranks as its master is."""
        assert master.like is not None
        made: GradientToCast = make_subclass(cls, master.like.placeholder)
        made.terrace_master, made.terrace_parameter = master, None
        made.terrace_store = master.store if master.apart else store
        whole: torch.Tensor = split_as(master.stepped, made, master.like.placeholder)
        return whole

    @property
    def terrace_slot(self) -> Slot:  # type: ignore[override]
        """Where it is, from now on."""
        if "terrace_cast" not in self.__dict__:
            self.terrace_cast = self.terrace_master.for_step()
        found: Slot = local_of(self.terrace_cast).terrace_slot
        return found


class OfWeight(NamedTuple):
    """Holds a weight's gradient that is of its master's type, and shows it as the master's."""

    master: Master

    def get(self) -> Any:
        held, seen = self.master.held_gradient(), self.master.stepped.grad
        if seen is not None and seen is not held and not _is_to_cast(seen):
            return seen  # the step's own
        return held if held is not None and self.master.takes_as_it_is(held) else None

    def put(self, tensor: torch.Tensor) -> None:
        self.master.parameter.grad = tensor
        self.master.stepped.grad = tensor


def _is_to_cast(gradient: torch.Tensor | None) -> bool:
    return isinstance(local_of(gradient), GradientToCast)


def show_gradients(masters: Masters, stepped: Iterable[nn.Parameter]) -> None:
    """Has each master have its weight's gradient, for a step that may look at it before it is at hand."""
    for one in stepped:
        master = masters.master_of(one)
        held = None if master is None else master.held_gradient()
        if master is None or held is None:
            continue
        with raw():
            if one.grad is None and master.takes_as_it_is(held):
                one.grad = held
            elif one.grad is None:
                own = local_of(held)
                there = isinstance(own, OffloadedTensor)
                one.grad = GradientToCast.of_master(master, own.terrace_store) if there else master.made_for_step(held)


def let_gradients_go(masters: Iterable[Master]) -> None:
    """No step is under way that is shown these."""
    with raw():
        for one in masters:
            one.stepped.grad = None
    for one in masters:
        one.let_brought_go()


class MastersOfBatch:
    """The masters of what is leased for one round of a step."""

    def __init__(self, store: Store, masters: Masters, parameters: Sequence[nn.Parameter], keeps: bool,
                 stepped: Callable[[ManagedParameter], None]):
        """parameters: as the step sees them. keeps: the step may come back to them, or to what it was shown of them.
        stepped: is told of each weight in Terrace, as it was made anew."""
        self._store = store
        self._masters = [one for parameter in parameters if (one := masters.master_of(parameter)) is not None]
        self._keeps = keeps
        self._stepped = stepped
        self._compared: list[Master] = []
        self._narrow: list[Master] = []  # whose gradients are in Terrace in their weights' type
        self._shown: deque[tuple[Master, torch.Tensor, int]] = deque()  # their gradients, which were made for this
        self._due: deque[Master] = deque()  # whose weights are to be made anew

    def begin(self) -> list[Slot]:
        """Gives those content that have none. What is to be leased to read with them."""
        anew = [one for one in self._masters if not one.made]
        if anew:
            self._make(anew)
        self._compared = [one for one in self._masters if one not in anew and not one.is_current()]
        with raw():
            self._narrow = [one for one in self._masters if isinstance(held := local_of(one.parameter.grad), OffloadedTensor)
                            and not one.takes_as_it_is(held) and (one.stepped.grad is None or _is_to_cast(one.stepped.grad))]
            return [*(slot for one in self._compared if (slot := one.own_slot) is not None),
                    *(local_of(one.parameter.grad).terrace_slot for one in self._narrow)]

    def _make(self, anew: Sequence[Master]) -> None:
        from_terrace = [one for one in anew if one.own_slot is not None]
        to_terrace = [one for one in anew if one.slot is not None]
        own = self._store.lease([slot for one in from_terrace if (slot := one.own_slot) is not None])
        shown = anew[0].store.lease([one.slot for one in to_terrace if one.slot is not None], "overwrite")
        own_of, shown_of = dict(zip(from_terrace, own, strict=True)), dict(zip(to_terrace, shown, strict=True))
        for one in anew:
            with torch.no_grad(), raw():
                target = shown_of[one] if one in shown_of else local_of(one.stepped).detach()
                target.copy_(own_of[one] if one in own_of else local_of(one.parameter).detach())
            one.note_same()

    def show(self, leased: Sequence[torch.Tensor]) -> None:
        """They are shown. leased: what begin() asked for."""
        shown = iter(leased)
        for one in self._compared:
            one.take_written(next(shown) if one.own_slot is not None else local_of(one.parameter).detach())
        self._due.extend(self._masters)
        for one in self._narrow:
            held = next(shown)
            if one.brought is not None:
                (held,) = one.store.lease([one.brought.terrace_slot])
                held = held.clone()
            self._show_gradient(one, split_as(one.stepped, one.made_for_step(held)))
        for one in self._masters:
            held = one.held_gradient()
            if held is None or one.stepped.grad is not None:
                continue
            if not one.takes_as_it_is(held):
                self._show_gradient(one, one.made_for_step(held))
            else:
                with raw():
                    one.stepped.grad = held

    def _show_gradient(self, one: Master, made: torch.Tensor) -> None:
        with raw():
            one.stepped.grad = made
        self._shown.append((one, made, made._version))

    def put_back_gradients(self, written_unseen: bool) -> None:
        """What a step that may come back has made of gradients is kept. An interrupt may come at any point: it is called
        again then. written_unseen: it may have written to them, and no version tells."""
        while self._shown:
            self._put_back_gradient(*self._shown[0], written_unseen)
            self._shown.popleft()
        if not self._keeps:
            with raw():
                for one in self._masters:
                    one.stepped.grad = None

    def _put_back_gradient(self, one: Master, made: torch.Tensor, version: int, written_unseen: bool) -> None:
        if not self._keeps:
            own = local_of(made)
            if own.layout == torch.strided:
                set_data(own, own.new_empty(0))  # the step has it in lists until it comes to the next batch
            return
        with raw():
            now = one.stepped.grad
        held = one.held_gradient()
        changed = now is not made or made._version != version or (
            written_unseen and (held is None or not same_bits(local_of(made), local_of(held).to(local_of(made).device))))
        if changed:
            one.forget_brought()
            now = held = one.give_gradient(now, True)
        there = isinstance(local_of(held), OffloadedTensor)
        if one.apart and held is not None and not there:
            now = one.made_for_step(held)
        elif (one.apart or not changed) and there:
            now = GradientToCast.of_master(one, self._store)
        with raw():
            one.stepped.grad = now

    def shards(self) -> list[Slot]:
        """Where this rank's shards are of those that are split over ranks. While they are shown, they are leased."""
        return [one.slot for one in self._masters if one.slot is not None and one.managed is None]

    def write_back(self) -> None:
        """Makes the weights anew. The masters are shown, and were stepped."""
        try:
            write_weights(self._store, self._due, self._stepped)
        except KeyboardInterrupt:
            write_weights(self._store, self._due, self._stepped)  # what is left of them
            raise

    def note_left(self) -> None:
        """Masters are shown no more."""
        for one in self._masters:
            one.note_written()


def write_weights(store: Store, due: deque[Master], stepped: Callable[[ManagedParameter], None]) -> None:
    """Makes weights of their masters, which are shown, or in memory. due: loses each as it is made. stepped: is told of each
    in Terrace."""
    slots = [slot for one in due if (slot := one.own_slot) is not None]
    shown = iter(store.lease(slots, ["write" if slot.shown else "overwrite" for slot in slots]))
    with torch.no_grad():
        while due:
            one = due[0]
            with raw():
                whole = one.stepped.detach()
            if isinstance(one.own, InTerrace):
                next(shown).copy_(local_of(whole))
                one.own.noticed_write()
            if isinstance(one.own, ManagedParameter):
                one.own.writes += 1
                stepped(one.own)
            elif isinstance(one.own, ManagedShard):
                one.own.stepped()
            else:
                one.parameter.copy_(whole)
            one.note_same()
            due.popleft()


def settle(store: Store, masters: Iterable[Master], stepped: Callable[[ManagedParameter], None]) -> None:
    """Makes weights anew whose masters a step has written to while they were not at hand."""
    for one in [one for one in masters if one.written_since()]:
        shown = [] if one.managed is None else [one.managed]
        enter(one.store, shown)
        try:
            write_weights(store, deque([one]), stepped)
        finally:
            leave(shown)
        one.note_written()


class StatesByMaster(MutableMapping[Any, dict[str, Any]]):
    """An optimizer's states, as a step finds them that has masters in the place of weights."""

    def __init__(self, states: MutableMapping[Any, dict[str, Any]], masters: Masters):
        self._states = states
        self._masters = masters

    def _key(self, key: Any) -> Any:
        return self._masters.own(key) if isinstance(key, torch.Tensor) else key

    def __getitem__(self, key: Any) -> dict[str, Any]:
        return self._states[self._key(key)]

    def __setitem__(self, key: Any, value: dict[str, Any]) -> None:
        self._states[self._key(key)] = value

    def __delitem__(self, key: Any) -> None:
        del self._states[self._key(key)]

    def __contains__(self, key: Any) -> bool:
        return self._key(key) in self._states

    def __iter__(self) -> Iterator[Any]:
        for key in self._states:
            yield self._masters.stepped_as(key) if isinstance(key, nn.Parameter) else key

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._states.get(self._key(key), default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        return self._states.setdefault(self._key(key), default)

    def pop(self, key: Any, *default: Any) -> Any:
        return self._states.pop(self._key(key), *default)

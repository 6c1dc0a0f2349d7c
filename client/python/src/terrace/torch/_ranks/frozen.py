# SPDX-License-Identifier: Apache-2.0
"""The frozen parameters of one job that other ranks have as well: they are moved to where all of them are to have
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from .._parameters.gradient import Gradient, Room
from .._parameters.parameter import ManagedParameter, built, managed_of
from .._pytorch.split import is_split
from .._tensors.offloaded import OffloadedParameter
from .shared import SharedStore, share
from .together import Ranks

if TYPE_CHECKING:
    from .._leased.slot import Slot
    from .._leased.store import Store


class Frozen:
    """Those of one offload() that are shared; it may be none."""

    def __init__(self, names: dict[nn.Parameter, tuple[str, str]], ranks: Ranks | None):
        """names: all of the model's, with their names and modules. ranks: with which the frozen ones are shared."""
        self._ranks = ranks
        self.names = {parameter: name for parameter, name in names.items()
                      if ranks is not None and not parameter.requires_grad and not is_split(parameter)}
        self.store: SharedStore | None = None
        self._built = [(one, one.slot, one.building) for one in built(list(self.names))]  # where they are as yet

    def share(self, own: Store) -> list[ManagedParameter]:
        """Has them in a share, beside the job's own store, which all ranks find. Nothing shows it yet."""
        if self._ranks is None:
            return []
        wanted = [(*name, parameter.detach()) for parameter, name in self.names.items()]
        self.store = share(own, wanted, self._ranks)
        own.steps.follow(self.store.places[0].order)
        return [self._have(parameter, name, slot)
                for (parameter, (name, _)), slot in zip(self.names.items(), self.store.slots, strict=True)]

    def _have(self, parameter: nn.Parameter, name: str, slot: Slot) -> ManagedParameter:
        assert self.store is not None
        if isinstance(parameter, OffloadedParameter):
            managed_of(parameter).stand_on(slot, self.store)
            managed_of(parameter).name = name
        else:
            parameter.terrace = ManagedParameter(name, parameter, slot, self.store)  # type: ignore[attr-defined]
        one = managed_of(parameter)
        one.gradient = Gradient(parameter, self.store, Room(one.like, []))
        return one

    def finish(self) -> None:
        """They are there for good."""
        for one, slot, building in self._built:
            one.building = None
            building.store.forget([slot])
        if self.store is not None:
            self.store.plan()

    def undo(self) -> None:
        """What init() built is where it was, and the share is left."""
        for one, slot, building in self._built:
            one.gradient = None
            one.stand_on(slot, building.store)
        if self.store is not None:
            self.store.destroy()

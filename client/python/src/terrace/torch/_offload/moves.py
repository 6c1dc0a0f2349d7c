# SPDX-License-Identifier: Apache-2.0
"""The steps in which what is trained comes to be in Terrace. Each says how it is taken back, before or as it is done."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch import nn

from .._device.device import give_back_free
from .._device.streams import has_streams
from .._leased.store import Store
from .._optimizer.optimizer import ManagedOptimizer, step_soon
from .._parameters.gradient import Gradient, Room
from .._parameters.in_memory import ParameterInMemory
from .._parameters.masters import Masters
from .._parameters.parameter import ManagedParameter, managed_of
from .._ranks.shards import Shards
from .._ranks.together import Ranks
from .._tensors.offloaded import OffloadedParameter
from .init import Building
from .undo import Undo

_FREED_BYTES_MAX = 256 << 20
Names = dict[nn.Parameter, tuple[str, str]]  # of parameters, each with its module's


def _of_each(buildings: dict[ManagedParameter, Building]) -> dict[Building, list[ManagedParameter]]:
    return {building: [one for one, its in buildings.items() if its is building]
            for building in dict.fromkeys(buildings.values())}


def take_over(buildings: dict[ManagedParameter, Building], store: Store,
               names: Names) -> None:
    """Takes what init() built into the job's store."""
    for building, parameters in _of_each(buildings).items():
        building.store.hand_over([one.slot for one in parameters], store)
        for one in parameters:
            one.building = None
            one.join(store, *names[one.parameter])


def give_back(buildings: dict[ManagedParameter, Building], store: Store) -> None:
    """Leaves what init() built as it was."""
    for building, parameters in _of_each(buildings).items():
        taken = [one for one in parameters if one.building is None]
        store.hand_over([one.slot for one in taken], building.store)
        for one in taken:
            one.building = building
            one.gradient = None
            one.join(building.store, one.name, one.slot.owner)


def manage(store: Store, names: Names) -> list[ManagedParameter]:
    """Makes room for parameters."""
    ordinary = [parameter for parameter in names if not isinstance(parameter, OffloadedParameter)]
    slots = store.create([(*names[parameter], parameter.detach()) for parameter in ordinary])
    for parameter, slot in zip(ordinary, slots, strict=True):
        parameter.terrace = ManagedParameter(names[parameter][0], parameter, slot, store)  # type: ignore[attr-defined]
    return [managed_of(parameter) for parameter in names]


def divide(store: Store, whole: Names, parts: frozenset[str]) -> tuple[list[ManagedParameter], list[ParameterInMemory]]:
    """The parameters of a job's own that are in Terrace, or those that stay in memory."""
    if "parameters" in parts:
        return manage(store, whole), []
    return [], [ParameterInMemory(*name, one, store) for one, name in whole.items()]


def make_gradients(store: Store, parameters: Sequence[ManagedParameter | ParameterInMemory], parts: frozenset[str],
                   masters: Masters, stepped: Sequence[ManagedOptimizer]) -> None:
    """Makes room for gradients, where they are to have any."""
    likes = {id(one): masters.gradient_like(one.parameter, one.like) for one in parameters}
    if any(one.in_backward for one in stepped):
        for one in parameters:
            one.gradient = Gradient(one.parameter, store, Room(likes[id(one)], []), step_soon(stepped))
        return
    if "gradients" not in parts:
        for one in parameters:
            one.gradient = Gradient(one.parameter, store, None)
        return
    trained = [one for one in parameters if one.parameter.requires_grad]
    room = store.create([(f"{one.name}/grad", one.like.owner, likes[id(one)].placeholder) for one in trained])
    slots = dict(zip(map(id, trained), room, strict=True))
    for one in parameters:
        one.gradient = Gradient(one.parameter, store, Room(likes[id(one)], [slots[id(one)]] if id(one) in slots else []))


def move(store: Store, managed: list[ManagedParameter], in_memory: list[ParameterInMemory], shards: Shards,
         stepped: Sequence[ManagedOptimizer], ranks: Ranks, undo: Undo) -> None:
    """Moves parameters and states; back again if that fails half way, or on another rank."""
    for shard in shards.all:
        undo.by(shard.restore, f"the parameter '{shard.slot.name}'")
    for optimizer in stepped:
        undo.by(optimizer.states.bring_down())
        undo.by(optimizer.states.give_back, "the optimizer's states")
        optimizer.states.reserve()
    move_parameters(managed, in_memory, undo)
    shards.move_in()
    for optimizer in stepped:
        optimizer.states.adopt_all()
    ranks.finish()
    for place in store.places:
        give_back_free(place.device)


def move_parameters(managed: Sequence[ManagedParameter], in_memory: Sequence[ParameterInMemory], undo: Undo) -> None:
    """Moves parameters, but for those that stay in memory, and sees to the gradients of all."""
    freed_bytes = 0
    for one in managed:
        if not isinstance(one.parameter, OffloadedParameter):
            one.move_in()
            undo.by(one.restore, f"the parameter '{one.name}'")
            freed_bytes += one.slot.nbytes
        _watch(one, undo)
        if has_streams(one.slot.device) and freed_bytes > _FREED_BYTES_MAX:
            give_back_free(one.slot.device)  # where it was is the same memory that it goes to
            freed_bytes = 0
    for other in in_memory:
        _watch(other, undo)


def _watch(one: ManagedParameter | ParameterInMemory, undo: Undo) -> None:
    if one.gradient is not None:
        undo.by(one.gradient.unwatch)
    one.watch()


def destroy(store: Store, names: Names) -> None:
    """Deletes a job's tensors. Not where there was no room to bring some parameters back: these can be read yet."""
    if not any(isinstance(one, OffloadedParameter) and one.terrace.store is store for one in names):
        store.destroy()


def forget(names: Names) -> None:
    """Leaves parameters that are not in Terrace as they were."""
    for parameter in names:
        if not isinstance(parameter, OffloadedParameter):
            parameter.__dict__.pop("terrace", None)

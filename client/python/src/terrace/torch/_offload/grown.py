# SPDX-License-Identifier: Apache-2.0
"""Parameters that a model was given after it was offloaded: a larger vocabulary, a new head, an adapter. offload() takes
them in as it took the others."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from .._leased.slot import Slot
from .._leased.store import Store
from .._model import modules
from .._optimizer.optimizer import ManagedOptimizer
from .._parameters.in_memory import ParameterInMemory
from .._parameters.masters import Masters, Wanted
from .._parameters.parameter import ManagedParameter, built
from .._tensors.offloaded import OffloadedParameter
from .init import client_of
from .job import Job
from .moves import Names, divide, forget, give_back, make_gradients, take_over
from .quantized import is_of_another_class
from .refusals import check_forwards, check_in_places, check_model, eligible
from .room import check_fits, check_host_room, check_room
from .undo import Undo

_ODD = "is no ordinary parameter, and came into the model after it was offloaded"


class Grown(NamedTuple):
    """What is new, and can be offloaded."""

    names: Names
    left: list[tuple[str, str]]  # what stays in memory whatever else there is, each with the reason


class Taken(NamedTuple):
    """What of it the job has: in Terrace, or in memory."""

    managed: list[ManagedParameter]
    in_memory: list[ParameterInMemory]


def find(call: str, job: Job, model: nn.Module, new: dict[nn.Parameter, str], bytes_min: int) -> Grown:
    """Looks at what is new in an offloaded model. InvalidArgument, by name, for what cannot be offloaded.

    call: how the caller is named in errors. new: the parameters, by name."""
    if not new:
        return Grown({}, [])
    check_model(model, job.in_backward, new)
    moves = "parameters" in job.parts
    found, left = eligible(model, bytes_min, moves, lambda _: 0)
    left += [(name, _ODD) for one, (name, _) in found.items() if is_of_another_class(one)]
    names = {one: name for one, name in found.items() if one in new and not is_of_another_class(one)}
    client_of(call, job.store.client, built(list(names)), model)
    check_in_places(call, job.store.places, {one: name for one, (name, _) in names.items()})
    if moves:
        check_forwards(model, names)
    of_new = set(new.values())
    return Grown(names, [one for one in left if one[0] in of_new])


def take_in(job: Job, model: nn.Module, grown: Grown, masters: Masters, stepped: Sequence[ManagedOptimizer],
            undo: Undo) -> Taken:
    """Makes room for what is new, and has its modules lease it. stepped: optimizers that the job does not have yet."""
    store, names = job.store, grown.names
    optimizers = [*(one for one in job.optimizers if not one.states.gone), *stepped]
    buildings = {one: one.building for one in built(list(names))}
    made: list[Slot] = []
    undo.by(functools.partial(_destroy, store, names, made))
    undo.by(functools.partial(give_back, buildings, store))
    undo.by(functools.partial(forget, names))
    take_over(buildings, store, names)
    taken = Taken(*divide(store, names, job.parts))
    made += [one.slot for one in taken.managed if one not in buildings]
    for one in optimizers:
        one.states.know(taken.in_memory)
    early = masters.before_their_job(names)
    undo.by(functools.partial(masters.put_back, names, early))
    both = [*taken.managed, *taken.in_memory]
    make_gradients(store, both, job.parts, masters, optimizers)
    made += [slot for one in both if one.gradient is not None for slot in one.gradient.slots]
    of = {one.parameter: one for one in both}
    if early:
        masters.make([Wanted(one.parameter, weakref.ref(one.parameter), of[one.parameter], of[one.parameter].like)
                      for one in early])
    before = {id(one.parameter): one for one in job.parameters}
    undo.by(functools.partial(modules.attach, model, before))
    modules.attach(model, before | {id(one.parameter): one for one in taken.managed})
    return taken


def _destroy(store: Store, names: Names, made: Sequence[Slot]) -> None:
    """Deletes what was made, but where there was no room to bring a parameter back, which can be read yet."""
    if not any(isinstance(one, OffloadedParameter) and one.terrace.store is store for one in names):
        store.forget(made)


def check_taken_fits(job: Job, model: nn.Module, grown: Grown, taken: Taken, stepped: Sequence[ManagedOptimizer]) -> None:
    """Looks at what is leased at once from now on: of what is new, and by these optimizers."""
    if grown.names:
        check_room(model, job.store, job.shards, taken.in_memory if "gradients" in job.parts else [], stepped)
        return
    for place in job.store.places:
        most, name = max((one.states.largest(job.store, place) for one in stepped), default=(0, ""))
        check_fits(job.store, place, most, f"the optimizer's step on '{name}'")
    check_host_room(stepped)


def finish(job: Job, model: nn.Module, grown: Grown, taken: Taken) -> None:
    """All of it is where it is to be."""
    names = {name for name, _ in (*grown.names.values(), *grown.left)}
    job.store.left_alone = [one for one in job.store.left_alone if one[0] not in names] + grown.left
    job.take_in(*taken)
    job.know(model)

# SPDX-License-Identifier: Apache-2.0
"""What belongs to one offloaded model, and which models are offloaded."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Sequence, Sized

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..._errors import FailedPrecondition
from .._leased.slot import Slot
from .._leased.store import Store
from .._model import modules
from .._optimizer.optimizer import ManagedOptimizer, step_soon
from .._parameters.in_memory import ParameterInMemory
from .._parameters.masters import Masters
from .._parameters.parameter import ManagedParameter, is_managed_parameter
from .._pytorch.split import is_split
from .._ranks.ddp import check_running
from .._ranks.shards import Shards
from .._ranks.shared import SharedStore
from .where import Where


class Job:
    """What belongs to one offloaded model."""

    def __init__(self, store: Store, shared: SharedStore | None, shards: Shards, parts: frozenset[str], masters: Masters,
                 in_backward: bool, where: Where, stepped: Callable[[], None]):
        """parts: of PARTS, those that are in Terrace. in_backward: and are stepped in the backward pass. where: they are
        stepped. stepped: called after each step."""
        self.store = store
        self.shared = shared  # of frozen parameters that other ranks have as well
        self.parameters: list[ManagedParameter] = []
        self.in_memory: list[ParameterInMemory] = []
        self.shards = shards
        self.parts = parts
        self.masters = masters
        self.in_backward = in_backward
        self.where = where
        self.stepped = stepped
        self.optimizers: list[ManagedOptimizer] = []
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameters that the model had when it was offloaded last:
        # whether each was in Terrace
        self._known_split: set[str] = set()  # those of fully_shard(), by name: what moves a module swaps them, and cannot swap
        # what is referred to weakly
        self._kept: list[tuple[Slot, Sized]] = []  # of what is gone, what a script has yet, each with what else stands for it

    @property
    def stores(self) -> list[Store]:
        """All that is of its own: where its weights are, and the host's memory where the CPU steps what is on a GPU."""
        return [self.store] if self.masters.host is None else [self.store, self.masters.host]

    def plan(self) -> None:
        """Fetches ahead from now on what does not fit."""
        for store in self.stores:
            store.plan()

    def know(self, model: nn.Module) -> None:
        """All that the model has now is known, be it in Terrace or not."""
        for name, one in model.named_parameters():
            if is_split(one):
                self._known_split.add(name)
            else:
                self._known[one] = is_managed_parameter(one)

    def new_in(self, model: nn.Module) -> dict[nn.Parameter, str]:
        """The parameters that the model was given since, or in another shape, by name."""
        return {one: name for name, one in model.named_parameters() if self._is_new(name, one)}

    def _is_new(self, name: str, one: nn.Parameter) -> bool:
        if is_split(one):
            return name not in self._known_split
        was_in_terrace = self._known.get(one)
        return was_in_terrace is None or (was_in_terrace and not is_managed_parameter(one))

    def take_in(self, parameters: Sequence[ManagedParameter], in_memory: Sequence[ParameterInMemory]) -> None:
        """Has more parameters from now on."""
        for one in in_memory:
            one.finish()
        self.parameters += parameters
        self.in_memory += in_memory

    def step_with(self, optimizers: Sequence[ManagedOptimizer]) -> None:
        """Steps with more optimizers from now on."""
        if self.in_backward:
            for one in self.parameters:
                if one.gradient is not None:
                    one.gradient.step_with(step_soon(optimizers))
        for optimizer in optimizers:
            optimizer.attach(self.stepped)
            self.optimizers.append(optimizer)
        self.plan()

    def drop_gone(self) -> None:
        """Forgets parameters and optimizers that are there no more, and deletes what of them is in Terrace, but for what the
        script has of it yet."""
        gc.collect()  # what is gone may be held by a cycle, as one of a Trainer is
        self.optimizers = [one for one in self.optimizers if not one.states.gone or one.states.let_go()]
        for one in [one for one in (*self.parameters, *self.in_memory) if one.gone]:
            if isinstance(one, ManagedParameter) and one.store is self.store:
                self._kept.append((one.slot, one.taken))
                self._kept += [(each.slot, each.users) for form in one.casts.values() for each in form.contents]
            if one.gradient is not None:
                self._kept += [(slot, ()) for slot in one.gradient.slots]
        free = [slot for slot, others in self._kept if not (slot.lazies or slot.shown or len(others))]
        self._kept = [one for one in self._kept if one[0] not in free]
        self.store.forget(free)
        self.parameters[:] = [one for one in self.parameters if not one.gone]
        self.in_memory[:] = [one for one in self.in_memory if not one.gone]
        self.masters.drop_gone()


_jobs: weakref.WeakKeyDictionary[nn.Module, Job] = weakref.WeakKeyDictionary()
_left: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def is_offloaded(model: nn.Module) -> bool:
    """Whether offload() was given this very model."""
    return model in _jobs


def leave(model: nn.Module) -> None:
    """offload() was given this model, and has left all of it where it is."""
    _left.add(model)


def was_left(model: nn.Module) -> bool:
    """Whether it has, and has not offloaded it since."""
    return model in _left and model not in _jobs


def job_if_any(model: object) -> Job | None:
    """What belongs to a model, if it is one that is offloaded."""
    return _jobs.get(model) if isinstance(model, nn.Module) else None


def job_of(model: nn.Module) -> Job:
    """What belongs to an offloaded model; FailedPrecondition for another one."""
    job = _jobs.get(model)
    if job is None:
        raise FailedPrecondition("this model was not offloaded: call terrace.torch.offload(model) first")
    return job


def jobs() -> list[tuple[nn.Module, Job]]:
    """All models of this process that are offloaded."""
    return list(_jobs.items())


def begin(model: nn.Module, store: Store, shared: SharedStore | None, parameters: list[ManagedParameter],
          in_memory: list[ParameterInMemory], shards: Shards, parts: frozenset[str], masters: Masters,
          where: Where, stepped: Sequence[ManagedOptimizer]) -> None:
    """All is where it is to be: the model is offloaded from now on."""
    in_backward = any(one.in_backward for one in stepped)
    job = _jobs[model] = Job(store, shared, shards, parts, masters, in_backward, where,
                             functools.partial(_name_replaced, weakref.ref(model), shards, set()))
    job.take_in(parameters, in_memory)
    job.know(model)
    job.plan()
    if stepped:
        job.step_with(stepped)
    if "parameters" not in parts:
        modules.call_first(model, functools.partial(_watch, job.in_memory))
    modules.call_first(model, store.steps.forward)
    store.steps.begin()


def _watch(in_memory: list[ParameterInMemory], _model: nn.Module) -> None:
    """Looks at parameters that stay in memory as the model begins to run, as modules do at those in Terrace."""
    check_running(in_memory)
    for one in in_memory:
        one.watch()


def _name_replaced(model: weakref.ref[nn.Module], shards: Shards, named: set[str]) -> None:
    """Warns, once of each, of parameters that were replaced."""
    found = model()
    for name in [] if found is None else [*modules.replaced(found), *shards.replaced()]:
        if name not in named:
            named.add(name)
            warnings.warn(f"terrace.torch: the parameter '{name}' was replaced after terrace.torch.offload(): the new "
                          "one is not in Terrace, and not the optimizer's unless it was added", stacklevel=2)

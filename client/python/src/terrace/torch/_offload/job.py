# SPDX-License-Identifier: Apache-2.0
"""What belongs to one offloaded model, and which models are offloaded."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Sequence

from torch import nn

from ..._errors import FailedPrecondition
from .._leased.store import Store
from .._model import modules
from .._optimizer.optimizer import ManagedOptimizer, step_soon
from .._parameters.in_memory import ParameterInMemory
from .._parameters.masters import Masters
from .._parameters.parameter import ManagedParameter
from .._ranks.ddp import check_running
from .._ranks.shards import Shards
from .._ranks.shared import SharedStore


class Job:
    """What belongs to one offloaded model."""

    def __init__(self, store: Store, shared: SharedStore | None, parameters: list[ManagedParameter],
                 in_memory: list[ParameterInMemory], shards: Shards, parts: frozenset[str], masters: Masters,
                 in_backward: bool, stepped: Callable[[], None]):
        """parts: of PARTS, those that are in Terrace. in_backward: and are stepped in the backward pass. stepped: called
        after each step."""
        self.store = store
        self.shared = shared  # of frozen parameters that other ranks have as well
        self.parameters = parameters
        self.in_memory = in_memory
        self.shards = shards
        self.parts = parts
        self.masters = masters
        self.in_backward = in_backward
        self.stepped = stepped
        self.optimizers: list[ManagedOptimizer] = []

    def step_with(self, optimizers: Sequence[ManagedOptimizer]) -> None:
        """Steps with more optimizers from now on."""
        if self.in_backward:
            for one in self.parameters:
                if one.gradient is not None:
                    one.gradient.step_with(step_soon(optimizers))
        for optimizer in optimizers:
            optimizer.attach(self.stepped)
            self.optimizers.append(optimizer)
        self.store.plan()

    def drop_gone(self) -> None:
        """Forgets parameters that are there no more, and deletes the states of optimizers that are not."""
        gc.collect()  # what is gone may be held by a cycle, as one of a Trainer is
        self.optimizers = [one for one in self.optimizers if not one.states.gone or one.states.let_go()]
        self.parameters = [one for one in self.parameters if not one.gone]
        self.in_memory = [one for one in self.in_memory if not one.gone]
        self.masters.drop_gone()


_jobs: weakref.WeakKeyDictionary[nn.Module, Job] = weakref.WeakKeyDictionary()


def is_offloaded(model: nn.Module) -> bool:
    """Whether offload() was given this very model."""
    return model in _jobs


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
          stepped: Sequence[ManagedOptimizer]) -> None:
    """All is where it is to be: the model is offloaded from now on."""
    in_backward = any(one.in_backward for one in stepped)
    for one in in_memory:
        one.finish()
    job = _jobs[model] = Job(store, shared, parameters, in_memory, shards, parts, masters, in_backward,
                             functools.partial(_name_replaced, weakref.ref(model), shards, set()))
    store.plan()
    if stepped:
        job.step_with(stepped)
    if in_memory:
        modules.call_first(model, functools.partial(_watch, in_memory))
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

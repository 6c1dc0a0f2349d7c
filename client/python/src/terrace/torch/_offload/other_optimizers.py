# SPDX-License-Identifier: Apache-2.0
"""Optimizers that offload() was not given, and that step what is in Terrace: their steps run over leased memory, too, while
their states stay where they are. So what such a step compiles is given ordinary tensors."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._optimizer.groups import is_proxy, proxy_class, proxy_of
from .._optimizer.optimizer import batch_bytes_of, managed_optimizer
from .._optimizer.run import Run
from .._optimizer.states import States
from .._parameters.in_memory import is_of_a_job
from .._parameters.masters import Masters
from .._parameters.parameter import is_managed_parameter, managed_of
from .job import Job, jobs

_known: weakref.WeakKeyDictionary[optim.Optimizer, tuple[States, type[optim.Optimizer]]] = weakref.WeakKeyDictionary()
_handle: Any = None


def step_others() -> None:
    """Looks at the steps of all optimizers from now on."""
    global _handle
    if _handle is None:
        _handle = register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling() or is_proxy(optimizer) or managed_optimizer(optimizer) is not None:
        return None
    job = _job_of(optimizer)
    if job is None or job.in_backward:
        return None
    known = _known.get(optimizer)
    if known is None or known[0].store is not job.store:
        states = States(optimizer, job.store, job.shards, job.in_memory, job.parts - {"states"}, 1, Masters(job.store, None))
        known = _known[optimizer] = states, proxy_class(type(optimizer))
    states, kind = known
    run = Run(states, batch_bytes_of(job.store), lambda _managed: None, None)
    return (proxy_of(optimizer, kind, run), *args[1:]), kwargs


def _job_of(optimizer: optim.Optimizer) -> Job | None:
    """Whose parameters an optimizer steps: of those that are in Terrace, or whose gradients are, the first one's."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_managed_parameter(parameter):
                store = managed_of(parameter).store
                return next((job for _, job in jobs() if job.store is store), None)
            if is_of_a_job(parameter):
                return next((job for _, job in jobs() if any(one.stands_for(parameter) for one in job.in_memory)), None)
    return None

# SPDX-License-Identifier: Apache-2.0
"""How a job's steps go, while they go: how many leases found their tensors where they are used, and what share of the
time was spent in waiting for the others."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from ... import _checks
from .._offload.job import job_of, was_left

if TYPE_CHECKING:
    from .._leased.store import Store

_CALL = "terrace.torch.progress"
_MIB = 1 << 20


class Interval(NamedTuple):
    """What a job leased in a time."""

    seconds: float
    hit_ratio: float  # of the sets that were leased to be read or written, those that waited for nothing
    wait_share: float  # of the time, what leasing took
    nbytes: int  # leased


class Meter:
    """Reads what a job has leased since it was read before."""

    def __init__(self, store: Store):
        self._reference = weakref.ref(store)
        self._time = time.monotonic()
        self._before = store.leased

    @property
    def store(self) -> Store | None:
        """The job's, while it is there."""
        return self._reference()

    def take(self) -> Interval:
        """Since the last time."""
        began, before = self._time, self._before
        store = self.store
        self._time, self._before = time.monotonic(), before if store is None else store.leased
        seconds, now = self._time - began, self._before
        leases = now.sets - before.sets
        return Interval(seconds, (now.hits - before.hits) / leases if leases else 1.0,
                        (now.wait_seconds - before.wait_seconds) / seconds if seconds else 0.0,
                        now.nbytes - before.nbytes)


def progress(model: nn.Module, *, every: int = 1, show: Callable[[str], None] = print) -> None:
    """Says how the steps of an offloaded model go: a line for each `every` of them; 0: no more.

    A step ends with the optimizer's; where that is not offloaded, and in evaluation, as the next one begins. The line
    has the seconds of a step; of its leases how many found all in place; what share of the time was spent in leasing;
    and how much was leased. show: what is called with each line.

    Of a model that offload(what="auto") has left where it is, it says nothing.

    FailedPrecondition for a model that was not offloaded.
    """
    _checks.is_a(_CALL, "model", model, nn.Module, "a torch.nn.Module")
    _checks.is_a(_CALL, "show", show, Callable, "a function of a line")
    every = _checks.count(_CALL, "every", every, 1 << 40)
    if was_left(model):
        return
    store = job_of(model).store
    meter, step = Meter(store), Meter(store)
    steps = 0

    def ended() -> None:
        nonlocal steps
        if not step.take().nbytes:
            return
        steps += 1
        if steps % every == 0:
            past = meter.take()
            show(f"step {steps}: {past.seconds / every:.3f} s, {past.hit_ratio:.1%} hits, "
                 f"{past.wait_share:.1%} waited, {past.nbytes / every / _MIB:.1f} MiB leased")

    store.steps.ended = ended if every else None

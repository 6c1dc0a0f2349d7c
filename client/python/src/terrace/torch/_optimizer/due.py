# SPDX-License-Identifier: Apache-2.0
"""Parameters that are to be stepped in the backward pass, from the moment when their gradients come."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

import torch
from torch import nn

from .._device.streams import Stream, current_stream, follow, has_streams, use_in
from .._pytorch.private import call_at_end, raw, running_backward

DUE_BYTES_MAX = 16 << 20
DUE_PARTS = 16  # of the guarantee: what is stepped together is waited for together, while the rest is to come beside it

Step = Callable[[Sequence[nn.Parameter]], None]


@dataclasses.dataclass
class _Due:
    """What is due of one backward pass."""

    parameters: list[nn.Parameter] = dataclasses.field(default_factory=list)
    gradients: list[torch.Tensor] = dataclasses.field(default_factory=list)
    nbytes: int = 0
    streams: list[Stream] = dataclasses.field(default_factory=list)  # of a GPU, in which they have come


class DueParameters:
    """Steps them some at a time, since each step has a price of its own: once their gradients have `bytes_max` together,
    and at the end of their backward pass. Of a pass that fails, what is due then is not stepped. Thread-safe: several
    passes may run, and autograd has a thread for each kind of device."""

    def __init__(self, bytes_max: int):
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._due: dict[int, _Due] = {}  # by backward pass, of which some are nested

    def add(self, parameter: nn.Parameter, gradient: torch.Tensor, step: Step, left_out: Step) -> None:
        """A gradient has come, within a backward pass. Whatever takes the place of `.grad` stays there.

        step: steps parameters, whose gradients are there. left_out: hears of those that are not, once the pass failed.
        """
        running = running_backward()
        full: _Due | None = None
        with self._lock:
            begins = running not in self._due
            due = self._due.setdefault(running, _Due())
            due.parameters.append(parameter)
            due.gradients.append(gradient)
            due.nbytes += gradient.nbytes
            if has_streams(gradient.device) and (stream := current_stream(gradient.device)) not in due.streams:
                due.streams.append(stream)
            if due.nbytes >= self._bytes_max:
                full, self._due[running] = due, _Due()
        if begins:
            call_at_end(_End(self, running, step, left_out))
        if full is not None:
            _step_all(full, step)

    def parameters(self) -> set[int]:
        """What is due, by id."""
        with self._lock:
            return {id(parameter) for due in self._due.values() for parameter in due.parameters}

    def take(self, ended: int) -> _Due:
        """What is due of a pass that has ended; and no more from then on."""
        with self._lock:
            return self._due.pop(ended, _Due())


class _End:
    """What autograd calls at the end of a pass, and drops where there is none."""

    def __init__(self, owner: DueParameters, running: int, step: Step, left_out: Step):
        self._owner = owner
        self._running = running
        self._step = step
        self._left_out = left_out

    def __call__(self) -> None:
        due = self._owner.take(self._running)
        if due.parameters:
            _step_all(due, self._step)

    def __del__(self) -> None:
        left = self._owner.take(self._running)
        if left.parameters:
            self._left_out(left.parameters)


def _step_all(due: _Due, step: Step) -> None:
    for stream in due.streams:
        current = follow(stream.device, stream)
        for gradient in due.gradients if stream != current else ():
            if gradient.device == stream.device:
                use_in(gradient, current)
    with raw():
        shown = [parameter.grad for parameter in due.parameters]
        for parameter, gradient in zip(due.parameters, due.gradients, strict=True):
            parameter.grad = gradient
    try:
        step(due.parameters)
    finally:
        with raw():
            for parameter, before in zip(due.parameters, shown, strict=True):
                parameter.grad = before

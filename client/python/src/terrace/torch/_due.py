# SPDX-License-Identifier: Apache-2.0
"""Parameters that are to be stepped in the backward pass, from the moment when their gradients come."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import nn

DUE_BYTES_MAX = 16 << 20
_raw = torch._C.DisableTorchFunctionSubclass
_queue = torch.autograd.Variable._execution_engine.queue_callback
_pass = torch._C._current_graph_task_id


class DueParameters:
    """Steps them some at a time, since each step has a price of its own: once their gradients have `bytes_max` together,
    and at the end of their backward pass. Thread-safe: autograd has a thread for each kind of device."""

    def __init__(self, bytes_max: int):
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._due: dict[int, list[tuple[nn.Parameter, torch.Tensor]]] = {}  # by backward pass, of which some are nested

    def add(self, parameter: nn.Parameter, gradient: torch.Tensor, step: Callable[[list[nn.Parameter]], None]) -> None:
        """A gradient has come, within a backward pass. Whatever takes the place of `.grad` stays there.

        step: steps parameters, whose gradients are there.
        """
        running = _pass()
        with self._lock:
            begins = running not in self._due
            due = self._due.setdefault(running, [])
            due.append((parameter, gradient))
            full = sum(one.nbytes for _, one in due) >= self._bytes_max
            if full:
                self._due[running] = []
        if begins:
            _queue(lambda: self._finish(running, step))
        if full:
            _step_all(due, step)

    def forget(self) -> None:
        """Of backward passes that failed: nothing of them is stepped any more."""
        with self._lock:
            self._due.clear()

    def _finish(self, ended: int, step: Callable[[list[nn.Parameter]], None]) -> None:
        with self._lock:
            due = self._due.pop(ended, [])
        if due:
            _step_all(due, step)


def _step_all(due: list[tuple[nn.Parameter, torch.Tensor]], step: Callable[[list[nn.Parameter]], None]) -> None:
    with _raw():
        shown = [parameter.grad for parameter, _ in due]
        for parameter, gradient in due:
            parameter.grad = gradient
    try:
        step([parameter for parameter, _ in due])
    finally:
        with _raw():
            for (parameter, _), before in zip(due, shown, strict=True):
                parameter.grad = before

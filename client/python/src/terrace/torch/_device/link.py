# SPDX-License-Identifier: Apache-2.0
"""How fast a GPU's link to the host's memory is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from .accelerators import in_force

_BYTES = 32 << 20  # that are copied at a time
_TIMES = 3


class Link(NamedTuple):
    """Bytes a second in each direction."""

    down: float
    up: float


def measured_link(device: torch.device) -> Link:
    """Of pinned memory, the best of a few copies in each direction."""
    here = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    return Link(_rate(device, lambda: here.copy_(there)), _rate(device, lambda: there.copy_(here)))


def _rate(device: torch.device, copy: Callable[[], object]) -> float:
    copy()  # the first one prepares
    best = float("inf")
    for _ in range(_TIMES):
        in_force().synchronize(device)
        begin = time.perf_counter()
        copy()
        in_force().synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return _BYTES / best

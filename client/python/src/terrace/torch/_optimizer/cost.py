# SPDX-License-Identifier: Apache-2.0
"""What an optimizer's step takes the CPU, by a part of it: PyTorch's own kernels, over more than a processor's cache holds, in
slices as the step runs them."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn, optim

from .._parameters.masters import NARROW
from .._pytorch.private import unhooked
from .slices import elements_at_once

_ELEMENTS = 4 << 20
_TIMES = 2


def step_seconds(optimizer: optim.Optimizer, masters: torch.dtype | None) -> float:
    """Of all that it steps, with the threads that PyTorch has now. For those of PyTorch's that treat each element by itself,
    so that a slice tells of all. With masters, the casts of gradients and weights are counted, too."""
    by_type: dict[tuple[int, torch.dtype], int] = {}
    for number, group in enumerate(optimizer.param_groups):
        for one in group["params"]:
            if one.requires_grad:
                by_type[number, one.dtype] = by_type.get((number, one.dtype), 0) + one.numel()
    of_options: dict[str, float] = {}  # groups that differ in numbers alone cost the same
    total = 0.0
    for (number, dtype), elements in by_type.items():
        options = {name: value for name, value in optimizer.param_groups[number].items() if name != "params"}
        alike = repr([dtype, *((name, bool(value)) for name, value in options.items() if not isinstance(value, torch.Tensor))])
        if alike not in of_options:
            of_options[alike] = _seconds(type(optimizer), options, dtype, masters) / _ELEMENTS
        total += elements * of_options[alike]
    return total


def _seconds(kind: type[optim.Optimizer], options: dict[str, Any], dtype: torch.dtype, masters: torch.dtype | None) -> float:
    """Of one step over so many elements."""
    options = {name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
               for name, value in options.items()}
    stepped_in = masters if masters is not None and dtype in NARROW else dtype
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.full((_ELEMENTS,), 0.5, dtype=dtype, device="cpu")
        gradient = torch.full((_ELEMENTS,), 1e-3, dtype=dtype, device="cpu")
        master = torch.full((_ELEMENTS,), 0.5, dtype=stepped_in, device="cpu")
        size = _ELEMENTS if options.get("fused") else elements_at_once()
        stepped = [nn.Parameter(piece) for piece in master.split(size)]
        made: Any = kind([{**options, "params": stepped}])
        best = float("inf")
        for _ in range(1 + _TIMES):  # the first one makes the states
            begin = time.perf_counter()
            for one, piece in zip(stepped, gradient.split(size), strict=True):
                one.grad = piece.to(stepped_in)
            unhooked(kind.step)(made)
            weight.copy_(master)
            best = min(best, time.perf_counter() - begin)
    return best

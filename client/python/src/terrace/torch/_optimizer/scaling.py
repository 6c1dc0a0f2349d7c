# SPDX-License-Identifier: Apache-2.0
"""GradScaler: refused where parameters are stepped in backward, before they are stepped with what it scales; and unscaling
in the type of masters, where there are any.

PyTorch has no hook for either: the class's own scale() and unscale_() are asked, from the first such optimizer on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import optim

from ..._errors import FailedPrecondition
from .._pytorch.private import SCALE, UNSCALE
from .._tensors.offloaded import leaves

_stepping: weakref.WeakSet[Any] = weakref.WeakSet()  # what is there for as long as something steps in backward
_widen: weakref.WeakKeyDictionary[optim.Optimizer, Callable[[], None]] = weakref.WeakKeyDictionary()


def refuse_for(optimizer: object) -> None:
    """Looks at what is scaled for as long as this optimizer is there, which steps in backward."""
    _stepping.add(optimizer)
    holder, name = SCALE
    theirs = getattr(holder, name)
    if not hasattr(theirs, "terrace"):
        setattr(holder, name, _checked(theirs))


def _checked(scale: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(scale)
    def checked(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        if _stepping and scaler.is_enabled():
            for tensor in leaves(scaled):
                _check(tensor)
        return scaled

    checked.terrace = True  # type: ignore[attr-defined]
    return checked


def _check(scaled: torch.Tensor) -> None:
    """Raises FailedPrecondition if its backward pass steps a parameter."""
    waiting: list[Any] = [scaled.grad_fn]
    seen = {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        managed = getattr(getattr(node, "variable", None), "__dict__", {}).get("terrace")
        if managed is not None and managed.gradient is not None and managed.gradient.in_backward:
            raise FailedPrecondition(
                "terrace.torch.offload(step_in_backward=True): a GradScaler scaled what the parameter "
                f"'{managed.name}' would be stepped with in the backward pass, before it is unscaled: nothing was "
                "stepped. Offload without step_in_backward, or train without the GradScaler (bfloat16 needs none)")
        waiting += [following for following, _ in node.next_functions]


def widen_for(optimizer: optim.Optimizer, widen: Callable[[], None]) -> None:
    """Calls `widen` before a GradScaler unscales the optimizer's gradients: has them be of the masters' type."""
    _widen[optimizer] = widen
    holder, name = UNSCALE
    theirs = getattr(holder, name)
    if not hasattr(theirs, "terrace"):
        setattr(holder, name, _widening(theirs))


def _widening(unscale: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(unscale)
    def widening(scaler: torch.amp.GradScaler, optimizer: optim.Optimizer) -> None:
        widen = _widen.get(optimizer) if isinstance(optimizer, optim.Optimizer) else None
        if widen is not None and scaler.is_enabled():
            widen()
        unscale(scaler, optimizer)

    widening.terrace = True  # type: ignore[attr-defined]
    return widening

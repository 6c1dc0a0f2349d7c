# SPDX-License-Identifier: Apache-2.0
"""Operations that autocast casts weights for: they are given the weight's cast, which is leased in the weight's place.

What autocast would use is asked of itself, by an operation that computes nothing: it casts the parameter, or has a cast of
it from before. A mode sees which, and gives it a stand-in for the cast that it makes. So what autocast keeps, and for how
long, is what it keeps without Terrace; and so is the graph, whose casts are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..._errors import ResourceExhausted
from .._parameters.casts import NARROW, NoCast, form_of, pays
from .._parameters.parameter import ManagedParameter, managed_of
from .._parameters.saved import hooked
from .._pytorch.modes import in_functorch
from .._pytorch.private import DispatchMode, dispatch_modes, hooks_allowed, raw
from .._tensors.offloaded import OffloadedParameter, OffloadedTensor, leaves

_aten = torch.ops.aten
_functions = nn.functional
# Of these autocast casts every argument, on the CPU and on GPUs.
_CASTING: frozenset[Any] = frozenset((
    _functions.linear, _functions.conv1d, _functions.conv2d, _functions.conv3d, _functions.conv_transpose1d,
    _functions.conv_transpose2d, _functions.conv_transpose3d,
    *(getattr(holder, name) for holder in (torch, torch.Tensor)
      for name in ("matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm")),
    torch.Tensor.__matmul__, torch.Tensor.__rmatmul__))


def casts_to(device_type: str) -> torch.dtype | None:
    """The type that autocast casts weights of a device to now, of which there can be forms; None: it casts none."""
    if not torch.is_autocast_enabled(device_type):
        return None
    dtype = torch.get_autocast_dtype(device_type)
    plain = not (dispatch_modes() or in_functorch() or torch.is_inference_mode_enabled() or torch.compiler.is_compiling()
                 or (torch.is_grad_enabled() and not hooks_allowed()))
    return dtype if plain and dtype in NARROW else None


def run_cast(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Runs a function of PyTorch that was called with parameters which are out, on their casts. NotImplemented where it is to
    run on the parameters themselves."""
    if func not in _CASTING or any(isinstance(leaf, OffloadedTensor) for leaf in leaves((args, kwargs))):
        return NotImplemented
    if kwargs.get("out") is not None or kwargs.get("out_dtype") is not None:  # autocast casts nothing then
        return NotImplemented
    found = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, OffloadedParameter)]
    dtype = casts_to(found[0].device.type) if found else None
    if dtype is None or not all(pays(managed_of(one)) for one in found):
        return NotImplemented
    by: dict[int, torch.Tensor] = {}
    for one in found:
        cast = _cast_by_autocast(managed_of(one), dtype)
        if cast is None:
            return NotImplemented
        by[id(one)] = cast
        managed_of(one).cast_uses += 1
    with hooked(True):
        return func(*(_given(one, by) for one in args), **{name: _given(one, by) for name, one in kwargs.items()})


def _given(value: Any, by: Mapping[int, torch.Tensor]) -> Any:
    return by.get(id(value), value) if isinstance(value, torch.Tensor) else value


def _cast_by_autocast(managed: ManagedParameter, dtype: torch.dtype) -> torch.Tensor | None:
    """What autocast would use in a parameter's place; None where that is not of its type, or cannot be had."""
    parameter = managed.parameter
    asks = _Asks(parameter, managed, dtype)
    nothing = torch.empty((parameter.shape[-1], 0), dtype=dtype, device=parameter.device)
    with raw(), torch.autograd.graph.saved_tensors_hooks(_same, _same) if torch.is_grad_enabled() else raw():
        try:
            with asks:
                torch.matmul(parameter, nothing)
        except _Answered:
            pass
        except NoCast:
            managed.whole_uses -= 1  # of which this one tells nothing
            return None
        except ResourceExhausted:
            managed.never_cast = True
            return None
    found = asks.found
    return found if found is not None and found.dtype == dtype else None


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Answered(Exception):
    """Autocast has cast, and what it has cast for is not to be computed."""


class _Asks(DispatchMode):
    """Sees what autocast gives an operation in a parameter's place."""

    def __init__(self, parameter: nn.Parameter, managed: ManagedParameter, dtype: torch.dtype):
        super().__init__()
        self._parameter = parameter
        self._managed = managed
        self._dtype = dtype
        self.found: torch.Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0]
        if first is self._parameter:
            if func is _aten._to_copy.default and kwargs == {"dtype": self._dtype} and self.found is None:
                self.found = form_of(self._managed, self._dtype).cast()
                return self.found
            self.found = None
        elif self.found is None:
            self.found = first
        raise _Answered

# SPDX-License-Identifier: Apache-2.0
"""What a model calls on the meta device: attention, dropout and norms as GPUs run them, and values where they follow from
the batch's integers, so that a forward pass may look at a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from .._pytorch.private import fused_attention, fused_norm

_VALUES_MAX = 1 << 22  # elements of what is followed
_MAKE = (torch.arange, torch.ones, torch.zeros, torch.full, torch.tensor)  # of no tensor
_META = torch.device("meta")
_attention = nn.functional.scaled_dot_product_attention


class _Unknown(Exception):
    """A value does not follow from those that are known."""


class AsOnGpu(TorchFunctionMode):
    """Runs what a model calls."""

    def __init__(self) -> None:
        super().__init__()
        self._values: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of tensors on the meta device

    def know(self, made: torch.Tensor, value: torch.Tensor) -> None:
        """A tensor on the meta device has a value. What is as large as activations are is not followed."""
        if value.numel() <= _VALUES_MAX and not value.is_meta:
            self._values[made] = value

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        try:
            made = _ON_GPU.get(function, function)(*args, **named)
        except RuntimeError:  # it looks at values
            try:
                value = self._value(function, args, named)
            except _Unknown:
                value = None
            if value is None:
                raise
            if not isinstance(value, torch.Tensor):
                return value
            made = torch.empty_like(value, device=_META)
            self.know(made, value)
            return made
        name = getattr(function, "__name__", "")
        if name == "__setitem__" or "out" in named or (name.endswith("_") and not name.endswith("__")):
            self._write(function, args, named)
        elif isinstance(made, torch.Tensor) and made.is_meta:
            try:
                self.know(made, self._value(function, args, named))
            except _Unknown:
                pass
        return made

    def _write(self, function: Any, args: Any, named: dict[str, Any]) -> None:
        """Writes to values as well. Where it is not known what, none that is followed is sure any more, as some show others."""
        try:
            self._value(function, args, named)
        except _Unknown:
            if any(one in self._values for one in (*args, *named.values()) if isinstance(one, torch.Tensor)):
                self._values.clear()

    def _value(self, function: Any, args: Any, named: dict[str, Any]) -> Any:
        """What a function comes to. _Unknown where a tensor's value is not, or it is a matter of chance."""
        if "rand" in getattr(function, "__name__", "rand"):
            raise _Unknown
        tensors: list[torch.Tensor] = []
        args, named = self._known(args, tensors), self._known(named, tensors)
        if not tensors:
            if function not in _MAKE:
                raise _Unknown
            named = {**named, "device": "cpu"}
        try:
            with torch.no_grad():
                return function(*args, **named)
        except Exception as error:  # whatever it says of values
            raise _Unknown from error

    def _known(self, given: Any, tensors: list[torch.Tensor]) -> Any:
        """What is given to a function, of values. tensors: has them added."""
        if isinstance(given, torch.Tensor):
            value = self._values.get(given) if given.is_meta else given
            if value is None:
                raise _Unknown
            tensors.append(value)
            return value
        if isinstance(given, dict):
            return {name: self._known(one, tensors) for name, one in given.items()}
        if type(given) in (list, tuple):
            return type(given)(self._known(one, tensors) for one in given)
        return torch.device("cpu") if given == _META else given


def _fused(*args: Any, **named: Any) -> torch.Tensor:
    """Attention. Where PyTorch asks for none of queries in four dimensions, it runs no fused kernel."""
    query = args[0] if args else named["query"]
    return (fused_attention if query.is_meta and query.dim() == 4 else _attention)(*args, **named)


def _dropout(given: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Keeps a mask of bytes."""
    if given.is_meta and training and 0 < p < 1 and not inplace:
        return torch.native_dropout(given, p, True)[0]
    return nn.functional.dropout(given, p, training, inplace)


def _norm(given: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None) -> torch.Tensor:
    """Keeps what it is given alone."""
    return fused_norm(given, shape, weight, eps) if given.is_meta else nn.functional.rms_norm(given, shape, weight, eps)


def _attend(*args: Any, **named: Any) -> Any:
    """PyTorch's own module calls attention by its name in there, unseen by a mode."""
    nn.functional.scaled_dot_product_attention = _fused
    try:
        return nn.functional.multi_head_attention_forward(*args, **named)
    finally:
        nn.functional.scaled_dot_product_attention = _attention


_ON_GPU: dict[Any, Callable[..., Any]] = {_attention: _fused, nn.functional.dropout: _dropout, nn.functional.rms_norm: _norm,
                                          nn.functional.multi_head_attention_forward: _attend}

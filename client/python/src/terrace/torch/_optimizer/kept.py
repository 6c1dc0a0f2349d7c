# SPDX-License-Identifier: Apache-2.0
"""The tensors that an optimizer keeps of a parameter, wherever in its state they are: by themselves, in lists, tuples,
dictionaries and objects, and within tensors of other classes, as quantized states are."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn, optim

from .._pytorch.split import is_split
from .._tensors.offloaded import OffloadedTensor
from .holders import Holder, InAttribute, InDTensor, InList, InState, InTuple
from .trace import PLAIN

Path = tuple[str, ...]  # the names under which a tensor is found, the state's own first

_DEPTH_MAX = 8
_CLOSED = (nn.Module, optim.Optimizer, type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType,
           torch.Generator)


def kept_in(state: dict[str, Any]) -> Iterator[tuple[Holder, Path, torch.Tensor]]:
    """Each tensor of a parameter's state with what holds it and where it is; of what is split over ranks, this rank's."""
    for key, value in list(state.items()):
        if isinstance(value, OffloadedTensor) or type(value) is torch.Tensor:
            yield InState(state, key), (str(key),), value
        elif not isinstance(value, PLAIN):
            yield from _within(InState(state, key), (str(key),), value, {id(state)})


def is_made_of_tensors(value: Any) -> bool:
    """Whether it is a tensor of another class over ordinary ones, which it names."""
    return (isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter | OffloadedTensor)
            and not is_split(value) and hasattr(value, "__tensor_flatten__"))


def made_anew(value: Any) -> Any:
    """Another tensor of such a class over the same ones."""
    names, context = value.__tensor_flatten__()
    made = type(value).__tensor_unflatten__({name: getattr(value, name) for name in names}, context, value.size(), value.stride())
    return made


def _within(holder: Holder, path: Path, value: Any, seen: set[int]) -> Iterator[tuple[Holder, Path, torch.Tensor]]:
    if isinstance(value, OffloadedTensor) or type(value) is torch.Tensor:
        yield holder, path, value
    elif is_split(value):
        yield from _within(InDTensor(value), path, value._local_tensor, seen)
    elif not isinstance(value, PLAIN) and id(value) not in seen and len(path) <= _DEPTH_MAX:
        seen.add(id(value))
        for inner, name in _inside(holder, value):
            yield from _within(inner, (*path, name), inner.get(), seen)


def _inside(holder: Holder, value: Any) -> list[tuple[Holder, str]]:
    """What holds each thing that it has in it, with a name."""
    if is_made_of_tensors(value):
        return [(InAttribute(value, name), name) for name in value.__tensor_flatten__()[0]]
    if isinstance(value, list | collections.deque):
        return [(InList(value, index), str(index)) for index in range(len(value))]
    if isinstance(value, tuple):
        return [(InTuple(holder, index), str(index)) for index in range(len(value))]
    if isinstance(value, dict):
        return [(InState(value, key), str(key)) for key in value]
    if isinstance(value, (torch.Tensor, *_CLOSED)):
        return []
    return [(InAttribute(value, name), name) for name in getattr(value, "__dict__", ())]

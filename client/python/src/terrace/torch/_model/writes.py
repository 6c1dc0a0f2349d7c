# SPDX-License-Identifier: Apache-2.0
"""What a function of PyTorch writes to, as far as it says so, and whether it may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .._parameters.parameter import is_managed_parameter
from .._pytorch.bits import same_bits
from .._pytorch.private import Overload, OverloadPacket, overload_for
from .._tensors.offloaded import OffloadedTensor, leaves

if TYPE_CHECKING:
    from .._leased.slot import Slot
    from .._leased.store import Store

_NAMES = frozenset(dir(torch.Tensor))
_IN_PLACE = frozenset(getattr(torch.Tensor, name) for name in _NAMES & {"__setitem__", *(f"__i{of[2:]}" for of in _NAMES)})  # __iadd__
_OVERWRITES = frozenset(("copy_", "fill_", "zero_", "normal_", "uniform_", "_foreach_copy_", "_foreach_zero_"))
_COPIES = frozenset((torch.Tensor.copy_, torch.ops.aten.copy_.default))


def store_of(tensor: Any) -> Store:
    """Where the bytes are of a tensor or a parameter that is in Terrace."""
    found: Store = tensor.terrace_store if isinstance(tensor, OffloadedTensor) else tensor.terrace.store
    return found


def slot_of(tensor: Any) -> Slot:
    """Which ones they are there."""
    found: Slot = tensor.terrace_slot if isinstance(tensor, OffloadedTensor) else tensor.terrace.slot
    return found


def resolved(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Of an operator's name (torch.ops.aten.mul) the overload that these arguments choose; else the function."""
    if not isinstance(func, OverloadPacket):
        return func
    return overload_for(func, args, kwargs)


def may_write_unseen(func: Callable[..., Any]) -> bool:
    """Whether a function may write to its arguments without a change of their versions: PyTorch's fused kernels do, and
    some others. The names of what writes in place end with an underscore, and operators say in their schema."""
    if isinstance(func, Overload):
        return func._schema.is_mutable
    name = getattr(func, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def overwritten(func: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """What a function has written all of, whatever was there."""
    overload = isinstance(func, Overload)
    name = func._schema.name.removeprefix("aten::") if overload else getattr(func, "__name__", "")
    return list(leaves(args[:1])) if name in _OVERWRITES else []


def read_only_target(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                     offloaded: Sequence[torch.Tensor]) -> Any:
    """Of what is in Terrace, one that the function is going to write to, and may not; None where there is none."""
    if all(store_of(leaf).writable for leaf in offloaded):
        return None
    for leaf in leaves(_targets(func, args, kwargs)):
        if (isinstance(leaf, OffloadedTensor) or is_managed_parameter(leaf)) and not store_of(leaf).writable:
            return leaf
    return None


def _targets(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """As its schema says it; of a function without one the first argument, where its name says that it writes."""
    if isinstance(func, Overload):
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        return [given.get(argument.name) for argument in func._schema.arguments
                if argument.alias_info is not None and argument.alias_info.is_write]
    first = [*args, *kwargs.values()][:1] if may_write_unseen(func) or func in _IN_PLACE else []
    return [*first, kwargs.get("out")]


def write_the_same(target: torch.Tensor, func: Callable[..., Any], args: tuple[Any, ...],
                   kwargs: dict[str, Any]) -> None:
    """Writes nothing where it would be what is there already: whoever loads a checkpoint writes all of it. Else
    PermissionDenied."""
    source = None
    if func in _COPIES:
        source = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    if not isinstance(source, torch.Tensor) or not same_bits(target, source):
        store_of(target).refuse_writes(slot_of(target))

# SPDX-License-Identifier: Apache-2.0
"""What the graph of a module's call keeps unasked: a torch.autograd.Function may have tensors as attributes of its context,
which no hook sees, as those of layers in four bits do. Frozen weights among them are put there as what leases for each
operation, so that the graph keeps nothing leased."""

from __future__ import annotations

import operator
from typing import Any

import torch

from .._parameters.parameter import ManagedParameter, is_managed_parameter, parameter_of
from .._pytorch.private import raw
from .._tensors.offloaded import OffloadedTensor, OffloadedView, leaves

_NODES_MAX = 256  # that are looked at in one call

_Context = torch.autograd.function.BackwardCFunction


def let_go(made: Any, since: int) -> None:
    """Goes through the graph of what a module has made. since: the number of the first node that may be the module's."""
    nodes = [leaf.grad_fn for leaf in leaves(made)]
    seen: set[Any] = set()
    while nodes and len(seen) < _NODES_MAX:
        node: Any = nodes.pop()
        if node is None or node in seen or node._sequence_nr() < since or hasattr(node, "variable"):
            continue
        seen.add(node)
        nodes += [below for below, _ in node.next_functions]
        if isinstance(node, _Context):
            kept = vars(node)
            for name, value in kept.items():
                kept[name] = _leasing(value)


def _leasing(value: Any) -> Any:
    """The same, with what leases in the place of what shows a frozen weight's leased memory."""
    if type(value) in (tuple, list):
        parts = [_leasing(part) for part in value]
        return value if all(map(operator.is_, parts, value)) else type(value)(parts)  # a list may be the module's own
    if isinstance(value, torch.Tensor) and not isinstance(value, OffloadedTensor) and not is_managed_parameter(value):
        managed = parameter_of(value)
        if managed is not None and not _is_trained(managed) and not _is_part_of(managed, value):
            with raw():
                return OffloadedView.on(managed.slot, managed.store, managed, value)
    return value


def _is_trained(managed: ManagedParameter) -> bool:
    """Whether it may be stepped, also within the backward pass, which is to use what it was."""
    with raw():
        return managed.parameter.requires_grad


def _is_part_of(managed: ManagedParameter, tensor: torch.Tensor) -> bool:
    """Whether it is the very tensor that leases by itself once its module has run."""
    return managed.parameter is tensor or any(twin.is_for(tensor) for twin in managed.twins)

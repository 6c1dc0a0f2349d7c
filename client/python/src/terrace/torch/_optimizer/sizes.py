# SPDX-License-Identifier: Apache-2.0
"""How many bytes an optimizer is going to keep, before it keeps them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import optim

from .._parameters.masters import NARROW
from .._pytorch.private import unhooked
from .._pytorch.split import local_of
from .kept import kept_in
from .kinds import may_keep_more, states
from .trial import undisturbed
from .twin import Twin

_ADAMS = 8  # bytes for each element: two float32
_LEAST_SHARE = 8  # of a parameter's elements, that a state must have to grow with the parameter, as rows and columns do not


def state_bytes(optimizer: optim.Optimizer, masters: torch.dtype | None) -> dict[int, int]:
    """Of the states that it will have of each parameter that requires a gradient, by the parameter's id.

    Of PyTorch's own optimizers, exactly. Of others, what a small copy keeps for each element; two float32 for each, where no
    copy can be stepped. masters: the type of what is stepped in the place of weights in a narrow one, if that is so.
    """
    of_copy = _of_copy(optimizer, masters) if may_keep_more(optimizer) else None
    found = {}
    for number, group in enumerate(optimizer.param_groups):
        for one in group["params"]:
            if one.requires_grad:
                its = local_of(one)
                size = masters.itemsize if masters is not None and one.dtype in NARROW else one.element_size()
                for_each = (len(states(optimizer, group, one.dim())) * size if of_copy is None
                            else of_copy.get((number, one.dim()), of_copy[number, None]))
                found[id(one)] = round(its.numel() * for_each)
    return found


def _of_copy(optimizer: optim.Optimizer, masters: torch.dtype | None) -> Mapping[tuple[int, int | None], float]:
    """Bytes for each element, by the number of a group and a parameter's dimensions; by None, the most of its parameters."""
    found: dict[tuple[int, int | None], float] = {}
    try:
        with undisturbed():
            twin = Twin(optimizer, False, masters)
            _step(twin)
    except Exception:  # whatever a step says that cannot be run by itself
        twin = None
    for number in range(len(optimizer.param_groups)):
        found[number, None] = _ADAMS if twin is None else 0.0
        for member in twin.members if twin is not None else ():
            if member.number == twin.group_of[number] and member.parameter.requires_grad:
                elements = member.parameter.numel()
                tensors = {id(tensor): tensor for state in twin.state_of(member) for _, _, tensor in kept_in(state)}
                kept = sum(tensor.nbytes for tensor in tensors.values() if tensor.numel() * _LEAST_SHARE >= elements)
                found[number, member.parameter.dim()] = kept / elements
                found[number, None] = max(found[number, None], kept / elements)
    return found


def _step(twin: Twin) -> None:
    """Steps it once: whatever it keeps, it has then."""
    for member in twin.members:
        if member.parameter.requires_grad:
            member.parameter.grad = torch.full_like(member.parameter, 0.01)
    unhooked(type(twin.optimizer).step)(twin.optimizer)

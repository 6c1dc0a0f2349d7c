# SPDX-License-Identifier: Apache-2.0
"""In which types what is trained is stepped and accumulated: what was asked for, and whether it can be had."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn, optim

from ..._errors import FailedPrecondition, InvalidArgument
from .._leased.placeholder import elements_spanned
from .._parameters.masters import NARROW
from .._pytorch.split import local_of
from .._ranks.ddp import wrong_with

_TYPES = " or ".join(map(str, NARROW))


class Precision(NamedTuple):
    """The types of masters, and of gradients; None: there are no masters, and gradients are of the weights' type."""

    masters: torch.dtype | None
    gradients: torch.dtype | None


def wanted_precision(call: str, masters: Any, gradients: Any, optimizer: object) -> Precision:
    """What a caller asked for. TypeError for what is no element type; InvalidArgument for what cannot be had."""
    for name, value in (("masters", masters), ("gradients", gradients)):
        if value is not None and not isinstance(value, torch.dtype):
            raise TypeError(f"{call}: {name} is {value!r}; it is torch.float32, or None")
        if value not in (None, torch.float32):
            raise InvalidArgument(f"{call}: {name} is {value}; it is torch.float32, or None")
    if masters is not None and optimizer is None:
        raise InvalidArgument(f"{call}: masters={masters} are what an optimizer steps, and none is given: "
                              f"offload(model, optimizer, masters={masters})")
    if gradients is not None and masters is None:
        raise InvalidArgument(f"{call}: gradients={gradients} accumulates in {gradients} what masters are stepped with: give "
                              f"masters={gradients} as well")
    return Precision(masters, gradients)


def check_precision(call: str, precision: Precision, model: nn.Module, optimizers: Sequence[optim.Optimizer]) -> None:
    """Raises where masters cannot be had of what optimizers step."""
    if precision.masters is not None:
        _check_narrow(call, precision, optimizers)
        check_taken(call, precision, model, optimizers)


def _check_narrow(call: str, precision: Precision, optimizers: Sequence[optim.Optimizer]) -> None:
    """Raises where there is nothing that could have masters."""
    stepped = _stepped(optimizers)
    if not any(one.dtype in NARROW for one in stepped):
        found = sorted({str(one.dtype) for one in stepped}) or ["nothing that requires a gradient"]
        raise InvalidArgument(f"{call}: masters={precision.masters} are of weights in {_TYPES}, and what the optimizer steps "
                              f"is {', '.join(found)}: leave masters out, or cast the model first")


def _stepped(optimizers: Sequence[optim.Optimizer]) -> list[nn.Parameter]:
    return [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"] if one.requires_grad]


def check_taken(call: str, precision: Precision, model: nn.Module, optimizers: Sequence[optim.Optimizer]) -> None:
    """The same of optimizers that may have nothing that could have masters."""
    names = {id(one): name for name, one in model.named_parameters()}
    narrow = [one for one in _stepped(optimizers) if one.dtype in NARROW]
    check_alone(call, narrow, names)
    for optimizer in optimizers:
        _check_states(call, optimizer, narrow, names)
    for one in model.modules() if precision.gradients is not None else ():
        if isinstance(one, nn.parallel.DistributedDataParallel):
            raise InvalidArgument(f"{call}: {wrong_with(one, False, wide=True)}")


def check_alone(call: str, narrow: list[nn.Parameter], names: dict[int, str]) -> None:
    """Raises InvalidArgument for weights that have elements in common: each one's master would write to them."""
    spans = sorted((one.data_ptr(), one.data_ptr() + elements_spanned(one.shape, one.stride()) * one.itemsize, number)
                   for number, one in enumerate(map(local_of, narrow)) if not one.is_meta)
    for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
        if begin < end:
            here, there = (names.get(id(narrow[number]), "a parameter") for number in (first, second))
            raise InvalidArgument(f"{call}: the parameters '{here}' and '{there}' show the same memory, and two masters would "
                                  "write to it: clone() the data of one, or make them one parameter")


def _check_states(call: str, optimizer: optim.Optimizer, narrow: list[nn.Parameter], names: dict[int, str]) -> None:
    """Raises for states that were made of the weights: a master's are made of the master."""
    for one in narrow:
        made = [key for key, value in optimizer.state.get(one, {}).items()
                if isinstance(value, torch.Tensor) and value.numel() > 1]
        if made and not _begin_anew(optimizer, one):
            raise FailedPrecondition(
                f"{call}: the optimizer has states already, as '{made[0]}' of '{names.get(id(one), 'a parameter')}', which were "
                f"made for weights in {one.dtype}, or cast to it as they were loaded: offload a new optimizer with masters, "
                "before its first step, and give it the state with load_state_dict() after that")


def _begin_anew(optimizer: optim.Optimizer, parameter: nn.Parameter) -> bool:
    """Whether an optimizer's states are those that its constructor makes, so that they can be made of a master."""
    state = optimizer.state[parameter]
    return type(optimizer) is optim.Adagrad and not state["step"].item()


def renew_states(optimizer: optim.Optimizer, dtype: torch.dtype | None) -> None:
    """Makes those states anew that the constructor has made, and that no step has been at. dtype: of masters, whose these
    are to be; None: they are to be the weights' again."""
    for group in optimizer.param_groups if type(optimizer) is optim.Adagrad else ():
        for one in group["params"]:
            if one.dtype in NARROW and one.requires_grad and _begin_anew(optimizer, one):
                optimizer.state[one]["sum"] = torch.full_like(one, group["initial_accumulator_value"], dtype=dtype)

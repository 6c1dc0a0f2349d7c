# SPDX-License-Identifier: Apache-2.0
"""Which ranks make a call together, and what is to be the same on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from ..._errors import InvalidArgument
from .._pytorch.split import is_split
from .fsdp import groups_of
from .together import Ranks, digest, everyone


class _Asked(NamedTuple):
    """What one rank asks for."""

    options: dict[str, str]  # each in words, as what follows
    parameters: dict[str, str]  # of those that are split


def ranks_of(model: Any, shares: bool) -> list[int]:
    """The numbers of the ranks that make a call together: those over which a model is split, or all that share what is
    frozen."""
    if shares or not isinstance(model, nn.Module):
        return everyone() if shares else []
    meshes = {one.device_mesh for _, one in _split(model)}
    return sorted({number for mesh in meshes for number in mesh.mesh.flatten().tolist()}.intersection(everyone()))


def _split(model: nn.Module) -> list[tuple[str, Any]]:
    """Its parameters that are split over ranks, also where FSDP has gathered them, by name."""
    found = [(name, one) for name, one in model.named_parameters() if is_split(one)]
    try:
        groups = groups_of(model)
    except InvalidArgument:  # which is said once all have come
        return found
    gathered = [one for group in groups if not group.is_sharded for one in group.fsdp_params]
    return found + [(one._module_info.param_name, one.sharded_param) for one in gathered]


def check_alike(call: str, ranks: Ranks, model: nn.Module, options: Mapping[str, object]) -> None:
    """Raises InvalidArgument, on all ranks, where they do not ask for the same, by name. options: what each was given."""
    asked = _Asked({name: str(value) for name, value in options.items()},
                   {name: f"{tuple(one.shape)} of {one.dtype}" for name, one in _split(model)})
    if len(set(ranks.together(lambda: digest(asked)))) == 1:
        return
    others = ranks.together(lambda: asked)
    for other, number in zip(others[1:], ranks.members[1:], strict=True):
        _check(call, others[0], other, ranks.members[0], number)


def _check(call: str, one: _Asked, other: _Asked, first: int, second: int) -> None:
    where = f"on rank {first} of torch.distributed", f"on rank {second}"
    for name in one.options:
        if one.options[name] != other.options[name]:
            raise InvalidArgument(f"{call}: {name} is {one.options[name]} {where[0]}, and {other.options[name]} {where[1]}: give "
                                  "all ranks the same, or they step to other weights")
    for name in one.parameters:
        if one.parameters[name] != other.parameters.get(name, one.parameters[name]):
            raise InvalidArgument(f"{call}: the parameter '{name}', which is split over ranks, is {one.parameters[name]} "
                                  f"{where[0]}, and {other.parameters[name]} {where[1]}: build and cast the same model on all")

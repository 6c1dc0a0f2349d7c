# SPDX-License-Identifier: Apache-2.0
"""Where an optimizer's step runs: what was asked for, and whether it can be had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn, optim

from ..._errors import InvalidArgument
from .._leased.store import Operations, Store
from .._pytorch.split import is_split
from .precision import check_alone
from .refusals import check_offered

STEPS = ("device", "host")
_STATE_BYTES = 32  # of address space for each element: masters, states and what else is made like them


def wanted_step(call: str, step: Any, optimizer: object) -> str | None:
    """What a caller asked for; None: nothing. TypeError for what is no name; InvalidArgument for what cannot be had."""
    if step is None:
        return None
    if not isinstance(step, str):
        raise TypeError(f"{call}: step is {step!r}; it is 'device' or 'host'")
    if step not in STEPS:
        raise InvalidArgument(f"{call}: step is {step!r}; it is 'device' (where the model is), or 'host' (the CPU)")
    if step == "host" and optimizer is None:
        raise InvalidArgument(f"{call}: step='host' runs an optimizer's step on the CPU, and none is given: "
                              "offload(model, optimizer, step='host')")
    return step


def check_step(call: str, model: nn.Module, optimizers: Sequence[optim.Optimizer], places: Sequence[str]) -> None:
    """Raises InvalidArgument, by name, where the CPU cannot step what is on a GPU. places: where the model is leased."""
    if len(places) > 1:
        raise InvalidArgument(f"{call}: step='host' cannot be had of a model that is in {' and '.join(places)}: leave it out")
    names = {id(one): name for name, one in model.named_parameters()}
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            if group.get("capturable"):
                raise InvalidArgument(
                    f"{call}: parameter group {number} of {type(optimizer).__name__} has capturable=True, which is for a GPU's "
                    "own steps, and step='host' runs them on the CPU: leave one of both out")
            for one in group["params"]:
                if is_split(one):
                    raise InvalidArgument(
                        f"{call}: step='host' cannot be had of parameters on a GPU that fully_shard() has split, as "
                        f"'{names.get(id(one), 'not of this model')}': leave it out")
    check_alone(call, [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]], names)


def host_store(call: str, weights: Store, operations: Operations, elements: int) -> Store:
    """Where masters and states of weights on a GPU are, for a step that is the CPU's. elements: of all that is trained."""
    check_offered(call, weights.client, "host")
    made = Store(weights.client, "host", weights.timeout, _STATE_BYTES * elements + (1 << 20), operations, weights.tally)
    weights.steps.follow(made.places[0].order)
    return made

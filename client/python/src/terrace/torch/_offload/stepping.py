# SPDX-License-Identifier: Apache-2.0
"""Where an optimizer's step runs: what was asked for, and whether it can be had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn, optim

from ..._client import Client
from ..._errors import InvalidArgument
from .._device.device import device_of
from .._device.link import Link, measured_link
from .._device.streams import has_streams
from .._leased.store import Operations, Store
from .._optimizer.cost import step_seconds
from .._optimizer.sound_later import can_be_later, can_be_sliced
from .needs import needs_of_each
from .precision import Precision, check_alone
from .refusals import check_offered
from .where import StepCosts, Where, beyond_room, choose_on_cpu, choose_on_gpu

AUTO_STEP = "auto"
STEPS = ("device", "host", AUTO_STEP)
_NO_LINK = Link(0.0, 0.0)  # where nothing is to be weighed
_STATE_BYTES = 32  # of address space for each element: masters, states and what else is made like them


def wanted_step(call: str, step: Any, optimizer: object) -> str | None:
    """What a caller asked for; None: nothing. TypeError for what is no name; InvalidArgument for what cannot be had."""
    if step is None:
        return None
    if not isinstance(step, str):
        raise TypeError(f"{call}: step is {step!r}; it is 'device', 'host' or 'auto'")
    if step not in STEPS:
        raise InvalidArgument(f"{call}: step is {step!r}; it is 'device' (where the model is), 'host' (the CPU), or 'auto'")
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
    check_alone(call, [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]], names)


def decide(call: str, model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, parts: frozenset[str],
           client: Client, places: Sequence[str]) -> Where:
    """Where the step runs, where the caller leaves that to Terrace: before anything moves. What the CPU cannot step steps
    where the model is."""
    place, device = places[0], device_of(client, places[0])
    why_not = _why_not(call, model, optimizers, client, places)
    if why_not:
        return Where("device", why_not)
    trained = [(one, needs) for one, needs in needs_of_each(model, optimizers, precision) if one.requires_grad]
    leased_bytes = sum(needs.parameters * ("parameters" in parts) + needs.gradients * ("gradients" in parts)
                       + (needs.masters + needs.states) * ("states" in parts) for _, needs in trained)
    (room_bytes,) = (offer.guarantee_bytes for offer in client.places() if offer.name == place)
    if not has_streams(device):
        return choose_on_cpu(leased_bytes, room_bytes, place)
    beyond = beyond_room(leased_bytes, room_bytes)
    costs = StepCosts(place, sum(needs.gradients for _, needs in trained), sum(needs.parameters for _, needs in trained),
                      leased_bytes, room_bytes, *((_NO_LINK, 0.0) if not beyond else _measured(optimizers, precision, device)),
                      torch.get_num_threads())
    return choose_on_gpu(costs)


def _why_not(call: str, model: nn.Module, optimizers: Sequence[optim.Optimizer], client: Client, places: Sequence[str]) -> str:
    """What rules the CPU's step out, in words; empty: nothing does."""
    if not optimizers:
        return "no optimizer is given"
    if not any(has_streams(device_of(client, place)) for place in places):
        later = [one for one in optimizers if can_be_later(one)]
        return "" if later else f"what {type(optimizers[0]).__name__} steps is stepped before step() returns in any case"
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return ("ranks that measure might choose otherwise each, and step to weights that differ in last bits: give all of them "
                "step='host', or 'device'")
    other = next((one for one in optimizers if not can_be_sliced(one)), None)
    if other is not None:
        return f"what a step of {type(other).__name__} takes the CPU is not known from a slice of it: give step='host' to have it there"
    try:
        check_offered(call, client, "host")
        check_step(call, model, optimizers, places)
    except InvalidArgument as error:
        return f"the CPU cannot step this ({str(error).removeprefix(call + ': ')})"
    return ""


def _measured(optimizers: Sequence[optim.Optimizer], precision: Precision, device: torch.device) -> tuple[Link, float]:
    return measured_link(device), sum(step_seconds(one, precision.masters) for one in optimizers)


def host_store(call: str, weights: Store, operations: Operations, elements: int) -> Store:
    """Where masters and states of weights on a GPU are, for a step that is the CPU's. elements: of all that is trained."""
    check_offered(call, weights.client, "host")
    made = Store(weights.client, "host", weights.timeout, _STATE_BYTES * elements + (1 << 20), operations, weights.tally)
    weights.steps.follow(made.places[0].order)
    return made

# SPDX-License-Identifier: Apache-2.0
"""What of a job goes to Terrace where the caller leaves that to Terrace: what there is no room for where the model is."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn, optim

from ..._client import Client
from ..._serve import ServedClient
from .._device.free import Tiers, free_bytes
from .._parameters.parameter import built
from .._pytorch.split import is_split
from .needs import Needs, made_already, needs_of
from .parts import PARTS
from .precision import Precision

_LEFT = 2  # one part of so many, of what is free, is left to activations and to others
_MIB = 1 << 20


class Chosen(NamedTuple):
    """What goes to Terrace, and why, in a line."""

    parts: frozenset[str]
    why: str  # empty where there was no choice


class _Stays(NamedTuple):
    """What an earlier call has left where its model is, of which not all need be there yet."""

    optimizers: list[weakref.ref[optim.Optimizer]]
    precision: Precision
    parts: frozenset[str]  # that went to Terrace


_stays: weakref.WeakKeyDictionary[nn.Module, _Stays] = weakref.WeakKeyDictionary()


def free_for(devices: Sequence[torch.device], client: Client | None, model: nn.Module) -> list[int]:
    """Bytes that are free on each of the devices where a model is, less what others' are yet to take there. client: whose
    daemon's tiers may take more of the host's memory; None: that is not known."""
    tiers = Tiers()
    if client is not None:
        nbytes = sum(place.capacity_bytes for place in client.places() if not place.gpu)
        tiers = Tiers(nbytes, isinstance(client, ServedClient))
    return [max(0, free_bytes(device, tiers) - _coming_elsewhere(device, model)) for device in devices]


def moves(model: nn.Module) -> None:
    """A call says what of a model goes: what an earlier one has left there is not to be reckoned with."""
    _stays.pop(model, None)


def _coming_elsewhere(device: torch.device, model: nn.Module) -> int:
    """What is yet to be made on a device for other models, that earlier calls have left there."""
    total = 0
    for other, stays in list(_stays.items()):
        if other is not model:
            optimizers = [one for one in (each() for each in stays.optimizers) if one is not None]
            needs, made = needs_of(other, optimizers, stays.precision, device), made_already(other, optimizers, device)
            total += max(0, needs.gradients - made.gradients) if "gradients" not in stays.parts else 0
            total += max(0, needs.states - made.states) if "states" not in stays.parts else 0
    return total


class _Wanted(NamedTuple):
    """What a job takes on one device beside its parameters, and what it may take."""

    gradients: int
    states: int
    room: int


def choose(model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, devices: Sequence[torch.device],
           free: Sequence[int], *, in_backward: bool, shares: bool, on_host: bool) -> Chosen:
    """States and masters go first, and parameters with their gradients after them, where there is no room on any of the
    model's devices.

    free: of free_for(), on each of the devices. in_backward, shares: the caller asks for what parameters have to be in
    Terrace for. on_host: for the CPU's step of what is on GPUs, which has states in Terrace.
    """
    needs = needs_of(model, optimizers, precision)
    wanted = [_wanted(model, optimizers, precision, device, left) for device, left in zip(devices, free, strict=True)]
    all_parts = frozenset(PARTS if optimizers else PARTS[:2])
    names = list(model.parameters())
    if shares or built(names):
        chosen = Chosen(all_parts, "")  # what init() has built, and what ranks share, is there
    elif not needs.masters and not on_host and all(one.gradients + one.states <= one.room for one in wanted):
        chosen = Chosen(frozenset(), f"all stays where the model is: {_sums(needs, wanted, devices)} (what='all' moves it all the "
                        "same)")
    elif optimizers and all(one.gradients <= one.room for one in wanted) and not in_backward and not any(map(is_split, names)):
        what = f"states and masters ({_mib(needs.states + needs.masters)}) go to Terrace, where masters have to be" if (
            needs.masters) else f"states ({_mib(needs.states)}) go to Terrace{', where the CPU steps' if on_host else ''}"
        chosen = Chosen(frozenset({"states"}), f"{what}, and parameters and gradients stay where the model is: "
                        f"{_sums(needs, wanted, devices)}")
    else:
        chosen = Chosen(all_parts, f"all of the job ({_mib(needs.all)}) goes to Terrace: {_sums(needs, wanted, devices)}")
    _stays[model] = _Stays([weakref.ref(one) for one in optimizers], precision, chosen.parts)
    return chosen


def _wanted(model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, device: torch.device,
            free: int) -> _Wanted:
    needs, made = needs_of(model, optimizers, precision, device), made_already(model, optimizers, device)
    return _Wanted(needs.gradients, needs.states, (free + made.gradients + made.states) * (_LEFT - 1) // _LEFT)


def _sums(needs: Needs, wanted: Sequence[_Wanted], devices: Sequence[torch.device]) -> str:
    """What decides, in words."""
    what = "gradients and states" if needs.states else "gradients"
    return " and ".join(f"{what} take {_mib(one.gradients + one.states)} of {_mib(one.room)} that they may take on {device}"
                        for one, device in zip(wanted, devices, strict=True))


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:.0f} MiB" if nbytes >= 10 * _MIB else f"{nbytes / _MIB:.3g} MiB"


def say(model: nn.Module, chosen: Chosen) -> None:
    """Tells the script's user in one line."""
    if chosen.why:
        print(f"terrace.torch.offload: {type(model).__name__}: {chosen.why}", file=sys.stderr, flush=True)

# SPDX-License-Identifier: Apache-2.0
"""What of a job goes to Terrace where the caller leaves that to Terrace: what there is no room for where the model is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn, optim

from .._device.free import free_bytes
from .._parameters.parameter import built
from .._pytorch.split import is_split
from .needs import made_already, needs_of
from .parts import PARTS
from .precision import Precision

_LEFT = 2  # one part of so many, of what is free, is left to activations and to others
_MIB = 1 << 20


class Chosen(NamedTuple):
    """What goes to Terrace, and why, in a line."""

    parts: frozenset[str]
    why: str  # empty where there was no choice


def free_for(devices: Sequence[torch.device]) -> int:
    """Bytes that what is trained may take on each of the devices where the model is."""
    return min(free_bytes(device) * (_LEFT - 1) // _LEFT for device in devices)


class _Coming(NamedTuple):
    """What is to come on one device."""

    gradients: int
    states: int  # and masters


def _coming(model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, device: torch.device) -> _Coming:
    needs, made = needs_of(model, optimizers, precision, device), made_already(model, optimizers, device)
    return _Coming(max(0, needs.gradients - made.gradients), max(0, needs.states + needs.masters - made.states))


def choose(model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, devices: Sequence[torch.device],
           free: int, *,
           in_backward: bool, shares: bool) -> Chosen:
    """States and masters go first, and parameters with their gradients after them, where there is no room on any of the
    model's devices.

    free: of free_for(device), the least of all ranks that a model is split over. in_backward, shares: the caller asks for
    what parameters have to be in Terrace for.
    """
    needs = needs_of(model, optimizers, precision)
    coming = [_coming(model, optimizers, precision, device) for device in devices]
    all_parts = frozenset(PARTS if optimizers else PARTS[:2])
    room = f"{free // _MIB} MiB can be taken on {' and on '.join(map(str, devices))}"
    names = list(model.parameters())
    if shares or built(names):
        return Chosen(all_parts, "")  # what init() has built, and what ranks share, is there
    if all(one.gradients + one.states <= free for one in coming) and not needs.masters:
        to_come = sum(one.gradients + one.states for one in coming)
        return Chosen(frozenset(), f"all stays where the model is: {to_come // _MIB} MiB are to come, and {room} "
                      "(what='all' moves it all the same)")
    if optimizers and all(one.gradients <= free for one in coming) and not in_backward and not any(map(is_split, names)):
        what = "states" if not needs.masters else "states and masters"
        return Chosen(frozenset({"states"}), f"{what} ({(needs.states + needs.masters) // _MIB} MiB) go to Terrace, and "
                      f"parameters and gradients stay where the model is: {room}")
    return Chosen(all_parts, f"all of the job ({needs.all // _MIB} MiB) goes to Terrace: {room}")


def say(model: nn.Module, chosen: Chosen) -> None:
    """Tells the script's user in one line."""
    if chosen.why:
        print(f"terrace.torch.offload: {type(model).__name__}: {chosen.why}", file=sys.stderr, flush=True)

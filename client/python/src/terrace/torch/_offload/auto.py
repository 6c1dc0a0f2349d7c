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


def free_for(device: torch.device) -> int:
    """Bytes that what is trained may take where the model is."""
    return free_bytes(device) * (_LEFT - 1) // _LEFT


def choose(model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, device: torch.device, free: int, *,
           in_backward: bool, shares: bool) -> Chosen:
    """States and masters go first, and parameters with their gradients after them.

    free: of free_for(device), the least of all ranks that a model is split over. in_backward, shares: the caller asks for
    what parameters have to be in Terrace for.
    """
    needs, made = needs_of(model, optimizers, precision), made_already(model, optimizers)
    gradients = max(0, needs.gradients - made.gradients)
    states = max(0, needs.states + needs.masters - made.states)
    all_parts = frozenset(PARTS if optimizers else PARTS[:2])
    room = f"{free // _MIB} MiB can be taken on {device}"
    names = list(model.parameters())
    if shares or built(names):
        return Chosen(all_parts, "")  # what init() has built, and what ranks share, is there
    if gradients + states <= free and not needs.masters:
        return Chosen(frozenset(), f"all stays where the model is: {(gradients + states) // _MIB} MiB are to come, and {room} "
                      "(what='all' moves it all the same)")
    if optimizers and gradients <= free and not in_backward and not any(map(is_split, names)):
        what = "states" if not needs.masters else "states and masters"
        return Chosen(frozenset({"states"}), f"{what} ({(needs.states + needs.masters) // _MIB} MiB) go to Terrace, and "
                      f"parameters and gradients stay where the model is: {room}")
    return Chosen(all_parts, f"all of the job ({needs.all // _MIB} MiB) goes to Terrace: {room}")


def say(model: nn.Module, chosen: Chosen) -> None:
    """Tells the script's user in one line."""
    if chosen.why:
        print(f"terrace.torch.offload: {type(model).__name__}: {chosen.why}", file=sys.stderr, flush=True)

# SPDX-License-Identifier: Apache-2.0
"""How many bytes a job takes, by what they are, before it takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import nn, optim

from .._optimizer.kept import kept_in
from .._optimizer.sizes import state_bytes
from .._parameters.masters import NARROW
from .._pytorch.split import bytes_of, local_of
from .precision import Precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes, by class; of what is split over ranks, this rank's."""

    parameters: int
    gradients: int
    masters: int
    states: int

    @property
    def all(self) -> int:
        """All of them together."""
        return self.parameters + self.gradients + self.masters + self.states


def needs_of_each(model: nn.Module, optimizers: Sequence[optim.Optimizer],
                  precision: Precision) -> Iterator[tuple[nn.Parameter, Needs]]:
    """What each parameter of a model takes that is trained with these optimizers. A model on the meta device will do."""
    of_states: dict[int, int] = {}
    for optimizer in optimizers:
        for number, size in state_bytes(optimizer, precision.masters).items():
            of_states[number] = max(size, of_states.get(number, 0))  # a wrapper's are its own and those of what it wraps
    for one in model.parameters():
        its, narrow = local_of(one), one.dtype in NARROW
        gradient = precision.gradients.itemsize if narrow and precision.gradients is not None else its.element_size()
        master = precision.masters.itemsize if narrow and precision.masters is not None else 0
        trained = its.numel() if one.requires_grad else 0
        yield one, Needs(parameters=bytes_of(one), gradients=trained * gradient, masters=trained * master,
                         states=of_states.get(id(one), 0))


def needs_of(model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision,
             device: torch.device | None = None) -> Needs:
    """What all of them take. device: those on it alone."""
    each = [needs for one, needs in needs_of_each(model, optimizers, precision) if device in (None, one.device)]
    return Needs(parameters=sum(one.parameters for one in each), gradients=sum(one.gradients for one in each),
                 masters=sum(one.masters for one in each), states=sum(one.states for one in each))


def made_already(model: nn.Module, optimizers: Sequence[optim.Optimizer], device: torch.device | None = None) -> Needs:
    """What of it there is already, in the process's memory or a GPU's. device: of those on it alone."""
    parameters = [one for one in model.parameters() if device in (None, one.device)]
    kept = {id(tensor): tensor.nbytes for optimizer in optimizers for one in parameters
            for _, _, tensor in kept_in(optimizer.state.get(one, {}))}
    return Needs(parameters=sum(map(bytes_of, parameters)), masters=0, states=sum(kept.values()),
                 gradients=sum(bytes_of(one.grad) for one in parameters if one.grad is not None))

# SPDX-License-Identifier: Apache-2.0
"""The optimizers that a caller gives."""

from __future__ import annotations

from typing import Any

from torch import optim

from ..._errors import InvalidArgument
from .._optimizer import kinds
from .._optimizer.optimizer import unwrapped


def steppers(call: str, given: Any) -> list[optim.Optimizer]:
    """Those that step, out of the wrappers of libraries: none, one, or those of a list or tuple. InvalidArgument for an
    empty list, for what cannot be offloaded, and for a parameter that two of them step."""
    them = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    if given is not None and not them:
        raise InvalidArgument(f"{call}: the list of optimizers is empty; leave it out, or give those that step the model")
    steps: list[optim.Optimizer] = [unwrapped(one) for one in them]
    for one in steps:
        kinds.check(one)
    of: dict[int, optim.Optimizer] = {}
    for optimizer in steps:
        for group in optimizer.param_groups:
            for one in group["params"]:
                other = of.setdefault(id(one), optimizer)
                if other is not optimizer:
                    raise InvalidArgument(
                        f"{call}: {type(other).__name__} and {type(optimizer).__name__} both step a parameter of shape "
                        f"{tuple(one.shape)}: of several optimizers in one call each parameter belongs to one")
    return steps

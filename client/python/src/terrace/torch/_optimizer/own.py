# SPDX-License-Identifier: Apache-2.0
"""What a declared optimizer keeps beside the states of its parameters: on itself, and in its groups.

A step that is run for a few parameters at a time may change it each time, where without Terrace it would once a step.
"""

import threading
from typing import Any

import torch
from torch import optim

from .._device.streams import generators
from .._pytorch.modes import ordinary
from .._pytorch.private import raw
from .trace import own_of, trace

_OF_PYTORCH = frozenset({"_need_device_dtype_check_for_fused", "_opt_called", "_step_count",
                         "_warned_capturable_if_run_uncaptured", "found_inf", "grad_scale", "step"})
_RANDOM = "the state of PyTorch's random numbers"


class Own:
    """What an optimizer keeps, as it is now."""

    def __init__(self, optimizer: optim.Optimizer):
        self._optimizer = optimizer
        self._before = self._now()

    def changed(self) -> list[str]:
        """What has changed since, in words."""
        now, before = self._now(), self._before
        names = now.keys() | before.keys()
        if _RANDOM not in now or _RANDOM not in before:
            names.discard(_RANDOM)
        return sorted(name for name in names
                      if name not in now or name not in before or now[name][0] != before[name][0])

    def _now(self) -> dict[str, tuple[list[Any], list[Any]]]:
        optimizer = self._optimizer
        aside = {id(optimizer), id(optimizer.state), id(optimizer.param_groups)}
        aside |= {id(one) for group in optimizer.param_groups for one in group["params"]}  # are stepped
        with ordinary(), raw():
            found = {f"its own '{name}'": trace(value, aside)
                     for name, value in own_of(optimizer).items() if name not in _OF_PYTORCH}
            found |= {f"self.state[{key!r}]": trace(value, aside)
                      for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)}
            for index, group in enumerate(optimizer.param_groups):
                for name, value in group.items():
                    if name != "params":
                        found[f"'{name}' of parameter group {index}"] = trace(value, aside)
            if _alone():
                found[_RANDOM] = trace([torch.default_generator, *generators()])
        return found


def _alone() -> bool:
    """Whether no other thread of the script may draw random numbers meanwhile. Autograd's run with the one that waits for
    them."""
    return sum(type(one) is not threading._DummyThread for one in threading.enumerate()) == 1

# SPDX-License-Identifier: Apache-2.0
"""What a step carries in its local names from one parameter, or one group, to the next: a count, a flag, an iterator.

It would begin anew each time that the step is run for a few parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn, optim

from ..._errors import FailedPrecondition
from .._pytorch.modes import ordinary
from .._pytorch.private import raw
from .trace import PLAIN, trace

_Traced = dict[str, tuple[list[Any], list[Any]]]


class Carried:
    """Looks at one run of a step."""

    def __init__(self, of: str):
        """of: who is asked to mend it, in words."""
        self._of = of
        self._known: dict[FrameType, frozenset[str]] = {}  # names that a frame had before its first loop over parameters

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Until the run has ended: nothing of its frames is held after that."""
        try:
            yield
        finally:
            self._known.clear()

    def of_groups(self, frame: FrameType) -> _Names:
        """For a loop over groups that begins in this frame: nothing that the frame has may change."""
        return _Names(self._of, frame, frozenset(frame.f_locals), False)

    def of_parameters(self, frame: FrameType) -> _Names:
        """For a loop over parameters that begins in this frame. Lists may fill."""
        known = self._known.setdefault(frame, frozenset(frame.f_locals))
        return _Names(self._of, frame, known, True)


class _Names:
    """Names of a frame, as they are now."""

    def __init__(self, of: str, frame: FrameType, names: frozenset[str], lists_fill: bool):
        self._of = of
        self._frame = frame
        self._names = frozenset(name for name in names if name in frame.f_locals and not name.startswith(".")
                                and not _is_known(frame.f_locals[name])
                                and not (lists_fill and _is_empty(frame.f_locals[name])))
        self._before = self._now()

    def _now(self) -> _Traced:
        with ordinary(), raw():
            local = self._frame.f_locals
            return {name: trace(local[name]) for name in self._names if name in local}

    def check(self) -> None:
        """Raises if any of them has changed."""
        now = self._now()
        changed = sorted(name for name in self._names if name not in now or now[name][0] != self._before[name][0])
        if changed:
            raise FailedPrecondition(
                f"terrace.torch.offload(step_in_backward=True): the step of {self._of} carries '{', '.join(changed)}' from one "
                "parameter or group to the next, and is run for a few parameters at a time: offload without step_in_backward. "
                "This step's weights are of no use")


def _is_known(value: Any) -> bool:
    """Whether it is looked at in other ways, or is what a loop is about."""
    return isinstance(value, optim.Optimizer | nn.Parameter | nn.Module) or (isinstance(value, dict) and "params" in value)


def _is_empty(value: Any) -> bool:
    return not isinstance(value, (*PLAIN, torch.Tensor)) and hasattr(value, "__len__") and not len(value)

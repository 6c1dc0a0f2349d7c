# SPDX-License-Identifier: Apache-2.0
"""What a step finds as `self.param_groups`: groups whose parameters are leased while the step is at them.

PyTorch's own steps are shown a group in parts, one for each batch that is leased. A declared step that steps parameters as
its loop comes to them sees each group once (see members.py). Another one sees parts, too, and is refused where it would do
with each of them what it is to do once.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn, optim

from ..._errors import FailedPrecondition
from .._pytorch.private import is_asked_by_call
from . import kinds
from .members import Members
from .own import Own
from .run import Run

_PAIRED = "pairs its parameter groups with something (enumerate, zip)"


def proxy_class(kind: type[optim.Optimizer]) -> type[optim.Optimizer]:
    """A class of what a step is given in its optimizer's place: the same, but for its groups."""
    # The slot is the proxy's own; its __dict__ is the optimizer's.
    return type(kind.__name__, (kind,), {"param_groups": property(lambda proxy: _Groups(proxy.terrace_run)),
                                         "terrace_proxy": True, "__slots__": ("terrace_run",)})


def is_proxy(optimizer: Any) -> bool:
    """Whether it is such a thing, as where a step calls its base class's."""
    return hasattr(type(optimizer), "terrace_proxy")


def proxy_of(optimizer: optim.Optimizer, kind: type[optim.Optimizer], run: Run) -> optim.Optimizer:
    """What a run of an optimizer's step is given in its place. kind: its proxy_class()."""
    proxy: Any = object.__new__(kind)
    object.__setattr__(proxy, "terrace_run", run)
    proxy.__dict__ = optimizer.__dict__
    made: optim.Optimizer = proxy
    return made


def run_of(proxy: Any) -> Run | None:
    """The run that was given this; None of what is no proxy."""
    run: Run | None = getattr(proxy, "terrace_run", None)
    return run


class _Groups(Sequence[dict[str, Any]]):
    """The groups of one step."""

    def __init__(self, run: Run):
        self._run = run
        self._declared = kinds.may_keep_more(run.optimizer)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._shown(self._declared and len(self) > 1 and is_asked_by_call(sys._getframe(1)))

    def __len__(self) -> int:
        return len(self._run.optimizer.param_groups)

    def __getitem__(self, index: Any) -> Any:
        found = self._run.optimizer.param_groups[index]
        if not isinstance(found, dict) or not self._run.in_backward:
            return found
        return {**found, "params": self._run.members_of(found)}

    def _shown(self, paired: bool) -> Iterator[dict[str, Any]]:
        if paired:
            self._check_in_backward(_PAIRED)
        for group, members in self._run.members():
            if members or not group["params"]:
                yield from self._parts_of(group, deque(self._run.batches(members, group)), _PAIRED if paired else "")

    def _parts_of(self, group: dict[str, Any], waiting: deque[list[nn.Parameter]], odd: str) -> Iterator[dict[str, Any]]:
        """A group in as many parts as its step needs. odd: what the step may not do if there are several."""
        own = Own(self._run.optimizer) if self._declared and len(waiting) > 1 else None
        self._run.waiting = waiting
        watched = self._declared and len(group["params"]) > 1
        while True:
            given = dict(group)
            members = Members(self._run, waiting, watched)
            part = _Part(given, params=members) if watched else {**given, "params": members}
            with members:
                yield part
            _keep_written(group, given, part)
            self._check_in_backward(members.odd)
            if not waiting or (isinstance(part, _Part) and not part.asked and not members.stepped):
                waiting.clear()
                return
            if own is not None:
                self._check(own, odd or members.odd)

    def _check(self, own: Own, odd: str) -> None:
        """Raises where a step would do with each part of a group what it is to do once."""
        changed = own.changed()
        odd = f"changes {', '.join(changed)}" if changed else odd
        if odd:
            raise FailedPrecondition(
                f"terrace.torch.offload: the step of {type(self._run.optimizer).__name__} {odd}. It is shown a group in parts, "
                "since its loop over group['params'] does not step the parameters as it comes to them, and would do so with "
                "each part: step each parameter in that loop, or keep what changes in self.state of each. The parameters of "
                "the first part are stepped, and the others are not")

    def _check_in_backward(self, odd: str) -> None:
        """Raises where a step is run for a few parameters at a time, and does what it cannot."""
        if odd and self._run.is_due:
            raise FailedPrecondition(
                f"terrace.torch.offload(step_in_backward=True): the step of {type(self._run.optimizer).__name__} {odd}, and is "
                "run for a few parameters at a time, in the order in which gradients come: offload without step_in_backward. "
                "This step's weights are of no use")


class _Part(dict[str, Any]):
    """A group as a declared step sees it for a while."""

    asked = False  # the step has looked at its parameters

    def __getitem__(self, name: str) -> Any:
        self.asked |= name == "params"
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def pop(self, *name: Any) -> Any:
        self.asked = True
        return super().pop(*name)

    def __iter__(self) -> Iterator[str]:
        self.asked = True
        return super().__iter__()

    def values(self) -> Any:
        self.asked = True
        return super().values()

    def items(self) -> Any:
        self.asked = True
        return super().items()

    def copy(self) -> Any:
        return dict(self)


def _keep_written(group: dict[str, Any], given: dict[str, Any], part: dict[str, Any]) -> None:
    """Has a group be what a step has made of a part of it, which was given this."""
    for name, value in dict.items(part):
        if name != "params" and (name not in given or value is not given[name]):
            group[name] = value
    for name in given.keys() - part.keys():
        group.pop(name, None)

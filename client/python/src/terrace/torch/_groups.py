# SPDX-License-Identifier: Apache-2.0
"""What a step finds as `self.param_groups`: groups whose parameters are leased while the step is at them.

PyTorch's own steps are shown a group in parts, one for each batch that is leased. Any other step sees each group once and
whole (see _members.py), but where it is run for a few parameters at a time, in the backward pass.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import nn, optim

from .._errors import FailedPrecondition
from . import _optimizers
from ._members import Few, Members, is_asked_by_call

if TYPE_CHECKING:
    from ._optimizer import ManagedOptimizer


def proxy_class(kind: type[optim.Optimizer], owner: weakref.ref[ManagedOptimizer]) -> type[optim.Optimizer]:
    """A class of what a step is given in its optimizer's place: the same, but for its groups."""

    def groups(proxy: Any) -> _Groups:
        found = owner()
        assert found is not None  # it waits for the step
        return _Groups(found, proxy.terrace_only)

    # The slot is the proxy's own; its __dict__ is the optimizer's.
    return type(kind.__name__, (kind,), {"param_groups": property(groups), "terrace_proxy": True,
                                         "__slots__": ("terrace_only",)})


class _Groups(Sequence[dict[str, Any]]):
    """The groups of one step."""

    def __init__(self, owner: ManagedOptimizer, only: Sequence[nn.Parameter] | None):
        """only: of their parameters, those that are stepped with their gradients at hand."""
        self._owner = owner
        self._only = only

    def __iter__(self) -> Iterator[dict[str, Any]]:
        asks = sys._getframe(1)
        if _optimizers.is_step_of_pytorch(self._owner.optimizer, asks):
            return self._in_parts()
        if self._only is None:
            return self._whole()
        if len(self) > 1 and is_asked_by_call(asks):
            self._check_in_backward("pairs its parameter groups with something (enumerate, zip)")
        return self._few(asks)

    def __len__(self) -> int:
        return len(self._owner.optimizer.param_groups)

    def __getitem__(self, index: Any) -> Any:
        found = self._owner.optimizer.param_groups[index]
        if not isinstance(found, dict) or not self._owner.in_backward:
            return found
        batches = [[one] for one in self._owner.members_of(found, self._only)]
        shown = {**found, "params": Members(self._owner, batches) if self._only is None else Few(self._owner, batches)}
        self._owner.shown.append((found, dict(found), shown))
        return shown

    def _batches(self) -> Iterator[tuple[dict[str, Any], list[list[nn.Parameter]]]]:
        for group, members in self._owner.members(self._only):
            if members or not group["params"]:
                yield group, list(self._owner.batches(members, group))

    def _in_parts(self) -> Iterator[dict[str, Any]]:
        for group, batches in self._batches():
            for batch in batches or [[]]:
                members, given = Members(self._owner, [batch]), dict(group)
                part = {**given, "params": members}
                with members:
                    yield part
                keep_written(group, given, part)

    def _whole(self) -> Iterator[dict[str, Any]]:
        for group, batches in self._batches():
            before, members = group["params"], Members(self._owner, batches)
            group["params"] = members  # of the group itself, so that what is written to it is at once what others see
            try:
                with members:
                    yield group
            finally:
                if group.get("params") is members:
                    group["params"] = before

    def _few(self, asks: FrameType) -> Iterator[dict[str, Any]]:
        before = self._owner.carried.of_groups(asks)
        self._owner.loops_left += 1
        for group, batches in self._batches():
            members, given = Few(self._owner, batches), dict(group)
            part = {**given, "params": members}
            with members:
                yield part
            keep_written(group, given, part)
            self._check_in_backward(members.odd)
        self._owner.loops_left -= 1
        before.check()

    def _check_in_backward(self, odd: str) -> None:
        """Raises where a step is run for a few parameters at a time, and does what it cannot."""
        if odd and self._only is not None:
            raise FailedPrecondition(
                f"terrace.torch.offload(step_in_backward=True): the step of {type(self._owner.optimizer).__name__} {odd}, and is "
                "run for a few parameters at a time, in the order in which gradients come: offload without step_in_backward. "
                "This step's weights are of no use")


def keep_written(group: dict[str, Any], given: dict[str, Any], part: dict[str, Any]) -> None:
    """Has a group be what a step has made of a part of it, which was given this."""
    for name, value in dict.items(part):
        if name != "params" and (name not in given or value is not given[name]):
            group[name] = value
    for name in given.keys() - part.keys():
        group.pop(name, None)

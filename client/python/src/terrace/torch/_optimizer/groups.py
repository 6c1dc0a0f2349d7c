# SPDX-License-Identifier: Apache-2.0
"""What a step finds as `self.param_groups`: groups whose parameters are leased while the step is at them.

PyTorch's own steps are shown a group in parts, one for each batch that is leased; and so are those of which a trial has
shown that they come to the same so, once what they write to a group or to their optimizer takes effect once (see once.py).
Any other step sees each group once and whole (see members.py), but where it is run for a few parameters at a time, in the
backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import nn, optim

from ..._errors import FailedPrecondition
from .._pytorch.private import is_asked_by_call
from . import kinds
from .later import Later
from .members import Few, Members, Part
from .once import Once
from .run import DueRun, Group, Run


def proxy_class(kind: type[optim.Optimizer], translates: bool = False) -> type[optim.Optimizer]:
    """A class of what a step is given in its optimizer's place: the same, but for its groups; and for its states, where it
    translates, as the step is shown masters in the place of weights, or does not wait as others do who look at them."""
    # The slot is the proxy's own; its __dict__ is the optimizer's.
    states = {"state": property(lambda proxy: proxy.terrace_run.states())} if translates else {}
    return type(kind.__name__, (kind,), {"param_groups": property(lambda proxy: _Groups(proxy.terrace_run)),
                                         "terrace_proxy": True, "__slots__": ("terrace_run",), **states})


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


class _Groups(Sequence[Group]):
    """The groups of one step."""

    def __init__(self, run: Run):
        self._run = run

    def __iter__(self) -> Iterator[Group]:
        run, asks = self._run, sys._getframe(1)
        run.loops += 1
        if kinds.is_step_of_pytorch(run.optimizer, asks):
            return self._in_parts()
        run.show_all()
        if not isinstance(run, DueRun):
            _check_one_loop(run)
            tried = run.tried
            by_call = is_asked_by_call(asks)
            run.looks += by_call
            return self._each(tried if tried is not None and tried.in_parts and not by_call else None)
        if len(self) > 1 and is_asked_by_call(asks):
            _check_in_backward(run, "pairs its parameter groups with something (enumerate, zip)")
        return self._few(run, asks)

    def __len__(self) -> int:
        self._run.looks += 1
        return len(self._run.optimizer.param_groups)

    def __getitem__(self, index: Any) -> Any:
        self._run.looks += 1
        run, found = self._run, self._run.optimizer.param_groups[index]
        if not isinstance(found, dict):
            return [self[at] for at in range(len(self))[index]] if run.translates else found
        if not run.in_backward and not run.translates:
            return found
        run.show_all()
        batches = [[one] for one in run.members_of(found)]
        if not isinstance(run, DueRun):
            made = Members(run, batches)
            return {**found, "params": made} if run.in_backward else _GroupByNumber(found, made)
        made = {**found, "params": Few(run, batches)}
        run.by_number.append((found, dict(found), made))
        return made

    def _batches(self, later: Later | None = None) -> Iterator[tuple[Group, list[list[nn.Parameter]]]]:
        """later: takes what it can."""
        for group, members in self._run.members():
            members = members if later is None else later.take(group, members)
            if members or not group["params"]:
                yield group, list(self._run.batches(members, group))

    def _in_parts(self) -> Iterator[Group]:
        for group, batches in self._batches(self._run.later):
            for batch in batches or [[]]:
                members, given = Members(self._run, [batch]), dict(group)
                part = {**given, "params": members}
                with members:
                    yield part
                _keep_written(group, given, part)
        if self._run.later is not None:
            self._run.later.begin()

    def _each(self, tried: kinds.Tried | None) -> Iterator[Group]:
        """tried: shows that a group which is not leased at once may be shown in parts; None: it may not."""
        later = None if tried is None else self._run.later
        if later is not None and later.gathered:
            later = None
        for group, batches in self._batches(later):
            if tried is None or len(batches) < 2:
                yield from self._whole(group, batches)
            else:
                yield from self._in_tried_parts(group, batches, tried)
        if later is not None:
            later.begin()

    def _whole(self, group: Group, batches: list[list[nn.Parameter]]) -> Iterator[Group]:
        before, members = group["params"], Members(self._run, batches)
        group["params"] = members  # of the group itself, so that what is written to it is at once what others see
        try:
            with members:
                yield group
        finally:
            if group.get("params") is members:
                group["params"] = before

    def _in_tried_parts(self, group: Group, batches: list[list[nn.Parameter]], tried: kinds.Tried) -> Iterator[Group]:
        once = Once(self._run.optimizer, group, tried.writes)
        for number, batch in enumerate(batches):
            if number:
                once.again()
            members, given = Part(self._run, [batch]), dict(group)
            part = {**given, "params": members}
            with members:
                yield part
            _keep_written(group, given, part)
            if members.odd:
                raise FailedPrecondition(
                    f"terrace.torch.offload: the step of {type(self._run.optimizer).__name__} {members.odd}, which it did not do "
                    "in its trial, and was shown this group in parts: declare it with terrace.torch.declare(), and it is "
                    "shown each group whole. This step's weights are of no use")

    def _few(self, run: DueRun, asks: FrameType) -> Iterator[Group]:
        tried = run.tried
        before = None if tried is not None and tried.alone else run.carried.of_groups(asks)
        run.loops_left += 1
        for group, batches in self._batches():
            if tried is not None and tried.alone and tried.in_parts:
                yield from self._in_tried_parts(group, batches, tried)
                continue
            members, given = Few(run, batches) if before is not None else Part(run, batches), dict(group)
            part = {**given, "params": members}
            with members:
                yield part
            _keep_written(group, given, part)
            _check_in_backward(run, members.odd)
        run.loops_left -= 1
        if before is not None:
            before.check()


def _check_one_loop(run: Run) -> None:
    """Raises where a step loops over its groups once more, and a part of it goes on already."""
    if run.later is not None and run.later.begun:
        raise FailedPrecondition(
            f"terrace.torch.offload: the step of {type(run.optimizer).__name__} loops over self.param_groups once more, which it did "
            "not do in its trial, and with step='host' a part of it goes on already: declare it with terrace.torch.declare(), and "
            "it is stepped before step() returns. This step's weights are of no use")


class _GroupByNumber(dict[str, Any]):
    """A group that a step asked for by number, with other parameters: what is written to it is written to the group."""

    def __init__(self, group: Group, members: Members):
        super().__init__({**group, "params": members})
        self._group = group

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name != "params":
            self._group[name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._group.pop(name, None)

    def update(self, *given: Any, **named: Any) -> None:
        for name, value in dict(*given, **named).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        self._group.pop(name, *default)
        return super().pop(name, *default)


def end_by_number(run: DueRun) -> list[str]:
    """A run has ended: keeps what it has made of groups that it asked for by number. What it has done with them that it may
    not, in words."""
    for group, given, made in run.by_number:
        _keep_written(group, given, made)
    return [members.odd for _, _, made in run.by_number if isinstance(members := made["params"], Few) and members.odd]


def _check_in_backward(run: DueRun, odd: str) -> None:
    """Raises where a step is run for a few parameters at a time, and does what it cannot."""
    if odd:
        raise FailedPrecondition(
            f"terrace.torch.offload(step_in_backward=True): the step of {type(run.optimizer).__name__} {odd}, and is "
            "run for a few parameters at a time, in the order in which gradients come: offload without step_in_backward. "
            "This step's weights are of no use")


def _keep_written(group: Group, given: Group, part: Group) -> None:
    """Has a group be what a step has made of a part of it, which was given this."""
    for name, value in dict.items(part):
        if name != "params" and (name not in given or value is not given[name]):
            group[name] = value
    for name in given.keys() - part.keys():
        group.pop(name, None)

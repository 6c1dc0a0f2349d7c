# SPDX-License-Identifier: Apache-2.0
"""What a step finds as `group["params"]`.

Most steps are a loop over it that steps each parameter as it comes to it. Such a loop goes on from one batch of leased
parameters to the next, so that the step sees its group once and whole, and whatever it counts, pairs or draws is as it
would be. Other steps collect what they find, and then run PyTorch's kernels on these lists. They are shown the group in
parts, so that what is in the lists is leased.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import nn

from .._pytorch.private import is_asked_by_call
from .run import Run


class Members(list[nn.Parameter]):
    """The parameters of a part of a group: those of one batch, and of as many more as a loop has gone on to. They are leased
    for as long as it is entered."""

    def __init__(self, run: Run, waiting: deque[list[nn.Parameter]], watched: bool):
        """waiting: the batches of the group that were not shown yet, from which this takes its own. watched: it is looked
        what the step does, and a loop may go on to the next ones."""
        self._run = run
        self._waiting = waiting
        self._batches = [waiting.popleft() if waiting else []]
        self._watched = watched and (bool(waiting) or run.in_backward)
        self._grows = self._watched  # until a loop over all of them has ended
        self._leased = run.batch(self._batches[0])
        self._at = 0  # which of them that is
        self._signs: list[Any] = []  # of what is leased, before the step
        self._loops = self._ended = 0  # over it: how many have begun, and have come to its end
        self._paired = self._collects = self._stepped_later = False
        self.stepped = False  # the step has changed any of them; of what is watched
        super().__init__(self._batches[0])

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *_: object) -> None:
        self.stepped = self._is_stepped()
        self._leased.leave()

    @property
    def odd(self) -> str:
        """What a step has done that it may not where this is not the whole group, in words."""
        return ("steps parameters in a second loop over group['params']" if self._stepped_later else
                "pairs the parameters of a group with something (enumerate, zip, list)" if self._paired else
                "leaves its loop over group['params'] before the end" if self._loops and not self._ended else "")

    def __iter__(self) -> Iterator[nn.Parameter]:
        self._paired |= self._watched and is_asked_by_call(sys._getframe(1))
        return self._loop()

    def _loop(self) -> Iterator[nn.Parameter]:
        self._loops += 1
        at = 0
        while at < len(self._batches) or self._goes_on():
            self._turn_to(at)
            yield from self._batches[at]
            at += 1
        self._ended += 1
        stepped = self._is_stepped()
        self._stepped_later |= self._collects and stepped
        self._collects |= self._watched and not stepped

    def _goes_on(self) -> bool:
        """Whether a loop that has come to the end is given another batch."""
        self._grows = self._grows and bool(self._waiting) and (not self._signs or self._is_stepped())
        if self._grows:
            self._batches.append(self._waiting.popleft())
            self.extend(self._batches[-1])
        return self._grows

    def _is_stepped(self) -> bool:
        """Whether the step has changed anything of what is leased."""
        return bool(self._signs) and self._signs != self._leased.signs()

    def _turn_to(self, at: int) -> None:
        """Leases that batch in the place of another one."""
        if at != self._at:
            self._leased.leave()
            self._leased, self._at = self._run.batch(self._batches[at]), at
            self._enter()

    def _enter(self) -> None:
        self._leased.enter()
        self._signs = self._leased.signs() if self._watched else []

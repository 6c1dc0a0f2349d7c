# SPDX-License-Identifier: Apache-2.0
"""What a step finds as `group["params"]`.

A loop over it goes on from one batch of leased parameters to the next, so that the step sees its group once and whole, and
whatever it counts, pairs or draws is as it would be. What a step collects in such a loop is leased by whatever uses it later.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import nn

from .._pytorch.private import is_asked_by_call
from .batch import Batch
from .run import DueRun, Run


class Members(list[nn.Parameter]):
    """Parameters that a step is shown, of which a loop over them has one batch leased at a time. One batch alone is leased for
    as long as this is entered."""

    def __init__(self, run: Run, batches: Sequence[list[nn.Parameter]]):
        super().__init__(one for batch in batches for one in batch)
        self._run = run
        self._batches = batches
        self._leased: Batch | None = None
        self._at = -1  # which of them that is; -1: none is
        self._stays = False  # what is leased when a loop ends

    def __enter__(self) -> None:
        if len(self._batches) == 1:
            self._stays = True
            self._turn_to(0)

    def __exit__(self, *_: object) -> None:
        self._stays = False
        self._turn_to(-1)

    def __iter__(self) -> Iterator[nn.Parameter]:
        return self._loop()

    def _loop(self) -> Iterator[nn.Parameter]:
        try:
            for at, batch in enumerate(self._batches):
                self._turn_to(at)
                yield from batch
        finally:
            if not self._stays:
                self._turn_to(-1)

    def _turn_to(self, at: int) -> None:
        """Leases that batch in the place of another one."""
        if at == self._at:
            return
        leased, self._leased, self._at = self._leased, None, -1
        if leased is not None:
            leased.leave()
        if at >= 0:
            self._leased, self._at = self._run.batch(self._batches[at]), at
            self._leased.enter()


class Part(Members):
    """Some parameters of a group, for a step that is shown a few at a time: it may not ask how many there are, or which has
    what number."""

    def __init__(self, run: Run, batches: Sequence[list[nn.Parameter]]):
        super().__init__(run, batches)
        self._numbered = False

    @property
    def odd(self) -> str:
        """What a step has done with it that it may not, in words."""
        return "counts or pairs the parameters of a group (enumerate, zip, list, len, by number)" if self._numbered else ""

    def __bool__(self) -> bool:
        return any(self._batches)

    def __iter__(self) -> Iterator[nn.Parameter]:
        self._numbered |= is_asked_by_call(sys._getframe(1))
        return self._loop()


class Few(Part):
    """Those for a step that is run for a few parameters at a time."""

    def __init__(self, run: DueRun, batches: Sequence[list[nn.Parameter]]):
        super().__init__(run, batches)
        self._carried = run.carried
        self._loops = self._ended = 0  # over it: how many have begun, and have come to its end

    @property
    def odd(self) -> str:
        """What a step has done with it that it may not, in words."""
        return super().odd or ("leaves its loop over group['params'] before the end" if self._loops > self._ended else
                               "runs several loops over group['params']" if self._loops > 1 else "")

    def __iter__(self) -> Iterator[nn.Parameter]:
        asks = sys._getframe(1)
        self._numbered |= is_asked_by_call(asks)
        return self._watched_loop(asks)

    def _watched_loop(self, asks: FrameType) -> Iterator[nn.Parameter]:
        self._loops += 1
        before = self._carried.of_parameters(asks)
        yield from self._loop()
        self._ended += 1
        before.check()


def _numbering(name: str) -> Any:
    def call(self: Part, *given: Any, **named: Any) -> Any:
        self._numbered = True
        return getattr(Members, name)(self, *given, **named)

    call.__name__ = name
    return call


for _name in ("__len__", "__getitem__", "__reversed__", "__contains__", "__add__", "__mul__", "__rmul__", "__eq__", "__ne__",
              "__lt__", "__le__", "__gt__", "__ge__", "__iadd__", "__imul__", "__setitem__", "__delitem__", "index", "count",
              "copy", "pop", "append", "extend", "insert", "remove", "reverse", "sort", "clear", "__reduce_ex__", "__repr__"):
    setattr(Part, _name, _numbering(_name))

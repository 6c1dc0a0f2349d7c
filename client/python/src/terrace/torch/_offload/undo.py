# SPDX-License-Identifier: Apache-2.0
"""Takes back what was done, the latest first, where what comes after it fails."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch

from ..._errors import Error


class Undo:
    """A context in which several things are done, all of them or none."""

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[[], object], str]] = []

    def by(self, call: Callable[[], object], what: str = "") -> None:
        """How what is done now is taken back. what: what is not there as before where that fails: it is noted on the error
        that is under way, and the others are taken back in any case."""
        self._steps.append((call, what))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, failed: BaseException | None,
                 trace: TracebackType | None) -> None:
        while failed is not None and self._steps:
            call, what = self._steps.pop()
            try:
                call()
            except (Error, torch.OutOfMemoryError) as error:
                if not what:
                    raise
                failed.add_note(f"{what} could not be brought back: {error}")

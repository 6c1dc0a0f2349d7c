# SPDX-License-Identifier: Apache-2.0
"""What all ranks of torch.distributed do, or none of them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import distributed

from ..._errors import Error


class Ranks:
    """The ranks in one call that all of them make. Where one of them fails, all do, wherever they are in it.

    A context manager around the call: what fails in it is told to the others, which are at their next together().
    """

    def __init__(self, wanted: bool):
        """wanted: whether they go together at all; else this rank is alone."""
        self._told = not wanted  # nobody waits any more for what this rank has to say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and not self._told:
            self._everyone(None, error)

    def together(self, call: Callable[[], Any]) -> list[Any]:
        """What the call gives on each rank, by rank. Where it fails on one of them it fails on all."""
        given, error = None, None
        try:
            given = call()
        except Exception as failed:  # whatever it is, the others must not wait for this rank
            error = failed
        everyone = self._everyone(given, error)
        if error is not None:
            raise error
        for number, (_, failure) in enumerate(everyone):
            if failure is not None:
                kind, said = failure
                raise kind(f"{said} (so rank {number} of torch.distributed says)")
        return [given for given, _ in everyone]

    def finish(self) -> None:
        """Waits until all are as far: from then on each is on its own."""
        if not self._told:
            self.together(lambda: None)
            self._told = True

    def _everyone(self, given: Any, error: Exception | None) -> list[Any]:
        kind: type[Exception] = type(error) if isinstance(error, Error) else RuntimeError
        everyone: list[Any] = [(given, None if error is None else (kind, str(error)))]
        if distributed.is_available() and distributed.is_initialized():
            (own,) = everyone
            everyone = [None] * distributed.get_world_size()
            distributed.all_gather_object(everyone, own)
        self._told = any(failure is not None for _, failure in everyone)
        return everyone


def number() -> int:
    """This rank's."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0

# SPDX-License-Identifier: Apache-2.0
"""What all ranks of torch.distributed do, or none of them.

They tell each other by the store that init_process_group() has made. A collective would be met by whatever one a rank runs
next that does not come here, and neither would say so.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from torch import distributed

from ..._errors import DeadlineExceeded, Error
from .._pytorch.private import store_of_ranks

_MOVING_SECONDS = 1800.0  # that the others may take to move what is theirs, once all have come
_calls: Counter[tuple[int, ...]] = Counter()  # that ranks have made together


class Ranks:
    """The ranks in one call that all of them make. Where one of them fails, all do, wherever they are in it.

    A context manager around the call: what fails in it is told to the others, which are at their next together().
    """

    def __init__(self, call: str, members: Sequence[int], seconds: float):
        """call: how it is named in errors. members: the numbers of the ranks that make it; fewer than two: this rank is
        alone. seconds: that the last of them may come later than the first."""
        self._call = call
        self.members = sorted(members)  # by number
        self._seconds = seconds
        self._told = len(self.members) < 2  # nobody waits any more for what this rank has to say
        self._round = 0
        if not self._told:
            key = tuple(self.members)
            _calls[key] += 1
            self._store: Any = distributed.PrefixStore(f"terrace.torch/{digest(key)[:16]}/{_calls[key]}", store_of_ranks())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and not self._told:
            self._tell(None, error)

    def together(self, call: Callable[[], Any]) -> list[Any]:
        """What the call gives on each rank, by rank. Where it fails on one of them it fails on all; DeadlineExceeded where
        one does not come."""
        given, error = None, None
        try:
            given = call()
        except Exception as failed:  # whatever it is, the others must not wait for this rank
            error = failed
        if len(self.members) < 2:
            everyone = [(given, None)]
        else:
            self._tell(given, error)
            everyone = [] if error is not None else self._ask_all()
        if error is not None:
            raise error
        for one, (_, failure) in zip(self.members, everyone, strict=False):
            if failure is not None:
                self._told = True
                kind, said = failure
                raise kind(f"{said} (so rank {one} of torch.distributed says)")
        self._next_round()
        return [given for given, _ in everyone]

    def finish(self) -> None:
        """Waits until all are as far: from then on each is on its own."""
        if not self._told:
            self.together(lambda: None)
            self._told = True

    def _ask_all(self) -> list[Any]:
        """What each rank tells in this round."""
        seconds = self._seconds if self._round == 0 else _MOVING_SECONDS
        keys = [self._key(one, self._round) for one in self.members]
        try:
            self._store.wait(keys, datetime.timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError as error:
            late = [one for one, key in zip(self.members, keys, strict=True) if not self._store.check([key])]
            if late:  # else the last of them has come just now
                raise self._not_come(late[0], seconds) from error
        found = self._store.multi_get(keys) if self._store.has_extended_api() else map(self._store.get, keys)
        return [pickle.loads(one) for one in found]

    def _tell(self, given: Any, error: Exception | None) -> None:
        kind: type[Exception] = type(error) if isinstance(error, Error) else RuntimeError
        said = pickle.dumps((given, None if error is None else (kind, str(error))))
        self._store.set(self._key(number(), self._round), said)
        self._told = error is not None

    def _not_come(self, late: int, seconds: float) -> DeadlineExceeded:
        """This rank waits no more for another one, and whoever is late is told so."""
        error = DeadlineExceeded(
            f"{self._call}: rank {late} of torch.distributed did not come to the same call within {seconds:.0f} s: where a model "
            "is split over ranks, and with share_frozen=True, all ranks call it at the same point. Call it on all of them, or "
            "on none; a larger timeout= waits longer for those that are late")
        self._tell(None, error)
        self._round += 1
        self._tell(None, error)
        return error

    def _next_round(self) -> None:
        """All have told, and so have read what was told in the round before."""
        if len(self.members) > 1 and self._round:
            with contextlib.suppress(RuntimeError):  # some stores keep what they have
                self._store.delete_key(self._key(number(), self._round - 1))
        self._round += 1

    @staticmethod
    def _key(rank: int, of_round: int) -> str:
        return f"{of_round}/{rank}"


def digest(value: Any) -> str:
    """Tells values apart in a few bytes, since each rank is told what all the others tell."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


def number() -> int:
    """This rank's."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def everyone() -> list[int]:
    """All ranks of torch.distributed, by number; none where there is no other: of "fake" groups this process is the one."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_backend() == "fake":
        return []
    return list(range(distributed.get_world_size()))

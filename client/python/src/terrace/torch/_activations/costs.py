# SPDX-License-Identifier: Apache-2.0
"""Which saved tensors are worth moving: by what moving costs, and making them again, how much memory that frees, and
for how long."""

from collections.abc import Sequence
from typing import NamedTuple

KEPT_PARTS = 16  # unless told otherwise, this part of what is saved may stay in memory


class Saving(NamedTuple):
    """What was measured of one saved storage."""

    size: int
    rest_seconds: float | None
    """From its saving to its first use; None: it was not used."""
    move_seconds: float
    """Out and back in, as the training waited for it."""
    outlived: bool
    """The script itself still held the storage when backward came to use it."""
    make_seconds: float | None = None
    """Making it again in backward took this long; 0: not tried yet; None: it cannot be."""


def made_again(savings: Sequence[Saving]) -> frozenset[int]:
    """The numbers of those that are better made again than moved: where that takes less time, or was not tried yet."""
    return frozenset(number for number, saving in enumerate(savings) if saving.make_seconds is not None
                     and (not saving.move_seconds or saving.make_seconds < saving.move_seconds))


def stay_in_memory(savings: Sequence[Saving], keep_bytes: int | None) -> frozenset[int]:
    """The numbers of those that are better left where they are.

    What the script holds anyway: moving that frees nothing. Of the rest, at most `keep_bytes` (None: a sixteenth of
    all), those first that cost the most, to move or to make again, for each byte and second that they would lie in
    memory: small ones, and the ones saved last, which are used first.
    """
    outlived = frozenset(number for number, saving in enumerate(savings) if saving.outlived)
    room = sum(saving.size for saving in savings) // KEPT_PARTS if keep_bytes is None else keep_bytes
    staying = set(outlived)
    for _, number in sorted((_memory_for_time(saving), number) for number, saving in enumerate(savings)
                            if saving.rest_seconds is not None and not saving.outlived):
        if savings[number].size <= room:
            staying.add(number)
            room -= savings[number].size
    return frozenset(staying)


def _memory_for_time(saving: Saving) -> float:
    """Byte-seconds of memory that are won by a second of moving, or of making again."""
    assert saving.rest_seconds is not None
    seconds = min(saving.move_seconds, saving.make_seconds or saving.move_seconds)
    return saving.size * saving.rest_seconds / max(seconds, 1e-9)

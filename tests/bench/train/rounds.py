# SPDX-License-Identifier: Apache-2.0
"""Rounds in which contenders take turns, so that what else the machine does meets all of them."""

import contextlib
import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Sequence

from contender import Contender
from rows import Count, against_itself

AVAILABLE_PART = 0.85  # of the memory that is free: what contenders may be expected to need together


@dataclasses.dataclass
class Measured:
    """What one contender's turns came to."""

    turns: list[float] = dataclasses.field(default_factory=list)  # seconds of a step: each turn's median
    losses: dict[int, str] = dataclasses.field(default_factory=dict)
    peak_bytes: int = 0
    steps: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    failed: str | None = None  # why it has no figures

    @property
    def seconds(self) -> float:
        """Of a step: the median of all turns."""
        return statistics.median(self.turns)

    @property
    def carried(self) -> tuple[float, float]:
        """Bytes read and written, each in a second of its steps."""
        return self.read_bytes / self.steps / self.seconds, self.written_bytes / self.steps / self.seconds

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of a reference, which has two turns a round: against itself."""
        pairs = list(zip(self.turns[::2], self.turns[1::2]))
        return against_itself(pairs) if pairs else None


def last_losses(ours: Measured, reference: Measured) -> list[Count]:
    """The losses of the last step that both have: for people, who see by it that a peer trains the same thing with an
    arithmetic of its own. Nothing where they have none in common."""
    step = max(ours.losses.keys() & reference.losses.keys(), default=None)
    if step is None:
        return []
    return [Count(f"{who}loss of step {step + 1}", float.fromhex(of.losses[step]))
            for who, of in (("", ours), ("the reference: ", reference))]


def available_bytes() -> int:
    """Memory that the machine has free."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def take_turns(references: Sequence[Contender], subjects: Sequence[Contender], rounds: int, steps: int,
               say: Callable[[str], None], between: Callable[[], None] = lambda: None,
               at_the_end: Callable[[Contender], None] = lambda _: None) -> dict[str, Measured]:
    """Runs rounds of turns of `steps` steps: the references, the subjects, the references again. The first step of a
    turn, which begins with disks at rest, is not counted if there are others.

    They all stay for the whole time if the machine's memory is expected to hold them, and so train on; else each turn
    is a fresh process, which has so many steps more before those that are counted. A contender that fails takes its
    turn again with its other options, without its figures so far; where it has none it has no more turns, and says why.
    between: called after each round. at_the_end: called for each contender while it still runs, for the last time.
    """
    crew = [*references, *subjects]
    measured = {one.name: Measured() for one in crew}
    with contextlib.ExitStack() as leaving:
        leaving.push(lambda kind, *_: [one.stop(at_once=kind is not None) for one in crew] and None)
        resident = sum(one.expected_bytes for one in crew) <= AVAILABLE_PART * available_bytes()
        if not resident:
            say("memory does not hold all contenders at once: each turn is a process of its own")
        for number in range(rounds):
            for one in (*references, *subjects, *references):
                measured[one.name] = _turn(one, measured[one.name], steps, say, f"round {number + 1} of {rounds}",
                                           None if resident and number + 1 < rounds else at_the_end, resident)
            between()
    return measured


def _turn(one: Contender, of: Measured, steps: int, say: Callable[[str], None], when: str,
          at_the_end: Callable[[Contender], None] | None, stays: bool) -> Measured:
    while of.failed is None:
        try:
            _take(one, of, steps, say, when, at_the_end, stays)
            break
        except Exception as error:
            say(f"{when}: {error}")
            one.stop(at_once=True)
            of = Measured(failed=None if one.try_otherwise(str(error)) else str(error))
    return of


def _take(one: Contender, of: Measured, steps: int, say: Callable[[str], None], when: str,
          at_the_end: Callable[[Contender], None] | None, stays: bool) -> None:
    if not one.running:
        say(f"{when}: {one.name} starts")
        one.start()
        one.room.reset_peak()
        if not stays:
            of.losses |= one.turn(steps).losses
    done = one.turn(steps)
    counted = done.seconds[1:] or done.seconds
    of.turns.append(statistics.median(counted))
    of.losses |= done.losses
    of.steps += len(done.seconds)
    of.read_bytes += done.read_bytes
    of.written_bytes += done.written_bytes
    of.peak_bytes = max(of.peak_bytes, one.peak_bytes)
    say(f"{when}: {one.name}: {of.turns[-1]:.3f} s a step, at most {one.peak_bytes / (1 << 20):.0f} MiB")
    if at_the_end is not None:
        at_the_end(one)
    if not stays:
        one.stop()

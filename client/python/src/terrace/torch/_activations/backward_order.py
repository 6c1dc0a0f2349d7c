# SPDX-License-Identifier: Apache-2.0
"""What a step of training teaches the next: in which order backward uses what forward saved, and how long it rests.

A step here is a forward pass (or several) and the backward that follows. Its savings are numbered as they come; a
*course* is what was seen of steps whose savings had the same sizes.
"""

import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from .costs import Saving, made_again, stay_in_memory

COURSES_MAX = 8
UNLEARNED_MAX = 8
LEARN_FIRST_STEPS = 3
LEARN_EVERY_STEPS = 16
DOUBT_EVERY_STEPS = 64


class Saved:
    """One saving of a step: what is known of it, and where it is."""

    __slots__ = ("__weakref__", "is_made_again", "make_seconds", "move_seconds", "number", "outlived", "moved",
                 "saved_at", "size", "stays", "step", "used_at")

    def __init__(self, step: "Step", number: int, size: int, makeable: bool):
        self.step = step
        self.number = number
        self.size = size
        course = step.course
        self.stays = course is not None and number in course.staying
        """It is to stay in memory; else, it is to be made again, or moved."""
        self.is_made_again = makeable and course is not None and number in course.made_again
        self.make_seconds = 0.0 if makeable else None
        self.saved_at = time.perf_counter()
        self.used_at: float | None = None
        self.move_seconds = 0.0
        self.outlived = False
        self.moved: weakref.ref[Any] | None = None
        """What holds it in Terrace, while that is needed."""


class Course:
    """What was seen of the steps with these sizes of savings."""

    def __init__(self, sizes: list[int]):
        self.sizes = sizes
        self.order: list[int] = []
        self.staying: frozenset[int] = frozenset()
        self.made_again: frozenset[int] = frozenset()
        self._move_seconds = [0.0] * len(sizes)
        self._make_seconds = [0.0] * len(sizes)
        self._outlived = [False] * len(sizes)
        self._steps = 0

    def learn(self, step: "Step", keep_bytes: int | None) -> None:
        """Takes in what a finished step has shown."""
        self._steps += 1
        if self._steps > LEARN_FIRST_STEPS and self._steps % LEARN_EVERY_STEPS:
            return
        savings = []
        for number, saved in enumerate(step.savings):
            if saved.move_seconds or saved.make_seconds:
                self._move_seconds[number] = saved.move_seconds or self._move_seconds[number]
                self._make_seconds[number] = saved.make_seconds or self._make_seconds[number]
                self._outlived[number] = saved.outlived
            rest = None if saved.used_at is None else saved.used_at - saved.saved_at
            make = None if saved.make_seconds is None else self._make_seconds[number]
            savings.append(Saving(saved.size, rest, self._move_seconds[number], self._outlived[number], make))
        self.order = step.order
        if self._steps % DOUBT_EVERY_STEPS == 0:
            self._outlived = [False] * len(self.sizes)  # what stays is not looked at: once in a while all is moved
            self.staying = self.made_again = frozenset()
        else:
            self.staying = stay_in_memory(savings, keep_bytes)
            self.made_again = made_again(savings)


class Step:
    """The savings of one step, and the order in which they were used."""

    def __init__(self, course: Course | None):
        self.course = course
        self.savings: list[Saved] = []
        self.order: list[int] = []
        self.full = False
        """Terrace refused a saving of this step: it is asked for no more room."""
        self._expected: Sequence[int] = ()
        self._positions: dict[int, int] = {}
        self._bytes_before: list[int] = []
        self._declared = 0
        self._at = 0

    def sizes(self) -> list[int]:
        """Of the savings, in bytes."""
        return [saved.size for saved in self.savings]

    def ahead_of(self, number: int, window_bytes: int) -> list[Saved]:
        """What is to be declared as needed soon, now that this one is used: the savings that are used next, about
        `window_bytes` of them, less what was declared before. Empty until half of the window is used up."""
        if not self._bytes_before:
            self._expect()
        position = self._positions.get(number)
        if position is None:
            return []
        back = position < self._at  # not as expected: what follows here is declared (again)
        self._declared = position + 1 if back else max(self._declared, position + 1)
        self._at = position
        used_bytes = self._bytes_before[position + 1]
        if 2 * (self._bytes_before[self._declared] - used_bytes) > window_bytes:
            return []
        begin = self._declared
        while self._declared < len(self._expected) and (
                self._declared == position + 1 or self._bytes_before[self._declared + 1] - used_bytes <= window_bytes):
            self._declared += 1
        return [self.savings[at] for at in self._expected[begin:self._declared]]

    def next_after(self, number: int, bytes_max: int) -> list[Saved]:
        """The savings that are used next after this one, up to so many bytes, and one of them in any case."""
        if not self._bytes_before:
            self._expect()
        position = self._positions.get(number)
        if position is None:
            return []
        end = begin = position + 1
        while end < len(self._expected) and (end == begin or self._bytes_before[end + 1] - self._bytes_before[begin] <= bytes_max):
            end += 1
        return [self.savings[at] for at in self._expected[begin:end]]

    def _expect(self) -> None:
        """As the last such step went; the first one: what was saved last is used first."""
        count = len(self.savings)
        seen = self.course.order if self.course is not None and len(self.course.sizes) == count else []
        rest = set(range(count)).difference(seen)
        self._expected = [*seen, *sorted(rest, reverse=True)]
        self._positions = {number: position for position, number in enumerate(self._expected)}
        total = 0
        self._bytes_before = [0]
        for number in self._expected:
            total += self.savings[number].size
            self._bytes_before.append(total)


class BackwardOrder:
    """The steps of one client's training. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._courses: list[Course] = []
        self._unlearned: list[Step] = []
        self._step = Step(None)

    @property
    def used(self) -> bool:
        """Whether the backward pass of this step has begun: the next saving begins another one."""
        return bool(self._step.order)

    def begin_step(self, keep_bytes: int | None) -> bool:
        """A step begins, unless the one that goes on has no savings yet. Whether it does."""
        with self._lock:
            return self._begin(keep_bytes)

    def save(self, size: int, keep_bytes: int | None, makeable: bool = False) -> tuple[Saved, bool]:
        """Numbers a saving. Whether a step begins with it. makeable: it can be made again."""
        with self._lock:
            begins = bool(self._step.order) and self._begin(keep_bytes)
            step = self._step
            number = len(step.savings)
            if not _follows(step.course, number, size):
                step.course = self._course_of([*step.sizes(), size])
            saved = Saved(step, number, size, makeable)
            step.savings.append(saved)
            return saved, begins

    def following(self, saved: Saved, bytes_max: int) -> list[int]:
        """The sizes, up to so many bytes, that are moved after this one, if the step goes on as another one did."""
        course = saved.step.course
        sizes: list[int] = []
        for number in range(saved.number + 1, 0 if course is None else len(course.sizes)):
            assert course is not None
            if number not in course.staying and number not in course.made_again:
                bytes_max -= course.sizes[number]
                if bytes_max < 0:
                    break
                sizes.append(course.sizes[number])
        return sizes

    def use(self, saved: Saved, window_bytes: int) -> list[Saved]:
        """Notes the first use of a saving; the savings to declare as needed soon."""
        with self._lock:
            if saved.used_at is not None:
                return []
            saved.used_at = time.perf_counter()
            saved.step.order.append(saved.number)
            return saved.step.ahead_of(saved.number, window_bytes) if window_bytes else []

    def next_after(self, saved: Saved, bytes_max: int) -> list[Saved]:
        """The savings, up to so many bytes, that are used next after this one, if the step goes on as another one did."""
        with self._lock:
            return saved.step.next_after(saved.number, bytes_max)

    def _begin(self, keep_bytes: int | None) -> bool:
        if not self._step.savings:
            return False
        self._unlearned = [*self._unlearned, self._step][-UNLEARNED_MAX:]
        for step in [step for step in self._unlearned if step.order]:
            self._unlearned.remove(step)
            self._learn(step, keep_bytes)
        self._step = Step(self._courses[0] if self._courses else None)
        return True

    def _learn(self, step: Step, keep_bytes: int | None) -> None:
        sizes = step.sizes()
        course = next((course for course in self._courses if course.sizes == sizes), None)
        if course is None:
            course = Course(sizes)
        else:
            self._courses.remove(course)
        self._courses = [course, *self._courses][:COURSES_MAX]  # the latest first
        course.learn(step, keep_bytes)

    def _course_of(self, sizes: list[int]) -> Course | None:
        return next((course for course in self._courses if course.sizes[:len(sizes)] == sizes), None)


def _follows(course: Course | None, number: int, size: int) -> bool:
    return course is not None and number < len(course.sizes) and course.sizes[number] == size


def moved_of(savings: Iterable[Saved]) -> list[Any]:
    """What holds them in Terrace, of those that are needed still."""
    found = (saved.moved() for saved in savings if saved.moved is not None and saved.used_at is None)
    return [one for one in found if one is not None]

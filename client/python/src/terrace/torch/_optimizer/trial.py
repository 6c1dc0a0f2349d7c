# SPDX-License-Identifier: Apache-2.0
"""Whether an optimizer that is not known treats its parameters one by one: small copies of it are stepped several times, one
with all of its parameters together and others with one after the other, and must come to the same bits."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn, optim

from ..._errors import InvalidArgument
from .._device.streams import generators
from .._pytorch.private import COMPILER, unhooked
from . import kinds
from .groups import proxy_class, proxy_of
from .notes import (
    drawn_so_far,
    gradients_of,
    groups_without_states,
    in_words,
    is_number,
    named_states,
    noted,
    noted_of,
    numbers_of,
    same,
    short,
    what_it_is,
)
from .once import Writes, can_be_put_back
from .trace import PLAIN
from .twin import Twin, Untried

STEPS = 12
_SEED = 7
_FAILED = " failed ("
# Why those of these names do not, as their papers have it.
_KNOWN = ((re.compile("LBFGS"), "it searches along a line over all of them"),
          (re.compile("Prodigy|DAdapt"), "it reduces over all of them for the size of its step"),
          (re.compile("SAM$|^SAM|LookSAM"), "it takes a norm over all of them, and runs the model twice a step"))
_ALONE = ("use offload(model, what='all') without the optimizer: parameters and gradients live in Terrace and are leased for it as it "
          "uses them, and its states stay in memory")


class _Subject(NamedTuple):
    """What is tried."""

    optimizer: optim.Optimizer
    masters: torch.dtype | None  # of what it steps in the place of weights in a narrow type, if that is so


class _Way(NamedTuple):
    """How a copy is stepped."""

    as_they_are: bool = False  # its parameters have their own shapes, and the states that there are
    missing: bool = True  # some parameters have no gradient in some steps
    closure: bool = False  # it is given one


_WAYS = (_Way(), _Way(missing=False), _Way(missing=False, closure=True), _Way(True), _Way(True, missing=False),
         _Way(True, missing=False, closure=True))


def try_unknown(optimizer: optim.Optimizer, masters: torch.dtype | None = None) -> None:
    """Tries an optimizer that is not known. masters: the type of what it is to step in the place of weights in a narrow one;
    None: it steps the weights. InvalidArgument for one that does not treat its parameters one by one, with what
    differed, and for one that cannot be tried, with the reason."""
    if kinds.is_known(optimizer):
        return
    name = kinds.name_of(optimizer)
    known = next((why for names, why in _KNOWN for base in type(optimizer).__mro__ if names.search(base.__name__)), "")
    if isinstance(optimizer, optim.LBFGS):
        raise InvalidArgument(f"terrace.torch.offload: {name} does not treat its parameters one by one, since {known}: {_ALONE}")
    try:
        with undisturbed():
            tried, differs = _tried(_Subject(optimizer, masters))
    except Untried as error:
        raise InvalidArgument(
            f"terrace.torch.offload: {name} is not known to treat its parameters one by one, and cannot be tried: {error}. If "
            "what becomes of a parameter depends on that parameter, its gradient, its states and its group alone, declare "
            f"it with terrace.torch.declare({type(optimizer).__name__}); else {_ALONE}") from error
    if tried is None:
        because = f", since {known}" if known else ""
        raise InvalidArgument(
            f"terrace.torch.offload: {name} does not treat its parameters one by one{because}: a small copy of it that stepped "
            f"them one by one came to other numbers than one that stepped them together ({differs}): {_ALONE}")
    kinds.note_tried(optimizer, tried)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """What is tried leaves nothing in the process: random numbers are as they were."""
    numbers, of_numpy = random.getstate(), numpy.random.get_state()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(range(len(generators()))))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.inference_mode(False))
        if torch.get_default_device().type == "meta":  # as where a model is laid out that has no memory
            stack.enter_context(torch.device("cpu"))
        if COMPILER in sys.modules:  # the same numbers need not be compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(numbers)
            numpy.random.set_state(of_numpy)


def _tried(subject: _Subject) -> tuple[kinds.Tried | None, str]:
    """What a trial shows; and where it is not what is wanted what differs, in words."""
    way, together = _together(subject)
    shown, differs = _differs_one_by_one(together, subject, way)
    if differs and way.missing:  # a step may need what it sees to have gradients
        way = way._replace(missing=False)
        with contextlib.suppress(Exception):
            together = _Together(subject, way)
            shown, differs = _differs_one_by_one(together, subject, way)
    if differs:
        if _compared(together, _step_all, subject, way):
            raise Untried("its step comes to other numbers each time")
        return None, differs
    alone = shown is _Shown.NONE and together.can_be_put_back
    tried = kinds.Tried(True, alone, together.writes, named_states(together.twin), groups_without_states(together.twin))
    runs: list[_PartsRun] = []
    in_parts = together.can_be_put_back and not _compared(
        together, lambda twin, way, step: runs.append(_in_parts(twin, way, step, tried)), subject, way)
    asks_for_more = bool(together.asks_for_more or together.by_parameter or any(run.loops != 1 or run.looks for run in runs))
    return dataclasses.replace(tried, in_parts=in_parts, asks_for_more=asks_for_more), ""


def _differs_one_by_one(together: _Together, subject: _Subject, way: _Way) -> tuple[_Shown, str]:
    """What differs where parameters are stepped one by one, in words; and the way in which nothing does, if there is one."""
    first = ""
    for shown in _Shown:
        differs = _compared(together, lambda twin, way, step, shown=shown: _one_by_one(twin, way, step, shown), subject, way)
        if not differs:
            return shown, ""
        first = differs if not first or _FAILED in first else first
    return shown, first


class _Together:
    """The copy that is stepped with all parameters together, and what it came to after each step."""

    def __init__(self, subject: _Subject, way: _Way):
        self.twin = Twin(subject.optimizer, way.as_they_are, subject.masters)
        self.found: list[dict[str, Any]] = []
        self.asks_for_more = False  # it draws random numbers, or writes to gradients
        self._written: list[set[Any]] = [set(), set(), set()]  # names: of groups, of itself, of its state
        self._odd: set[Any] = set()  # of these, what cannot be put back
        for step in range(STEPS):
            _begin_step(self.twin, way, step)
            before = [noted_of(self.twin, place) for _, place in self.twin.places()]
            gradients, drawn = gradients_of(self.twin), drawn_so_far()
            _step_all(self.twin, way, step)
            self.asks_for_more |= not same(gradients_of(self.twin), gradients) or not same(drawn_so_far(), drawn)
            for (words, place), were in zip(self.twin.places(), before, strict=True):
                self._note_written(words, place, were)
            self.found.append(what_it_is(self.twin))
        self.by_parameter = self.twin.kept_by_parameter()

    def _note_written(self, words: str, place: dict[Any, Any], were: dict[Any, Any]) -> None:
        now = noted_of(self.twin, place)
        for name in now.keys() | were.keys():
            if name not in now or name not in were or not same(now[name], were[name]):
                self._written[0 if words.startswith("'") else 1 if words.startswith("its") else 2].add(name)
                if name not in now or not can_be_put_back(place[name]):
                    self._odd.add(name)

    @property
    def writes(self) -> Writes:
        """What a step writes to groups and to itself."""
        return Writes(*(frozenset(names - self.by_parameter) for names in self._written))

    @property
    def can_be_put_back(self) -> bool:
        """Whether all of that can be undone."""
        return self._odd <= self.by_parameter


def _together(subject: _Subject) -> tuple[_Way, _Together]:
    """Steps a copy in the first way in which it can be stepped."""
    first: Exception | None = None
    for way in _WAYS:
        try:
            return way, _Together(subject, way)
        except Untried as error:
            first = first or error
        except Exception as error:  # whatever its step says
            first = first or error
    if isinstance(first, Untried):
        raise first
    said = " ".join(str(first).split())[:200]
    raise Untried(f"the step of a small copy of it failed ({type(first).__name__}: {said})") from first


def _compared(together: _Together, stepped: Callable[[Twin, _Way, int], None], subject: _Subject, way: _Way) -> str:
    """What another copy that is stepped in another way comes to that differs first, in words; empty where nothing does."""
    twin = Twin(subject.optimizer, way.as_they_are, subject.masters, together.by_parameter)
    for step, wanted in enumerate(together.found):
        try:
            _begin_step(twin, way, step)
            stepped(twin, way, step)
        except _OtherwiseError as error:
            return f"in step {step + 1} {error}"
        except Exception as error:  # whatever its step says
            return f"step {step + 1}{_FAILED}{type(error).__name__}: {' '.join(str(error).split())[:200]})"
        found = what_it_is(twin)
        for name in dict.fromkeys((*wanted, *found)):
            if (name not in found or name not in wanted or not same(found[name], wanted[name])) and (
                    not name.startswith("its own '") or (is_number(wanted.get(name)) and is_number(found.get(name)))):
                return f"after step {step + 1} {name} {in_words(wanted.get(name), found.get(name))}"
    return ""


class _OtherwiseError(Exception):
    """A step does with one parameter what it does otherwise with another; in words."""


# How a copy is stepped ----------------------------------------------------------------------------------------------------

def _begin_step(twin: Twin, way: _Way, step: int) -> None:
    """Random numbers, rates and gradients of one step."""
    torch.manual_seed(_SEED + step)
    random.seed(_SEED + step)
    numpy.random.seed(_SEED + step)
    for group in twin.groups if step else ():
        rate = group.get("lr")
        if isinstance(rate, torch.Tensor):
            rate.data.mul_(0.9)
        elif isinstance(rate, float):
            group["lr"] = rate * 0.9
    _give_gradients(twin, way, step)


def _give_gradients(twin: Twin, way: _Way, step: int) -> None:
    """One of one backward pass, of two, or added to what the step before has left."""
    without = {3: len(twin.members) - 1, 8: 0}.get(step, -1) if way.missing and len(twin.members) > 1 else -1
    for number, member in enumerate(twin.members):
        parameter = member.parameter
        if not parameter.requires_grad:
            continue
        if number == without:
            parameter.grad = None
            continue
        for part in range(2 if step % 4 == 1 else 1):
            gradient = _gradient(parameter, number, 2 * step + part)
            if part or (step % 4 == 2 and parameter.grad is not None):
                with torch.no_grad():
                    parameter.grad.add_(gradient)  # type: ignore[union-attr]
            else:
                parameter.grad = gradient


def _gradient(parameter: nn.Parameter, number: int, draw: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(100 * draw + number)
    return torch.randn(parameter.shape, generator=chance).mul_(0.02 * (1 + number)).to(parameter.device, parameter.dtype)


def _closure(twin: Twin, step: int) -> Callable[[], torch.Tensor]:
    """Gives those that have gradients now others, which depend on the parameters, and a loss."""
    given = [(number, member.parameter) for number, member in enumerate(twin.members) if member.parameter.grad is not None]

    def closure() -> torch.Tensor:
        loss = torch.zeros(())
        for number, parameter in given:
            with torch.no_grad():
                parameter.grad = _gradient(parameter, number, 2 * step) + 0.1 * parameter
                loss = loss + parameter.square().sum().float().cpu()
        return loss

    return closure


def _call(twin: Twin, way: _Way, step: int, given: Any) -> None:
    its_step = unhooked(type(twin.optimizer).step)
    its_step(given, *([_closure(twin, step)] if way.closure else []))


def _step_all(twin: Twin, way: _Way, step: int) -> None:
    _call(twin, way, step, twin.optimizer)


class _PartsRun:
    """What shows a step each parameter of a group by itself, as a run over leased memory does with batches."""

    in_backward = False

    translates = False  # a twin's parameters are stepped themselves

    later = None

    def __init__(self, optimizer: optim.Optimizer, tried: kinds.Tried):
        self.optimizer = optimizer
        self.tried = tried
        self.loops = self.looks = 0

    def members(self) -> Iterator[tuple[dict[str, Any], list[nn.Parameter]]]:
        for group in self.optimizer.param_groups:
            yield group, group["params"]

    def members_of(self, group: dict[str, Any]) -> list[nn.Parameter]:
        found: list[nn.Parameter] = group["params"]
        return found

    def show_all(self) -> None:
        """Nothing is shown in a parameter's place."""

    def batches(self, parameters: list[nn.Parameter], _group: dict[str, Any]) -> list[list[nn.Parameter]]:
        return [[one] for one in parameters]

    def batch(self, _parameters: list[nn.Parameter]) -> _InMemory:
        return _InMemory()


class _InMemory:
    """What is leased of parameters in memory: nothing."""

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass


def _in_parts(twin: Twin, way: _Way, step: int, tried: kinds.Tried) -> _PartsRun:
    run: Any = _PartsRun(twin.optimizer, tried)
    _call(twin, way, step, proxy_of(twin.optimizer, proxy_class(type(twin.optimizer)), run))
    return run


class _Shown(enum.Enum):
    """What the step of one parameter sees of the other groups, and whose writes it finds."""

    NONE = enum.auto()  # nothing; it finds what there was before the step
    EMPTY = enum.auto()  # they have no parameters; it finds what there was before the step
    EARLIER = enum.auto()  # nothing; it finds what the groups before its own have left


def _one_by_one(twin: Twin, way: _Way, step: int, shown: _Shown) -> None:
    """A run of the step for each parameter of a group, each of which finds what the first one found."""
    groups, whole = twin.groups, list(twin.groups)
    members = [group["params"] for group in whole]
    gradients = [member.parameter.grad for member in twin.members]
    begin = before = after = _Kept(twin)
    of_groups: dict[int, _Kept] = {}
    for at, (member, gradient) in enumerate(zip(twin.members, gradients, strict=True)):
        if shown is _Shown.EARLIER and at and twin.members[at - 1].number != member.number:
            before = after
        elif at:
            before.put_back()
        for other in twin.members:
            other.parameter.grad = None
        member.parameter.grad = gradient
        for number, group in enumerate(whole):
            group["params"] = [member.parameter] if number == member.number else []
        if shown is not _Shown.EMPTY:
            groups[:] = [whole[member.number]]
        try:
            _call(twin, way, step, twin.optimizer)
        finally:
            groups[:] = whole
            for group, its in zip(whole, members, strict=True):
                group["params"] = its
        after = _Kept(twin)
        after.check(of_groups.setdefault(0 if shown is _Shown.EMPTY else member.number, after))
    for kept in of_groups.values() if shown is _Shown.NONE else ():
        kept.put_back_changes(begin)
    for member, gradient in zip(twin.members, gradients, strict=True):
        if gradient is not None:
            member.parameter.grad = gradient if member.parameter.grad is None else member.parameter.grad


class _Kept:
    """What a copy keeps in its groups and itself, as it is now."""

    def __init__(self, twin: Twin):
        self._twin = twin
        self._memo = {id(one): one for one in _stays(twin)}
        self._values = [{name: copy.deepcopy(value, dict(self._memo)) for name, value in place.items() if twin.is_kept(name, value)}
                        for _, place in twin.places()]

    def put_back(self) -> None:
        """Has it be that again."""
        for (_, place), values in zip(self._twin.places(), self._values, strict=True):
            for name in [name for name, value in place.items() if self._twin.is_kept(name, value) and name not in values]:
                del place[name]
            place.update(copy.deepcopy(values, dict(self._memo)))

    def put_back_changes(self, before: _Kept) -> None:
        """Has what is other than before be what it is here."""
        for (_, place), values, were in zip(self._twin.places(), self._values, before._values, strict=True):
            place.update({name: value for name, value in values.items()
                          if name not in were or not same(self._noted(value), self._noted(were[name]))})

    def check(self, first: _Kept) -> None:
        """Raises where it is not what the step of another parameter has left."""
        for (words, _), values, others in zip(self._twin.places(), self._values, first._values, strict=True):
            for name in dict.fromkeys((*others, *values)):
                one, other = self._noted(others.get(name)), self._noted(values.get(name))
                decides = words.startswith("'") or (is_number(one) and is_number(other))  # else it may be what it computes in
                if decides and not same(one, other):
                    raise _OtherwiseError(f"{words % name} is {short(one)} by the step of one parameter, and {short(other)} "
                                          "by that of another")

    def _noted(self, value: Any) -> Any:
        return noted(value, numbers_of(self._twin))


def _stays(twin: Twin) -> Iterator[Any]:
    """What is not copied with it: parameters, their states, and the optimizers."""
    waiting: list[Any] = [*twin.optimizers, *(member.parameter for member in twin.members)]
    yield from waiting
    states = [state for one in twin.optimizers for key, state in one.state.items() if isinstance(key, torch.Tensor)]
    while states:
        one = states.pop()
        if not isinstance(one, PLAIN):
            yield one
            states += one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else ()

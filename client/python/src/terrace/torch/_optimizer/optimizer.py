# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps over leased memory: PyTorch's own step, given its parameters batch by batch.

A hook of the step hands the step, in the optimizer's place, an object that is the optimizer but for its parameter
groups: these are leased, batch by batch, as the step comes to them. So the step runs PyTorch's own kernels, schedulers
and GradScaler find everything where they expect it, and other hooks run when they would.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn, optim

from ..._errors import FailedPrecondition
from .._leased.store import Store
from .._parameters.in_memory import ParameterInMemory
from .._parameters.masters import Masters
from .._parameters.parameter import ManagedParameter
from .._pytorch.modes import check_not_compiled
from .._pytorch.private import complete_hooks, raw
from .._ranks.shards import Shards
from . import kinds, scaling
from .ahead import IN_BACKWARD, SteppedAhead
from .due import DUE_BYTES_MAX, DUE_PARTS, DueParameters
from .groups import end_by_number, is_proxy, proxy_class, proxy_of
from .later import Later, later_class
from .once import OnceAStep
from .own import Own
from .run import DueRun, Run
from .saved_masters import take_loaded, uncast, with_masters
from .sound_later import can_be_later, can_be_later_in_backward, is_called_alike
from .states import States
from .waiting import wait_in

BATCH_BYTES_MAX = 256 << 20
_UNDER_WAY_MAX = 2  # parts that a thread steps, or is to step, beside a backward pass: their gradients are in memory
_COMPILED = ("the step of an offloaded optimizer was compiled, or is run by compiled code, in which nothing can be leased: "
             "call optimizer.step() as it is; it runs PyTorch's fused or foreach kernels")


# What of a wrapper steps, by the name of its class, or of that which it derives from beside the optimizer's own.
_INNER = {"AcceleratedOptimizer": "optimizer", "ZeroRedundancyOptimizer": "optim", "LightningOptimizer": "_optimizer",
          "_FabricOptimizer": "_optimizer"}
_managed: weakref.WeakKeyDictionary[optim.Optimizer, ManagedOptimizer] = weakref.WeakKeyDictionary()


def unwrapped(optimizer: Any) -> Any:
    """The optimizer that steps: of Accelerate's, Lightning's and Fabric's wrappers what is in them, and of
    ZeroRedundancyOptimizer this rank's own."""
    while (inner := _inner(type(optimizer))) is not None and hasattr(optimizer, inner):
        optimizer = getattr(optimizer, inner)
    return optimizer


def _inner(kind: type) -> str | None:
    return next((_INNER[one.__name__] for one in kind.__mro__ if one.__name__ in _INNER), None)


def inner_of(optimizer: optim.Optimizer) -> list[optim.Optimizer]:
    """The optimizers that a wrapper of others steps, as Lookahead does."""
    return [one for one in vars(optimizer).values() if isinstance(one, optim.Optimizer)]


def managed_optimizer(optimizer: optim.Optimizer) -> ManagedOptimizer | None:
    """What belongs to an offloaded optimizer; None for another one."""
    return _managed.get(unwrapped(optimizer))


def batch_bytes_of(store: Store) -> int:
    """What a step over a job's tensors leases at once, where no parameter needs more."""
    return max(1, min(store.guarantee_bytes // 4, BATCH_BYTES_MAX))


def step_soon(optimizers: Sequence[ManagedOptimizer]) -> Callable[[nn.Parameter, torch.Tensor], bool]:
    """What steps a parameter in the backward pass, with that of several optimizers whose it is; whether it is any one's."""
    return lambda parameter, gradient: any(one.step_soon(parameter, gradient) for one in optimizers)


class ManagedOptimizer:
    """An optimizer whose steps run over leased memory."""

    def __init__(self, optimizer: optim.Optimizer, store: Store, shards: Shards, in_memory: Sequence[ParameterInMemory],
                 parts: frozenset[str], bytes_min: int, in_backward: bool, masters: Masters, on_host: bool = False):
        """in_memory: the parameters that stay there. parts: of PARTS, those that are in Terrace. masters: the job's. on_host:
        the step is the CPU's, and goes on when step() has returned."""
        self.in_backward = in_backward  # parameters in Terrace are stepped as their gradients come
        self._on_host = on_host
        self._later: Later | None = None  # what of the last step was begun as it returned
        self._under_way: list[Later] = []  # of what backward steps, what is begun, one after the other
        self._handing_over = threading.Lock()
        self.states = States(optimizer, store, shards, in_memory, parts, bytes_min, masters)
        self.batch_bytes = min(batch_bytes_of(store), batch_bytes_of(self.states.own_store))
        self._stepped: Callable[[], None] = lambda: None
        self._proxy_class = proxy_class(type(optimizer), bool(masters) or (on_host and in_backward))
        self._later_class = later_class(type(optimizer))
        self._run: Run | None = None  # of the script's step, while it goes on
        self._due = DueParameters(max(1, min(store.guarantee_bytes // DUE_PARTS, DUE_BYTES_MAX)))
        self._ahead: SteppedAhead | None = None  # what was stepped in backward since the last step(), if anything was
        self._lock = threading.Lock()  # over its birth: autograd has a thread for each kind of device

    def attach(self, stepped: Callable[[], None]) -> None:
        """Runs the optimizer's steps over leased memory from now on. stepped: called after each."""
        self._stepped = stepped
        optimizer = self.states.optimizer
        _managed[optimizer] = self
        complete_hooks(optimizer)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_load_state_dict_pre_hook(self._before_load)
        optimizer.register_load_state_dict_post_hook(self._after_load)
        if self.states.masters:
            optimizer.register_state_dict_post_hook(self._after_state_dict)
        if self.in_backward:
            scaling.refuse_for(self)
        elif self.states.masters.dtype is not None:
            scaling.widen_for(optimizer, self.states.widen_gradients)

    def wait(self) -> None:
        """Waits for what goes on of a step that has returned. Raises what it has failed with, if nobody was told."""
        if self._later is not None and self._later.begun:
            self._later.work.wait()
        for one in self._under_way:
            one.work.wait()

    def _stepped_ahead(self) -> SteppedAhead:
        with self._lock:
            if self._ahead is None:
                self._ahead = SteppedAhead(self.states)
            return self._ahead

    def step_soon(self, parameter: nn.Parameter, gradient: torch.Tensor) -> bool:
        """Steps a parameter, whose gradient has come, in this backward pass. Whether it is one of the optimizer's."""
        if not self._stepped_ahead().take(parameter):
            return False
        self._due.add(parameter, gradient, self._step_due, self._leave_out)
        return True

    def _leave_out(self, parameters: Sequence[nn.Parameter]) -> None:
        if self._ahead is not None:
            self._ahead.leave_out(parameters)
        with raw():
            for parameter in parameters:
                parameter.grad = None  # of a pass that has failed, nothing is kept

    def _step_due(self, parameters: Sequence[nn.Parameter]) -> None:
        ahead, optimizer = self._stepped_ahead(), self.states.optimizer
        ahead.note_options(parameters)
        if self._on_host and can_be_later_in_backward(optimizer):
            parameters = self._hand_over(parameters, ahead)
            if not parameters:
                return
        step = type(optimizer).step
        step = getattr(step, "__wrapped__", step)  # without the hooks, which are for the script's own step
        run = DueRun(self.states, self.batch_bytes, self._note_ahead, parameters, ahead.group_of)
        if kinds.may_keep_more(optimizer):
            self._run_watched(step, run, ahead, parameters)
        else:
            step(proxy_of(optimizer, self._proxy_class, run))
        run.end()
        ahead.note_left(parameters)

    def _hand_over(self, parameters: Sequence[nn.Parameter], ahead: SteppedAhead) -> list[nn.Parameter]:
        """Has a thread step those of parameters that it can, while the backward pass goes on. The others."""
        wait_in(self.states.optimizer, self.wait)
        later, left = Later(self.states, self._later_class, in_backward=True), []
        for index, group in enumerate(self.states.optimizer.param_groups):
            found = self.states.stepped_as(one for one in parameters if ahead.group_of[id(one)] == index)
            left += map(self.states.masters.own, later.take(group, found))
        taken = later.members
        with self._handing_over:
            for one in self._under_way:
                one.work.check()
            going_on = [one for one in self._under_way if not one.work.ended]
            while taken and len(going_on) >= _UNDER_WAY_MAX:
                going_on.pop(0).work.wait()
            later.begin(going_on[-1].work if going_on else None)
            self._under_way = [*going_on, *([later] if later.begun else [])]
        for member in taken:
            self._note_ahead(member.managed)
        ahead.note_left([member.weight for member in taken])
        return left

    def _run_watched(self, step: Callable[[Any], Any], run: DueRun, ahead: SteppedAhead,
                     parameters: Sequence[nn.Parameter]) -> None:
        """Runs a step that is not PyTorch's alone, and raises if it has done what it would do once for all parameters."""
        optimizer = self.states.optimizer
        ahead.note_found()
        own = Own(optimizer)
        changed = ahead.changed_ahead(parameters)
        tried = kinds.tried(optimizer)
        once = OnceAStep(optimizer, tried.writes) if tried is not None and tried.alone else None
        with run.watched():
            step(proxy_of(optimizer, self._proxy_class, run))
            by_number = end_by_number(run)  # before the look at what is the optimizer's own, of which these are
        if once is not None:
            once.put_off()
            ahead.note_put_back(once.names)
            ahead.put_off = once
        put_off = set() if once is None else once.words
        odd = [f"changes {name}" for name in changed + own.changed() if name not in put_off] + by_number
        odd += ["leaves its loop over self.param_groups before the end"] if run.loops_left else []
        if odd:
            raise FailedPrecondition(
                f"{IN_BACKWARD}: the step of {type(optimizer).__name__} {', '.join(odd)}, and is run "
                "for a few parameters at a time, so that this would happen many times a step: keep it in self.state of each "
                "parameter, or offload without step_in_backward. This step's weights are of no use")

    def _note_ahead(self, managed: ManagedParameter) -> None:
        """A parameter was stepped. In a backward pass that is before its time."""
        if self.in_backward and managed.gradient is not None:
            self._stepped_ahead().note_stepped(managed)

    def _is_left(self, parameter: nn.Parameter) -> bool:
        """Whether optimizer.step() is to step a parameter, though parameters in Terrace are stepped in backward."""
        managed = self.states.managed_of(parameter)
        if managed is None or managed.gradient is None:
            return True
        try:
            return self._stepped_ahead().is_left(managed, parameter)
        except FailedPrecondition:
            self._forget_step()  # who goes on all the same can
            raise

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_proxy(optimizer):
            return None  # a step that calls its base class's
        check_not_compiled(_COMPILED)
        if not self.in_backward:
            self.wait()
        for one in self._under_way:
            one.work.check()
        if self._ahead is not None:
            self._ahead.check_options()
            self._check_left_as(self._ahead)
        if self._run is not None:
            self._run.abandon()  # it has failed
        self._later = None
        if self._on_host and not self.in_backward and can_be_later(self.states.optimizer) and (
                kinds.tried(self.states.optimizer) is None or is_called_alike((*args[1:], *kwargs.values()))):
            wait_in(self.states.optimizer, self.wait)
            self._later = Later(self.states, self._later_class)
        run = Run(self.states, self.batch_bytes, self._note_ahead, self._is_left if self.in_backward else None, self._later)
        self._run = run
        return (proxy_of(self.states.optimizer, self._proxy_class, run), *args[1:]), kwargs

    def _check_left_as(self, ahead: SteppedAhead) -> None:
        """Raises where groups or states are not as the backward pass has left them, which has stepped with them."""
        what = ahead.odd_since()
        if what:
            self._forget_step()  # who goes on all the same can
            raise FailedPrecondition(
                f"{IN_BACKWARD}: {what} between the backward pass, which has stepped it, and optimizer.step(): do so "
                "before the backward pass or after the step, or offload without step_in_backward. This step's weights "
                "are of no use")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_proxy(optimizer):
            return
        run, self._run = self._run, None
        if run is not None:
            run.end()
        changed = self._ahead is not None and self._ahead.changed_in_step()
        if self._ahead is not None and self._ahead.put_off is not None:
            self._ahead.put_off.take_effect()
        self._forget_step()
        self.states.store.steps.stepped()
        self._stepped()
        if changed:
            raise FailedPrecondition(
                f"{IN_BACKWARD}: the step of {type(self.states.optimizer).__name__} changes self.state of another parameter "
                "than it steps, which the backward pass has stepped: offload without step_in_backward. This step's weights "
                "are of no use")

    def _forget_step(self) -> None:
        """Forgets what backward passes have stepped before a step, but for those that are under way in other threads."""
        if self._ahead is not None:
            self._ahead = self._ahead.end(self._due.parameters())

    def _after_state_dict(self, _optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        return with_masters(self.states, saved)

    def _before_load(self, _optimizer: Any, given: dict[str, Any]) -> dict[str, Any]:
        self.wait()
        return uncast(self.states, given)

    def _after_load(self, optimizer: Any) -> None:
        if self._ahead is not None:
            self._ahead.loaded()
        if self.states.masters:
            take_loaded(self.states)
        self.states.adopt_all()

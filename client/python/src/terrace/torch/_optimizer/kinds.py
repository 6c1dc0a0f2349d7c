# SPDX-License-Identifier: Apache-2.0
"""Which optimizers treat their parameters one by one, and what each keeps of a parameter: PyTorch's, those that were
declared, and those that were tried."""

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import optim

from ..._errors import InvalidArgument
from .._pytorch.private import code_of_step, has_collecting_of, is_run_of, unhooked
from .._pytorch.split import is_split
from .kept import kept_in
from .once import Writes

Group = Mapping[str, Any]
Kind = TypeVar("Kind", bound=type[optim.Optimizer])

_CALL = "terrace.torch.declare"

# Each treats its parameters one by one. The states are those of the parameter's shape and type that each one has.
_STATES: dict[type[optim.Optimizer], Callable[[Group], tuple[str, ...]]] = {
    optim.Adadelta: lambda group: ("square_avg", "acc_delta"),
    optim.Adafactor: lambda group: (),
    optim.Adagrad: lambda group: ("sum",),
    optim.Adam: lambda group: ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ())),
    optim.Adamax: lambda group: ("exp_avg", "exp_inf"),
    optim.AdamW: lambda group: ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ())),
    optim.ASGD: lambda group: ("ax",),
    optim.Muon: lambda group: ("momentum_buffer",),
    optim.NAdam: lambda group: ("exp_avg", "exp_avg_sq"),
    optim.RAdam: lambda group: ("exp_avg", "exp_avg_sq"),
    optim.RMSprop: lambda group: ("square_avg", *(("momentum_buffer",) if group["momentum"] > 0 else ()),
                                  *(("grad_avg",) if group["centered"] else ())),
    optim.Rprop: lambda group: ("prev", "step_size"),
    optim.SGD: lambda group: (("momentum_buffer",) if group["momentum"] else ()),
    optim.SparseAdam: lambda group: ("exp_avg", "exp_avg_sq"),
}
_UNNAMED = (optim.Adafactor,)  # of PyTorch's, what keeps more, of other shapes
_PYTORCH = tuple(_STATES)
_STEPS = {kind: code_of_step(kind) for kind in _PYTORCH}


@dataclasses.dataclass(frozen=True)
class Tried:
    """What a trial has shown of an optimizer that is not known."""

    in_parts: bool  # its step can be shown each group in parts
    alone: bool  # it can be run for a few parameters at a time
    writes: Writes  # to its groups and to itself, once a step
    named: dict[tuple[int, int], tuple[str, ...]]  # the states of a parameter's shape and type, by the number of its group
    # and its dimensions
    keeps_nothing: frozenset[int] = frozenset()  # the numbers of groups of whose parameters it keeps nothing
    asks_for_more: bool = True  # than parameters, their gradients and states, and its groups in one loop: it draws random
    # numbers, writes to gradients, keeps of a parameter in other places, or looks at its groups in other ways


_tried: weakref.WeakKeyDictionary[optim.Optimizer, Tried] = weakref.WeakKeyDictionary()


def declare(kind: Kind, *, states: Iterable[str] | Callable[[Group], Iterable[str]] = ()) -> Kind:
    """Says of an optimizer class that it treats its parameters one by one, so that `offload` takes it without a trial.

    Returns the class.

        terrace.torch.declare(Lion, states=["exp_avg"])
        model, optimizer = terrace.torch.offload(model, Lion(model.parameters()))

    `offload` tries a class that is not known, so that few need this: one whose step() cannot be run on a small copy of the
    optimizer, as it needs a closure, or other arguments. Its step() then runs as ever, and sees each group once. A loop over
    `group["params"]` has its parameters leased a few at a time; what it collects in lists is leased once more by each
    operation on it. `step_in_backward=True` runs the step for a few parameters at a time. That gives the same weights where
    what becomes of a parameter depends on that parameter, its gradient and its states alone, on the group's options, and on
    counters in `self.state[parameter]`; what else a step does is FailedPrecondition, where it is seen. Do not declare a
    class that takes norms, means or factors over several parameters.

    states: the names under which it keeps tensors of a parameter's shape in `self.state[parameter]`, or what gives them
        of a parameter group. `offload` makes room for these before the first step; others go to Terrace as they come.

    TypeError for what is no class of optimizers; InvalidArgument for one without a step of its own to declare, or that
    is known to be different.
    """
    if isinstance(kind, optim.Optimizer):
        raise TypeError(f"{_CALL}: this is an optimizer; give its class, {type(kind).__qualname__}")
    if not isinstance(kind, type) or not issubclass(kind, optim.Optimizer):
        raise TypeError(f"{_CALL}: {kind!r} is no class of torch.optim.Optimizer")
    stepper = next(base for base in kind.__mro__ if _brings_step(base))
    if stepper is optim.Optimizer:
        raise InvalidArgument(f"{_CALL}: {kind.__qualname__} has no step()")
    if stepper.__module__.startswith("torch."):
        known = "is known already" if stepper in _PYTORCH else "does not treat its parameters one by one"
        of = next((base for base in kind.__mro__ if base in _PYTORCH), stepper)
        raise InvalidArgument(f"{_CALL}: {kind.__qualname__} runs the step of PyTorch's {of.__qualname__}, which "
                              f"{known}: declare a class with a step of its own")
    _STATES[kind] = states if callable(states) else _always(states)
    return kind


elementwise = declare  # as it was called when it was for optimizers that treat every element by itself


def _always(states: Iterable[str]) -> Callable[[Group], tuple[str, ...]]:
    """The same states in every group."""
    if isinstance(states, Iterable) and not isinstance(states, str):
        named = tuple(states)
        if all(isinstance(name, str) for name in named):
            return lambda group: named
    raise TypeError(f"{_CALL}: states is {states!r}; it is a list of names, or a function that gives one of a parameter "
                    "group")


def _brings_step(kind: type) -> bool:
    """Whether a class has a step of its own. The first optimizer of a class that has none puts there the one that it
    inherits, with PyTorch's hooks around it."""
    steps = [unhooked(vars(base)["step"]) for base in kind.__mro__ if "step" in vars(base)]
    return "step" in vars(kind) and steps[0] not in steps[1:2]


def _known(kind: type[optim.Optimizer]) -> type[optim.Optimizer] | None:
    """The class by which it is known what a class's step does; None: it is not."""
    for base in kind.__mro__:
        if base in _STATES:
            return base
        if _brings_step(base):
            return None
    return None


def check(optimizer: Any) -> None:
    """Raises InvalidArgument for an optimizer that cannot be offloaded, naming it and what works in its place."""
    if not isinstance(optimizer, optim.Optimizer) or not hasattr(optimizer, "param_groups"):
        what = "has no param_groups" if isinstance(optimizer, optim.Optimizer) else "is no torch.optim.Optimizer"
        raise InvalidArgument(
            f"terrace.torch.offload: {name_of(optimizer)} {what}; offload(model, what='all') without it keeps "
            "parameters and gradients in Terrace, and leases them for it as it uses them")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise InvalidArgument(f"terrace.torch.offload: {type(optimizer).__name__} with differentiable=True keeps "
                                  "a graph through its states, which cannot leave memory")


def is_known(optimizer: optim.Optimizer) -> bool:
    """Whether it is known of an optimizer that it treats its parameters one by one, without a trial."""
    return _known(type(optimizer)) is not None


def note_tried(optimizer: optim.Optimizer, tried: Tried) -> None:
    """A trial has shown that it treats its parameters one by one."""
    _tried[optimizer] = tried


def tried(optimizer: optim.Optimizer) -> Tried | None:
    """What a trial has shown of it; None of one that was not tried, as it is known."""
    return _tried.get(optimizer)


def states(optimizer: optim.Optimizer, group: Group, dimensions: int) -> tuple[str, ...]:
    """The states of a parameter's shape and type that the optimizer keeps of each parameter of a group with so many
    dimensions."""
    known = _known(type(optimizer))
    if known is not None:
        return tuple(_STATES[known](group))
    found = tried(optimizer)
    number = next((number for number, one in enumerate(optimizer.param_groups) if one is group), -1)
    return () if found is None else found.named.get((number, dimensions), ())


def may_keep_more(optimizer: optim.Optimizer) -> bool:
    """Whether there may be other states than these, as of an optimizer that was declared or tried, or a class derived from
    one of PyTorch's."""
    return type(optimizer) not in _PYTORCH or type(optimizer) in _UNNAMED


def is_step_of_pytorch(optimizer: optim.Optimizer, frame: FrameType) -> bool:
    """Whether a function that runs is a step of PyTorch's own, and the optimizer leaves it as it is."""
    kind = next((base for base in type(optimizer).__mro__ if base in _STEPS), None)
    return kind is not None and is_run_of(_STEPS[kind], frame) and has_collecting_of(kind, optimizer)


def writes_gradients_unseen(optimizer: optim.Optimizer) -> bool:
    """Whether a step may write to gradients without a change of their versions: PyTorch's fused kernels do where they undo
    a GradScaler's scale, and a declared class's step may do so through `.data`."""
    return getattr(optimizer, "grad_scale", None) is not None or _known(type(optimizer)) not in _PYTORCH


def make_states_own(optimizer: optim.Optimizer) -> None:
    """Copies what of an optimizer's states is in memory. Where others were moved to Terrace just now, a state dict that
    was loaded would go on sharing these alone, and become one of two different steps. Of states that are DTensors it
    goes on sharing all."""
    states: list[dict[Any, Any]] = list(optimizer.state.values())
    states = [state for state in states if isinstance(state, dict)]
    if any(is_split(value) for state in states for value in state.values()):
        return
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: what several parameters may have, and its copy
    for state in states:
        for holder, _, held in list(kept_in(state)):
            if type(held) is torch.Tensor:
                _, own = made.setdefault(id(held), (held, held.clone()))
                holder.put(own)


def name_of(optimizer: Any) -> str:
    """Its class, with the module that this is in."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"

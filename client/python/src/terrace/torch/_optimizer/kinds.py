# SPDX-License-Identifier: Apache-2.0
"""Which optimizers can run over a few parameters at a time, and what each keeps of a parameter."""

from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import optim

from ..._errors import InvalidArgument
from .._pytorch.private import code_of_step, has_collecting_of, is_run_of, unhooked
from .._pytorch.split import is_split

Group = Mapping[str, Any]
Kind = TypeVar("Kind", bound=type[optim.Optimizer])

_CALL = "terrace.torch.elementwise"

# Each treats every element by itself. The states are those of the parameter's shape.
_STATES: dict[type[optim.Optimizer], Callable[[Group], tuple[str, ...]]] = {
    optim.Adadelta: lambda group: ("square_avg", "acc_delta"),
    optim.Adagrad: lambda group: ("sum",),
    optim.Adam: lambda group: ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ())),
    optim.Adamax: lambda group: ("exp_avg", "exp_inf"),
    optim.AdamW: lambda group: ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ())),
    optim.ASGD: lambda group: ("ax",),
    optim.NAdam: lambda group: ("exp_avg", "exp_avg_sq"),
    optim.RAdam: lambda group: ("exp_avg", "exp_avg_sq"),
    optim.RMSprop: lambda group: ("square_avg", *(("momentum_buffer",) if group["momentum"] > 0 else ()),
                                  *(("grad_avg",) if group["centered"] else ())),
    optim.Rprop: lambda group: ("prev", "step_size"),
    optim.SGD: lambda group: (("momentum_buffer",) if group["momentum"] else ()),
}
_PYTORCH = tuple(_STATES)
_STEPS = {kind: code_of_step(kind) for kind in _PYTORCH}


def elementwise(kind: Kind, *, states: Iterable[str] | Callable[[Group], Iterable[str]] = ()) -> Kind:
    """Says of an optimizer class of your own that it treats every element by itself, so that `offload` takes it.

    Returns the class.

        terrace.torch.elementwise(Lion, states=["exp_avg"])
        model, optimizer = terrace.torch.offload(model, Lion(model.parameters()))

    Its step() then runs as ever, and sees each group once. A loop over `group["params"]` has its parameters leased a few at
    a time; what it collects in lists is leased once more by each operation on it. `step_in_backward=True` runs the step for
    a few parameters at a time. That gives the same weights where what becomes of an element depends on that element of the
    parameter, its gradient and its states alone, on the group's options, and on counters in `self.state[parameter]`; what
    else a step does is FailedPrecondition, where it is seen. Do not declare a class that takes norms, means or factors over
    several parameters.

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
        known = "is known already" if stepper in _PYTORCH else "does not treat every element by itself"
        of = next((base for base in kind.__mro__ if base in _PYTORCH), stepper)
        raise InvalidArgument(f"{_CALL}: {kind.__qualname__} runs the step of PyTorch's {of.__qualname__}, which "
                              f"{known}: declare a class with a step of its own")
    _STATES[kind] = states if callable(states) else _always(states)
    return kind


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
    if not isinstance(optimizer, optim.Optimizer):
        raise InvalidArgument(
            f"terrace.torch.offload: {_name(optimizer)} is no torch.optim.Optimizer; offload(model) without it keeps "
            "parameters and gradients in Terrace, and leases them for it as it uses them")
    if _known(type(optimizer)) is None:
        raise InvalidArgument(
            f"terrace.torch.offload: {_name(optimizer)} is not known to treat every element by itself, so that it "
            f"cannot run over a part of the parameters at a time. These can: {', '.join(sorted(names()))}, and what is "
            "declared with terrace.torch.elementwise(), for an optimizer of your own that does. With "
            f"{type(optimizer).__name__}, use offload(model) without the optimizer: parameters and gradients live in "
            "Terrace and are leased for it one by one, and its states stay in memory")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise InvalidArgument(f"terrace.torch.offload: {type(optimizer).__name__} with differentiable=True keeps "
                                  "a graph through its states, which cannot leave memory")


def names() -> list[str]:
    """The optimizers that can be offloaded, declared ones among them."""
    return [kind.__name__ for kind in _STATES]


def states(optimizer: optim.Optimizer, group: Group) -> tuple[str, ...]:
    """The states of a parameter's shape that the optimizer keeps of each parameter of a group."""
    known = _known(type(optimizer))
    assert known is not None  # check() has seen it
    return tuple(_STATES[known](group))


def known_states(optimizer: optim.Optimizer, group: Group) -> tuple[str, ...]:
    """The same of any optimizer: none, where it is not known what it keeps."""
    return () if _known(type(optimizer)) is None else states(optimizer, group)


def may_keep_more(optimizer: optim.Optimizer) -> bool:
    """Whether there may be other states than these, as of an optimizer that was declared, or a class derived from one of
    PyTorch's."""
    return type(optimizer) not in _PYTORCH


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
    if any(is_split(value) for state in states for value in state.values()):
        return
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: what several parameters may have, and its copy
    for state in states:
        for key, value in state.items():
            if type(value) is torch.Tensor:
                _, state[key] = made.setdefault(id(value), (value, value.clone()))


def _name(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def state_like(parameter: torch.Tensor, value: Any, bytes_min: int) -> bool:
    """Whether a state is worth moving: a tensor of the parameter's size, and not a small one."""
    return (type(value) is torch.Tensor and value.layout == torch.strided and value.numel() == parameter.numel()
            and value.nbytes >= bytes_min and value.device == parameter.device)

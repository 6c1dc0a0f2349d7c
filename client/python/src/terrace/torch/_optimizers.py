# SPDX-License-Identifier: Apache-2.0
"""Which optimizers can run over a few parameters at a time, and what each keeps of a parameter."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import optim

from .._errors import InvalidArgument

Group = Mapping[str, Any]

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


def _stepper(kind: type[optim.Optimizer]) -> type[optim.Optimizer]:
    """The class whose step a class runs."""
    return next(base for base in kind.__mro__ if "step" in vars(base))


def check(optimizer: Any) -> None:
    """Raises InvalidArgument for an optimizer that cannot be offloaded, naming it and what works in its place."""
    if not isinstance(optimizer, optim.Optimizer):
        raise InvalidArgument(
            f"terrace.torch.offload: {_name(optimizer)} is no torch.optim.Optimizer; offload(model) without it keeps "
            "parameters and gradients in Terrace, and leases them for it as it uses them")
    if _stepper(type(optimizer)) not in _STATES:
        raise InvalidArgument(
            f"terrace.torch.offload: {_name(optimizer)} is not known to treat every element by itself, so that it "
            f"cannot run over a part of the parameters at a time. These can: {', '.join(sorted(names()))}. With "
            f"{type(optimizer).__name__}, use offload(model) without the optimizer: parameters and gradients live in "
            "Terrace and are leased for it one by one, and its states stay in memory")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise InvalidArgument(f"terrace.torch.offload: {type(optimizer).__name__} with differentiable=True keeps "
                                  "a graph through its states, which cannot leave memory")


def names() -> list[str]:
    """The optimizers that can be offloaded."""
    return [kind.__name__ for kind in _STATES]


def states(optimizer: optim.Optimizer, group: Group) -> tuple[str, ...]:
    """The states of a parameter's shape that the optimizer keeps of each parameter of a group."""
    return _STATES[_stepper(type(optimizer))](group)


def writes_gradients_unseen(optimizer: optim.Optimizer) -> bool:
    """Whether a step writes to gradients without a change of their versions: PyTorch's fused kernels do where they undo
    a GradScaler's scale."""
    return getattr(optimizer, "grad_scale", None) is not None


def _name(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def state_like(parameter: torch.Tensor, value: Any, bytes_min: int) -> bool:
    """Whether a state is worth moving: a tensor of the parameter's size, and not a small one."""
    return (type(value) is torch.Tensor and value.layout == torch.strided and value.numel() == parameter.numel()
            and value.nbytes >= bytes_min and value.device == parameter.device)

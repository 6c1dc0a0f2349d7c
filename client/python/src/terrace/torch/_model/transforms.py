# SPDX-License-Identifier: Apache-2.0
"""Hands what is offloaded to those parts of PyTorch's C++ that take a tensor without asking `__torch_function__`: the
transforms of torch.func, forward-mode AD and the backward pass.

Each is handed tensors by a function of PyTorch's Python, which finds the C++ by a name in its own module. That name
means ours from the first model on: it puts in the place of a tensor in Terrace one that works there, and is theirs for
any other.

Within a transform autograd cannot be told what to save (see _parameters/saved.py). What it saves there of a parameter is
to be a view, which keeps its lease, and not the parameter, which shows a placeholder by the time it is needed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..._errors import FailedPrecondition
from .._pytorch import private
from .._pytorch.modes import in_functorch, is_traced, ordinary
from .._tensors.offloaded import OffloadedParameter, OffloadedTensor

_OURS = (OffloadedParameter, OffloadedTensor)
Function = Callable[..., Any]


def ask_transforms() -> None:
    """Sees to it that PyTorch's C++ is handed no placeholder where that can be seen to, and that clipping takes the
    functions of lists, which it does where it knows the types: these do as ordinary tensors do."""
    if OffloadedTensor not in private.foreach_types:
        private.foreach_types.append(OffloadedTensor)
    _replace(*private.WRAP_FOR_GRAD, _first_stands_in)
    _replace(*private.WRAP_FUNCTIONAL, _functional)
    _replace(*private.ASSERT_FUNCTIONAL, _of_what_stands)
    _replace(*private.PROPAGATE_FUNCTIONAL, _of_what_stands)
    _replace(*private.ADD_BATCH_DIMENSION, _first_stands_in)
    _replace(*private.MAKE_DUAL, _both_stand_in)
    _replace(*private.MAKE_GRADIENTS, _gradients_copied)
    _replace(*private.BACKWARD_APPLY, _result_copied)
    _replace(*private.BACKWARD_APPLY_BOXED, _result_copied)


def _replace(holder: Any, name: str, ours: Callable[[Function], Function]) -> None:
    theirs = getattr(holder, name, None)
    if theirs is not None and not hasattr(theirs, "terrace"):
        made = ours(theirs)
        made.terrace = True  # type: ignore[attr-defined]
        setattr(holder, name, made)


def _is_recorded() -> bool:
    """Whether autograd records what is done to an ordinary tensor. A transform turns recording on for what it
    differentiates, and knows whether it was on around it."""
    return torch.is_grad_enabled() and private.grad_was_enabled_around()


def saves_unasked() -> bool:
    """Whether a graph may be recorded where what it saves cannot be hooked, as within a transform."""
    return torch.is_grad_enabled() and (in_functorch() or not private.hooks_allowed())


def view_of(parameter: nn.Parameter) -> torch.Tensor:
    """Another tensor of what a parameter shows, with its gradient."""
    with ordinary(), torch.set_grad_enabled(_is_recorded()):
        return parameter.view_as(parameter)


@contextlib.contextmanager
def as_views(module: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Has a module see views in the place of these parameters, which are shown."""
    views = {id(one): view_of(one) for one in parameters}
    parts = [(part._parameters, dict(part._parameters)) for part in module.modules() if part._parameters]
    lists = [(part._flat_weights, list(part._flat_weights)) for part in module.modules() if isinstance(part, nn.RNNBase)]
    try:
        for seen, _ in parts:
            seen.update({name: views[id(one)] for name, one in seen.items() if id(one) in views})  # type: ignore[misc]
        for weights, _ in lists:
            weights[:] = [views.get(id(one), one) for one in weights]  # type: ignore[misc]
        views.clear()
        yield
    finally:
        for seen, before in parts:
            seen.update(before)
        for weights, were in lists:
            weights[:] = were


def _stands_in(tensor: torch.Tensor) -> torch.Tensor:
    """What a transform works on in the place of a tensor in Terrace. Where a gradient is to come of it: a view, leased
    for as long as something keeps it. Else what leases for each operation."""
    if not isinstance(tensor, OffloadedParameter) or not tensor.requires_grad or not _is_recorded():
        with ordinary():
            return tensor.detach()
    if is_traced():
        raise FailedPrecondition(
            f"the parameter '{tensor.terrace.name}' lives in Terrace, and was given to what notes down what runs "
            "(torch.func.linearize, make_fx): give it weight.detach()")
    with ordinary():
        return tensor.view_as(tensor)


def _first_stands_in(theirs: Function) -> Function:
    @functools.wraps(theirs)
    def taken(tensor: torch.Tensor, *more: Any) -> Any:
        return theirs(_stands_in(tensor) if isinstance(tensor, _OURS) else tensor, *more)

    return taken


def _both_stand_in(theirs: Function) -> Function:
    @functools.wraps(theirs)
    def taken(tensor: torch.Tensor, tangent: torch.Tensor, **level: Any) -> Any:
        return theirs(_stands_in(tensor) if isinstance(tensor, _OURS) else tensor,
                      _stands_in(tangent) if isinstance(tangent, _OURS) else tangent, **level)

    return taken


def _functional(theirs: Function) -> Function:
    @functools.wraps(theirs)
    def wrapped(tensor: torch.Tensor, level: int) -> Any:
        if not isinstance(tensor, _OURS):
            return theirs(tensor, level)
        stands = _stands_in(tensor)
        made = theirs(stands, level)
        made.terrace_stands = stands
        return made

    return wrapped


def _of_what_stands(theirs: Function) -> Function:
    """Looks at what stood for an argument of functionalize(), and writes there what was written to it."""
    @functools.wraps(theirs)
    def given(argument: torch.Tensor, wrapped: torch.Tensor) -> None:
        theirs(wrapped.terrace_stands if isinstance(argument, _OURS) else argument, wrapped)  # type: ignore[attr-defined]

    return given


def _copied(gradient: Any) -> Any:
    return gradient.clone() if isinstance(gradient, _OURS) else gradient


def _gradients_copied(theirs: Function) -> Function:
    """Of backward(gradient) and grad(grad_outputs=)."""
    @functools.wraps(theirs)
    def make(outputs: Any, gradients: Any, *more: Any, **options: Any) -> Any:
        return theirs(outputs, tuple(_copied(one) for one in gradients), *more, **options)

    return make


def _result_copied(theirs: Function) -> Function:
    """Of the backward of a torch.autograd.Function."""
    @functools.wraps(theirs)
    def apply(self: Any, *gradients: Any) -> Any:
        result = theirs(self, *gradients)
        if isinstance(result, tuple):
            return tuple(_copied(one) for one in result) if any(isinstance(one, _OURS) for one in result) else result
        return _copied(result)

    return apply

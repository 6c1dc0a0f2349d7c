# SPDX-License-Identifier: Apache-2.0
"""Whether a step can go on when step() has returned, in a thread that is given parameters of its own."""

from __future__ import annotations

import random
import types
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch import nn, optim

from .._pytorch.modes import in_functorch
from .._pytorch.private import dispatch_modes
from . import kinds
from .trace import PLAIN, own_of
from .waiting import WaitingStates

_DEPTH_MAX = 4
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)  # a trial refuses those that keep something
_CLOSED = (nn.Module, optim.Optimizer, torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
# PyTorch's own ask for nothing but their groups, gradients and states.
ELEMENT_BY_ELEMENT = (optim.Adadelta, optim.Adagrad, optim.Adam, optim.Adamax, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop,
                       optim.Rprop, optim.SGD)
_PYTORCH = (*ELEMENT_BY_ELEMENT, optim.ASGD, optim.Adafactor, optim.Muon)


def can_be_sliced(optimizer: optim.Optimizer) -> bool:
    """Whether it treats each element by itself, so that a slice of its step tells what all of it takes."""
    return type(optimizer) in ELEMENT_BY_ELEMENT


def can_be_later(optimizer: optim.Optimizer) -> bool:
    """Whether it can: of PyTorch's own, but not while a fused one undoes a GradScaler's scale, which the scaler changes; and of
    those that were tried, where each part comes to the same by itself, and the trial has shown that it asks for no more."""
    if type(optimizer) in _PYTORCH:
        return getattr(optimizer, "grad_scale", None) is None
    tried = kinds.tried(optimizer)
    return (tried is not None and tried.alone and tried.in_parts and not tried.asks_for_more
            and type(optimizer.state) in (defaultdict, WaitingStates) and not _has_parameters(optimizer))


def can_be_later_in_backward(optimizer: optim.Optimizer) -> bool:
    """Whether it can where parameters are stepped as their gradients come: of others than PyTorch's own, what a step writes to
    its group takes effect at its end, and keeps it in the backward pass."""
    return not kinds.may_keep_more(optimizer) and can_be_later(optimizer)


def is_called_alike(given: Iterable[Any]) -> bool:
    """Whether a step that was tried is called as it was then. given: its arguments."""
    return (all(one is None for one in given) and not torch.is_autocast_enabled("cpu") and not in_functorch()
            and not dispatch_modes() and torch.get_default_device().type == "cpu")


def _has_parameters(optimizer: optim.Optimizer) -> bool:
    """Whether it knows its parameters, or their ids, elsewhere than in its groups and its state, steps other optimizers, or has
    random numbers of its own: the thread's parameters are others. What cannot be looked into may."""
    of_groups = [value for group in optimizer.param_groups for name, value in group.items() if name != "params"]
    numbers = {id(one) for group in optimizer.param_groups for one in group["params"]}
    return any(_has(value, numbers, _DEPTH_MAX) for value in (
        *of_groups, *(value for name, value in own_of(optimizer).items() if name != "step")))


def _has(value: Any, numbers: set[int], depth: int) -> bool:
    if isinstance(value, int):
        return value in numbers
    if isinstance(value, (*PLAIN, *_FUNCTIONS)):
        return False
    if isinstance(value, torch.Tensor):
        return isinstance(value, nn.Parameter) or value.requires_grad
    if not depth or isinstance(value, _CLOSED):
        return True
    if isinstance(value, dict):
        return any(_has(one, numbers, depth - 1) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple | set | frozenset) or hasattr(value, "popleft"):
        return any(_has(one, numbers, depth - 1) for one in value)
    return any(_has(one, numbers, depth - 1) for one in getattr(value, "__dict__", {}).values())

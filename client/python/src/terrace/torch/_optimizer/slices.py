# SPDX-License-Identifier: Apache-2.0
"""Slices of a parameter, which an optimizer that treats each element by itself steps one after the other: its kernels pass over
each slice many times, and find it in the processor's cache. The numbers are the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from .._pytorch.private import set_data

_ELEMENTS = 256 << 10  # of a slice, for each thread: with its gradient and states some MiB, and whole lines of the cache


class Casts:
    """Slices of gradients in the type that is stepped, one at a time, in memory that is used again: new memory costs as much as
    the cast."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def of(self, gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The slice in a type: itself, or its cast, until the next one is asked for."""
        if gradient.dtype == dtype:
            return gradient
        if self._memory.dtype != dtype or self._memory.numel() < gradient.numel():
            self._memory = torch.empty(gradient.numel(), dtype=dtype, device=gradient.device)
        return self._memory[:gradient.numel()].copy_(gradient)


def elements_at_once() -> int:
    """Of a slice."""
    return _ELEMENTS * torch.get_num_threads()


def can_be_sliced(stepped: nn.Parameter, gradient: torch.Tensor, state: dict[str, Any], kept: Collection[str]) -> bool:
    """Whether a parameter is large, and it, its gradient and what its state has of its size lie in memory alike."""
    size = stepped.numel()
    return size > elements_at_once() and all(
        one.is_contiguous() and one.numel() == size for one in (stepped, gradient, *(state[name] for name in kept)))


def slices(stepped: nn.Parameter, gradient: torch.Tensor, state: dict[str, Any], kept: Collection[str],
           casts: Casts) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
    """What is stepped in a parameter's place, each with a state of its own; the next one is taken once the step is over with the
    one before. Then nothing shows its memory, though the step has it in lists yet. What the step has made of the rest of the
    state is in it at the end.

    gradient: all of it, in its own type.
    """
    size = elements_at_once()
    others = {name: value for name, value in state.items() if name not in kept}
    for at in range(0, stepped.numel(), size):
        piece = nn.Parameter(stepped.detach().view(-1)[at:at + size])
        piece.grad = casts.of(gradient.view(-1)[at:at + size], piece.dtype)
        its = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in others.items()}
        its |= {name: state[name].view(-1)[at:at + size] for name in kept}
        try:
            yield piece, its
        finally:
            its_gradient, piece.grad = piece.grad, None
            for tensor in (piece, its_gradient, *(its[name] for name in kept)):
                if tensor is not None:
                    set_data(tensor, tensor.new_empty(0))
        state.update((name, value) for name, value in its.items() if name not in kept)

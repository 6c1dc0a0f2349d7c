# SPDX-License-Identifier: Apache-2.0
"""What holds the tensors that an optimizer's step works on, so that leased ones can be put there for its time."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from .._pytorch.split import is_split


class InState(NamedTuple):
    """A tensor under its name in the optimizer's state of a parameter, or in a dictionary there."""

    state: dict[Any, Any]
    key: Any

    def get(self) -> Any:
        return self.state.get(self.key)

    def put(self, tensor: Any) -> None:
        self.state[self.key] = tensor


class InList(NamedTuple):
    """One of a list, or of a deque, in a parameter's state."""

    values: Any
    at: int

    def get(self) -> Any:
        return self.values[self.at] if self.at < len(self.values) else None

    def put(self, tensor: Any) -> None:
        if self.at < len(self.values):
            self.values[self.at] = tensor


class InTuple(NamedTuple):
    """One of a tuple, of which another one is made."""

    holder: Holder
    at: int

    def get(self) -> Any:
        values = self.holder.get()
        return values[self.at] if isinstance(values, tuple) and self.at < len(values) else None

    def put(self, tensor: Any) -> None:
        values = self.holder.get()
        if isinstance(values, tuple) and self.at < len(values):
            made = [*values[:self.at], tensor, *values[self.at + 1:]]
            self.holder.put(type(values)(*made) if hasattr(values, "_fields") else type(values)(made))


class InAttribute(NamedTuple):
    """A tensor that a tensor subclass is made of, as one of quantized states, or that an object has."""

    whole: Any
    name: str

    def get(self) -> Any:
        return getattr(self.whole, self.name, None)

    def put(self, tensor: Any) -> None:
        known = getattr(self.whole, "__dict__", {})
        if self.name in known:  # also of what forbids that its attributes are set
            known[self.name] = tensor
        else:
            setattr(self.whole, self.name, tensor)


class AsGradient(NamedTuple):
    """A parameter's gradient."""

    parameter: nn.Parameter

    def get(self) -> Any:
        return self.parameter.grad

    def put(self, tensor: Any) -> None:
        self.parameter.grad = tensor


class InDTensor(NamedTuple):
    """This rank's part of a tensor that is split over ranks."""

    whole: Any

    def get(self) -> Any:
        return self.whole._local_tensor

    def put(self, tensor: torch.Tensor) -> None:
        self.whole._local_tensor = tensor


Holder = InState | InList | InTuple | InAttribute | AsGradient | InDTensor


def holder_of(tensor: Any, otherwise: Holder) -> Holder:
    """What holds what this process has of a tensor."""
    return InDTensor(tensor) if is_split(tensor) else otherwise

# SPDX-License-Identifier: Apache-2.0
"""What holds the tensors that an optimizer's step works on, so that leased ones can be put there for its time."""

from typing import Any, NamedTuple

import torch
from torch import nn

from .._pytorch.split import is_split


class InState(NamedTuple):
    """A tensor under its name in the optimizer's state of a parameter."""

    state: dict[str, Any]
    key: str

    def get(self) -> Any:
        return self.state.get(self.key)

    def put(self, tensor: torch.Tensor) -> None:
        self.state[self.key] = tensor


class AsGradient(NamedTuple):
    """A parameter's gradient."""

    parameter: nn.Parameter

    def get(self) -> Any:
        return self.parameter.grad

    def put(self, tensor: torch.Tensor) -> None:
        self.parameter.grad = tensor


class InDTensor(NamedTuple):
    """This rank's part of a tensor that is split over ranks."""

    whole: Any

    def get(self) -> Any:
        return self.whole._local_tensor

    def put(self, tensor: torch.Tensor) -> None:
        self.whole._local_tensor = tensor


Holder = InState | AsGradient | InDTensor


def holder_of(tensor: Any, otherwise: Holder) -> Holder:
    """What holds what this process has of a tensor."""
    return InDTensor(tensor) if is_split(tensor) else otherwise

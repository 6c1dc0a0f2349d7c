# SPDX-License-Identifier: Apache-2.0
"""What a tensor in Terrace is made like: the parameter whose gradient or state it is."""

import dataclasses
from typing import Protocol

import torch

from .._leased.placeholder import elements_spanned
from .._leased.slot import room_for


class Like(Protocol):
    """What a tensor in Terrace is made like: the parameter whose gradient or state it is."""

    name: str
    owner: str
    placeholder: torch.Tensor

    @property
    def nbytes(self) -> int: ...

    @property
    def room_bytes(self) -> int: ...


@dataclasses.dataclass
class Geometry:
    """Like which parameter, where that is not in Terrace itself."""

    name: str
    owner: str  # the module, for people
    placeholder: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor like it."""
        return elements_spanned(self.placeholder.shape, self.placeholder.stride()) * self.placeholder.itemsize

    @property
    def room_bytes(self) -> int:
        """What it takes where it is leased."""
        return room_for(self.nbytes)

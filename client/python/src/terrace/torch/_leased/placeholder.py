# SPDX-License-Identifier: Apache-2.0
"""What a tensor shows while its bytes are elsewhere: address space of its shape and strides that reads as NaN.

Autograd asks a parameter for its shape and strides when it accumulates, so that an empty stand-in will not do. Every
tensor has a range of its own, so that addresses still tell tensors apart.
"""

from collections.abc import Sequence

import torch

from ..._terrace import Placeholder
from .._device.streams import tensor_of

ALIGNMENT_BYTES = 64
_REGION_BYTES_MIN = 64 << 20


class PlaceholderSpace:
    """Hands out placeholders on one device, one after the other, from regions that grow with need: each
    as large as all before it, since every one costs memory of its own, and address space costs nothing."""

    def __init__(self, bytes_expected: int, device: torch.device):
        self._device = device
        self._region = Placeholder(max(bytes_expected, 1), device.index)
        self._used = 0
        self._whole = self._region.nbytes

    def take(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A placeholder of this geometry."""
        count = elements_spanned(size, stride)
        wanted = count * dtype.itemsize
        if self._region.nbytes - self._used < wanted:
            self._region = Placeholder(max(wanted, _REGION_BYTES_MIN, self._whole), self._device.index)
            self._whole += self._region.nbytes
            self._used = 0
        memory = tensor_of(self._region.part(self._used, wanted))
        self._used += -(-wanted // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._used = min(self._used, self._region.nbytes)
        return torch.empty(0, dtype=dtype, device=self._device).set_(memory.untyped_storage(), 0, list(size), list(stride))


def elements_spanned(size: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements of memory a tensor of this geometry spans; 0 for an empty one."""
    if 0 in size:
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))

# SPDX-License-Identifier: Apache-2.0
"""Storages of PyTorch: weak references to them, and storages over leased memory."""

import functools
from collections.abc import Sequence

import torch
from torch.utils.dlpack import from_dlpack

from ..._terrace import Lease
from .private import (
    free_weak_reference,
    set_versions,
    storage_expired,
    storage_number,
    storage_revived,
    storage_uses,
    weak_reference,
)

_STATISTICS_BYTES_MAX = 1 << 20


class StorageReference:
    """A weak reference. While it is there, no other storage has the same number."""

    __slots__ = ("_free", "number")

    def __init__(self, storage: torch.UntypedStorage):
        self.number = weak_reference(storage)
        self._free = free_weak_reference  # of its own: modules are emptied at the interpreter's end before what they made

    def __del__(self) -> None:
        self._free(self.number)

    def expired(self) -> bool:
        """Whether the storage is gone."""
        return storage_expired(self.number)

    def storage(self) -> torch.UntypedStorage | None:
        """The storage; None when it is gone."""
        return storage_revived(self.number)


def number_of(storage: torch.UntypedStorage) -> int:
    """What tells it from other storages, for as long as it or a reference to it is there."""
    return storage_number(storage)


def users_of(tensor: torch.Tensor) -> int:
    """How many tensors show its memory, itself and what graphs keep among them."""
    storage = tensor.untyped_storage()
    return storage_uses(number_of(storage)) - 1  # without the object that was asked for


class VersionCounter:
    """What counts the writes to a tensor, its views and what was detached of it; `.data` is counted by itself."""

    __slots__ = ("_counted",)

    def __init__(self, tensor: torch.Tensor):
        self._counted = tensor.detach()
        self._counted.data = _nothing_on(tensor.device, tensor.dtype)  # it keeps the counter, and no memory

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether it counts this tensor's writes, too. Asked by counting one, which is taken back."""
        before = self._counted._version
        if tensor._version != before:
            return False
        set_versions((self._counted,), (before + 1,))
        found: bool = tensor._version == before + 1
        set_versions((self._counted,), (before,))
        return found


def may_be_statistics(tensor: torch.Tensor) -> bool:
    """Of what no graph made: whether a kernel may change it in passing, as batch norm's does its running mean, of which no
    version tells. Those are vectors, and not large."""
    return tensor.dim() <= 1 and tensor.nbytes <= _STATISTICS_BYTES_MAX


@functools.cache
def _nothing_on(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def shown(lease: Lease) -> torch.Tensor:
    """A tensor over the leased memory, whose storage owns a part of the lease."""
    return from_dlpack(lease)


def over(storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Sequence[int],
         stride: Sequence[int]) -> torch.Tensor:
    """A tensor of this geometry over the storage."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)

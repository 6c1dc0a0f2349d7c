# SPDX-License-Identifier: Apache-2.0
"""Storages of PyTorch: weak references to them, and storages over leased memory.

All that this package takes from PyTorch's undocumented side for that is here.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ..._terrace import Lease

_storages: Any = torch.UntypedStorage  # its stubs know nothing of these
_expired: Callable[[int], bool] = _storages._expired
_revived: Callable[[int], torch.UntypedStorage | None] = _storages._new_with_weak_ptr
_weak: Callable[[torch.UntypedStorage], int] = _storages._weak_ref
_uses: Callable[[int], int] = torch._C._storage_Use_Count  # type: ignore[attr-defined]
_free: Callable[[int], None] = _storages._free_weak_ref
_set_versions: Callable[[Sequence[torch.Tensor], Sequence[int]], None] = torch._C._autograd._unsafe_set_version_counter  # type: ignore[attr-defined]
_STATISTICS_BYTES_MAX = 1 << 20


class StorageReference:
    """A weak reference. While it is there, no other storage has the same number."""

    __slots__ = ("_free", "number")

    def __init__(self, storage: torch.UntypedStorage):
        self.number = _weak(storage)
        self._free = _free  # of its own: modules are emptied at the interpreter's end before what they made

    def __del__(self) -> None:
        self._free(self.number)

    def expired(self) -> bool:
        """Whether the storage is gone."""
        return _expired(self.number)

    def storage(self) -> torch.UntypedStorage | None:
        """The storage; None when it is gone."""
        return _revived(self.number)


def number_of(storage: torch.UntypedStorage) -> int:
    """What tells it from other storages, for as long as it or a reference to it is there."""
    number: int = storage._cdata
    return number


def users_of(tensor: torch.Tensor) -> int:
    """How many tensors show its memory, itself and what graphs keep among them."""
    storage = tensor.untyped_storage()
    return _uses(number_of(storage)) - 1  # without the object that was asked for


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
        _set_versions((self._counted,), (before + 1,))
        found: bool = tensor._version == before + 1
        _set_versions((self._counted,), (before,))
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

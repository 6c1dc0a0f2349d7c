# SPDX-License-Identifier: Apache-2.0
"""Storages of PyTorch: weak references to them, and storages over leased memory.

All that this package takes from PyTorch's undocumented side for that is here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .._terrace import Lease

_storages: Any = torch.UntypedStorage  # its stubs know nothing of these
_expired: Callable[[int], bool] = _storages._expired
_revived: Callable[[int], torch.UntypedStorage | None] = _storages._new_with_weak_ptr
_weak: Callable[[torch.UntypedStorage], int] = _storages._weak_ref
_uses: Callable[[int], int] = torch._C._storage_Use_Count  # type: ignore[attr-defined]
_free: Callable[[int], None] = _storages._free_weak_ref


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


def shown(lease: Lease) -> torch.Tensor:
    """A tensor over the leased memory, whose storage owns a part of the lease."""
    return from_dlpack(lease)


def over(storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Sequence[int],
         stride: Sequence[int]) -> torch.Tensor:
    """A tensor of this geometry over the storage."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)

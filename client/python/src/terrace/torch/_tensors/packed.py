# SPDX-License-Identifier: Apache-2.0
"""What autograd holds in place of a tensor that it saved: the tensor itself, or what finds its bytes again."""

from collections.abc import Callable
from typing import Protocol

import torch

from .._pytorch.storages import over


class Source(Protocol):
    """Where a saved storage's bytes come from."""

    def storage(self) -> torch.UntypedStorage:
        """The bytes, in a storage on the device that they were saved from."""


class View:
    """A tensor whose storage is elsewhere: the same type, extents, strides and offset over the storage's bytes."""

    __slots__ = ("__weakref__", "_dtype", "_offset", "_size", "_source", "_stride")

    def __init__(self, tensor: torch.Tensor, source: Source):
        self._source = source
        self._dtype = tensor.dtype
        self._offset = int(tensor.storage_offset())
        self._size = tensor.size()
        self._stride = tensor.stride()

    def unpack(self) -> torch.Tensor:
        """The tensor again."""
        storage = self._source.storage()
        return over(storage, self._dtype, self._offset, self._size, self._stride)


class Here:
    """A tensor that stays in this process's memory; or did, until more of its storage was saved."""

    __slots__ = ("__weakref__", "_on_use", "_tensor", "_version", "_view")

    def __init__(self, tensor: torch.Tensor, on_use: Callable[[], None] | None = None):
        # An output that its own node kept would keep itself.
        self._tensor: torch.Tensor | None = tensor if tensor.is_leaf else tensor.detach()
        self._version = tensor._version
        self._on_use = on_use
        self._view: View | None = None

    def move(self, source: Source) -> None:
        """Its storage is elsewhere from now on."""
        if self._tensor is not None:
            self._view, self._tensor = View(self._tensor, source), None

    def unpack(self) -> torch.Tensor:
        """The tensor. RuntimeError if it was modified in place since: hooks take over this check from PyTorch."""
        tensor = self._tensor
        if tensor is None:
            assert self._view is not None
            return self._view.unpack()
        if tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version "
                f"{self._version} instead")
        if self._on_use is not None:
            self._on_use()
        return tensor

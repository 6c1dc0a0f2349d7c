# SPDX-License-Identifier: Apache-2.0
"""What autograd holds in place of a tensor that it saved: the tensor itself, or what finds its bytes again."""

import time
import weakref
from collections.abc import Callable
from typing import Protocol

import torch

from ..._errors import Error, ResourceExhausted
from ..._terrace import Lease
from .._device.device import follow
from .._pytorch.storages import StorageReference, over, shown
from .backward_order import BackwardOrder, Saved, places_of
from .shelf import Shelf, Slot

WINDOW_PARTS = 4  # what is declared as needed soon is this part of the guarantee


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


_FEW_THREADS = 2  # one that writes past the caches is as fast as so many


def _lay(storage: torch.UntypedStorage, lease: Lease, slot: Slot) -> None:
    """Copies the storage's bytes into the leased memory: past the caches, or by PyTorch's threads where those are many.
    Of a GPU's it begins to, on the current stream, behind which the lease ends."""
    size = storage.nbytes()
    if storage.device.type == "cpu" and lease.cuda_device is None and torch.get_num_threads() <= _FEW_THREADS:
        lease._copy_in(storage.data_ptr(), size)
        return
    source, target = over(storage, torch.uint8, 0, [size], [1]), shown(lease)[:size]
    if storage.device.type == "cpu":
        target.copy_(source)
    else:
        slot.copy_behind(lease, storage.device, lambda: target.copy_(source, non_blocking=True))
        source.record_stream(torch.cuda.current_stream(storage.device))  # it may have been made on another one


class InTerrace:
    """A storage's bytes in Terrace. When it goes, its slot is free again."""

    __slots__ = ("__weakref__", "_device", "_order", "_original", "_saved", "_shelf", "_shown", "_size", "slot")

    def __init__(self, storage: torch.UntypedStorage, saved: Saved, shelf: Shelf, order: BackwardOrder):
        """Copies the bytes. A subclass of terrace.Error, where Terrace cannot take them."""
        self._shelf = shelf
        self._order = order
        self._saved = saved
        self._device = storage.device
        self._size = storage.nbytes()
        self._original = StorageReference(storage)
        self._shown: StorageReference | None = None
        begin = time.perf_counter()
        self.slot = shelf.lay(self._size)
        with self._overwrite() as lease:
            shelf.ask_ahead(lambda most: order.following(saved, most))
            _lay(storage, lease, self.slot)
        saved.move_seconds += time.perf_counter() - begin
        saved.place = weakref.ref(self)

    def _overwrite(self) -> Lease:
        if self.slot.asked is not None:
            try:
                return self.slot.overwrite()
            except Error:
                self._shelf.refused()
        return self.slot.overwrite()

    def __del__(self) -> None:
        slot = getattr(self, "slot", None)
        if slot is not None:
            self._shelf.put_back(slot)

    def storage(self) -> torch.UntypedStorage:
        """The bytes: leased, for as long as the storage is there."""
        storage = None if self._shown is None else self._shown.storage()
        if storage is None:
            storage = self._fetch()
            self._shown = StorageReference(storage)
        elif self._device.type != "cpu":
            follow(self._device, self.slot.stream)  # it may yet be copied on another one
        return storage

    def _fetch(self) -> torch.UntypedStorage:
        if self._saved.used_at is None:
            self._note_use()
        begin = time.perf_counter()
        try:
            storage = self.slot.lease(self._device, self._size)
        except Error as error:
            raise self._said_better(error) from error
        self._saved.move_seconds += time.perf_counter() - begin
        return storage

    def _note_use(self) -> None:
        self._saved.outlived = not self._original.expired()
        crowded = self._shelf.crowded
        ahead = self._order.use(self._saved, self._shelf.guarantee_bytes // WINDOW_PARTS if crowded else 0)
        if crowded:
            self._shelf.tidy()
            self._shelf.prefetch([place.slot for place in places_of(ahead)])

    def _said_better(self, error: Error) -> Error:
        what = (f"terrace.torch.activations: a saved tensor of {self._size} bytes could not be leased for backward: "
                f"{error}")
        if isinstance(error, ResourceExhausted):
            needed = self._size + self._shelf.leased_bytes()
            what += (f"; this session may hold {self._shelf.guarantee_bytes} bytes leased at once in host memory: open "
                     f'it with terrace.Client(guarantees={{"host": {needed}}}) or more')
        better = type(error)(what)
        better.system_error = error.system_error
        return better

# SPDX-License-Identifier: Apache-2.0
"""A saved storage whose bytes are in Terrace: laid away as it is saved, and leased when backward uses it."""

import contextlib
import time
import weakref

import torch

from ..._errors import Error, ResourceExhausted
from ..._terrace import Lease
from .._device.streams import Mark, has_streams
from .._pytorch.storages import StorageReference, over, shown
from .backward_order import BackwardOrder, Saved, moved_of
from .box import Box
from .lanes import UNDER_WAY_BYTES_MAX, Fetched, join, settle
from .shelf import Shelf

WINDOW_PARTS = 4  # what is declared as needed soon is this part of the guarantee


_FEW_THREADS = 2  # one that writes past the caches is as fast as so many


def _lay(storage: torch.UntypedStorage, lease: Lease, box: Box) -> None:
    """Copies the storage's bytes into the leased memory: past the caches, or by PyTorch's threads where those are many.
    Of a GPU's it begins to."""
    size = storage.nbytes()
    if not has_streams(storage.device) and lease.cuda_device is None and torch.get_num_threads() <= _FEW_THREADS:
        lease._copy_in(storage.data_ptr(), size)
        return
    source = over(storage, torch.uint8, 0, [size], [1])
    if not has_streams(storage.device):
        shown(lease)[:size].copy_(source)
    else:
        box.lay(source, lease)


class InTerrace:
    """A storage's bytes in Terrace. When it goes, its box is free again."""

    __slots__ = ("__weakref__", "_coming", "_device", "_mark", "_order", "_original", "_saved", "_shelf", "_shown", "_size", "box")

    def __init__(self, storage: torch.UntypedStorage, saved: Saved, shelf: Shelf, order: BackwardOrder):
        """Copies the bytes. A subclass of terrace.Error, where Terrace cannot take them."""
        self._shelf = shelf
        self._order = order
        self._saved = saved
        self._device = storage.device
        self._size = storage.nbytes()
        self._original = StorageReference(storage)
        self._shown: StorageReference | None = None
        self._coming: Fetched | None = None  # to a GPU, before it is used
        self._mark: Mark | None = None  # behind the copy that is shown there
        begin = time.perf_counter()
        self.box = shelf.lay(self._size)
        with self._overwrite() as lease:
            shelf.ask_ahead(lambda most: order.following(saved, most))
            _lay(storage, lease, self.box)
        saved.move_seconds += time.perf_counter() - begin
        saved.moved = weakref.ref(self)

    def _overwrite(self) -> Lease:
        if self.box.asked is not None:
            try:
                return self.box.overwrite()
            except Error:
                self._shelf.refused()
        return self.box.overwrite()

    def __del__(self) -> None:
        if getattr(self, "_coming", None) is not None:
            self._coming.give_up()
        box = getattr(self, "box", None)
        if box is not None:
            self._shelf.put_back(box)

    def storage(self) -> torch.UntypedStorage:
        """The bytes: leased, for as long as the storage is there."""
        storage = None if self._shown is None else self._shown.storage()
        if storage is None:
            storage = self._fetch()
            self._shown = StorageReference(storage)
        if self._mark is not None:
            join(over(storage, torch.uint8, 0, [self._size], [1]), self._mark)
        return storage

    def fetch_ahead(self) -> None:
        """Begins to copy it to the GPU, if it is in memory: it is used soon."""
        if self._coming is None and (self._shown is None or self._shown.expired()) and self._shelf.is_here(self.box):
            with contextlib.suppress(Error, torch.OutOfMemoryError):  # it is fetched when it is used
                self._coming = self.box.fetch(self._device, self._size)

    def _fetch(self) -> torch.UntypedStorage:
        if self._saved.used_at is None:
            self._note_use()
        begin = time.perf_counter()
        try:
            storage = self._fetch_to_gpu() if has_streams(self._device) else self.box.lease()
        except Error as error:
            raise self._said_better(error) from error
        self._saved.move_seconds += time.perf_counter() - begin
        return storage

    def _fetch_to_gpu(self) -> torch.UntypedStorage:
        coming, self._coming = self._coming, None
        if coming is None:
            coming = self.box.fetch(self._device, self._size)
        self._mark = coming.mark
        for one in moved_of(self._order.next_after(self._saved, UNDER_WAY_BYTES_MAX)):
            one.fetch_ahead()
        return coming.tensor.untyped_storage()

    def _note_use(self) -> None:
        self._saved.outlived = not self._original.expired()
        settle()
        crowded = self._shelf.crowded
        ahead = self._order.use(self._saved, self._shelf.guarantee_bytes // WINDOW_PARTS if crowded else 0)
        if crowded:
            self._shelf.tidy()
            self._shelf.prefetch([one.box for one in moved_of(ahead)])

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

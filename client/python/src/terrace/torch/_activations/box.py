# SPDX-License-Identifier: Apache-2.0
"""A tensor in Terrace that bytes are laid into, again and again."""

import time

import torch

from ..._errors import Error
from ..._terrace import Lease, Tensor
from .._device.streams import Mark, check_not_captured
from .._leased.waits import Waits, note
from .._pytorch.storages import StorageReference, shown
from .asked import Asked
from .lanes import Fetched, lanes_of

PAGE_BYTES = 4096


def class_bytes(size: int) -> int:
    """The size of the tensor that `size` bytes are laid into: eight classes to a doubling, in whole pages."""
    step = max(PAGE_BYTES, 1 << max(0, (size - 1).bit_length() - 4))
    return -(-size // step) * step


class Box:
    """A tensor in Terrace, and what shows it here."""

    __slots__ = ("asked", "copies", "laid", "read", "shown", "size", "stored", "tensor", "used_in_step")

    def __init__(self, tensor: Tensor, size: int, stored: Waits, read: Waits):
        self.tensor = tensor
        self.size = size
        self.stored = stored  # of all boxes: what was leased to be laid into them
        self.read = read  # and to be read again
        self.shown: list[StorageReference] = []
        self.copies: list[Lease] = []  # of a GPU's, that were under way
        self.laid: Mark | None = None  # behind that of what is in it
        self.asked: Asked | None = None  # a lease to overwrite it, which may be on its way
        self.used_in_step = 0

    def lease(self) -> torch.UntypedStorage:
        """A storage over the leased bytes, whose lease it owns."""
        with self._read() as lease:
            leased = shown(lease)
        storage = leased.untyped_storage()
        self.shown.append(StorageReference(storage))
        return storage

    def fetch(self, device: torch.device, size: int) -> Fetched:
        """Begins to copy the bytes to a GPU."""
        check_not_captured(device)
        with self._read() as lease:
            self._note_copied(lease)
            return lanes_of(device).fetch(shown(lease)[:size], self.laid, lease)

    def lay(self, source: torch.Tensor, lease: Lease) -> None:
        """Begins to copy a GPU's bytes into it, which is leased to be overwritten."""
        self._note_copied(lease)
        self.laid = lanes_of(source.device).lay(source, shown(lease)[:source.nbytes], lease)

    def _read(self) -> Lease:
        begin = time.perf_counter()
        lease = self.tensor.read(writable_view=True)
        note([self.read], [lease], time.perf_counter() - begin)
        return lease

    def _note_copied(self, lease: Lease) -> None:
        self.copies = [one for one in self.copies if one.shown]
        self.copies.append(lease)

    def overwrite(self) -> Lease:
        """A lease to lay bytes into it: the one that was asked for before, if one was."""
        begin = time.perf_counter()
        try:
            lease = self.tensor.overwrite() if self.asked is None else self.asked.take()
        except Error:  # it will not come any more
            self.asked = None
            raise
        self.asked = None
        note([self.stored], [lease], time.perf_counter() - begin)
        return lease

    def give_up(self) -> None:
        """Ends the lease that was asked for, if one was: waits for it."""
        if self.asked is not None:
            self.asked.give_up()
            self.asked = None

    def is_shown(self) -> bool:
        """Whether a storage of an earlier lease is still there, or a GPU still copies: then its bytes must not change."""
        self.shown = [storage for storage in self.shown if not storage.expired()]
        self.copies = [lease for lease in self.copies if lease.shown]
        return bool(self.shown or self.copies)

# SPDX-License-Identifier: Apache-2.0
"""A tensor in Terrace that bytes are laid into, again and again."""

import time
from collections.abc import Callable

import torch

from ..._errors import Error
from ..._terrace import Lease, Tensor
from .._device.streams import Stream, check_not_captured, follow, has_streams, stream_of
from .._leased.waits import Waits, note
from .._pytorch.storages import StorageReference, shown
from .asked import Asked

PAGE_BYTES = 4096


def class_bytes(size: int) -> int:
    """The size of the tensor that `size` bytes are laid into: eight classes to a doubling, in whole pages."""
    step = max(PAGE_BYTES, 1 << max(0, (size - 1).bit_length() - 4))
    return -(-size // step) * step


class Box:
    """A tensor in Terrace, and what shows it here."""

    __slots__ = ("asked", "copies", "read", "shown", "size", "stored", "stream", "tensor", "used_in_step")

    def __init__(self, tensor: Tensor, size: int, stored: Waits, read: Waits):
        self.tensor = tensor
        self.size = size
        self.stored = stored  # of all boxes: what was leased to be laid into them
        self.read = read  # and to be read again
        self.shown: list[StorageReference] = []
        self.copies: list[Lease] = []  # of a GPU's, that were under way
        self.stream: Stream | None = None  # of the last of them
        self.asked: Asked | None = None  # a lease to overwrite it, which may be on its way
        self.used_in_step = 0

    def lease(self, device: torch.device, size: int) -> torch.UntypedStorage:
        """A storage with the bytes: on a CPU the leased ones, whose lease it owns; elsewhere a copy of them."""
        begin = time.perf_counter()
        with self.tensor.read(writable_view=True) as lease:
            note([self.read], [lease], time.perf_counter() - begin)
            leased = shown(lease)
            if has_streams(device):
                check_not_captured(device)
                copied = self.copy_behind(lease, device, lambda: leased[:size].to(device, non_blocking=True))
                return copied.untyped_storage()
        storage = leased.untyped_storage()
        self.shown.append(StorageReference(storage))
        return storage

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

    def copy_behind(self, lease: Lease, device: torch.device, copy: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Begins a copy between the leased memory and a GPU on its current stream, behind those before; the lease ends
        behind it."""
        stream = self.stream = follow(device, self.stream)
        self.copies = [one for one in self.copies if one.shown]
        self.copies.append(lease)
        try:
            copied = copy()
            lease.release(stream_of(device.index))
        except BaseException:  # nobody is to have the memory while it is copied
            stream.synchronize()
            raise
        return copied

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

# SPDX-License-Identifier: Apache-2.0
"""One tensor of a training job in Terrace, and the PyTorch tensors that show it while it is leased.

The tensors own the lease: it ends with the last one that shows the memory, so that nothing that a script keeps can
dangle. While anything shows it, the same lease is shown again, and a lease to write is added to it where there was one
to read.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..._dtypes import number_of
from ..._errors import InvalidArgument
from ..._terrace import Lease, Tensor
from .._device.streams import stream_of, tensor_of
from .._pytorch.storages import over
from .placeholder import elements_spanned
from .shown import remember
from .updates import Update
from .waits import Waits

_PAGE_BYTES = 4096


def room_for(nbytes: int) -> int:
    """What a tensor of so many bytes takes where it is leased: whole pages."""
    return -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES


def nobody() -> None:
    """A reference to nothing."""


class Slot:
    """One tensor in Terrace, of a fixed geometry: that of its placeholder."""

    __slots__ = ("__weakref__", "_cuda_device", "addressed", "aliases", "content", "dtype", "lazies", "lease", "name", "owner", "placeholder", "plain",
                 "reference", "shard", "tensor", "update", "waits", "writes", "writing")

    def __init__(self, name: str, owner: str, tensor: Tensor, placeholder: torch.Tensor):
        self.name = name
        self.owner = owner  # the module, for people
        self.tensor = tensor
        self.reference: Callable[[], Any] = nobody  # to the ManagedParameter whose bytes these are
        self.shard: Callable[[], Any] = nobody  # to the ManagedShard whose bytes these are
        self.content: Callable[[], Any] = nobody  # to what of a weight's cast this is
        self.addressed: Callable[[], Any] = nobody  # to what shows it where its address was asked for
        self.placeholder = placeholder
        self.dtype = placeholder.dtype
        self._cuda_device = placeholder.device.index  # None: a CPU's
        # what is leased is a tensor of this geometry as it comes
        self.plain = (placeholder.stride() == plain_strides(placeholder.shape)
                      and dtype_in_terrace(placeholder.dtype) == placeholder.dtype)
        self.lease: Lease | None = None
        self.lazies = 0  # tensors of the script that stand for its content
        self.writing = False  # the lease is one to write
        self.writes = 0  # that there may have been, but for a step's
        self.aliases = 0  # uses by operations that something outlived
        self.waits = Waits()
        self.update: Update | None = None  # what is being written to it, by another thread

    def wait(self) -> None:
        """Waits for what is being written to it."""
        update = self.update
        if update is not None:
            update.wait()

    @property
    def parameter(self) -> Any:
        """The ManagedParameter whose bytes these are; None for what is no parameter's."""
        return self.reference()

    @property
    def device(self) -> torch.device:
        """In whose memory it is leased."""
        return self.placeholder.device

    @property
    def nbytes(self) -> int:
        """Bytes of its tensor."""
        return self.tensor.nbytes

    @property
    def room_bytes(self) -> int:
        """What it takes where it is leased."""
        return room_for(self.nbytes)

    @property
    def shown(self) -> bool:
        """Whether a tensor that shows it is left."""
        return self.lease is not None and self.lease.shown

    def take(self, lease: Lease, writing: bool) -> None:
        """Has this lease from now on: a new one, or one to write beside what is shown already."""
        if self.lease is None or not self.lease.resume():
            self.lease = lease
            self.writing = writing
        elif writing and not self.writing:
            self.lease.carry(lease)
            self.writing = True

    def resume(self, writing: bool) -> bool:
        """Takes a part of the lease that goes on, if it is good for this use."""
        return self.lease is not None and (self.writing or not writing) and self.lease.resume()

    def let_go(self) -> None:
        """Gives up the part that take() or resume() took."""
        if self.lease is not None:
            self.lease.release()

    def show(self) -> torch.Tensor:
        """A tensor over the leased memory, which alone holds the lease from now on. After take() or resume()."""
        lease = self.lease
        assert lease is not None
        try:
            stream = None if self._cuda_device is None else stream_of(self._cuda_device)
            shown = tensor_of(lease.__dlpack__(stream=stream))
            if not self.plain:
                geometry = self.placeholder
                shown = over(shown.untyped_storage(), self.dtype, 0, geometry.shape, geometry.stride())
            remember(lease.address, lease, weakref.ref(self))
            return shown
        finally:
            lease.release()


def plain_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a C-contiguous tensor of this size, as PyTorch and Terrace count them."""
    strides = []
    step = 1
    for extent in reversed(size):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def shape_in_terrace(tensor: torch.Tensor) -> list[int]:
    """The shape to create for a tensor of this geometry: its own, or a flat run where its strides are other ones."""
    if tensor.stride() == plain_strides(tensor.shape):
        return list(tensor.shape)
    return [elements_spanned(tensor.shape, tensor.stride())]


@functools.cache
def dtype_in_terrace(dtype: torch.dtype) -> torch.dtype:
    """The element type to create a tensor of this type as: its own, or, of one that Terrace has no number for (as those of
    microscaled weights), integers or complex numbers of its size, whose bytes are its own. InvalidArgument where there is
    none of its size."""
    try:
        number_of(dtype)
    except InvalidArgument:
        return _dtype_of_size(dtype)
    return dtype


def _dtype_of_size(dtype: torch.dtype) -> torch.dtype:
    for carrier in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128):
        if carrier.itemsize == dtype.itemsize:
            return carrier
    raise InvalidArgument(f"no element type of {dtype.itemsize} bytes, as {dtype} is, can be in Terrace")


def copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies the elements of a dense tensor to another of the same geometry, also of types that have no kernel for it."""
    carrier = dtype_in_terrace(target.dtype)
    if carrier != target.dtype:
        target, source = (over(one.untyped_storage(), carrier, int(one.storage_offset()), one.shape, one.stride())
                          for one in (target, source))
    target.copy_(source)

# SPDX-License-Identifier: Apache-2.0
"""Tensors of frozen weights that are no parameters: scales beside one, buffers, and what a tensor of another library's class
is made of. They are leased with their module, as its parameters are."""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch
from torch import nn

from ..._errors import FailedPrecondition
from .._leased.slot import Slot, copy_bits
from .._leased.store import Store
from .._pytorch.modes import ordinary
from .._pytorch.private import raw, set_data
from .._tensors.offloaded import OffloadedTensor
from .parameter import ManagedParameter

_NAMES = ("terrace_slot", "terrace_store", "terrace_parameter")


def _become_ordinary(tensor: Any) -> None:
    tensor.__class__ = torch.Tensor
    for name in _NAMES:
        tensor.__dict__.pop(name, None)  # who copies it copies what it has


def _become_offloaded(tensor: Any, managed: ManagedParameter) -> None:
    tensor.terrace_slot, tensor.terrace_store, tensor.terrace_parameter = managed.slot, managed.store, managed
    tensor.__class__ = OffloadedTensor


class TwinTensor:
    """A tensor beside a parameter, or beside a piece, that is of the same memory: a layer in eight bits has the integers once
    as its weight and once as a part of its state."""

    def __init__(self, tensor: torch.Tensor):
        self._reference = weakref.ref(tensor)
        self._version = tensor._version

    def is_for(self, tensor: torch.Tensor) -> bool:
        """Whether it is this very tensor."""
        return self._reference() is tensor

    def show(self, shown: torch.Tensor) -> None:
        """Shows the same memory from now on."""
        found = self._reference()
        if found is not None:
            with raw():
                set_data(found, shown)
            _become_ordinary(found)

    def hide(self, managed: ManagedParameter) -> None:
        """Leases whenever it is used from now on."""
        found = self._reference()
        if found is not None:
            _become_offloaded(found, managed)  # before its data: who comes meanwhile is to lease
            with raw():
                set_data(found, managed.slot.placeholder)

    def wrote(self) -> bool:
        """Whether something was written to it since this was asked."""
        found = self._reference()
        before = self._version
        if found is not None:
            with raw():
                self._version = found._version
        return self._version != before

    def part(self) -> None:
        """Is a tensor by itself from now on. It is shown."""
        found = self._reference()
        if found is not None:
            set_data(found, found.clone(memory_format=torch.preserve_format))


class ManagedPiece(ManagedParameter):
    """A tensor that stays the same object throughout, so that whoever has it has what is leased, or what leases."""

    def __init__(self, name: str, tensor: torch.Tensor, slot: Slot, store: Store):
        super().__init__(name, cast(nn.Parameter, tensor), slot, store)
        self.kind = torch.Tensor

    def appear(self, found: Any) -> None:
        _become_ordinary(found)

    def vanish(self, found: Any) -> None:
        _become_offloaded(found, self)

    @property
    def adapts(self) -> bool:
        return self.store.writable


class _Held(ManagedPiece):
    """A tensor that what has it can be given another one for: while it is in Terrace, a tensor of ours, which PyTorch's C++
    asks, too."""

    def __init__(self, name: str, owner: Any, key: str, slot: Slot, store: Store):
        self._key = key
        super().__init__(name, owner, slot, store)
        self._stand_for()

    def _get(self) -> Any:
        raise NotImplementedError

    def _put(self, tensor: torch.Tensor) -> None:
        raise NotImplementedError

    def _stand_for(self) -> None:
        with ordinary(), raw():
            self._leasing = OffloadedTensor.of(self.slot, self.store, self)
            self.version = self._leasing._version

    @property
    def parameter(self) -> Any:
        """What leases, which counts the writes."""
        if self.gone:
            raise FailedPrecondition(f"'{self.name}' was destroyed")
        return self._leasing

    def check(self) -> None:
        """Nothing is lost: what stands for it is asked by C++, too, so that all writes to it are to leased memory."""
        with raw():
            self.version = self.parameter._version

    def move_in(self) -> None:
        value = self._get().detach()
        (shown,) = self.store.lease([self.slot], "overwrite")
        with torch.no_grad():
            copy_bits(shown, value)
        del shown, value
        self._put(self._leasing)

    def show(self, shown: torch.Tensor) -> None:
        if self._get() is not self._leasing:  # somebody has put another one there, which is in memory
            return
        self.note_seen(self._leasing)
        self.aliased = self.saved_alias = False
        self.address = shown.data_ptr()
        self._put(shown)

    def hide(self) -> None:
        found = self._get()
        if self.address == 0:
            return
        geometry = self.slot.placeholder
        alike = isinstance(found, torch.Tensor) and (found.dtype, found.shape, found.stride()) == (
            geometry.dtype, geometry.shape, geometry.stride())
        if not alike or found.data_ptr() != self.address:
            if type(found) is torch.Tensor and self.adapts and found.device == geometry.device:
                self._renew(found.detach())
                self._stand_for()
                self._put(self._leasing)
        else:
            if found._version:  # memory that is newly shown has none
                self.store.may_be_written(self.slot)
                self.noticed_write()
            self._put(self._leasing)
        self.address = 0
        del found
        if self.slot.shown and not self.saved_alias:
            self.aliased = True
            self.aliases += 1
            self.store.may_be_written(self.slot)

    def restore(self) -> None:
        (shown,) = self.store.lease([self.slot])
        value = torch.empty_strided(shown.shape, shown.stride(), dtype=shown.dtype, device=shown.device)
        copy_bits(value, shown)
        self._put(value)


class PartOfTensor(_Held):
    """What a tensor is made of, which has an attribute for it. Its functions may switch `__torch_function__` off."""

    def _get(self) -> Any:
        return getattr(self.reference(), self._key)

    def _put(self, tensor: torch.Tensor) -> None:
        whole: Any = self.reference()
        if self._key in whole.__dict__:  # also of what forbids that its attributes are set
            whole.__dict__[self._key] = tensor
        else:
            setattr(whole, self._key, tensor)


class BufferOfModule(_Held):
    """A buffer, which DistributedDataParallel hands to C++."""

    def _get(self) -> Any:
        module: Any = self.reference()
        return module._buffers.get(self._key)

    def _put(self, tensor: torch.Tensor) -> None:
        module: Any = self.reference()
        module._buffers[self._key] = tensor

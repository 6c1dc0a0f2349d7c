# SPDX-License-Identifier: Apache-2.0
"""The storage of a tensor that is in Terrace: it knows its size and what tells it from others, and leases for all else.

torch.save() asks a storage that is on no CPU for one that is (`cpu()`) when it comes to writing it, and lets go of it
then. So a state of any size is written a storage at a time, into a file that any script can load.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.serialization import register_package

from .._pytorch.private import new_dtypes, rebuild_tensor, rebuild_tensor_of_new_type, typed_storage

if TYPE_CHECKING:
    from .._leased.slot import Slot
    from .._leased.store import Store

_PRIORITY = 5  # before PyTorch's own, which begin with 10
_ELSEWHERE = torch.device("lazy")


class LazyStorage(torch.UntypedStorage):
    """What it inherits is a storage of one byte that cannot grow, so that C++ that is given it raises."""

    terrace_slot: Slot
    terrace_store: Store

    @property
    def device(self) -> torch.device:
        """Not the CPU: see above."""
        return _ELSEWHERE

    def nbytes(self) -> int:
        return int(self.terrace_slot.tensor.nbytes)

    def data_ptr(self) -> int:
        """What tells it from others: the placeholder's address; or its own, while a tensor was asked for that."""
        kept = self.terrace_slot.addressed()
        return int((self.terrace_slot.placeholder if kept is None else kept).data_ptr())

    def cpu(self) -> torch.UntypedStorage:
        """The leased storage itself, to be read once; a copy of a GPU's."""
        return self.terrace_store.read_once(self.terrace_slot).untyped_storage().cpu()

    size = __len__ = nbytes


def _leasing(name: str) -> Callable[..., Any]:
    def call(self: LazyStorage, *arguments: Any, **options: Any) -> Any:
        slot, writes = self.terrace_slot, name in _WRITING
        (shown,) = self.terrace_store.lease([slot], "write" if writes else "read")
        if writes:
            self.terrace_store.may_be_written_to_later(slot)
        return getattr(shown.untyped_storage(), name)(*arguments, **options)

    call.__name__ = name
    return call


_WRITING = ("__setitem__", "copy_", "fill_", "byteswap", "_set_from_file")
_OF_PYTHON = ("__class__", "__init__", "__new__", "__del__", "__dict__", "__doc__", "__module__", "__weakref__",
              "__getattribute__", "__setattr__", "__delattr__", "__hash__", "__init_subclass__", "__subclasshook__",
              "__class_getitem__", "__dir__", "__sizeof__")
for _name in dir(torch.UntypedStorage):
    _known = getattr(torch.UntypedStorage, _name)
    if _name not in vars(LazyStorage) and _name not in _OF_PYTHON and callable(_known) and not hasattr(
            _known, "__self__"):
        setattr(LazyStorage, _name, _leasing(_name))

_storages: weakref.WeakKeyDictionary[Slot, weakref.ref[LazyStorage]] = weakref.WeakKeyDictionary()


def storage_of(slot: Slot, store: Store) -> LazyStorage:
    """The storage of a slot: the same one for as long as somebody has it (torch.save() writes tied weights once)."""
    reference = _storages.get(slot)
    found = None if reference is None else reference()
    if found is None:
        made: Any = torch.frombuffer(bytearray(1), dtype=torch.uint8).untyped_storage()
        made.__class__ = LazyStorage
        made.terrace_slot, made.terrace_store = slot, store
        _storages[slot] = weakref.ref(made)
        return made  # type: ignore[no-any-return]
    return found


def reduced(slot: Slot, store: Store) -> Any:
    """What pickles as an ordinary tensor of the slot's content."""
    geometry = slot.placeholder
    of: Any = storage_of(slot, store)
    if slot.dtype in new_dtypes():  # which have no typed storage: torch.load() makes one of bytes of what PyTorch saves
        return (rebuild_tensor_of_new_type,
                (typed_storage(of, torch.uint8), 0, tuple(geometry.shape), geometry.stride(), False, OrderedDict(), slot.dtype))
    typed = typed_storage(of, slot.dtype)
    return rebuild_tensor, (typed, 0, tuple(geometry.shape), geometry.stride(), False, OrderedDict())


def _location(storage: Any) -> str | None:
    return str(storage.terrace_slot.device) if isinstance(storage, LazyStorage) else None


def _nothing(storage: Any, location: str) -> None:
    return None


register_package(_PRIORITY, _location, _nothing)  # type: ignore[no-untyped-call]

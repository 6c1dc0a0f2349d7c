# SPDX-License-Identifier: Apache-2.0
"""Casts: of a weight in float32 that autocast casts, a second form in the type that it is cast to, kept in Terrace.

Autocast casts once a region and parameter, and goes on with that cast whoever writes to the parameter. So what stands in a
cast's place keeps the content that it was made with: a form whose content somebody has yet is written to another slot.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..._errors import FailedPrecondition, ResourceExhausted
from .._leased.shown import owner_of
from .._leased.slot import Slot
from .._pytorch.modes import ordinary
from .._pytorch.private import make_subclass, no_torch_function, raw
from .._tensors.offloaded import leaves
from .forms import SecondForm
from .parameter import ManagedParameter

NARROW = (torch.bfloat16, torch.float16)
BYTES_MIN = 256 << 10  # of a weight, below which moving half of it takes no longer than the interpreter's 0.1 ms for its cast
_aten = torch.ops.aten


class NoCast(Exception):
    """The cast of a weight cannot be had this time."""


class Content:
    """What a weight was cast to once, in a slot of its own for as long as somebody has it."""

    def __init__(self, form: CastForm, slot: Slot):
        self.form = form
        self.slot = slot
        self.users: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id
        slot.content = weakref.ref(self)

    def used_by(self, user: Any) -> None:
        """Somebody stands for it, and it is not to change before that one is gone."""
        self.users[id(user)] = user

    @property
    def in_use(self) -> bool:
        """Whether it is not to change."""
        return bool(len(self.users)) or self.slot.shown

    def lease(self) -> torch.Tensor:
        """A tensor that shows it."""
        store = self.form.managed.store
        store.drop_unneeded()
        (shown,) = store.lease([self.slot])
        return shown


class CastForm(SecondForm):
    """The cast of one weight to one type."""

    def __init__(self, managed: ManagedParameter, dtype: torch.dtype):
        super().__init__(managed.reference, managed)
        self.managed = managed
        self.dtype = dtype
        self.used = False  # since it was written
        self._content: Content | None = None
        self._before: list[Content] = []  # which somebody had yet as it was written
        self._lock = threading.RLock()  # over the making of it, by several threads that use it

    @property
    def contents(self) -> list[Content]:
        """All that it has in Terrace."""
        return [*self._before, *([] if self._content is None else [self._content])]

    def cast(self) -> Cast:
        """What stands for what the weight is cast to as it is now. NoCast where there is no room for both at present, or
        where a script has memory of the weight that it may write to unseen; ResourceExhausted where Terrace has none for
        one more."""
        managed = self.managed
        managed.check()
        own = managed.slot
        own.wait()  # before the lock, which who writes to it wants
        if own.shown and not managed.uses:  # by what was taken from it past the parameter
            raise NoCast
        with self._lock:
            if not self.is_current() or self._content is None:
                if managed.aliased or not self._has_room(0 if own.shown else own.room_bytes):
                    raise NoCast
                (shown,) = managed.store.lease([own])
                self.write(shown)
            self.used = True
            assert self._content is not None
            return Cast.of(self._content)

    def _has_room(self, more_bytes: int = 0) -> bool:
        """Whether it can be leased beside all that the session has leased, and more bytes."""
        own, store = self.managed.slot, self.managed.store
        return store.client.leased_bytes + more_bytes + own.room_bytes // 2 <= store.place_of(own).guarantee_bytes

    def write_if_used(self, shown: torch.Tensor) -> None:
        """Makes it anew, as write() does, where it was used since it was made; else deletes it. Where there is no room for it
        now it is made when it is used."""
        with self._lock:
            if not self.used:
                self._let_go()
            elif self._has_room():
                self.write(shown)

    def write(self, shown: torch.Tensor) -> None:
        """Casts the weight, which is shown by this."""
        self.note_different()
        content = self._content = self._free()
        with torch.no_grad(), raw():
            self.managed.store.lease([content.slot], "overwrite")[0].copy_(shown)
        self.used = False
        self.note_same()

    def _let_go(self) -> None:
        """Deletes it, if nobody has it."""
        if not any(one.in_use for one in self.contents):
            self.managed.store.forget([one.slot for one in self.contents])
            self._before.clear()
            self._content = None

    def _free(self) -> Content:
        """A content that nobody has."""
        kept = self.contents
        self._content, self._before = None, [one for one in kept if one.in_use]
        free = [one for one in kept if one not in self._before]
        store = self.managed.store
        store.forget([one.slot for one in free[1:]])
        if free:
            return free[0]
        own = self.managed.slot
        with ordinary():
            like = torch.empty_strided(own.placeholder.shape, own.placeholder.stride(), dtype=self.dtype, device="meta")
        (slot,) = store.create([(f"{own.name}/{self.dtype}".replace("torch.", ""), own.owner, like)], [own.device])
        store.plan()
        return Content(self, slot)


def pays(managed: ManagedParameter) -> bool:
    """Whether leasing a weight's cast in its place may be worth it, where all of a job does not fit."""
    own, store = managed.slot, managed.store
    return (managed.kind is nn.Parameter and own.dtype is torch.float32 and own.nbytes >= BYTES_MIN
            and own.placeholder.dim() >= 2 and not managed.never_cast and not managed.compiled and managed.building is None and store.writable
            and not store.fits())


def form_of(managed: ManagedParameter, dtype: torch.dtype) -> CastForm:
    """The cast of a weight to a type; without content where it is new."""
    found: CastForm | None = managed.casts.get(dtype)
    if found is None:
        found = managed.casts[dtype] = CastForm(managed, dtype)
    return found


def write_casts(parameters: Sequence[ManagedParameter]) -> None:
    """A step has written to weights, which are shown yet: casts that were used since the step before are made anew. Those
    for which there is no room are made when they are used."""
    for managed in parameters:
        if managed.casts:
            with raw():
                shown = managed.parameter.detach()
            write_casts_of(managed, shown)


def write_casts_of(managed: ManagedParameter, shown: torch.Tensor) -> None:
    """The same of one weight, which is shown by this."""
    for form in list(managed.casts.values()):
        with raw(), contextlib.suppress(ResourceExhausted):
            form.write_if_used(shown)


class Cast(torch.Tensor):
    """What autocast has in the place of a weight's cast: whatever uses it leases the cast for that operation."""

    terrace_content: Content
    __torch_function__ = no_torch_function

    @classmethod
    def of(cls, content: Content) -> Cast:
        """A new one."""
        with ordinary():
            made: Cast = make_subclass(cls, content.slot.placeholder)
        made.terrace_content = content
        content.used_by(made)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is _aten.detach.default:
            return cls.of(args[0].terrace_content)
        given = kwargs or {}
        if func._schema.is_mutable and any(isinstance(leaf, Cast) for leaf in _written(func, args, given)):
            raise FailedPrecondition("what autocast has cast a weight to is in Terrace, and was to be written to: clone() it")
        shown = {id(leaf): leaf.terrace_content.lease() for leaf in leaves((args, given)) if isinstance(leaf, Cast)}
        return func(*_shown(args, shown), **_shown(given, shown))


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    targets = [named.get(one.name) for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    return list(leaves(targets))


def _shown(value: Any, by: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return by.get(id(value), value)
    if isinstance(value, list | tuple):
        return type(value)(_shown(part, by) for part in value)
    if isinstance(value, dict):
        return {key: _shown(part, by) for key, part in value.items()}
    return value


def content_of(tensor: torch.Tensor) -> Content | None:
    """The content that a tensor shows (a part of), or stands for."""
    if isinstance(tensor, Cast):
        return tensor.terrace_content
    owner = owner_of(tensor)
    slot = owner() if isinstance(owner, weakref.ref) else None
    return slot.content() if isinstance(slot, Slot) else None

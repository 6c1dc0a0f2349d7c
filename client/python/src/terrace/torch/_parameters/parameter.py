# SPDX-License-Identifier: Apache-2.0
"""Parameters whose bytes are in Terrace: shown while something uses them, a placeholder otherwise."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import nn

from ..._errors import Error, FailedPrecondition
from .._leased.shown import owner_of
from .._leased.slot import Slot, copy_bits, nobody
from .._leased.store import Store
from .._pytorch.private import raw, sequence_number, set_data
from .._tensors.offloaded import LeasedParameter, OffloadedParameter, OffloadedTensor, offloaded_kind
from .like import Like


class Twin(Protocol):
    """A tensor beside a parameter that is of the same memory, and is leased with it."""

    def is_for(self, tensor: torch.Tensor, /) -> bool: ...

    def show(self, shown: torch.Tensor, /) -> None: ...

    def hide(self, managed: ManagedParameter, /) -> None: ...

    def wrote(self) -> bool: ...

    def part(self) -> None: ...


class ManagedParameter:
    """One parameter: its slot in Terrace, and whether it is shown."""

    def __init__(self, name: str, parameter: nn.Parameter, slot: Slot, store: Store):
        self.name = name
        self.reference: Callable[[], nn.Parameter | None] = weakref.ref(parameter)
        self.kind: type[Any] = getattr(parameter, "terrace_kind", type(parameter))  # of whose class it is
        self.twins: list[Twin] = []  # other tensors of all of its memory
        self.slot = slot
        self.store = store
        self.uses = 0  # that are under way
        self.resized_to: tuple[int, ...] | None = None  # it has left Terrace, as the script has given it this shape
        self.version = getattr(parameter, "_version", 0)
        self.writes = 0  # that the version does not tell of, as of PyTorch's fused kernels
        self.address = 0  # of the memory that is shown
        self.aliased = False  # something outlived the last use, and may have written
        self.aliases = 0  # uses that something outlived
        self.saved_alias = False  # what outlives this use is autograd's, which does not write
        self.compiled = False  # used by compiled code, which knows ordinary parameters
        self.seen: tuple[int, int, int] = (-1, -1, -1)  # by which thread, and at which version and `writes`
        self.seen_at = 0  # the sequence number of autograd's nodes when that thread saw it so first: see _parameters/saved.py
        self.gradient: Any = None  # its Gradient, where it has one
        self.building: Any = None  # the Building that it is part of, until it is offloaded: see _offload/init.py
        self.casts: dict[torch.dtype, Any] = {}  # its CastForms, by what it is cast to
        self.never_cast = False  # there was no room for one
        self.cast_uses = 0  # operations that had its cast
        self.whole_uses = 0  # operations for which the net leased all of it
        self.taken: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()  # by id: from .data
        slot.reference = weakref.ref(self)

    @property
    def like(self) -> Like:
        """What its gradient is made like."""
        return self.slot

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter. It is there: nothing asks for one that is gone."""
        found = self.reference()
        if found is None and self.resized_to is not None:
            raise FailedPrecondition(
                f"the parameter '{self.name}' was given the shape {self.resized_to} (.data) between a forward pass and its backward "
                f"pass, which needs it as it was, {tuple(self.slot.placeholder.shape)}: resize it after backward(), or before the "
                "forward pass")
        if found is None:
            raise FailedPrecondition(f"the parameter '{self.name}' was destroyed")
        return found

    @property
    def gone(self) -> bool:
        """Whether the model has lost it, as one whose module was replaced."""
        return self.reference() is None

    def check(self) -> None:
        """Raises for bytes that changed where Terrace could not see it."""
        found = self.parameter
        with raw():
            if found._version == self.version:
                return
            if not self.aliased:
                raise FailedPrecondition(
                    f"the parameter '{self.name}' was written to while it was not leased, through a view that autograd "
                    "kept: what was written is lost. Write to the parameter itself, under torch.no_grad()")
            self.version = found._version

    def move_in(self) -> None:
        """Moves the bytes of an ordinary parameter to Terrace, where they are not there already."""
        if self.store.writable:
            (shown,) = self.store.lease([self.slot], "overwrite")
            with torch.no_grad():
                copy_bits(shown, self.parameter.detach())
            del shown
        self.hide()

    def join(self, store: Store, name: str, owner: str) -> None:
        """Is part of another job from now on, which has its slot, and under another name."""
        self.store = store
        self.name = self.slot.name = name
        self.slot.owner = owner
        for tensor in self.taken.values():
            tensor.terrace_store = store  # type: ignore[attr-defined]

    def stand_on(self, slot: Slot, store: Store) -> None:
        """Has the same bytes in another slot from now on."""
        self.slot.reference = nobody
        slot.reference = weakref.ref(self)
        self.slot, self.store = slot, store
        for tensor in self.taken.values():
            tensor.terrace_slot, tensor.terrace_store = slot, store  # type: ignore[attr-defined]
        self.hide()

    def show(self, shown: torch.Tensor) -> None:
        """Shows leased memory from now on."""
        found = self.parameter
        with raw():
            set_data(found, shown)
        self.note_seen(found)
        self.appear(found)  # once it is right for who comes
        for twin in self.twins:
            twin.show(shown)
        self.aliased = self.saved_alias = False
        self.address = shown.data_ptr()

    def note_seen(self, found: torch.Tensor) -> None:
        """This thread sees it as it is now: what is cast from now on is cast of that."""
        with raw():
            seen = (threading.get_ident(), found._version, self.writes)
        if seen != self.seen:
            self.seen, self.seen_at = seen, sequence_number()

    def appear(self, found: Any) -> None:
        """Has it be of the class that it is while it is leased: one of another library's is of its own."""
        found.__class__ = LeasedParameter if self.kind is nn.Parameter and not self.compiled else self.kind

    def vanish(self, found: Any) -> None:
        """Has it lease whenever it is used."""
        found.__class__ = offloaded_kind(self.kind)

    @property
    def adapts(self) -> bool:
        """Whether it may come to be of another shape: what keeps weights of its own kind may pack them anew."""
        return self.kind is not nn.Parameter and self.store.writable

    def hide(self) -> None:
        """Shows the placeholder from now on; what was written meanwhile is kept."""
        found = self.parameter
        geometry = self.slot.placeholder
        changed = found.shape != geometry.shape or found.stride() != geometry.stride()
        replaced = self.address != 0 and found.data_ptr() != self.address
        self.address = 0
        if self.adapts and (changed or replaced):
            self._renew(found.detach())
            geometry, changed, replaced = self.slot.placeholder, False, False
        wrote = found._version != self.version
        for twin in self.twins:
            wrote |= twin.wrote()
        if wrote:
            self.store.may_be_written(self.slot)
            self.version = found._version
        self.vanish(found)  # before its data: who comes meanwhile is to lease
        with raw():
            set_data(found, geometry)
        for twin in self.twins:
            twin.hide(self)
        if self.slot.shown and not self.saved_alias:
            self.aliased = True
            self.aliases += 1
            self.store.may_be_written(self.slot)
        if wrote:
            self.store.refuse_writes(self.slot, done=True)
        if changed:
            raise FailedPrecondition(
                f"the parameter '{self.name}' lives in Terrace as {tuple(geometry.shape)}, and was given another shape "
                "or other strides: it keeps the ones it had. Resize before terrace.torch.offload(), not after it")
        if replaced:
            raise FailedPrecondition(
                f"the parameter '{self.name}' lives in Terrace, and was given other memory while it was leased (set_(), "
                ".data of a compiled module's), of which nothing is kept: write with copy_()")

    def _renew(self, value: torch.Tensor) -> None:
        """Has another content from now on, of whatever geometry."""
        (slot,) = self.store.create([(self.slot.name, self.slot.owner, value)])
        (shown,) = self.store.lease([slot], "overwrite")
        copy_bits(shown, value)
        del shown
        for twin in self.twins:
            twin.part()
        self.twins.clear()
        old, self.slot = self.slot, slot
        old.reference, slot.reference = nobody, weakref.ref(self)
        standing = [one for one in self.taken.values() if isinstance(one, OffloadedTensor) and one.terrace_slot is old]
        for one in standing:  # what a graph keeps is what it was
            one.terrace_stand_alone()
        self.store.forget([] if standing else [old])

    def restore(self) -> None:
        """Makes it an ordinary tensor in memory again."""
        found = self.parameter
        (shown,) = self.store.lease([self.slot])
        value = torch.empty_strided(shown.shape, shown.stride(), dtype=shown.dtype, device=shown.device)
        copy_bits(value, shown)
        del shown
        found.__class__ = self.kind
        set_data(found, value)
        for twin in self.twins:
            twin.show(value)

    def written(self) -> None:
        """Whoever asked may write to what is shown, unseen."""
        self.writes += 1
        if self.uses:
            self.store.may_be_written(self.slot)

    def overwritten(self) -> None:
        """All of it was written: nothing is left of what was there."""
        if self.gradient is not None and self.gradient.ahead is not None:
            self.gradient.ahead.replaced = True

    def noticed_write(self) -> None:
        """Bytes were written by another way than the parameter: autograd is to know."""
        found = self.parameter
        torch.autograd.graph.increment_version(found)
        with raw():
            self.version = found._version

    def replace_data(self, value: torch.Tensor) -> None:
        """`parameter.data = value`: the same bytes from then on, in the same slot."""
        found = self.parameter
        self.slot.wait()
        if value is found or value is self.taken.get(id(value)) or any(twin.is_for(value) for twin in self.twins):
            return
        if self.adapts and not self.uses and not self._like(value):
            self._renew(value.detach())
            with raw():
                set_data(found, self.slot.placeholder)
            return
        if self.being_built and not (self._like(value) and value.stride() == self.slot.placeholder.stride()):
            self.building.take_back(self, value)
            return
        if self._is_resized(value):
            self._leave(value)
            return
        self.check_like(value)
        if not self.store.writable:
            OffloadedTensor.of(self.slot, self.store, self).copy_(value)  # good where it is what is there
            return
        self._check_alone(value)
        self.store.drop_unneeded()
        enter(self.store, [self])
        try:
            with torch.no_grad():
                torch.Tensor.copy_(found.detach(), value)
                self.written()
        finally:
            leave([self])
        self.overwritten()

    def _is_resized(self, value: torch.Tensor) -> bool:
        """Whether a parameter that nothing uses is given other memory of another shape, as a vocabulary that grows is."""
        geometry = self.slot.placeholder
        return bool(value.shape != geometry.shape and value.dtype == geometry.dtype and value.device == geometry.device
                    and type(value) is torch.Tensor and self.store.writable and not self.twins and not self.uses and not self.taken
                    and not self.slot.shown and (self.gradient is None or self.gradient.ahead is None))

    def _leave(self, value: torch.Tensor) -> None:
        """Is an ordinary parameter from now on, in memory, with these numbers. What it was is gone."""
        found = self.parameter
        if self.gradient is not None:
            self.gradient.unwatch()
        self.reference = nobody
        self.resized_to = tuple(value.shape)
        found.__class__ = nn.Parameter
        with raw():
            set_data(found, value)
        del found.__dict__["terrace"]

    def keep_replaced(self, address: int) -> None:
        """Keeps what was put, unseen, in the place of what was shown at this address."""
        found = self.parameter
        with raw():
            if found.data_ptr() == address:
                return
            value = found.data
        self.check_like(value)
        (shown,) = self.store.lease([self.slot], "write")
        with torch.no_grad(), raw():
            shown.copy_(value)
            set_data(found, shown)
            self.address = shown.data_ptr()

    def _check_alone(self, value: torch.Tensor) -> None:
        """Raises where other tensors are of this memory, or would be: an ordinary assignment leaves those as they were,
        or joins them, and neither is so here."""
        source = shown_parameter(value)
        if source is not None and source is not self:
            raise FailedPrecondition(
                f"the parameter '{self.name}' was given the memory of '{source.name}' as its data, and would share it: "
                "clone() the value, or tie the parameters instead, before terrace.torch.offload()")
        if not self.being_built and is_kept_part(value):
            raise FailedPrecondition(
                f"the parameter '{self.name}' was given a view as its data, and would share the memory of the tensor that "
                "it is a view of, which the script still has: clone() the value; the parameter is then changed by what is "
                "written to the parameter alone")
        if self.taken or (not self.uses and self.slot.shown):
            raise FailedPrecondition(
                f"the parameter '{self.name}' was given new data while a tensor that was taken from it before "
                "(.data, .detach(), a view) still stands for it: clone() that one first, or write with copy_()")

    @property
    def being_built(self) -> bool:
        """Whether the `with` of the init() that made it is not over: it may yet become another one."""
        return self.building is not None and self.building.open

    def _like(self, value: torch.Tensor) -> bool:
        geometry = self.slot.placeholder
        return bool(value.shape == geometry.shape and value.dtype == geometry.dtype
                    and value.device == geometry.device)

    def check_like(self, value: torch.Tensor, strides: bool = False) -> None:
        """Raises for what the parameter cannot become. strides: it is to have the value's."""
        geometry = self.slot.placeholder
        if strides and self._like(value) and value.stride() != geometry.stride() and not self.being_built:
            raise FailedPrecondition(
                f"the parameter '{self.name}' lives in Terrace with strides {geometry.stride()}, and cannot become one with "
                f"{value.stride()}: change the model's memory format before terrace.torch.offload(), not after it")
        if not self._like(value) and not self.being_built:
            raise FailedPrecondition(
                f"the parameter '{self.name}' lives in Terrace as {tuple(geometry.shape)} of {geometry.dtype} on "
                f"{geometry.device}, and cannot become {tuple(value.shape)} of {value.dtype} on {value.device}: move, "
                "cast or resize the model before terrace.torch.offload(), not after it")

    def watch(self) -> None:
        """Sees to it that gradients land in Terrace, if it has any."""
        with raw():
            wanted = self.parameter.requires_grad
        if wanted and self.gradient is not None:
            self.gradient.watch()


def _references(view: torch.Tensor) -> int:
    """To the tensor that it is a view of."""
    base = view._base
    return 0 if base is None else sys.getrefcount(base)


_OF_A_VIEW = _references(torch.zeros(2, device="cpu")[:1])  # where nobody else has that tensor


def is_kept_part(value: torch.Tensor) -> bool:
    """Whether it is a view of a tensor that somebody has."""
    return _references(value) > _OF_A_VIEW


def is_managed_parameter(tensor: torch.Tensor) -> bool:
    """Whether it is a parameter in Terrace. Another thread may be showing it, or have begun to since we were called."""
    return isinstance(tensor, nn.Parameter) and "terrace" in tensor.__dict__


def managed_of(parameter: torch.Tensor) -> ManagedParameter:
    """What belongs to a parameter that is in Terrace."""
    found: ManagedParameter = parameter.__dict__["terrace"]
    return found


def parameter_of(tensor: torch.Tensor) -> ManagedParameter | None:
    """The parameter whose leased memory a tensor shows."""
    owner = owner_of(tensor)
    slot = owner() if isinstance(owner, weakref.ref) else None
    return slot.parameter if isinstance(slot, Slot) else None


def shown_parameter(tensor: torch.Tensor) -> ManagedParameter | None:
    """The parameter whose bytes a tensor shows or stands for."""
    if isinstance(tensor, OffloadedTensor):
        return cast(ManagedParameter | None, tensor.terrace_parameter)
    if isinstance(tensor, nn.Parameter) and "terrace" in tensor.__dict__:
        return managed_of(tensor)
    return parameter_of(tensor)


def built(parameters: list[nn.Parameter]) -> list[ManagedParameter]:
    """Those that init() built, and that no offload() has taken."""
    return [managed_of(parameter) for parameter in parameters
            if isinstance(parameter, OffloadedParameter) and managed_of(parameter).building is not None]


def enter(store: Store, parameters: Sequence[ManagedParameter], slots: Sequence[Slot] = (), mode: str = "read",
          modes: Sequence[str] | None = None) -> list[torch.Tensor]:
    """Shows parameters, and leases other slots with them as one set: tensors that show these. One leave() each.

    modes: one for each slot, where these are not leased in the parameters' mode.
    """
    counted: list[ManagedParameter] = []  # no interrupt comes between a use and its entry here
    try:
        with store.showing:
            hidden = [managed for managed in parameters if not managed.uses]
            for managed in hidden:
                managed.check()
            for managed in [managed for managed in parameters if managed.uses]:
                managed.uses += 1
                counted.append(managed)
                found = managed.reference()
                if type(found) is OffloadedParameter:  # it is shown, and looked at by its module: that is over
                    found.__class__ = LeasedParameter
        each = [mode] * len(hidden) + ([mode] * len(slots) if modes is None else list(modes))
        shown = store.lease([*(managed.slot for managed in hidden), *slots], each) if hidden or slots else []
        with store.showing:
            for managed, tensor in zip(hidden, shown, strict=False):
                managed.uses += 1
                counted.append(managed)
                if managed.uses == 1:  # else another thread has shown it meanwhile
                    managed.show(tensor)
    except BaseException:
        leave(counted)
        raise
    return shown[len(hidden):]


def by_store(parameters: Sequence[ManagedParameter]) -> list[tuple[Store, list[ManagedParameter]]]:
    """Sets that can be leased: each is of one store."""
    sets: dict[Store, list[ManagedParameter]] = {}
    for one in parameters:
        sets.setdefault(one.store, []).append(one)
    return list(sets.items())


def enter_each(sets: Sequence[tuple[Store, Sequence[ManagedParameter]]]) -> None:
    """Shows the parameters of several sets, or of none."""
    entered: list[ManagedParameter] = []
    try:
        for store, parameters in sets:
            enter(store, parameters)
            entered += parameters
    except BaseException:
        leave(entered)
        raise


def leave(parameters: Sequence[ManagedParameter]) -> None:
    """Ends a use of each. An error, or an interrupt, goes on once all are left."""
    wrong: BaseException | None = None
    left = iter(parameters)
    while True:
        try:
            for managed in left:
                with managed.store.showing:
                    managed.uses -= 1
                    if not managed.uses and managed.reference() is not None:
                        managed.hide()
            break
        except Error as error:
            wrong = wrong or error
        except BaseException as interrupt:  # it may have divided hide(), which can be done again
            wrong = interrupt
            with managed.store.showing:
                if not managed.uses and managed.reference() is not None:
                    managed.hide()
    if wrong is not None:
        raise wrong

# SPDX-License-Identifier: Apache-2.0
"""What autograd saves of parameters: a note of which part of which one, so that the graph keeps nothing leased.

Hooks for saved tensors are pushed wherever a parameter is shown. Only the topmost hooks of PyTorch's stack are called,
so that ours hand on to those below them (of activations, of save_on_cpu) what is not a parameter's.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..._errors import FailedPrecondition
from .._leased.shown import owner_of
from .._leased.slot import Slot
from .._leased.store import Store
from .._pytorch.modes import in_functorch
from .._pytorch.private import (
    CHECKPOINT_HOOK,
    RECOMPUTATION_HOOK,
    hooks_allowed,
    neg_view,
    pop_hooks,
    push_hooks,
    raw,
    top_hooks,
)
from .._pytorch.split import is_made_of_others, is_split
from .._pytorch.storages import over
from .._tensors.offloaded import OffloadedParameter, OffloadedTensor
from .._tensors.packed import Here
from .casts import Cast, Content, content_of
from .parameter import ManagedParameter, enter, leave, managed_of, parameter_of, shown_parameter
from .shard import ManagedShard

Hooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class Note(NamedTuple):
    """Part of a parameter, or of a cast of it, as it was at a version."""

    managed: ManagedParameter
    slot: Slot  # where it was
    version: int
    writes: int
    cast: bool  # its numbers were converted to this type; else its bytes are seen as of this type
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugate: bool
    negative: bool

    def unpack(self) -> torch.Tensor:
        """The part, over leased memory."""
        return _unpack_note(self)


class Whole(NamedTuple):
    """A tensor that is made of others, some of them a frozen weight's."""

    kind: Any
    context: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    parts: dict[str, Any]  # what is kept of each

    def unpack(self) -> torch.Tensor:
        """The tensor, over leased memory."""
        parts = {name: _unpack(part) for name, part in self.parts.items()}
        made: torch.Tensor = self.kind.__tensor_unflatten__(parts, self.context, self.size, self.stride)
        return made


class CastNote:
    """Part of a cast that is in Terrace beside its parameter. It stays what it was for as long as this is there."""

    __slots__ = ("__weakref__", "_content", "_part")

    def __init__(self, content: Content, tensor: torch.Tensor):
        self._content = content
        self._part = (tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.is_conj(),
                      tensor.is_neg())
        content.used_by(self)

    def unpack(self) -> torch.Tensor:
        """The part, over leased memory."""
        return _part(self._content.lease(), *self._part)


class ShardNote(NamedTuple):
    """Part of a parameter that is split over ranks, of which this rank's shard is leased, as it was at a version."""

    shard: ManagedShard
    version: int
    writes: int
    kind: Any
    split: tuple[Any, ...]  # over which mesh, how, and the shape and strides of the whole
    part: tuple[Any, ...]  # of the shard

    def unpack(self) -> torch.Tensor:
        """The part, whose local tensor is over leased memory."""
        shard = self.shard
        found = shard.parameter
        if (found._version, shard.writes) != (self.version, self.writes):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: the "
                f"parameter '{shard.slot.name}' is at version {found._version}; expected version {self.version} instead")
        shard.store.drop_unneeded()
        (shown,) = shard.store.lease([shard.slot])
        mesh, placements, shape, stride = self.split
        with torch.no_grad():
            made: torch.Tensor = self.kind.from_local(_part(shown, *self.part), mesh, placements, run_check=False, shape=shape,
                                                      stride=stride)
        return made


def _of_shard(tensor: Any) -> ShardNote | None:
    local = tensor._local_tensor
    owner = owner_of(local)
    slot = owner() if isinstance(owner, weakref.ref) else None
    shard = slot.shard() if isinstance(slot, Slot) else None
    if shard is None:
        return None
    split = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
    part = (local.dtype, tuple(local.shape), local.stride(), int(local.storage_offset()), local.is_conj(), local.is_neg())
    return ShardNote(shard, shard.parameter._version, shard.writes, type(tensor), split, part)


class _Below(NamedTuple):
    """What the hooks below ours made of a tensor."""

    packed: Any


def _pack(tensor: torch.Tensor) -> Any:
    found = _ours(tensor)
    return Here(tensor) if found is None else found


def _ours(tensor: torch.Tensor) -> Note | CastNote | ShardNote | Whole | torch.Tensor | None:
    """What to keep in place of what is a parameter's, or in Terrace; None: it is neither."""
    if is_split(tensor):
        return _of_shard(tensor)
    managed = parameter_of(tensor)
    if managed is not None:
        return _note(managed, tensor, False)
    content = content_of(tensor)
    if content is not None:
        return CastNote(content, tensor)
    if tensor.grad_fn is not None and (managed := _cast_of(tensor)) is not None:
        return _note(managed, tensor, True)
    if type(tensor) is torch.Tensor:
        return None
    return _whole(tensor) if is_made_of_others(tensor) and tensor.grad_fn is None else of_hidden(tensor)


def _whole(tensor: Any) -> Whole | None:
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    kept = {name: _ours(part) for name, part in parts.items()}
    if not any(isinstance(one, Note | Whole) for one in kept.values()):
        return None
    return Whole(type(tensor), context, tuple(tensor.shape), tensor.stride(),
                 {name: parts[name] if one is None else one for name, one in kept.items()})


def _note(managed: ManagedParameter, tensor: torch.Tensor, cast: bool) -> Note:
    found = managed.parameter
    with raw():
        return Note(managed, managed.slot, found._version, managed.writes, cast, tensor.dtype, tuple(tensor.shape), tensor.stride(),
                    int(tensor.storage_offset()), tensor.is_conj(), tensor.is_neg())


def of_hidden(tensor: torch.Tensor) -> Note | CastNote | torch.Tensor | None:
    """What to keep of a tensor in Terrace that is not leased, as a torch.autograd.Function saves the weight that it was
    given: what hooks hand on of it, autograd takes for an ordinary tensor over the placeholder. None: it is none."""
    if isinstance(tensor, OffloadedParameter):
        return _note(managed_of(tensor), tensor, False)
    if isinstance(tensor, Cast):
        return CastNote(tensor.terrace_content, tensor)
    if not isinstance(tensor, OffloadedTensor):
        return None
    managed = shown_parameter(tensor)
    return tensor.clone() if managed is None else _note(managed, tensor, False)


def _cast_of(tensor: torch.Tensor) -> ManagedParameter | None:
    """The parameter that a tensor is a cast of (autocast makes them), or a view of one."""
    whole = tensor._base if tensor._is_view() and tensor._base is not None else tensor
    made_by = whole.grad_fn
    if made_by is None or made_by.name() != "ToCopyBackward0" or whole._version != 0 or tensor.dtype != whole.dtype:
        return None  # or it was written to since, and cannot be made again, or its bytes are seen as of another type
    found = getattr(made_by.next_functions[0][0], "variable", None)
    managed = getattr(found, "__dict__", {}).get("terrace")
    if managed is None or whole.stride() != managed.slot.placeholder.stride():
        return None
    assert found is not None
    with raw():
        now = (threading.get_ident(), found._version, managed.writes)
    # autocast keeps a cast also where the parameter changed meanwhile. One that may be of what was there before, as it is
    # older than the first look at what is there now, is kept as it is
    return managed if managed.seen == now and made_by._sequence_nr() >= managed.seen_at else None


def _unpack(packed: Any) -> Any:
    return packed if isinstance(packed, torch.Tensor) else packed.unpack()


def _unpack_note(packed: Note) -> torch.Tensor:
    managed = packed.managed
    ahead = None if managed.gradient is None else managed.gradient.ahead
    if ahead is not None and packed.writes < ahead.writes:
        raise FailedPrecondition(
            f"terrace.torch.offload(step_in_backward=True): the parameter '{managed.name}' is stepped already, and the "
            "backward pass needs what it was before: something uses it without its gradient (.detach(), .data, under "
            "no_grad()), a reentrant checkpoint runs its module twice, or optimizer.step() is yet to come after the backward "
            "pass before. Offload without "
            "step_in_backward, or clone() what is used so")
    found = managed.parameter
    with raw():
        version = found._version
    # A cast was another tensor, which kept what it had whoever wrote to the parameter, and cannot be had again.
    cast_is_lost = packed.cast and managed.writes != packed.writes
    if version != packed.version or cast_is_lost or managed.slot is not packed.slot:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: the "
            f"parameter '{managed.name}' is at version {version}; expected version {packed.version} instead")
    managed.store.drop_unneeded()
    (shown,) = managed.store.lease([managed.slot])
    if packed.cast and packed.dtype != shown.dtype:
        shown = shown.to(packed.dtype)
    return _part(shown, packed.dtype, packed.size, packed.stride, packed.offset, packed.conjugate, packed.negative)


def _part(shown: torch.Tensor, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int,
          conjugate: bool, negative: bool) -> torch.Tensor:
    """A part of what is shown, whose bytes are seen as of a type."""
    if dtype != shown.dtype:
        shown = over(shown.untyped_storage(), dtype, offset, size, stride)
    elif (tuple(shown.shape), shown.stride(), 0) != (size, stride, offset):
        shown = shown.as_strided(size, stride, offset)
    if conjugate:
        shown = shown.conj()
    return neg_view(shown) if negative else shown


def _over(below: Hooks) -> Hooks:
    """Our hooks over others."""
    pack_below, unpack_below = below

    def pack(tensor: torch.Tensor) -> Any:
        packed = _ours(tensor)
        return packed if isinstance(packed, Note | CastNote | ShardNote | Whole) else _Below(pack_below(tensor))

    def unpack(packed: Any) -> Any:
        return unpack_below(packed.packed) if type(packed) is _Below else _unpack(packed)

    pack.terrace = True  # type: ignore[attr-defined]
    return pack, unpack


def _over_recomputation(pack_below: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Over the hooks of torch.utils.checkpoint while it computes again. It counts what is saved, so that nothing may be
    withheld; and it keeps a frozen parameter itself, so that it is handed the memory alone."""

    def pack(tensor: torch.Tensor) -> Any:
        managed = parameter_of(tensor)
        if managed is not None:
            managed.saved_alias = True
            if not tensor.requires_grad:
                tensor = tensor.detach()
        return pack_below(tensor)

    pack.terrace = True  # type: ignore[attr-defined]
    return pack


_pack.terrace = True  # type: ignore[attr-defined]


def push_over_others() -> bool:
    """Pushes our hooks where others are, who would take a placeholder for a tensor. Whether pop() is due."""
    return top_hooks(False) is not None and push()


def push() -> bool:
    """Pushes our hooks, unless they are the topmost already or may not be pushed. Whether pop() is due."""
    if in_functorch() or not hooks_allowed():
        return False
    below = top_hooks(False)
    if below is None:
        push_hooks(_pack, _unpack)
        return True
    pack_below = below[0]
    if hasattr(pack_below, "terrace"):
        return False
    name = getattr(pack_below, "__qualname__", "")  # a partial has none
    if CHECKPOINT_HOOK in name:
        return False
    if RECOMPUTATION_HOOK in name:
        push_hooks(_over_recomputation(pack_below), below[1])
    else:
        push_hooks(*_over(below))
    return True


pop = pop_hooks  # undoes push(), in one call that no interrupt can divide


@contextlib.contextmanager
def hooked(wanted: bool) -> Iterator[None]:
    """Pushes our hooks for as long as it is entered."""
    pushed = wanted and push()
    try:
        yield
    finally:
        if pushed:
            pop()

@contextlib.contextmanager
def entered(store: Store, parameters: Sequence[ManagedParameter],
            slots: Sequence[Slot]) -> Iterator[list[torch.Tensor]]:
    """Shows parameters and slots for one operation outside their modules. The caller empties the list."""
    store.drop_unneeded()
    shown = enter(store, parameters, slots)
    try:
        with hooked(bool(parameters) or any(slot.parameter is not None for slot in slots)):
            yield shown
    finally:
        leave(parameters)

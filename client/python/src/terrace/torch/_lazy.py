# SPDX-License-Identifier: Apache-2.0
"""Tensors whose bytes are in Terrace, and are leased by whatever operation needs them.

`OffloadedTensor` is what a script finds where it looks for a gradient, an optimizer's state or a parameter's data;
`OffloadedParameter` is what a parameter is while no module that owns it runs. Both show a placeholder. PyTorch hands
every operation on them to `__torch_function__`, which runs it on leased memory.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from .._errors import FailedPrecondition
from ._metadata import METADATA

if TYPE_CHECKING:
    from ._parameters import ManagedParameter
    from ._slot import Slot
    from ._store import Store

_raw = torch._C.DisableTorchFunctionSubclass
_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_get_data = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class OffloadedTensor(torch.Tensor):
    """A tensor in Terrace: every operation on it leases it for as long as the operation takes."""

    terrace_slot: Slot
    terrace_store: Store
    terrace_parameter: ManagedParameter | None  # whose bytes these are, where they are a parameter's

    @staticmethod
    def of(slot: Slot, store: Store, parameter: ManagedParameter | None = None) -> OffloadedTensor:
        """A new one; it has no gradient."""
        made: OffloadedTensor = torch.Tensor._make_subclass(OffloadedTensor, slot.placeholder)
        made.terrace_slot = slot
        made.terrace_store = store
        made.terrace_parameter = parameter
        if parameter is None:
            slot.lazies += 1
            weakref.finalize(made, _gone, slot, store).atexit = False
        return made

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        return _dispatch(func, tuple(args), dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        # what PyTorch's own C++ does with it, as DistributedDataParallel's reducer
        return _leased(func, tuple(args), dict(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _for_pickling(self.terrace_slot, self.terrace_store).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            memo[id(self)] = self.clone(memory_format=torch.preserve_format)
        copied: torch.Tensor = memo[id(self)]
        return copied


_pickled: weakref.WeakKeyDictionary[Slot, StorageWeakRef] = weakref.WeakKeyDictionary()


def _for_pickling(slot: Slot, store: Store) -> torch.Tensor:
    """A leased tensor of the same storage as the last one, if that is still there: torch.save() writes a storage once,
    however many tensors (tied weights) are of it."""
    last = _pickled.get(slot)
    storage = None if last is None else torch.UntypedStorage._new_with_weak_ptr(last.cdata)
    if storage is None:
        (shown,) = store.lease([slot])
        _pickled[slot] = StorageWeakRef(shown.untyped_storage())
        return shown
    geometry = slot.placeholder
    return torch.empty(0, dtype=slot.dtype).set_(storage, 0, geometry.shape, geometry.stride())


def _gone(slot: Slot, store: Store) -> None:
    """A tensor that stood for the slot's content is gone; with the last of them the content is of no use."""
    slot.lazies -= 1
    if not slot.lazies:
        store.unneeded.add(slot)


class SpentTensor(torch.Tensor):
    """A gradient that was used as it came, and is not there any more: whatever asks for its numbers is told so."""

    @staticmethod
    def of(slot_placeholder: torch.Tensor, why: str) -> SpentTensor:
        """A new one. why: what to tell."""
        made: SpentTensor = torch.Tensor._make_subclass(SpentTensor, slot_placeholder)
        made.terrace_why = why  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in METADATA:
            with _raw():
                return func(*args, **(kwargs or {}))
        spent = next(leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, SpentTensor))
        raise FailedPrecondition(spent.terrace_why)  # type: ignore[attr-defined]


class OffloadedParameter(nn.Parameter):
    """A parameter whose bytes are in Terrace, outside the modules that own it."""

    terrace: ManagedParameter

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        return _dispatch(func, tuple(args), dict(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt_plain(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        return _copied_plain(self, memo)


class LeasedParameter(nn.Parameter):
    """A parameter whose bytes are leased. To PyTorch it is an ordinary one; `data`, through which a script can write
    without PyTorch's notice, counts as written to."""

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        terrace = self.__dict__.get("terrace")
        if terrace is not None:
            terrace.written()
        found: torch.Tensor = _get_data(self)
        return found

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self.terrace.replace_data(value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt_plain(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        return _copied_plain(self, memo)


def _rebuilt_plain(parameter: nn.Parameter) -> Any:
    """What pickles as an ordinary parameter."""
    return torch._utils._rebuild_parameter, (parameter.data, parameter.requires_grad, {})  # type: ignore[no-untyped-call]


def _copied_plain(parameter: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
    """An ordinary parameter in memory."""
    if id(parameter) not in memo:
        with torch.no_grad():
            copied = parameter.clone(memory_format=torch.preserve_format)
        memo[id(parameter)] = nn.Parameter(copied, parameter.requires_grad)
    made: nn.Parameter = memo[id(parameter)]
    return made


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)


def _replaced(value: Any, by: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return by.get(id(value), value)
    if isinstance(value, list):
        return [_replaced(part, by) for part in value]
    if isinstance(value, tuple):
        parts = [_replaced(part, by) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: _replaced(part, by) for key, part in value.items()}
    return value


def _dispatch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func in METADATA:
        with _raw():
            return func(*args, **kwargs)
    special = _SPECIAL.get(func)
    if special is not None:
        answer = special(*args, **kwargs)
        if answer is not NotImplemented:
            return answer
    result = _leased(func, args, kwargs)
    if func in _CASTS and isinstance(args[0], OffloadedParameter) and _asked_by_module():
        args[0].terrace.check_like(result)
    return result


def _asked_by_module() -> bool:
    """Whether a module is being moved or cast: what a function of this file was called for."""
    frame = sys._getframe(1)
    for _ in range(8):
        if frame.f_code is nn.Module._apply.__code__:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _leased(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = {id(leaf): leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, OffloadedTensor)}
    parameters = {id(leaf): leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, OffloadedParameter)}
    if len(tensors) + len(parameters) > 1 and func in _ONE_BY_ONE:
        return _one_by_one(func, args, kwargs)
    return _run_leased(func, args, kwargs, list(tensors.values()), [leaf.terrace for leaf in parameters.values()])


def _run_leased(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                tensors: list[OffloadedTensor], parameters: list[ManagedParameter]) -> Any:
    from ._parameters import entered

    store = tensors[0].terrace_store if tensors else parameters[0].store
    slots = {id(lazy): lazy.terrace_slot for lazy in tensors}
    with entered(store, parameters, list(slots.values())) as leased:
        by = {key: shown for key, shown in zip(slots, leased, strict=True)}
        leased.clear()
        before = {key: shown._version for key, shown in by.items()}
        try:
            result = func(*_replaced(args, by), **_replaced(kwargs, by))
            for lazy in tensors:
                if by[id(lazy)].shape != lazy.terrace_slot.placeholder.shape:
                    raise FailedPrecondition(f"'{lazy.terrace_slot.name}' lives in Terrace as {tuple(lazy.shape)}, and "
                                             "was given another shape: it keeps the one it had")
        finally:
            for lazy in tensors:
                if by[id(lazy)]._version != before[id(lazy)]:
                    store.written(lazy.terrace_slot)
                    if lazy.terrace_parameter is not None:
                        lazy.terrace_parameter.noticed_write()
        result = _replaced(result, {id(shown): lazy for lazy in tensors for shown in (by[id(lazy)],)})
        by.clear()
        for lazy in tensors:
            if lazy.terrace_slot.shown:  # something that aliases it was made, and may be written to
                store.written(lazy.terrace_slot)
    return result


def _one_by_one(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a function of lists of tensors element by element, so that a list may be larger than what can be leased."""
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
    count = len(lists[0])

    def at(value: Any, index: int) -> Any:
        return [value[index]] if isinstance(value, list | tuple) else value

    results = [func(*(at(value, index) for value in args), **{key: at(value, index) for key, value in kwargs.items()})
               for index in range(count)]
    return None if results[0] is None else [result for part in results for result in part]


def _assigned(self: torch.Tensor, value: torch.Tensor) -> Any:
    """`tensor.data = value`."""
    if isinstance(self, OffloadedParameter):
        self.terrace.replace_data(value)
    elif isinstance(self, OffloadedTensor):
        self.copy_(value)
    else:
        return NotImplemented
    return None


def _detached(self: torch.Tensor) -> Any:
    """`tensor.detach()` and `tensor.data`: the same bytes, without a lease."""
    if isinstance(self, OffloadedParameter):
        return OffloadedTensor.of(self.terrace.slot, self.terrace.store, self.terrace)
    if isinstance(self, OffloadedTensor):
        return OffloadedTensor.of(self.terrace_slot, self.terrace_store, self.terrace_parameter)
    return NotImplemented


def _requires(self: torch.Tensor, requires_grad: bool = True) -> Any:
    """`tensor.requires_grad_()`."""
    with _raw():
        self.requires_grad_(requires_grad)
    if isinstance(self, OffloadedParameter):
        self.terrace.watch()
    return self


def _set_requires(self: torch.Tensor, requires_grad: bool) -> None:
    _requires(self, requires_grad)


def _address(self: torch.Tensor) -> Any:
    """`parameter.data_ptr()`: the placeholder's, which tells parameters apart whatever memory they are leased in."""
    if isinstance(self, OffloadedParameter):
        with _raw():
            return self.data_ptr()
    return NotImplemented


def _detached_in_place(self: torch.Tensor) -> Any:
    return self if isinstance(self, OffloadedTensor) else NotImplemented


def _zeroed(self: torch.Tensor) -> Any:
    """`tensor.zero_()`: what was there is not needed."""
    if not isinstance(self, OffloadedTensor) or self.terrace_parameter is not None or self.terrace_slot.shown:
        return NotImplemented
    (shown,) = self.terrace_store.lease([self.terrace_slot], "overwrite")
    shown.zero_()
    return self


_SPECIAL: dict[Any, Callable[..., Any]] = {
    _set_data: _assigned,
    _get_data: _detached,
    torch.Tensor.detach: _detached,
    torch.detach: _detached,
    torch.Tensor.detach_: _detached_in_place,
    torch.Tensor.requires_grad_: _requires,
    torch.Tensor.requires_grad.__set__: _set_requires,  # type: ignore[attr-defined]
    torch.Tensor.data_ptr: _address,
    torch.Tensor.zero_: _zeroed,
}

_CASTS = frozenset(getattr(torch.Tensor, name)
                   for name in ("to", "cpu", "cuda", "xpu", "float", "double", "half", "bfloat16", "type"))
_ONE_BY_ONE = frozenset(getattr(torch, name) for name in dir(torch) 
                         if name.startswith(("_foreach_", "_amp_foreach_")))

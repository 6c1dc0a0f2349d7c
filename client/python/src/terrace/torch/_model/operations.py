# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's functions on tensors that are offloaded: on the placeholder where that will do, else on leased memory.

What a function writes to is written in Terrace, and what it returns as an alias holds its lease.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..._errors import FailedPrecondition
from .._parameters.parameter import ManagedParameter, is_managed_parameter, managed_of, shown_parameter
from .._parameters.saved import entered
from .._pytorch.private import Overload, foreach_zero, get_data, is_moved_by_module, may_have_data_of, raw, set_data
from .._tensors.offloaded import OffloadedParameter, OffloadedTensor, OffloadedView, given_memory, leaves
from .._tensors.storage import storage_of
from .autocast import run_cast
from .transforms import saves_unasked, view_of
from .writes import may_write_unseen, overwritten, read_only_target, resolved, slot_of, store_of, write_the_same

_CALLS_MAX = 8  # between what a module calls and this file
_aten = torch.ops.aten


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


def run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a function of PyTorch that was called with offloaded tensors."""
    special = _SPECIAL.get(func)
    if special is not None and not (func in _OF_WHOLES and any(isinstance(one, OffloadedView) for one in args)):
        answer = special(*args, **kwargs)
        if answer is not NotImplemented:
            return answer
    if func in _CASTS and _changes_nothing(func, args, kwargs):
        return args[0]
    cast = run_cast(func, args, kwargs)
    if cast is not NotImplemented:
        return cast
    result = lease_for(func, args, kwargs)
    if func in _CASTS and isinstance(args[0], OffloadedParameter) and _asked_by_module():
        managed_of(args[0]).check_like(result, strides=True)
        _check_not_swapped(args[0])
    return result


def operate(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator that PyTorch's own code came to with offloaded tensors."""
    if func is _aten.detach.default:
        return _detached(args[0])
    if func is _aten.is_pinned.default:
        return False
    if func.overloadpacket is _aten.set_ and isinstance(args[0], OffloadedTensor):  # type: ignore[attr-defined]
        raise given_memory(args[0].terrace_slot.name)
    if func is _aten._to_copy.default and _asked_by_module():
        slot = args[0].terrace_slot
        raise FailedPrecondition(
            f"'{slot.name}' lives in Terrace as {slot.dtype}, and was to be moved or cast with its module: move or "
            "cast the model before terrace.torch.offload(), not after it")
    return lease_for(func, args, kwargs)


def _changes_nothing(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a tensor is moved to where it is already, as the type that it has: PyTorch returns it then, and no byte is needed.
    Whoever trains a model moves it first."""
    tensor, others = args[0], (*args[1:], *kwargs.values())
    if not isinstance(tensor, OffloadedParameter | OffloadedTensor) or "memory_format" in kwargs or any(
            isinstance(one, torch.memory_format) or (isinstance(one, torch.Tensor) and one is not tensor) for one in others):
        return False
    if isinstance(tensor, OffloadedParameter) and torch.__future__.get_swap_module_params_on_conversion():
        return False
    with raw():
        probe = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    try:
        return func(probe, *args[1:], **kwargs) is probe
    except Exception:  # whatever it says, it says of the tensor
        return False


def _asked_by_module() -> bool:
    """Whether a module is being moved or cast: what a function of this file was called for."""
    return is_moved_by_module(sys._getframe(1), _CALLS_MAX)


def lease_for(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs it on leased memory."""
    func = resolved(func, args, kwargs)
    tensors = {id(leaf): leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, OffloadedTensor)}
    parameters: dict[int, Any] = {id(leaf): leaf for leaf in leaves((args, kwargs)) if is_managed_parameter(leaf)}
    refused = read_only_target(func, args, kwargs, [*tensors.values(), *parameters.values()])
    if refused is not None:
        write_the_same(refused, func, args, kwargs)
        return refused
    if len(tensors) + len(parameters) > 1 and _is_of_lists(func) and (count := _elements(args, kwargs)) > 1:
        return _one_by_one(func, args, kwargs, count)
    return _run_leased(func, args, kwargs, list(tensors.values()), [managed_of(leaf) for leaf in parameters.values()])


def _run_leased(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                tensors: list[OffloadedTensor], parameters: list[ManagedParameter]) -> Any:
    for managed in (*parameters, *(found for lazy in tensors if (found := shown_parameter(lazy)) is not None)):
        managed.whole_uses += 1
    with contextlib.ExitStack() as uses:
        by: dict[int, torch.Tensor] = {}
        for store in dict.fromkeys([*(lazy.terrace_store for lazy in tensors), *(one.store for one in parameters)]):
            slots = {id(lazy): lazy.terrace_slot for lazy in tensors if lazy.terrace_store is store}
            leased = uses.enter_context(entered(store, [one for one in parameters if one.store is store],
                                                list(slots.values())))
            by.update(zip(slots, leased, strict=True))
            leased.clear()
        for lazy in tensors:
            if isinstance(lazy, OffloadedView):
                by[id(lazy)] = lazy.terrace_seen(by[id(lazy)])
        before = {key: shown._version for key, shown in by.items()}
        if parameters and saves_unasked() and func not in _OF_GRAPHS:
            by.update((id(one.parameter), view_of(one.parameter)) for one in parameters)
        try:
            result = func(*_replaced(args, by), **_replaced(kwargs, by))
            for lazy in tensors:
                if not isinstance(lazy, OffloadedView) and by[id(lazy)].shape != lazy.terrace_slot.placeholder.shape:
                    raise FailedPrecondition(f"'{lazy.terrace_slot.name}' lives in Terrace as {tuple(lazy.shape)}, and "
                                             "was given another shape: it keeps the one it had")
        finally:
            writes = may_write_unseen(func)
            for managed in parameters if writes else ():
                managed.written()
            for lazy in tensors:
                changed = by[id(lazy)]._version != before[id(lazy)]
                if writes or changed:
                    lazy.terrace_slot.writes += 1
                    lazy.terrace_store.may_be_written(lazy.terrace_slot)
                    if changed:
                        lazy.terrace_store.refuse_writes(lazy.terrace_slot, done=True)
                    stands_for = shown_parameter(lazy)
                    if stands_for is not None and lazy.terrace_unseen:
                        stands_for.written()
                    elif stands_for is not None:
                        stands_for.noticed_write()
        for written in overwritten(func, args):
            parameter = shown_parameter(written)
            if parameter is not None:
                parameter.overwritten()
        result = _replaced(result, {id(shown): lazy for lazy in tensors for shown in (by[id(lazy)],)})
        by.clear()
        for lazy in tensors:
            if lazy.terrace_slot.shown:  # something that aliases it was made, and may be written to
                lazy.terrace_store.may_be_written_to_later(lazy.terrace_slot)
    return result


def _is_of_lists(func: Callable[..., Any]) -> bool:
    """Whether it does the same to each element of its lists."""
    if isinstance(func, Overload):
        return func._schema.name.removeprefix("aten::").startswith(_OF_LISTS)
    return func in _ONE_BY_ONE


def _elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many elements the lists have."""
    return max((len(value) for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)), default=0)


def _one_by_one(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> Any:
    """Runs a function of lists of tensors element by element, so that a list may be larger than what can be leased.
    A list may be empty: fused optimizers have one for what they keep only with some options. Numbers for each element may
    be a tensor of one dimension."""
    def at(value: Any, index: int) -> Any:
        if isinstance(value, torch.Tensor) and value.shape == (count,):
            return value[index:index + 1]
        return [value[index]] if isinstance(value, list | tuple) and value else value

    results = [func(*(at(value, index) for value in args), **{key: at(value, index) for key, value in kwargs.items()})
               for index in range(count)]
    return None if results[0] is None else [result for part in results for result in part]


def _assigned(self: torch.Tensor, value: torch.Tensor) -> Any:
    """`tensor.data = value`."""
    if is_managed_parameter(self):
        managed_of(self).replace_data(value)
    elif isinstance(self, OffloadedTensor):
        if value is not self:
            self.copy_(value)
    else:
        return NotImplemented
    return None


def _detached(self: torch.Tensor) -> Any:
    """`tensor.detach()`: the same bytes, without a lease."""
    if is_managed_parameter(self):
        managed = managed_of(self)
        return OffloadedTensor.of(managed.slot, managed.store, managed)
    if isinstance(self, OffloadedTensor):
        return self.terrace_alias()
    return NotImplemented


def _data(self: torch.Tensor) -> Any:
    """`tensor.data`: likewise, but for writes, of which a graph that saved the tensor knows nothing."""
    made = _detached(self)
    if made is not NotImplemented:
        made.terrace_unseen = True
    return made


def _requires(self: torch.Tensor, requires_grad: bool = True) -> Any:
    """`tensor.requires_grad_()`."""
    if requires_grad and isinstance(self, OffloadedTensor) and self.terrace_parameter is not None:
        raise FailedPrecondition(
            f"a tensor that was taken from the parameter '{self.terrace_parameter.name}' (.data, .detach()) was to "
            "require a gradient, and would get none: clone() it first; checkpoint with use_reentrant=False what another "
            "module's weight is given to; parametrize a module (torch.nn.utils.parametrize) before "
            "terrace.torch.offload()")
    if requires_grad and is_managed_parameter(self) and not store_of(self).writable:
        raise FailedPrecondition(
            f"the parameter '{slot_of(self).name}' is frozen, and shared with the node's other ranks "
            "(share_frozen=True), so that it cannot be trained: unfreeze it before terrace.torch.offload(), or offload "
            "without share_frozen")
    with raw():
        self.requires_grad_(requires_grad)
    if isinstance(self, OffloadedParameter):
        managed_of(self).watch()
    return self


def _set_requires(self: torch.Tensor, requires_grad: bool) -> None:
    _requires(self, requires_grad)


def _address(self: torch.Tensor) -> Any:
    """`parameter.data_ptr()`: the placeholder's, which tells parameters apart whatever memory they are leased in. Of
    another tensor: where its bytes are, which stay there for as long as this very tensor is there (safetensors reads
    and writes by addresses)."""
    if isinstance(self, OffloadedParameter):
        with raw():
            return self.data_ptr()
    if isinstance(self, OffloadedTensor):
        (shown,) = self.terrace_store.lease([self.terrace_slot])
        self.terrace_store.may_be_written_to_later(self.terrace_slot)
        self.terrace_kept = shown
        self.terrace_slot.addressed = weakref.ref(shown)
        return shown.data_ptr()
    return NotImplemented


def _storage(self: torch.Tensor) -> Any:
    """`tensor.untyped_storage()` of what a state_dict() gives: who saves it asks whose storages are the same."""
    if isinstance(self, OffloadedTensor):
        return storage_of(self.terrace_slot, self.terrace_store)
    return NotImplemented


def _loaded(self: torch.Tensor, other: torch.Tensor, assign: bool = False) -> Any:
    """`parameter.module_load()`, which load_state_dict() calls to swap what it gives for the parameter."""
    if is_managed_parameter(self):
        _check_not_swapped(self)
    return NotImplemented


def _check_not_swapped(parameter: torch.Tensor) -> None:
    if torch.__future__.get_swap_module_params_on_conversion():
        raise FailedPrecondition(
            f"the parameter '{slot_of(parameter).name}' lives in Terrace, and another one was to be swapped for it: "
            "torch.__future__.set_swap_module_params_on_conversion(False) has what is loaded copied into it")


def _detached_in_place(self: torch.Tensor) -> Any:
    return self if isinstance(self, OffloadedTensor) else NotImplemented


def _contiguous(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
    """`tensor.contiguous()` of what is so already; who saves asks it of each tensor before the first is written."""
    if isinstance(self, OffloadedTensor) and self.terrace_slot.placeholder.is_contiguous(memory_format=memory_format):
        return self
    return NotImplemented


def _on_cpu(self: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Any:
    """`tensor.cpu()`, where it is as far as anybody can see."""
    there = isinstance(self, OffloadedTensor) and self.device.type == "cpu"
    return self if there and memory_format is torch.preserve_format else NotImplemented


def _is_itself(self: torch.Tensor, other: torch.Tensor) -> Any:
    """Whether a tensor may be given another's memory, as a module asks that was moved: of its own no byte need be seen."""
    return True if other is self else NotImplemented


def _zeroed(self: torch.Tensor) -> Any:
    """`tensor.zero_()`: what was there is not needed."""
    if not isinstance(self, OffloadedTensor) or self.terrace_parameter is not None or self.terrace_slot.shown:
        return NotImplemented
    (shown,) = self.terrace_store.lease([self.terrace_slot], "overwrite")
    self.terrace_slot.writes += 1
    shown.zero_()
    return self


def _all_zeroed(self: list[torch.Tensor]) -> None:
    """What `optimizer.zero_grad(set_to_none=False)` does with PyTorch's kernels of lists."""
    for tensor in self:
        tensor.zero_()


_SPECIAL: dict[Any, Callable[..., Any]] = {
    set_data: _assigned,
    get_data: _data,
    torch.Tensor.detach: _detached,
    torch.detach: _detached,
    torch.Tensor.detach_: _detached_in_place,
    torch.Tensor.requires_grad_: _requires,
    torch.Tensor.requires_grad.__set__: _set_requires,  # type: ignore[attr-defined]
    torch.Tensor.data_ptr: _address,
    torch.Tensor.untyped_storage: _storage,
    torch.Tensor.contiguous: _contiguous,
    torch.Tensor.cpu: _on_cpu,
    torch.Tensor.zero_: _zeroed,
    torch.Tensor.module_load: _loaded,
    foreach_zero: _all_zeroed,
    may_have_data_of: _is_itself,
}

# What these say of a tensor is so of a slot's whole content.
_OF_WHOLES = frozenset((torch.Tensor.data_ptr, torch.Tensor.untyped_storage, torch.Tensor.contiguous, torch.Tensor.cpu,
                        torch.Tensor.zero_))

_OF_GRAPHS = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)  # they look for the parameter itself
_CASTS = frozenset(getattr(torch.Tensor, name)
                   for name in ("to", "cpu", "cuda", "xpu", "float", "double", "half", "bfloat16", "type"))
_OF_LISTS = ("_foreach_", "_amp_foreach_", "_fused_ada", "_fused_sgd_")
_ONE_BY_ONE = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith(_OF_LISTS))

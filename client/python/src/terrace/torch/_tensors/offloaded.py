# SPDX-License-Identifier: Apache-2.0
"""Tensors whose bytes are in Terrace, and are leased by whatever operation needs them.

`OffloadedTensor` is what a script finds where it looks for a gradient, an optimizer's state or a parameter's data;
`OffloadedParameter` is what a parameter is while no module that owns it runs. Both show a placeholder. PyTorch hands
every operation on them to `__torch_function__`, which runs it on leased memory.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, Self, cast

import torch
from torch import nn
from torch.multiprocessing.reductions import reduce_tensor

from ..._errors import FailedPrecondition
from .._leased.slot import Slot
from .._leased.store import Store
from .._pytorch.metadata import METADATA
from .._pytorch.modes import check_not_compiled
from .._pytorch.private import (
    foreach_zero,
    get_data,
    make_subclass,
    raw,
    rebuild_parameter,
    rebuild_parameter_with_state,
    set_data,
)
from .._pytorch.storages import over
from .storage import reduced


def tell_of_copies(tell: Callable[[nn.Parameter], None] | None) -> None:
    """Says who is told of the ordinary parameters that copies of ours are."""
    global _tell
    _tell = tell


_tell: Callable[[nn.Parameter], None] | None = None


def leaves(value: Any) -> Iterable[torch.Tensor]:
    """The tensors in an argument, or in the lists and dictionaries of one."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)


def _as_subclass(tensor: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    """`tensor.as_subclass()`, which PyTorch does not ask __torch_function__ about."""
    return tensor.view_as(tensor).as_subclass(kind)


class InTerrace(Protocol):
    """What these tensors know of a parameter whose bytes they show, or stand for."""

    name: str
    store: Store
    taken: weakref.WeakValueDictionary[int, torch.Tensor]  # by id: what scripts have of its `.data`

    def written(self) -> None: ...

    def replace_data(self, value: torch.Tensor) -> None: ...


def _store_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Store | None:
    """Of a function's arguments, where the bytes are of the first that is in Terrace: there is what runs the function."""
    for value in (*args, *kwargs.values()):
        for leaf in (value,) if isinstance(value, torch.Tensor) else leaves(value):
            known = leaf.__dict__
            if "terrace_store" in known or "terrace" in known:
                store: Store = known["terrace_store"] if "terrace_store" in known else known["terrace"].store
                return store
    return None


def _run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a function of PyTorch that was called with offloaded tensors."""
    if func in METADATA:
        with raw():
            return func(*args, **kwargs)
    if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_compiling():  # the compiler asks as well
        check_not_compiled()
    store = _store_of(args, kwargs)
    # Another thread may have made it an ordinary parameter since it was called.
    return func(*args, **kwargs) if store is None else store.operations.run(func, args, kwargs)


def _operate(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator that PyTorch's own code came to with them."""
    store = _store_of(args, kwargs)
    return func(*args, **kwargs) if store is None else store.operations.operate(func, args, kwargs)


class OffloadedTensor(torch.Tensor):
    """A tensor in Terrace: every operation on it leases it for as long as the operation takes."""

    terrace_slot: Slot
    terrace_store: Store
    terrace_parameter: InTerrace | None  # whose bytes these are, where they are a parameter's
    terrace_kept: torch.Tensor  # the leased memory, where its address was asked for
    terrace_unseen = False  # it was `.data`, writes to which autograd does not see
    as_subclass = _as_subclass

    @classmethod
    def of(cls, slot: Slot, store: Store, parameter: InTerrace | None = None) -> Self:
        """A new one; it has no gradient."""
        made: Self = make_subclass(cls, slot.placeholder)
        made.terrace_slot = slot
        made.terrace_store = store
        made.terrace_parameter = parameter
        if parameter is None:
            slot.lazies += 1
            weakref.finalize(made, _gone, slot, store).atexit = False
        else:
            parameter.taken[id(made)] = made
        return made

    @staticmethod
    def take_place_of(shown: torch.Tensor, slot: Slot, store: Store) -> None:
        """Makes a tensor that shows the slot's leased memory one of these: whoever still has it has the content, and
        the lease is over."""
        made = cast(OffloadedTensor, shown)
        made.terrace_slot, made.terrace_store, made.terrace_parameter = slot, store, None
        shown.__class__ = OffloadedTensor  # before its data: who comes meanwhile is to lease
        slot.lazies += 1
        weakref.finalize(made, _gone, slot, store).atexit = False
        with raw():
            set_data(shown, slot.placeholder)

    def terrace_alias(self) -> OffloadedTensor:
        """Another that stands for the same content."""
        made = OffloadedTensor.of(self.terrace_slot, self.terrace_store, self.terrace_parameter)
        made.terrace_unseen = self.terrace_unseen
        return made

    def terrace_stand_alone(self) -> None:
        """Stands for the slot's content by itself from now on: the parameter whose this was has another one."""
        self.terrace_parameter = None
        self.terrace_slot.lazies += 1
        weakref.finalize(self, _gone, self.terrace_slot, self.terrace_store).atexit = False

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        return _run(func, tuple(args), dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
            cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None) -> Any:
        # what PyTorch's own C++ does with it, as DistributedDataParallel's reducer, and DTensor with its local tensor
        return _operate(func, tuple(args), dict(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return reduced(self.terrace_slot, self.terrace_store)

    def __copy__(self) -> OffloadedTensor:
        return self.terrace_alias()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            memo[id(self)] = self.clone(memory_format=torch.preserve_format)
        copied: torch.Tensor = memo[id(self)]
        return copied


class OffloadedView(OffloadedTensor):
    """Part of a slot's content, or the same bytes seen in another shape or type."""

    @staticmethod
    def on(slot: Slot, store: Store, parameter: InTerrace, like: torch.Tensor) -> OffloadedTensor:
        """What stands for a tensor over the slot's leased memory."""
        whole = slot.placeholder
        geometry = like.dtype, int(like.storage_offset()), like.shape, like.stride()
        if geometry == (whole.dtype, 0, whole.shape, whole.stride()):
            return OffloadedTensor.of(slot, store, parameter)
        begin = int(whole.storage_offset()) * whole.itemsize // like.itemsize
        shape = over(whole.untyped_storage(), like.dtype, begin + geometry[1], like.shape, like.stride())
        made: OffloadedView = make_subclass(OffloadedView, shape)
        made.terrace_slot, made.terrace_store, made.terrace_parameter = slot, store, parameter
        made.terrace_offset = geometry[1]
        parameter.taken[id(made)] = made
        return made

    terrace_offset: int  # where it begins in the slot's memory, in elements

    def terrace_alias(self) -> OffloadedTensor:
        made: OffloadedView = make_subclass(OffloadedView, self)
        made.__dict__.update(self.__dict__)
        if made.terrace_parameter is None:
            made.terrace_stand_alone()
        else:
            made.terrace_parameter.taken[id(made)] = made
        return made

    def terrace_seen(self, whole: torch.Tensor) -> torch.Tensor:
        """The same part of leased memory."""
        with raw():
            return over(whole.untyped_storage(), self.dtype, self.terrace_offset, self.shape, self.stride())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().__reduce_ex__(protocol)


def _sent(tensor: OffloadedTensor) -> Any:
    """What another process is sent, as by a queue or as an argument of its own: an ordinary tensor of the content."""
    copied = tensor.clone(memory_format=torch.preserve_format)
    child: Any = get_spawning_popen()
    if child is not None:  # it is begun once all is written, and is to find the memory then
        child.__dict__.setdefault("terrace_sent", []).append(copied)
    return reduce_tensor(copied)  # type: ignore[no-untyped-call]


ForkingPickler.register(OffloadedTensor, _sent)
ForkingPickler.register(OffloadedView, _sent)


def _gone(slot: Slot, store: Store) -> None:
    """A tensor that stood for the slot's content is gone; with the last of them the content is of no use."""
    slot.lazies -= 1
    if not slot.lazies:
        store.unneed(slot)


# What optimizer.zero_grad(set_to_none=False) does.
_ENDS = (torch.Tensor.zero_, torch.Tensor.detach_, torch.Tensor.requires_grad_)


class SpentTensor(torch.Tensor):
    """A gradient that was used as it came, and is not there any more: whatever asks for its numbers is told so."""

    terrace_why: str
    terrace_zeroed: bool  # the script has set it to zero

    @staticmethod
    def of(gradient: torch.Tensor, why: str) -> SpentTensor:
        """A new one, in the place of a gradient. why: what to tell."""
        nothing = torch.zeros((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape)
        made: SpentTensor = make_subclass(SpentTensor, nothing)
        made.terrace_why = why
        made.terrace_zeroed = False
        return made

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in METADATA:
            with raw():
                return func(*args, **(kwargs or {}))
        if func in _ENDS:
            args[0].terrace_zeroed |= func is torch.Tensor.zero_
            return args[0]
        if func is foreach_zero:
            for gradient in args[0]:
                gradient.zero_()
            return None
        spent = next(leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, SpentTensor))
        raise FailedPrecondition(spent.terrace_why)


def given_memory(name: str) -> FailedPrecondition:
    """What to raise where a tensor was to be given other memory."""
    return FailedPrecondition(f"'{name}' lives in Terrace, and was to be given other memory (set_()): write with copy_()")


def _set_memory(parameter: OffloadedParameter | LeasedParameter, *source: Any, **geometry: Any) -> nn.Parameter:
    """`parameter.set_()`, which PyTorch does not ask __torch_function__ about. A parameter that is parametrized is given its
    own memory; so does PEFT in each forward pass to those that it adapts by name (target_parameters)."""
    if len(source) == 1 and source[0] is parameter and not geometry:
        return parameter
    raise given_memory(parameter.terrace.name)


class OffloadedParameter(nn.Parameter):
    """A parameter whose bytes are in Terrace, outside the modules that own it."""

    terrace: InTerrace
    set_ = _set_memory
    as_subclass = _as_subclass

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        return _run(func, tuple(args), dict(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt_plain(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        return _copied_plain(self, memo)


@functools.cache
def offloaded_kind(kind: type[nn.Parameter]) -> type[nn.Parameter]:
    """What a parameter of a class is while its bytes are in Terrace: also of a class of another library's, as that of a
    weight in four bits, whose methods and attributes it keeps."""
    if kind is nn.Parameter:
        return OffloadedParameter
    moves = {name: getattr(torch.Tensor, name) for name in _MOVES if hasattr(kind, name)}
    made: type[nn.Parameter] = type(kind)(
        kind.__name__, (OffloadedParameter, kind),  # PEFT knows bitsandbytes' classes by their names
        {"__module__": __name__, "__doc__": OffloadedParameter.__doc__, "terrace_kind": kind, **moves,
         "__deepcopy__": _copied_of_kind, "__copy__": _alike, "__reduce_ex__": _reduced_of_kind})
    return made


_MOVES = ("to", "cpu", "cuda", "xpu")  # which another class may have of its own, over memory that is not leased


def _copied_of_kind(parameter: Any, memo: dict[int, Any]) -> Any:
    """What the parameter's own class makes, of leased memory."""
    def copied(shown: Any) -> Any:
        shown.__class__ = type(parameter).terrace_kind if isinstance(shown, OffloadedParameter) else type(shown)
        return copy.deepcopy(shown, memo)

    if id(parameter) not in memo:
        memo[id(parameter)] = parameter.terrace.store.operations.run(copied, (parameter,), {})
    return memo[id(parameter)]


def _alike(parameter: Any) -> Any:
    """Another one of the same content: the class's own would be made over a placeholder."""
    return copy.deepcopy(parameter)


def _reduced_of_kind(parameter: Any, protocol: Any) -> Any:
    """What pickles as the parameter's own class has it."""
    return _without_ours(parameter.terrace_kind.__reduce_ex__(parameter, protocol))


def _without_ours(part: Any) -> Any:
    """Part of what pickles, without what we have put to a parameter's attributes."""
    if type(part) is tuple:
        return tuple(_without_ours(one) for one in part)
    return {key: value for key, value in part.items() if key != "terrace"} if type(part) is dict else part


class LeasedParameter(nn.Parameter):
    """A parameter whose bytes are leased. To PyTorch it is an ordinary one; `data`, through which a script can write
    without PyTorch's notice, counts as written to."""

    terrace: InTerrace
    set_ = _set_memory

    @property
    def data(self) -> torch.Tensor:
        terrace = self.__dict__.get("terrace")
        if terrace is not None:
            terrace.written()
        found: torch.Tensor = get_data(self)
        if terrace is not None:
            terrace.taken[id(found)] = found
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
    given = {name: value for name, value in vars(parameter).items() if name != "terrace"}  # by the script
    if given:
        return rebuild_parameter_with_state, (parameter.data, parameter.requires_grad, {}, given)
    return rebuild_parameter, (parameter.data, parameter.requires_grad, {})


def _copied_plain(parameter: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
    """An ordinary parameter in memory."""
    if id(parameter) not in memo:
        with torch.no_grad():
            copied = parameter.clone(memory_format=torch.preserve_format)
        memo[id(parameter)] = nn.Parameter(copied, parameter.requires_grad)
        del copied
        if _tell is not None:
            _tell(memo[id(parameter)])
    made: nn.Parameter = memo[id(parameter)]
    return made

# SPDX-License-Identifier: Apache-2.0
"""Frozen weights that are not ordinary parameters, as quantized ones: parameters of another library's class with tensors
beside them (scales, zero points), tensors that are made of others, and weights in buffers. What is found here is leased
with its module, as the bytes that it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from .._leased.slot import Slot
from .._leased.store import Store
from .._optimizer.holders import Holder, InAttribute, InState
from .._optimizer.kept import Path, kept_in
from .._parameters.parameter import ManagedParameter, is_kept_part
from .._parameters.pieces import BufferOfModule, ManagedPiece, PartOfTensor, TwinTensor
from .._pytorch.split import is_made_of_others, is_split
from .._pytorch.storages import number_of, users_of
from .._tensors.offloaded import OffloadedParameter
from .refusals import alone

_NOT_PACKED = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
                         torch.bool, torch.int64))  # what buffers that are no weights are of


class Piece(NamedTuple):
    """A tensor that belongs to a frozen weight of a module, and is no parameter."""

    name: str
    owner: str  # the module, for people
    modules: list[nn.Module]
    tensor: torch.Tensor
    holder: Holder

    @property
    def is_part(self) -> bool:
        """Whether another tensor is made of it."""
        return isinstance(self.holder, InAttribute) and is_made_of_others(self.holder.whole)

    def manage(self, twins: list[Piece], slot: Slot, store: Store) -> ManagedParameter:
        """What leases it with its modules. twins: others of its memory."""
        holder = self.holder
        if isinstance(holder, InAttribute) and self.is_part:
            return PartOfTensor(self.name, holder.whole, holder.name, slot, store)
        if (isinstance(holder, InState) and not twins and len(self.modules) == 1
                and holder.state is self.modules[0]._buffers):
            return BufferOfModule(self.name, self.modules[0], holder.key, slot, store)
        made = ManagedPiece(self.name, self.tensor, slot, store)
        made.twins = [TwinTensor(one.tensor) for one in twins]
        return made


class Pieces:
    """Those of one model."""

    def __init__(self, model: nn.Module, bytes_min: int, devices: Collection[torch.device]):
        """devices: the model's; none: nothing of it is to be in Terrace."""
        self._own: list[Piece] = []  # each of memory of its own
        self._modules: list[list[nn.Module]] = []  # of each
        self.left: list[tuple[str, str]] = []  # those that stay in memory, and why
        self._of_parameter: dict[int, list[Piece]] = {}  # by the parameter whose memory they are of
        self._of_piece: dict[int, list[Piece]] = {}  # by the piece
        if devices:
            self._divide(list(_pieces(model, bytes_min, self.left)), list(model.parameters()), bytes_min, devices)

    def shown_with(self, parameter: nn.Parameter) -> int:
        """How many of them are of a parameter's memory."""
        return len(self._of_parameter.get(id(parameter), ()))

    def manage(self, store: Store, parameters: list[ManagedParameter]) -> list[ManagedParameter]:
        """Makes room for those that have memory of their own; the others are shown with the parameter."""
        for owner in parameters:
            owner.twins = [TwinTensor(piece.tensor) for piece in self._of_parameter.get(id(owner.parameter), ())]
        slots = store.create([(one.name, one.owner, one.tensor) for one in self._own])
        made = [one.manage(self._of_piece[id(one.tensor)], slot, store) for one, slot in zip(self._own, slots, strict=True)]
        self._modules = [one.modules for one in self._own]
        for kept in (self._own, self._of_parameter, self._of_piece):
            kept.clear()  # the tensors: the memory that they are moved from is to be free at once
        return made

    def by_module(self, managed: list[ManagedParameter]) -> dict[nn.Module, list[ManagedParameter]]:
        """Those that manage() made, by whose they are."""
        found: dict[nn.Module, list[ManagedParameter]] = {}
        for modules, one in zip(self._modules, managed, strict=True):
            for module in modules:
                found.setdefault(module, []).append(one)
        return found

    def _divide(self, pieces: list[Piece], parameters: list[nn.Parameter], bytes_min: int,
                devices: Collection[torch.device]) -> None:
        parameter_of = {number_of(one.untyped_storage()): one for one in parameters
                        if not is_split(one) and not is_made_of_others(one) and one.layout == torch.strided}
        storages: dict[int, list[Piece]] = {}
        for one in pieces:
            if why := _why_left(one.tensor, bytes_min, devices):
                self.left.append((one.name, why))
            else:
                storages.setdefault(number_of(one.tensor.untyped_storage()), []).append(one)
        for number, its in storages.items():
            parameter = parameter_of.get(number)
            whole = its[0].tensor if parameter is None else parameter
            if any(_geometry(one.tensor) != _geometry(whole) for one in its):
                self.left += [(one.name, "shares its memory with a tensor of another shape") for one in its]
            elif parameter is not None and not any(one.is_part for one in its):
                self._of_parameter[id(parameter)] = its
            elif users_of(whole) > len(its) or (len(its) > 1 and any(one.is_part for one in its)):
                self.left += [(one.name, "something else shows its memory") for one in its]
            else:
                self._own.append(its[0])
                self._of_piece[id(whole)] = its[1:]


def is_of_another_class(parameter: nn.Parameter) -> bool:
    """Whether a parameter is none of PyTorch's own classes, but over memory of its own."""
    return (type(parameter) is not nn.Parameter and isinstance(parameter, nn.Parameter) and not is_split(parameter)
            and not is_made_of_others(parameter) and not isinstance(parameter, OffloadedParameter))


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride()


def _why_left(tensor: torch.Tensor, bytes_min: int, devices: Collection[torch.device]) -> str:
    """Why a tensor stays in memory; empty where it need not. Not for how small it is, which is not worth a word."""
    if tensor.device not in devices:
        return f"is on {tensor.device}"
    return "requires a gradient, and is no parameter" if tensor.requires_grad else alone(tensor, bytes_min)


def _pieces(model: nn.Module, bytes_min: int, left: list[tuple[str, str]]) -> Iterable[Piece]:
    """All in a model that are large enough, each once. left: those that stay where they are are added, with the reason."""
    seen: dict[int, Piece] = {}
    sent = {id(buffer) for wrapper in model.modules()
            if isinstance(wrapper, nn.parallel.DistributedDataParallel) and wrapper.broadcast_buffers
            for buffer in wrapper.module.buffers()}
    for module_name, module in model.named_modules():
        for name, holder, tensor in _of_module(module, bytes_min):
            if id(tensor) in seen:
                if module not in seen[id(tensor)].modules:
                    seen[id(tensor)].modules.append(module)
                continue
            if id(tensor) in sent:
                left.append((f"{module_name}.{name}".lstrip("."), "DistributedDataParallel sends it to all ranks in each step"))
                continue
            if (tensor.layout != torch.strided or tensor.nbytes < bytes_min or tensor.is_quantized
                    or type(tensor) is not torch.Tensor):
                continue
            if tensor._is_view() and not is_kept_part(tensor):  # what it is a part of would keep the memory
                tensor = tensor.detach()
                holder.put(tensor)
            seen[id(tensor)] = Piece(f"{module_name}.{name}".lstrip("."), module_name, [module], tensor, holder)
    return seen.values()


def _of_module(module: nn.Module, bytes_min: int) -> Iterator[tuple[str, Holder, torch.Tensor]]:
    """What belongs to a module's own frozen weights, with its name in the module."""
    special = {name: one for name, one in module._parameters.items()
               if one is not None and not one.requires_grad and (is_made_of_others(one) or is_of_another_class(one))}
    packed = any(_is_packed(one, bytes_min) and name not in module._non_persistent_buffers_set
                 for name, one in module._buffers.items() if one is not None)
    weights = any(_is_packed(one, bytes_min) for one in module._parameters.values() if one is not None)
    if not special and not packed and not weights:
        return
    for name, one in special.items():
        for holder, path, tensor in _made_of(one) if is_made_of_others(one) else kept_in(vars(one)):
            yield ".".join((name, *path)), holder, tensor
    if packed:
        kept = {name: one for name, one in module._buffers.items() if name not in module._non_persistent_buffers_set}
        for holder, path, tensor in kept_in(kept):
            yield ".".join(path), _in_place_of(kept, module._buffers, holder), tensor
    attributes = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    for holder, path, tensor in kept_in(attributes):
        yield ".".join(path), _in_place_of(attributes, vars(module), holder), tensor


def _made_of(parameter: Any) -> Iterator[tuple[Holder, Path, torch.Tensor]]:
    """What a parameter is made of that is made of other tensors."""
    for name in parameter.__tensor_flatten__()[0]:
        for holder, path, tensor in kept_in({name: getattr(parameter, name)}):
            yield (InAttribute(parameter, name) if path == (name,) else holder), path, tensor


def _in_place_of(part: dict[str, Any], whole: dict[str, Any], holder: Holder) -> Holder:
    """The holder; where it is of a part of a dictionary, of the whole one."""
    return InState(whole, holder.key) if isinstance(holder, InState) and holder.state is part else holder


def _is_packed(tensor: torch.Tensor, bytes_min: int) -> bool:
    """Whether a tensor that is kept with a model is a quantized weight: of a type that only those have, and a matrix."""
    return (not tensor.requires_grad and not is_made_of_others(tensor) and tensor.dtype not in _NOT_PACKED
            and tensor.dim() > 1 and tensor.nbytes >= bytes_min)

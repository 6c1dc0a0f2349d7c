# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a job a tensor at a time, as safetensors files."""

import contextlib
import functools
import json
import os
import pathlib
from typing import Any, NamedTuple

import torch
from torch import nn, optim

from ... import _checks
from ..._errors import InvalidArgument
from .._optimizer import kinds
from .._optimizer.kept import is_made_of_tensors
from .._optimizer.optimizer import managed_optimizer, unwrapped
from .._optimizer.saved_masters import MASTER, as_loaded, check_master
from .._parameters.parameter import shown_parameter
from .._pytorch.bits import same_bits
from .._pytorch.split import is_split
from .._tensors.offloaded import OffloadedTensor
from . import file_format
from .converted import ConvertedTensor
from .file_format import Entry, Item
from .nested import Composed, described, each, resolved

_OPTIMIZER = "terrace.optimizer"  # the metadata's name for what of an optimizer is no tensor
Path = str | os.PathLike[str]


def optimizer_path(path: Path) -> pathlib.Path:
    """Where an optimizer's states are saved that go with a model's file: model.optimizer.safetensors."""
    found = pathlib.Path(path)
    return found.with_name(f"{found.stem}.optimizer{found.suffix}")


def save(path: Path, model: nn.Module, optimizer: optim.Optimizer | None = None) -> None:
    """Writes a model to a safetensors file, with the names of its state_dict(); and its optimizer to one beside it.

    One tensor is leased at a time. Any reader of safetensors reads the files. Works for models that are not offloaded,
    too. A tied weight is written under each of its names. The file appears when it is whole. InvalidArgument, before
    anything is written, for an optimizer's option, or part of a state, that JSON cannot hold, for a state that is a tensor of
    a class that torch.serialization.add_safe_globals() was not told of, for a weight that is a tensor of another class, and for an
    element type or a name that safetensors lacks.
    """
    target = _check_arguments("terrace.torch.save", path, model, optimizer)
    of_optimizer = None if optimizer is None else _of_optimizer(optimizer)  # before a file is touched
    file_format.write(target, [item_of(name, tensor) for name, tensor in _tensors(model).items()], {"format": "pt"})
    if of_optimizer is not None:
        items, rest = of_optimizer
        file_format.write(optimizer_path(target), items, {"format": "pt", _OPTIMIZER: rest})


def _check_arguments(call: str, path: Path, model: nn.Module, optimizer: optim.Optimizer | None) -> pathlib.Path:
    """The path, once each of them is what it should be."""
    target = _checks.file_path(call, "path", path)
    _checks.is_a(call, "model", model, nn.Module, "a torch.nn.Module")
    if optimizer is not None:
        _checks.is_a(call, "optimizer", unwrapped(optimizer), optim.Optimizer, "a torch.optim.Optimizer, or None")
    return target


def _of_optimizer(optimizer: optim.Optimizer) -> tuple[list[Item], str]:
    """The tensors of an optimizer, and as JSON what is none. InvalidArgument for what JSON cannot hold."""
    state = optimizer.state_dict()
    items: list[Item] = []
    plain: dict[str, Any] = {}
    for index, of in state["state"].items():
        for key, value in of.items():
            name = f"{index}.{key}"
            said = described(value, name, f"'{key}' of its state of parameter {index}",
                             lambda name, tensor: items.append(item_of(name, tensor)), _plain)
            if not isinstance(value, torch.Tensor) or is_made_of_tensors(value):
                plain[name] = said
    groups = [{key: _plain(value, f"'{key}' of its parameter group {number}") for key, value in group.items()}
              for number, group in enumerate(state["param_groups"])]
    return items, json.dumps({"param_groups": groups, "state": plain})


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        if is_split(value):
            raise InvalidArgument(f"'{name}' is split over ranks, and one process writes a safetensors file: save and "
                                  "load with torch.distributed.checkpoint")
        if not isinstance(value, torch.Tensor):
            raise InvalidArgument(f"'{name}' of the model's state is {type(value).__name__}, which a safetensors file "
                                  "cannot hold")
        if is_made_of_tensors(value):
            raise InvalidArgument(f"'{name}' of the model's state is a tensor of the class {type(value).__name__}, which a "
                                  "safetensors file cannot hold: torch.save(model.state_dict(), ...) writes it, a tensor at a time")
    return dict(state)


def item_of(name: str, tensor: torch.Tensor) -> Item:
    """A tensor to be written, which is leased when it is its turn. InvalidArgument for an element type that the format
    has no name for, and for the name that it has other use of."""
    if name == file_format.METADATA:
        raise InvalidArgument(f"a tensor is named '{name}', and a safetensors file has its metadata under that name: give "
                              "the tensor another one")
    file_format.name_of(tensor.dtype, f"'{name}'")
    if isinstance(tensor, ConvertedTensor):
        return Item(name, tensor.dtype, tuple(tensor.shape), tensor.terrace_make, leave=tensor.terrace_sources.let_go)
    if not isinstance(tensor, OffloadedTensor):
        return Item(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)
    store, slot = tensor.terrace_store, tensor.terrace_slot
    return Item(name, tensor.dtype, tuple(tensor.shape), functools.partial(store.read_once, slot),
                functools.partial(store.expect_once, slot), store.leave_read)


def _plain(value: Any, what: str) -> Any:
    """As JSON holds it."""
    try:
        plain = value.item() if isinstance(value, torch.Tensor) else value
        json.dumps(plain)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"terrace.torch.save: the optimizer cannot be saved, since {what} is of type "
                              f"{type(value).__name__}, which JSON cannot hold ({error}): keep a number, a string, or "
                              "lists and dictionaries of them there") from None
    return plain


def load(path: Path, model: nn.Module, optimizer: optim.Optimizer | None = None) -> None:
    """Reads what save(), or another writer of safetensors, has written, into the memory of the model and optimizer.

    path: a file, or an index of several ("model.safetensors.index.json", as save_pretrained() writes it).
    A tied weight may have any one of its names. Before anything is changed, of the model or the optimizer: OSError for
    files that cannot be opened; InvalidArgument for names that are missing or too many, for other shapes, and for what
    is not of this optimizer.
    """
    path = _check_arguments("terrace.torch.load", path, model, optimizer)
    with contextlib.ExitStack() as opened:
        entries = _entries(path, opened)
        tensors = _tensors(model)
        found = _check(path, entries, tensors)
        _check_made_anew(path, entries, found, model)
        saved = None if optimizer is None else _saved_optimizer(optimizer_path(path), optimizer, opened)
        with torch.no_grad():
            for name, tensor in found.items():
                file, entry = entries[name]
                _fill(file, entry, tensor)
        if optimizer is not None and saved is not None:
            _load_optimizer(saved, optimizer)


def _entries(path: Path, opened: contextlib.ExitStack) -> dict[str, tuple[Any, Entry]]:
    """The tensors of a file, or of those that an index names, each with the open file that it is in."""
    whole = pathlib.Path(path)
    if whole.suffix != ".json":
        file = opened.enter_context(open(whole, "rb", buffering=0))
        return {name: (file, entry) for name, entry in file_format.read_header(file, path)[0].items()}
    try:
        file_of: dict[str, str] = dict(json.loads(whole.read_text())["weight_map"])
        parts = {name: whole.with_name(name) for name in dict.fromkeys(file_of.values())}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{whole} is no index of safetensors files ({error!r})") from None
    entries: dict[str, tuple[Any, Entry]] = {}
    for part in parts.values():
        entries |= _entries(part, opened)
    missing = [name for name in file_of if name not in entries]
    if missing:
        raise InvalidArgument(f"{whole} is no index of safetensors files: none of them has {missing[:8]}")
    return entries


def _check(path: Path, entries: dict[str, tuple[Any, Entry]],
           tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors to be read, by their names in the file: of tied ones those that it has."""
    found = {name: tensor for name, tensor in tensors.items() if name in entries}
    read = {_memory(tensor) for tensor in found.values()}
    missing = sorted(name for name, tensor in tensors.items() if name not in entries and _memory(tensor) not in read)
    others = sorted(set(entries) - set(tensors))
    if missing or others:
        raise InvalidArgument(f"{os.fspath(path)} is not of this model: it lacks {missing[:8]} and has {others[:8]}")
    for name, tensor in found.items():
        shape = entries[name][1].shape
        if shape != tuple(tensor.shape):
            raise InvalidArgument(f"{os.fspath(path)}: '{name}' has the shape {shape}, and the model's has "
                                  f"{tuple(tensor.shape)}")
    return found


def _check_made_anew(path: Path, entries: dict[str, tuple[Any, Entry]], found: dict[str, torch.Tensor], model: nn.Module) -> None:
    """Raises InvalidArgument for a tensor that a module makes as its state is asked for, so that nothing can be read into it, if
    the file has another one."""
    again = model.state_dict()
    for name, tensor in found.items():
        if tensor.numel() == 0 or _memory(again[name]) == _memory(tensor):
            continue
        file, entry = entries[name]
        file_format.read_into(file, entry, read := torch.empty_like(tensor))
        if not same_bits(read, tensor):
            raise InvalidArgument(f"{os.fspath(path)}: '{name}' has another value than the model's, whose module makes it as its "
                                  "state is asked for, so that nothing can be loaded into it: build the model from that checkpoint")


def _memory(tensor: torch.Tensor) -> Any:
    """What tells the tensors of a model apart that are not the same elements of the same memory."""
    if isinstance(tensor, OffloadedTensor):
        return tensor.terrace_slot
    return (tensor.data_ptr() if tensor.numel() else id(tensor), tensor.shape, tensor.stride())


def _fill(file: Any, entry: Entry, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, OffloadedTensor):
        file_format.read_into(file, entry, tensor)
        return
    if not tensor.terrace_store.writable:
        read = torch.empty_like(tensor)
        file_format.read_into(file, entry, read)
        tensor.copy_(read)  # which raises where it is not what is there
        return
    slot = tensor.terrace_slot
    (shown,) = tensor.terrace_store.lease([slot], "write" if slot.shown else "overwrite")
    file_format.read_into(file, entry, shown)
    parameter = shown_parameter(tensor)
    if parameter is not None:
        parameter.noticed_write()
        parameter.overwritten()


class _SavedOptimizer(NamedTuple):
    """What a file has of an optimizer, which it fits."""

    file: Any
    groups: list[dict[str, Any]]
    states: dict[int, dict[str, Any]]  # by the number of the parameter: values, and tensors that are not read yet


def _saved_optimizer(path: pathlib.Path, optimizer: optim.Optimizer, opened: contextlib.ExitStack) -> _SavedOptimizer:
    """Opens a file, and reads what is no tensor. InvalidArgument for one that is not of this optimizer."""
    file = opened.enter_context(open(path, "rb", buffering=0))
    entries, metadata = file_format.read_header(file, path)
    if _OPTIMIZER not in metadata:
        raise InvalidArgument(f"{path} holds no optimizer: terrace.torch.save() writes one")
    states: dict[int, dict[str, Any]] = {}
    try:
        rest = json.loads(metadata[_OPTIMIZER])
        groups: list[dict[str, Any]] = rest["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        within: set[str] = set()  # the names of tensors that are in lists
        said = {name: resolved(value, entries, within) for name, value in rest["state"].items()}
        for name, value in (*said.items(), *((name, entry) for name, entry in entries.items() if name not in within)):
            index, _, key = name.partition(".")
            states.setdefault(int(index), {})[key] = value
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{path} holds no optimizer that could be read ({error!r})") from None
    wanted = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != wanted:
        raise InvalidArgument(f"{path} is not of this optimizer: its parameter groups have {sizes} parameters, and the "
                              f"optimizer's {wanted}")
    _check_states(path, states, optimizer)
    typed = [_typed(path, number, said, group)
             for number, (said, group) in enumerate(zip(groups, optimizer.param_groups, strict=True))]
    return _SavedOptimizer(file, typed, states)


def _check_states(path: pathlib.Path, states: dict[int, dict[str, Any]], optimizer: optim.Optimizer) -> None:
    """Raises InvalidArgument for states of parameters that there are not, or of another shape where it is known."""
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in states.items():
        if not 0 <= number < len(parameters):
            raise InvalidArgument(f"{path} is not of this optimizer: it has a state of parameter {number}, and the "
                                  f"optimizer has {len(parameters)} parameters")
        parameter, group = parameters[number]
        managed, master = managed_optimizer(optimizer), state.get(MASTER)
        if managed is not None and isinstance(master, Entry):
            check_master(managed.states, parameter, master.shape, f"{path}: the state of parameter {number}")
        for key in kinds.states(unwrapped(optimizer), group, parameter.dim()):
            value = state.get(key)
            if isinstance(value, Entry | Composed) and value.shape != tuple(parameter.shape):
                raise InvalidArgument(f"{path} is not of this optimizer: '{number}.{key}' has the shape {value.shape}, "
                                      f"and that parameter {tuple(parameter.shape)}")


def _load_optimizer(saved: _SavedOptimizer, optimizer: optim.Optimizer) -> None:
    optimizer.load_state_dict({"state": {}, "param_groups": saved.groups})
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in sorted(saved.states.items()):
        _load_state(saved.file, optimizer, *parameters[number], state)


def _load_state(file: Any, optimizer: optim.Optimizer, parameter: nn.Parameter, group: dict[str, Any],
                state: dict[str, Any]) -> None:
    """Reads one parameter's states; an offloaded optimizer then moves them to Terrace, and its master takes over its own."""
    managed = managed_optimizer(optimizer)
    device = parameter.device if managed is None or managed.states.masters.host is None else torch.device("cpu")
    counts_on_device = bool(group.get("fused") or group.get("capturable"))  # steps, where the parameter is
    made: dict[str, Any] = {}

    def read(value: Any, where: torch.device | str) -> Any:
        if not isinstance(value, Entry):
            return value
        tensor = torch.empty(value.shape, dtype=value.dtype, device=where)
        file_format.read_into(file, value, tensor)
        return tensor

    for key, value in state.items():
        where = device if counts_on_device or key != "step" else "cpu"
        made[key] = each(value, functools.partial(read, where=where))
    if managed is not None and managed.states.masters:
        made = as_loaded(managed.states, group, parameter, made)
    if made:
        optimizer.state[parameter].update(made)
    if managed is not None:
        managed.states.adopt([parameter])


def _typed(path: pathlib.Path, number: int, said: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """A group's values with the types that JSON has lost: pairs, and numbers in tensors. InvalidArgument for others."""
    typed = dict(said)
    for key, value in group.items():
        try:
            if key in typed and isinstance(value, tuple):
                typed[key] = tuple(typed[key])
            elif key in typed and isinstance(value, torch.Tensor):
                typed[key] = torch.full_like(value, typed[key])
        except (TypeError, RuntimeError):
            raise InvalidArgument(f"{path} is not of this optimizer: '{key}' of its group {number} is {said[key]!r}, "
                                  f"and the optimizer's {value!r}") from None
    return typed

# SPDX-License-Identifier: Apache-2.0
"""A state of several tensors, in lists, tuples and dictionaries, or within a tensor of another class, as it stands in a file: as
JSON, with the name of a tensor of the file in the place of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..._errors import InvalidArgument
from .._optimizer.kept import is_made_of_tensors
from .file_format import dtype_of, name_of

_TENSOR, _TUPLE, _DTYPE, _CLASS = "terrace.tensor", "terrace.tuple", "terrace.dtype", "terrace.class"
_MARKS = (_TENSOR, _TUPLE, _DTYPE, _CLASS)


class Composed(NamedTuple):
    """A tensor of another class, as it is read: what it is made of."""

    kind: Any  # its class
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    parts: dict[str, Any]  # the tensors inside, by their names there
    context: Any  # what else the class says of it


def described(value: Any, name: str, what: str, tensor: Callable[[str, torch.Tensor], None], plain: Callable[[Any, str], Any]) -> Any:
    """As JSON. name: of the state, under which its tensors stand. what: it, in words. tensor: is given each of these. plain: gives
    of any other value what JSON holds. InvalidArgument for what no file can hold."""
    if is_made_of_tensors(value):
        class_name = f"{type(value).__module__}.{type(value).__qualname__}"
        _safe(class_name, f"terrace.torch.save: {what} is of a class that")
        names, context = value.__tensor_flatten__()
        parts = {part: described(getattr(value, part), f"{name}.{part}", what, tensor, plain) for part in names}
        return {_CLASS: class_name, "shape": list(value.shape), "stride": list(value.stride()), "parts": parts,
                "context": described(context, f"{name}.context", what, tensor, plain)}
    if isinstance(value, torch.Tensor):
        tensor(name, value)
        return {_TENSOR: name}
    if isinstance(value, torch.dtype):
        return {_DTYPE: name_of(value, what)}
    if type(value) in (list, tuple, torch.Size):
        items = [described(one, f"{name}.{at}", what, tensor, plain) for at, one in enumerate(value)]
        return items if type(value) is list else {_TUPLE: items}
    if type(value) is dict:
        odd = next((key for key in value if not isinstance(key, str) or key in _MARKS), None)
        if odd is not None:
            raise InvalidArgument(f"terrace.torch.save: the optimizer cannot be saved, since {what} has the key {odd!r}, and JSON has "
                                  "words as keys: torch.save(optimizer.state_dict(), ...) writes it, a tensor at a time")
        return {key: described(one, f"{name}.{key}", what, tensor, plain) for key, one in value.items()}
    return plain(value, what)


def _safe(name: str, what: str) -> Any:
    """A class that a file may name. InvalidArgument for one that PyTorch was not told of, which a file could name for its own
    ends."""
    known = [one if isinstance(one, tuple) else (one, f"{one.__module__}.{one.__qualname__}")
             for one in torch.serialization.get_safe_globals()]
    found = next((one for one, its in known if its == name), None)
    if not hasattr(found, "__tensor_unflatten__"):
        raise InvalidArgument(f"{what} PyTorch does not know as safe, {name}: call torch.serialization.add_safe_globals() with it, as "
                              "torch.load(weights_only=True) asks for, too")
    return found


def resolved(said: Any, entries: Mapping[str, Any], used: set[str]) -> Any:
    """What was described, with an entry of the file in the place of each tensor. used: the names of these are added. KeyError
    where the file lacks one; InvalidArgument for a class that is not safe."""
    if isinstance(said, list):
        return [resolved(one, entries, used) for one in said]
    if not isinstance(said, dict):
        return said
    if said.keys() == {_TENSOR}:
        used.add(said[_TENSOR])
        return entries[said[_TENSOR]]
    if said.keys() == {_TUPLE}:
        return tuple(resolved(said[_TUPLE], entries, used))
    if said.keys() == {_DTYPE}:
        return dtype_of(said[_DTYPE])
    if _CLASS in said:
        parts = {name: resolved(one, entries, used) for name, one in said["parts"].items()}
        return Composed(_safe(said[_CLASS], "terrace.torch.load: a state is of a class that"), tuple(said["shape"]),
                        tuple(said["stride"]), parts, resolved(said["context"], entries, used))
    return {key: resolved(one, entries, used) for key, one in said.items()}


def each(value: Any, made: Callable[[Any], Any]) -> Any:
    """The same lists, tuples, dictionaries and composed tensors, of what is made of each of the rest."""
    if isinstance(value, Composed):
        return value.kind.__tensor_unflatten__(each(value.parts, made), each(value.context, made), torch.Size(value.shape), value.stride)
    if type(value) in (list, tuple):
        return type(value)(each(one, made) for one in value)
    return {key: each(one, made) for key, one in value.items()} if type(value) is dict else made(value)

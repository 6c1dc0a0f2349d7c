# SPDX-License-Identifier: Apache-2.0
"""A state of several tensors, in lists, tuples and dictionaries, as it stands in a file: as JSON, with the name of a tensor of
the file in the place of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..._errors import InvalidArgument
from .._optimizer.kept import is_made_of_tensors

_TENSOR, _TUPLE = "terrace.tensor", "terrace.tuple"


def described(value: Any, name: str, what: str, tensor: Callable[[str, torch.Tensor], None], plain: Callable[[Any, str], Any]) -> Any:
    """As JSON. name: of the state, under which its tensors stand. what: it, in words. tensor: is given each of these. plain: gives
    of any other value what JSON holds. InvalidArgument for what no file can hold."""
    if is_made_of_tensors(value):
        raise InvalidArgument(f"terrace.torch.save: the optimizer cannot be saved, since {what} is a {type(value).__name__}, which "
                              "safetensors cannot hold: torch.save(optimizer.state_dict(), ...) writes it, a tensor at a time")
    if isinstance(value, torch.Tensor):
        tensor(name, value)
        return {_TENSOR: name}
    if type(value) in (list, tuple):
        parts = [described(one, f"{name}.{at}", what, tensor, plain) for at, one in enumerate(value)]
        return parts if type(value) is list else {_TUPLE: parts}
    if type(value) is dict:
        odd = next((key for key in value if not isinstance(key, str) or key in (_TENSOR, _TUPLE)), None)
        if odd is not None:
            raise InvalidArgument(f"terrace.torch.save: the optimizer cannot be saved, since {what} has the key {odd!r}, and JSON has "
                                  "words as keys: torch.save(optimizer.state_dict(), ...) writes it, a tensor at a time")
        return {key: described(one, f"{name}.{key}", what, tensor, plain) for key, one in value.items()}
    return plain(value, what)


def resolved(said: Any, entries: Mapping[str, Any], used: set[str]) -> Any:
    """What was described, with an entry of the file in the place of each tensor. used: the names of these are added. KeyError
    where the file lacks one."""
    if isinstance(said, list):
        return [resolved(one, entries, used) for one in said]
    if not isinstance(said, dict):
        return said
    if said.keys() == {_TENSOR}:
        used.add(said[_TENSOR])
        return entries[said[_TENSOR]]
    if said.keys() == {_TUPLE}:
        return tuple(resolved(said[_TUPLE], entries, used))
    return {key: resolved(one, entries, used) for key, one in said.items()}


def each(value: Any, made: Callable[[Any], Any]) -> Any:
    """The same lists, tuples and dictionaries of what is made of each of the rest."""
    if type(value) in (list, tuple):
        return type(value)(each(one, made) for one in value)
    return {key: each(one, made) for key, one in value.items()} if type(value) is dict else made(value)

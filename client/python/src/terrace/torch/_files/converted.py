# SPDX-License-Identifier: Apache-2.0
"""Weights that Transformers writes in another form than the model has them: of a mixture of experts, which has those of
all experts in one tensor, each expert's own.

revert_weight_conversion() converts them all before save_pretrained() writes the first, which would hold a second model
in memory. Where weights are in Terrace, ours finds out on tensors without content what becomes of which, and converts
when one of its parts is to be written.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .._leased.placeholder import PlaceholderSpace
from .._pytorch.metadata import METADATA
from .._pytorch.modes import ordinary
from .._pytorch.private import make_subclass, raw
from .._pytorch.storages import number_of, over
from .._tensors.offloaded import OffloadedTensor, leaves

Tensors = dict[str, torch.Tensor]
Revert = Callable[[Any, Tensors], Tensors]

SOURCES_HELD = 2  # whose parts follow each other in a file: a layer's experts have two weights
_ITSELF = (torch.Tensor.contiguous, torch.Tensor.detach)
_SHOWN = (torch.Tensor.untyped_storage,)  # which tells tensors apart, and says how large they are


class ConvertedTensor(torch.Tensor):
    """A part of what a weight in Terrace is converted to: it is made when something asks for more than its shape."""

    terrace_name: str
    terrace_source: str
    terrace_sources: Sources
    terrace_kept: torch.Tensor  # where its address was asked for

    def terrace_make(self) -> torch.Tensor:
        """Its content."""
        return self.terrace_sources.converted(self.terrace_source)[self.terrace_name]

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in METADATA or func in _SHOWN:
            with raw():
                return func(*args, **(kwargs or {}))
        is_itself = func in _ITSELF or (func is torch.Tensor.cpu and args[0].is_cpu)
        if is_itself and len(args) == 1 and not kwargs and args[0].is_contiguous():
            return args[0]
        made = {id(one): one.terrace_make() for one in leaves((args, kwargs)) if isinstance(one, ConvertedTensor)}
        if func is torch.Tensor.data_ptr:
            args[0].terrace_kept = made[id(args[0])]
        return func(*_with(made, tuple(args)), **_with(made, dict(kwargs or {})))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.terrace_make().clone().__reduce_ex__(protocol)


def _with(made: Mapping[int, torch.Tensor], value: Any) -> Any:
    """A function's arguments, with what was made in the place of what stands for it."""
    if isinstance(value, torch.Tensor):
        return made.get(id(value), value)
    if isinstance(value, dict):
        return {key: _with(made, part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with(made, part) for part in value)
    return value


class Sources:
    """The weights that are converted, the last ones of which are kept converted."""

    def __init__(self, convert: Callable[[Tensors], Tensors], weights: Mapping[str, OffloadedTensor]):
        self._convert = convert
        self._weights = weights
        self._latest: OrderedDict[str, Tensors] = OrderedDict()

    def converted(self, source: str) -> Tensors:
        """What becomes of one."""
        if source not in self._latest:
            while len(self._latest) >= SOURCES_HELD:
                self._latest.popitem(last=False)
            weight = self._weights[source]
            self._latest[source] = self._convert({source: weight.terrace_store.read_once(weight.terrace_slot)})
        return self._latest[source]

    def let_go(self) -> None:
        """All are written."""
        self._latest.clear()
        for weight in self._weights.values():
            weight.terrace_store.leave_read()


def convert_when_written() -> None:
    """Has Transformers, where it is there, convert what is in Terrace when it is written, whoever saves."""
    theirs = getattr(sys.modules.get("transformers.core_model_loading"), "revert_weight_conversion", None)
    if theirs is None or hasattr(theirs, "terrace"):
        return
    ours = _late(theirs)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("revert_weight_conversion") is theirs:
            module.revert_weight_conversion = ours  # type: ignore[attr-defined]


def _late(theirs: Revert) -> Revert:
    @functools.wraps(theirs)
    def revert_weight_conversion(model: Any, state_dict: Tensors) -> Tensors:
        if any(isinstance(one, OffloadedTensor) for one in state_dict.values()):
            planned = _planned(functools.partial(theirs, model), state_dict)
            if planned is not None:
                return planned
        return theirs(model, state_dict)

    revert_weight_conversion.terrace = True  # type: ignore[attr-defined]
    return revert_weight_conversion


def _planned(convert: Callable[[Tensors], Tensors], state: Tensors) -> Tensors | None:
    """What it is converted to, without converting it; None where a part is made of several weights."""
    empty = {name: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
             for name, one in state.items()}
    names = {id(one): name for name, one in empty.items()}
    try:
        whole = convert(dict(empty))
    except Exception:  # what is wrong is said of the weights themselves, or it needs their content
        return None
    left = {names[id(one)] for one in whole.values() if id(one) in names}  # as they are, if under another name
    source_of: dict[str, str] = {}
    for source in state.keys() - left:
        for name, part in convert({source: empty[source]}).items():
            if name in source_of or name not in whole or _differ(part, whole[name]):
                return None
            source_of[name] = source
    changed = {name: one for name, one in whole.items() if id(one) not in names}
    if source_of.keys() != changed.keys():
        return None
    made = _stand_ins(convert, state, source_of, changed)
    return {name: made[name] if name in made else state[names[id(one)]] for name, one in whole.items()}


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype)


def _stand_ins(convert: Callable[[Tensors], Tensors], state: Tensors, source_of: Mapping[str, str],
               parts: Mapping[str, torch.Tensor]) -> Tensors:
    """Of each part what stands for it. Parts of one storage are such, for whoever divides them among files."""
    weights = {source: one for source in source_of.values() if isinstance(one := state[source], OffloadedTensor)}
    in_memory = set(source_of.values()) - weights.keys()
    made = dict(itertools.chain.from_iterable(convert({source: state[source]}).items() for source in in_memory))
    storages = {number_of(part.untyped_storage()): part.untyped_storage() for part in parts.values()}
    sources = Sources(convert, weights)
    with ordinary():
        device = next((one.device for one in weights.values()), torch.device("cpu"))
        space = PlaceholderSpace(sum(storage.nbytes() + 64 for storage in storages.values()), device)
        memory = {number: space.take([storage.nbytes()], [1], torch.uint8).untyped_storage()
                  for number, storage in storages.items()}
        for name, part in parts.items():
            if name not in made:
                shown = over(memory[number_of(part.untyped_storage())], part.dtype, int(part.storage_offset()), part.shape,
                             part.stride())
                stands: Any = make_subclass(ConvertedTensor, shown)
                stands.terrace_name, stands.terrace_source = name, source_of[name]
                stands.terrace_sources = sources
                made[name] = stands
    return made

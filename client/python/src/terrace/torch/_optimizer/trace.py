# SPDX-License-Identifier: Apache-2.0
"""What a value holds, noted so that it can be told later whether any of it was changed in place.

Equal content is equal, whichever object has it. Of what is large only the change is noted that PyTorch counts, and a
module, a class or what nobody can look into is itself and nothing else.
"""

import array
import collections
import functools
import io
import random
import types
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch import nn, optim

from .._tensors.offloaded import OffloadedTensor

OBJECTS_MAX = 4096  # that are looked at, numbers among them
CONTENT_BYTES_MAX = 64 << 10  # of an array that is compared by its content

PLAIN = (int, float, complex, str, bytes, type(None))
_CLOSED = (nn.Module, type, types.ModuleType, types.BuiltinFunctionType)
_LISTS = (list, tuple, set, frozenset, collections.deque)
_HEAP = 1 << 9  # of a type's flags: it is no static type of C
_HOOKS = "_optimizer_"  # begin the names of an optimizer's hooks


def trace(value: Any, aside: Iterable[int] = ()) -> tuple[list[Any], list[Any]]:
    """What it holds now, to be compared with what it holds later; and the objects, to be kept until then.

    aside: ids of objects that are not looked into.
    """
    found: list[Any] = []
    looked_at: list[Any] = []
    waiting = [value]
    seen = set(aside)
    while waiting and len(found) < 2 * OBJECTS_MAX:
        one = waiting.pop()
        found.append(type(one))
        if isinstance(one, PLAIN):
            found.append(one)
        elif id(one) not in seen:
            seen.add(id(one))
            looked_at.append(one)
            try:
                said, inside = _content(one)
            except Exception:  # whatever it says: nobody can look into it
                said, inside = id(one), ()
            found.append(said)
            waiting += inside
    return found, looked_at


def said_of(parameter: torch.Tensor) -> dict[str, Any]:
    """The numbers and words that a script has given a parameter as attributes, which its optimizer may ask for."""
    return {name: value for name, value in vars(parameter).items() if isinstance(value, PLAIN)}


def own_of(optimizer: optim.Optimizer) -> dict[str, Any]:
    """What an optimizer has itself, beside its groups, its parameters' states and its hooks."""
    return {name: value for name, value in vars(optimizer).items()
            if name not in ("param_groups", "state") and not name.startswith(_HOOKS)}


def _content(one: Any) -> tuple[Any, Iterable[Any]]:
    """What tells an object from what it was, and what is in it."""
    if isinstance(one, torch.Tensor):
        return _of_tensor(one), ()
    if isinstance(one, _CLOSED):
        return id(one), ()
    if isinstance(one, types.FunctionType):
        cells = [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
        return id(one), [*cells, one.__defaults__, one.__kwdefaults__, vars(one)]
    if isinstance(one, types.MethodType):
        return None, [one.__func__, one.__self__]
    if isinstance(one, numpy.ndarray) and not one.dtype.hasobject:
        return (one.shape, one.dtype, one.tobytes() if one.nbytes <= CONTENT_BYTES_MAX else id(one)), ()
    if isinstance(one, torch.Generator):
        return one.get_state().numpy().tobytes(), ()
    if isinstance(one, random.Random):
        return one.getstate(), ()
    if isinstance(one, types.GeneratorType):
        frame = one.gi_frame
        return frame and frame.f_lasti, [] if frame is None else [frame.f_locals, one.gi_yieldfrom]
    if isinstance(one, weakref.ref):
        return id(one), [one()]
    if isinstance(one, memoryview | array.array | bytearray):
        return one.tobytes() if not isinstance(one, bytearray) else bytes(one), ()
    if isinstance(one, functools.partial):
        return None, [one.func, one.args, one.keywords, vars(one)]
    if isinstance(one, optim.Optimizer):
        return None, [own_of(one), [{**group, "params": len(group["params"])} for group in one.param_groups]]
    return _of_container(one)


def _of_container(one: Any) -> tuple[Any, Iterable[Any]]:
    inside: list[Any] = []
    if hasattr(one, "__next__") and not isinstance(one, io.IOBase) and not _is_pythons(type(one)):
        return _of_what_pickles(one)
    if isinstance(one, collections.abc.Mapping):
        inside += [part for item in one.items() for part in item]
    elif isinstance(one, (*_LISTS, numpy.ndarray)):
        inside += one
    has_attributes = hasattr(one, "__dict__")
    inside += vars(one).values() if has_attributes else ()
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        named = [slots] if isinstance(slots, str) else slots
        inside += [getattr(one, name) for name in named if name != "__dict__" and hasattr(one, name)]
        has_attributes |= bool(named)
    if inside or has_attributes or isinstance(one, (*_LISTS, dict)):
        return len(inside), inside
    return _of_what_pickles(one)


def _of_what_pickles(one: Any) -> tuple[Any, Iterable[Any]]:
    """Of an object without attributes, as an iterator: what a pickle of it would have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iterators lose theirs with Python 3.14
        try:
            given = one.__reduce_ex__(4)
        except TypeError:
            if hasattr(one, "__next__") and not isinstance(one, io.IOBase):
                return object(), ()  # is another one each time: what cannot be looked into may have changed
            raise
    if isinstance(given, str):
        return given, ()
    return None, [list(part) if hasattr(part, "__next__") else part for part in given[1:] if part is not None]


def _is_pythons(kind: type) -> bool:
    """Whether a class and all that it is made of are written in Python, so that its attributes are all that it has."""
    return all(base is object or base.__flags__ & _HEAP for base in kind.__mro__)


def _of_tensor(one: torch.Tensor) -> Any:
    if isinstance(one, nn.Parameter) and "terrace" in one.__dict__:
        return id(one)  # is the model's
    if isinstance(one, OffloadedTensor):
        return id(one), one.terrace_slot.writes
    version = 0 if one.is_inference() else one._version
    if type(one) is not torch.Tensor or one.layout != torch.strided or one.device.type != "cpu" or (
            one.nbytes > CONTENT_BYTES_MAX):
        return id(one), version
    content = one.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
    return one.dtype, one.shape, content.numpy().tobytes()

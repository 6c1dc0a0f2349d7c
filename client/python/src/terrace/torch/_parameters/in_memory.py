# SPDX-License-Identifier: Apache-2.0
"""Which parts of what is trained go to Terrace; and the parameters that stay in memory where other parts do not."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..._errors import FailedPrecondition, InvalidArgument
from .._leased.placeholder import elements_spanned
from .._leased.slot import room_for
from .._pytorch.modes import ordinary

if TYPE_CHECKING:
    from .._leased.store import Store
    from .gradient import Gradient

PARTS = ("parameters", "gradients", "states")
_NAMED = "'parameters', 'gradients' and 'states'"


class Like(Protocol):
    """What a tensor in Terrace is made like: the parameter whose gradient or state it is."""

    name: str
    owner: str
    placeholder: torch.Tensor

    @property
    def nbytes(self) -> int: ...

    @property
    def room_bytes(self) -> int: ...


@dataclasses.dataclass
class Geometry:
    """Like which parameter, where that is not in Terrace itself."""

    name: str
    owner: str  # the module, for people
    placeholder: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor like it."""
        return elements_spanned(self.placeholder.shape, self.placeholder.stride()) * self.placeholder.itemsize

    @property
    def room_bytes(self) -> int:
        """What it takes where it is leased."""
        return room_for(self.nbytes)


def wanted_parts(call: str, what: Any, optimizer: object, in_backward: bool) -> frozenset[str]:
    """What a caller asked for by `what`; None: all that there is. InvalidArgument for what cannot be had."""
    if what is None:
        return frozenset(PARTS if optimizer is not None else PARTS[:2])
    try:
        named = [what] if isinstance(what, str) else list(what)
    except TypeError:
        raise TypeError(f"{call}: what is {what!r}; it is a set of {_NAMED}") from None
    for one in named:
        if one not in PARTS:
            raise InvalidArgument(f"{call}: what has {one!r}; it is a set of {_NAMED}")
    if not named:
        raise InvalidArgument(f"{call}: what is empty; it is a set of {_NAMED}, at least one of them")
    if "states" in named and optimizer is None:
        raise InvalidArgument(f"{call}: what has 'states', and no optimizer is given whose they are: "
                              "offload(model, optimizer, what=...)")
    if in_backward and "parameters" not in named:
        raise InvalidArgument(f"{call}: step_in_backward=True steps parameters that are in Terrace: give what= "
                              "'parameters' as well, or offload without it")
    return frozenset(named)


_taken: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameters of jobs, by what belongs to each there


class ParameterInMemory:
    """A parameter that stays in the process's memory, and whose gradient or optimizer states are in Terrace."""

    def __init__(self, name: str, owner: str, parameter: nn.Parameter, store: Store):
        self.name = name
        self.gradient: Gradient | None = None
        self._reference = weakref.ref(parameter)
        with ordinary():
            self.like = Geometry(name, owner, store.space.take(parameter.shape, parameter.stride(), parameter.dtype))

    def finish(self) -> None:
        """It is its job's for good."""
        _taken[self.parameter] = self

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter. It is there: nothing asks for one that is gone."""
        found = self._reference()
        if found is None:
            raise FailedPrecondition(f"the parameter '{self.name}' was destroyed")
        return found

    @property
    def gone(self) -> bool:
        """Whether the model has lost it."""
        return self._reference() is None

    def stands_for(self, parameter: nn.Parameter) -> bool:
        """Whether it is this parameter's."""
        return self._reference() is parameter

    def watch(self) -> None:
        """Sees to its gradients, if it has any."""
        found = self._reference()  # a model may lose one
        if self.gradient is not None and found is not None and found.requires_grad:
            self.gradient.watch()


def is_of_a_job(parameter: nn.Parameter) -> bool:
    """Whether it stays in memory, and parts of it are in Terrace."""
    return parameter in _taken

# SPDX-License-Identifier: Apache-2.0
"""Parameters that stay in memory where other parts of what is trained do not."""

import weakref

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..._errors import FailedPrecondition
from .._leased.store import Store
from .._pytorch.modes import ordinary
from .gradient import Gradient
from .like import Geometry

_taken: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameters of jobs, by what belongs to each there


class ParameterInMemory:
    """A parameter that stays in the process's memory, and whose gradient or optimizer states are in Terrace."""

    def __init__(self, name: str, owner: str, parameter: nn.Parameter, store: Store):
        self.name = name
        self.gradient: Gradient | None = None
        self._reference = weakref.ref(parameter)
        with ordinary():
            self.like = Geometry(name, owner, store.place_on(parameter.device).space.take(parameter.shape, parameter.stride(), parameter.dtype))

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

# SPDX-License-Identifier: Apache-2.0
"""One parameter in two stored forms: its own, which the script and its modules have, and a second one of another type.

Who uses which form leases that form alone. Whoever writes one has the other made of it again, and what is here tells when.
A master (see masters.py) is a second form that the optimizer steps.
"""

from __future__ import annotations

from torch import nn

from .._leased.slot import Slot
from .._pytorch.private import raw
from .in_memory import ParameterInMemory
from .parameter import ManagedParameter
from .shard import ManagedShard, Reference

InTerrace = ManagedParameter | ManagedShard
OwnForm = InTerrace | ParameterInMemory
_UNLIKE = (-1, -1, -1)


class SecondForm:
    """Another stored form of a parameter, and what it knows of the parameter's own."""

    def __init__(self, reference: Reference, own: OwnForm | None):
        """reference: to the parameter. own: what belongs to it in its job; None: the job has nothing of it."""
        self._reference = reference
        self.own = own
        self.made = False  # it has content, which is of some worth
        self._same_as = _UNLIKE  # how the own form was when both were the same

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter. It is there: nothing asks for one that is gone."""
        found = self._reference()
        assert found is not None
        return found

    def is_of(self, parameter: nn.Parameter) -> bool:
        """Whether it is a form of this very parameter."""
        return self._reference() is parameter and not self.gone

    @property
    def gone(self) -> bool:
        """Whether the model has lost the parameter, or has it in another shape."""
        return self._reference() is None or (self.own is not None and self.own.gone)

    @property
    def own_slot(self) -> Slot | None:
        """Where the own form is in Terrace; None: it is in memory."""
        return self.own.slot if isinstance(self.own, InTerrace) else None

    def is_current(self) -> bool:
        """Whether nobody can have written to the own form since both were the same. Of one in memory nobody knows."""
        own = self.own
        return self.made and isinstance(own, InTerrace) and self._now(own) == self._same_as

    def note_same(self) -> None:
        """Both forms hold the same from now on."""
        self.made = True
        if isinstance(self.own, InTerrace):
            # what a script has of its memory may be written to at any time, and nothing tells
            self._same_as = _UNLIKE if self.own.aliased else self._now(self.own)

    def note_different(self) -> None:
        """Nothing is known of what both hold."""
        self._same_as = _UNLIKE

    @staticmethod
    def _now(own: InTerrace) -> tuple[int, int, int]:
        with raw():
            return own.parameter._version, own.writes, own.aliases

# SPDX-License-Identifier: Apache-2.0
"""Masters: of each trained parameter in a narrow type a copy in a wider one, which the optimizer steps in its place; and,
where the step of a model on a GPU is the CPU's, of each trained parameter a copy there, of its own type or of a wider one.

The weight is what its master rounds to. What a script writes to a weight its master takes over, when it is stepped next:
an element that is still what the master rounds to keeps the master's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from .._device.streams import copied_down
from .._leased.placeholder import elements_spanned
from .._leased.slot import Slot, room_for
from .._leased.store import Store
from .._pytorch.modes import ordinary
from .._pytorch.private import raw
from .._pytorch.split import is_split, local_of, split_as
from .._tensors.offloaded import OffloadedTensor
from .forms import OwnForm, SecondForm
from .gradient import Gradient, Room
from .like import Geometry, Like
from .parameter import ManagedParameter
from .shard import Reference, ShardGradient

NARROW = (torch.bfloat16, torch.float16)
_BITS = torch.int16  # of an element of these


class Wanted(NamedTuple):
    """Of which parameter there is to be a master."""

    parameter: nn.Parameter
    reference: Reference  # to it
    own: OwnForm | None  # what belongs to it in its job
    like: Like | None  # what its job makes tensors like, if it has any of its


class Stores(NamedTuple):
    """Where a job's weights are, and where its masters are."""

    weights: Store
    masters: Store


class Master(SecondForm):
    """The master of one parameter: an ordinary parameter, which is in Terrace or in memory. That of one that is split over
    ranks is split as it is, and this rank's shard of it is meant."""

    def __init__(self, wanted: Wanted, dtype: torch.dtype, stores: Stores, slot: Slot | None, gradient_like: Like | None):
        """slot: where it is in Terrace; None: it is in memory. gradient_like: what the weight's gradient is made like."""
        super().__init__(wanted.reference, wanted.own)
        self.dtype = dtype
        self.slot = slot
        self.managed: ManagedParameter | None = None  # what belongs to it as to a parameter in Terrace; not where it is split
        self.like: Geometry | None = None
        self._weights, self.store = stores
        self.apart = self.store is not self._weights  # the weight is on a GPU, and it is the CPU's
        self._brought: OffloadedTensor | None = None  # the weight's gradient, where a step has asked for it before its turn
        self._room: Room | None = None  # where that goes
        self._wide_like: Geometry | None = None  # what the weight's gradient is made like, of the master's type
        self.gradient: Gradient | ShardGradient | None = None if wanted.own is None else wanted.own.gradient
        self._gradient_like = gradient_like
        self._written_as = (-1, -1)  # how it was when its parameter was last made of it
        own, itself = wanted.like, wanted.parameter
        with ordinary(), raw():
            device = self.store.device if self.apart else local_of(itself).device
            shown = slot.placeholder if slot is not None else _empty(itself, dtype, device)
            self.stepped = nn.Parameter(split_as(itself, shown))  # what the optimizer is given in the parameter's place
        if own is not None:
            geometry = own.placeholder
            self.like = Geometry(own.name, own.owner, slot.placeholder if slot is not None else
                                 self.store.place_on(device).space.take(geometry.shape, geometry.stride(), dtype))
        if slot is not None and is_split(itself):
            self.stepped._local_tensor = OffloadedTensor.of(slot, self.store)  # type: ignore[attr-defined]
        elif slot is not None:
            self.managed = ManagedParameter(slot.name, self.stepped, slot, self.store)
            self.stepped.terrace = self.managed  # type: ignore[attr-defined]
            self.managed.hide()

    @property
    def is_kept(self) -> bool:
        """Whether it has more than its weight, so that it is saved beside it."""
        return self.dtype != self.parameter.dtype

    # ---- What it is made of, and what is made of it

    def take_written(self, own: torch.Tensor) -> None:
        """Takes over what was written to the weight, of which this shows what is in this process. The master is shown."""
        with torch.no_grad(), raw():
            stepped = local_of(self.stepped).detach()
            if not self.is_kept:
                stepped.copy_(own.detach())
                return
            own = copied_down(own.detach()) if self.apart else own
            other = stepped.to(own.dtype).view(_BITS) != own.detach().view(_BITS)
            if stepped.device.type != "cpu" or bool(other.any()):  # on a GPU nobody waits for the answer
                stepped.copy_(torch.where(other, own.to(self.dtype), stepped))

    def note_written(self) -> None:
        """The weight was made of it as it is now."""
        self.note_same()
        self._written_as = self._as_stepped()

    def written_since(self) -> bool:
        """Whether it may have been written to since the weight was made of it."""
        return self.made and (self.slot is None or self._as_stepped() != self._written_as)

    def _as_stepped(self) -> tuple[int, int]:
        with raw():
            writes = 0 if self.slot is None else self.slot.writes + (0 if self.managed is None else self.managed.writes)
            return self.stepped._version, writes

    def load(self, value: torch.Tensor | None) -> None:
        """Has been loaded: the weight is still compared with it. value: None: is to be made of the weight."""
        self.made = value is not None
        self.note_different()
        if value is None:
            return
        given, slot = local_of(value), self.slot
        if isinstance(given, OffloadedTensor) and slot is not None and given.terrace_slot is slot:
            return
        with torch.no_grad():
            if slot is None:
                with raw():
                    target = local_of(self.stepped).detach()
                target.copy_(given)
            else:
                (shown,) = self.store.lease([slot], "write" if slot.shown else "overwrite")
                shown.copy_(given)
                if self.managed is not None:
                    self.managed.noticed_write()

    # ---- The gradient

    def held_gradient(self) -> torch.Tensor | None:
        """The weight's."""
        with raw():
            return self.parameter.grad

    def widened(self) -> torch.Tensor | None:
        """The weight's gradient, which is of the master's type from now on and until it is dropped."""
        held = self.held_gradient()
        if held is None or held.dtype == self.dtype:
            return held
        return self.give_gradient(held.to(self.dtype), isinstance(local_of(held), OffloadedTensor))

    def takes_as_it_is(self, held: torch.Tensor) -> bool:
        """Whether the step is given this gradient of the weight itself."""
        return held.dtype == self.dtype and not self.apart

    def made_for_step(self, held: torch.Tensor) -> torch.Tensor:
        """What the step is given in the place of a gradient that it is not given as it is. held: it, over leased memory or
        in memory."""
        own = local_of(held)
        made = (copied_down(own) if self.apart and own.device != self.store.device else own).to(self.dtype)
        whole: torch.Tensor = split_as(held, made)
        return whole

    @property
    def brought(self) -> OffloadedTensor | None:
        """The gradient, where a step has asked for it before its turn, on another device than the weight."""
        return self._brought

    def for_step(self) -> OffloadedTensor | None:
        """The gradient in Terrace, of the master's type and where the master is, for a step that asks before its turn."""
        if not self.apart:
            return self.widened()  # type: ignore[return-value]
        if self._brought is None:
            held = self.held_gradient()
            assert held is not None and self.like is not None
            if self._room is None:
                self._room = Room(self.like, [])
            self._brought = self._room.take(self.store, self.made_for_step(local_of(held)))
        return self._brought

    def forget_brought(self) -> None:
        """The weight's gradient is another one now."""
        self._brought = None

    def let_brought_go(self) -> None:
        """No step is under way. What it has written to the gradient is the weight's gradient from now on."""
        brought, self._brought = self._brought, None
        if brought is not None and brought.terrace_slot.writes:
            self.give_gradient(split_as(self.parameter, brought.to(self.parameter.device)), True)

    def give_gradient(self, made: torch.Tensor | None, in_terrace: bool) -> torch.Tensor | None:
        """Has the weight's gradient be this one. What becomes of it. in_terrace: is to be there, if it can."""
        parameter, gradient = self.parameter, self.gradient
        if made is not None and self.apart:
            made = made.to(parameter.device)
        if made is not None and gradient is not None and self.like is not None:
            made = gradient.take_wide(self._like_of_wide(), made, in_terrace)
        with raw():
            parameter.grad = None
            if made is not None and parameter.grad_dtype not in (None, made.dtype):
                parameter.grad_dtype = None  # any
                if gradient is not None:
                    gradient.widened = True  # it has it be the parameter's again
            parameter.grad = made
        return made

    def _like_of_wide(self) -> Geometry:
        assert self.like is not None
        if not self.apart:
            return self.like
        if self._wide_like is None:
            shape, place = self.like.placeholder, self._weights.place_on(self.parameter.device)
            with ordinary():
                self._wide_like = Geometry(self.like.name, self.like.owner, place.space.take(shape.shape, shape.stride(), self.dtype))
        return self._wide_like

    def accumulate_in(self, dtype: torch.dtype | None) -> None:
        """Has gradients be added up in a wider type from now on; None: as autograd does."""
        held, parameter = self.held_gradient(), self.parameter
        if self.gradient is None:
            self.gradient = (ShardGradient(self._reference, self._weights, None) if is_split(parameter) else
                             Gradient(parameter, self._weights, None))
        if self.gradient.in_backward or self.gradient.sum_in == dtype:
            return
        self.gradient.sum_in = dtype
        if dtype is not None:
            self.gradient.watch()
        elif self.own is None:
            self.gradient.unwatch()
        with raw():
            parameter.grad = None
            parameter.grad_dtype = parameter.dtype if dtype is None else None
        if held is not None:
            self.give_gradient(held.to(parameter.dtype if dtype is None else dtype),
                               isinstance(local_of(held), OffloadedTensor))

    # ---- Sizes

    def room_bytes(self, gradients: bool) -> int:
        """What a step leases of it and its weight where these are in Terrace. gradients: of the gradient, too."""
        return self.master_room_bytes + self.weight_room_bytes(gradients)

    @property
    def master_room_bytes(self) -> int:
        """What a step leases of it where it is in Terrace."""
        return 0 if self.slot is None else self.slot.room_bytes

    def weight_room_bytes(self, gradients: bool) -> int:
        """What a step leases of its weight where that is in Terrace. gradients: of the gradient, too."""
        own = 0 if self.own_slot is None else self.own_slot.room_bytes
        return own + (self._gradient_like.room_bytes if gradients and self._gradient_like is not None else 0)


class Masters:
    """Those of one job; there may be none."""

    def __init__(self, store: Store, dtype: torch.dtype | None, gradients: torch.dtype | None = None,
                 in_terrace: bool = True, host: Store | None = None):
        """dtype: of those of weights in a narrow type; None: these have none. gradients: what they are accumulated in, if not
        in the weights' type. in_terrace: they are there, but for those of parameters of which nothing is. host: all weights
        have one, in the host's memory, which the CPU steps; None: they are where the weights are, and step there."""
        self.dtype = dtype
        self.gradients = gradients
        self.host = host
        self._store = store
        self._in_terrace = in_terrace
        self._by: dict[int, Master] = {}  # by the id of the parameter
        self._by_stepped: dict[int, Master] = {}  # by the id of what is stepped in its place

    def __bool__(self) -> bool:
        return self.dtype is not None or self.host is not None

    @property
    def all(self) -> Iterable[Master]:
        """Each, of a parameter that is there."""
        return [one for one in self._by.values() if not one.gone]

    def wants(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter is to have one, and has none."""
        wanted = (self.dtype is not None and parameter.dtype in NARROW) if self.host is None else True
        return wanted and parameter.requires_grad and self.of(parameter) is None

    def dtype_of(self, parameter: nn.Parameter) -> torch.dtype:
        """Of which type a parameter's master is."""
        return parameter.dtype if self.dtype is None or parameter.dtype not in NARROW else self.dtype

    def before_their_job(self, parameters: Iterable[nn.Parameter]) -> list[Master]:
        """Those that parameters were given before a job had them."""
        return [found for one in parameters if (found := self.of(one)) is not None and found.own is None]

    def put_back(self, parameters: Iterable[nn.Parameter], masters: Sequence[Master]) -> None:
        """Of these parameters has these again, in the place of those that were made since."""
        self.drop(parameters)
        for one in masters:
            self._by[id(one.parameter)] = self._by_stepped[id(one.stepped)] = one
        self.accumulate_wide()

    def make(self, wanted: Sequence[Wanted]) -> None:
        """Makes masters, without content: each is made of its weight when it is stepped first. One that takes another's place
        has its content."""
        stores = Stores(self._store, self._store if self.host is None else self.host)
        there = [one for one in wanted if self._in_terrace and one.like is not None]
        slots = stores.masters.create([(f"{one.like.name}/master", one.like.owner, _empty(one.parameter, self.dtype_of(one.parameter)))
                                       for one in there if one.like is not None], [local_of(one.parameter).device for one in there])
        slot_of = dict(zip(map(id, (one.parameter for one in there)), slots, strict=True))
        for one in wanted:
            gradient_like = None if one.like is None else self.gradient_like(one.parameter, one.like)
            made = Master(one, self.dtype_of(one.parameter), stores, slot_of.get(id(one.parameter)), gradient_like)
            before = self.of(one.parameter)
            self._by[id(one.parameter)] = self._by_stepped[id(made.stepped)] = made
            if before is not None:
                del self._by_stepped[id(before.stepped)]
                self._take_from(before, made)

    def _take_from(self, before: Master, made: Master) -> None:
        """Has a master have what another one has, and the gradient that was added up so far."""
        made.load(before.stepped.detach() if before.made else None)
        held = before.held_gradient()
        before.accumulate_in(None)
        made.accumulate_in(self.gradients)
        if held is not None:
            made.give_gradient(held, False)

    def of(self, parameter: nn.Parameter) -> Master | None:
        """The master of a parameter, if it has one."""
        found = self._by.get(id(parameter)) if self._by else None
        return found if found is not None and found.is_of(parameter) else None

    def stepped_as(self, parameter: nn.Parameter) -> nn.Parameter:
        """What is stepped in a parameter's place: its master, or itself."""
        found = self.of(parameter)
        return parameter if found is None else found.stepped

    def master_of(self, stepped: nn.Parameter) -> Master | None:
        """The master that a step has for a parameter; None of what is stepped itself."""
        return self._by_stepped.get(id(stepped)) if self._by_stepped else None

    def own(self, stepped: nn.Parameter) -> nn.Parameter:
        """The script's parameter in whose place this is stepped; it may be itself."""
        found = self.master_of(stepped)
        return stepped if found is None else found.parameter

    def gradient_like(self, parameter: nn.Parameter, like: Like) -> Like:
        """What a parameter's gradient is made like."""
        if self.gradients is None or parameter.dtype not in NARROW:
            return like
        geometry = like.placeholder
        with ordinary():
            space = self._store.place_on(geometry.device).space
            return Geometry(like.name, like.owner, space.take(geometry.shape, geometry.stride(), self.gradients))

    def drop_gone(self) -> None:
        """Deletes those whose parameters the model has lost."""
        self._drop([one for one in self._by.values() if one.gone])

    def drop(self, parameters: Iterable[nn.Parameter]) -> None:
        """Deletes those of parameters that have one."""
        self._drop([found for one in parameters if (found := self.of(one)) is not None])

    def _drop(self, gone: Sequence[Master]) -> None:
        dropped = set(map(id, gone))
        self._by = {key: one for key, one in self._by.items() if id(one) not in dropped}
        for one in gone:
            del self._by_stepped[id(one.stepped)]
        (self._store if self.host is None else self.host).forget([one.slot for one in gone if one.slot is not None])

    def accumulate_wide(self) -> None:
        """Has gradients be added up in the type that was asked for, where they are not yet."""
        for one in self.all if self.gradients is not None else ():
            one.accumulate_in(self.gradients)

    def accumulate_as_before(self) -> None:
        """Undoes accumulate_wide()."""
        for one in self.all if self.gradients is not None else ():
            one.accumulate_in(None)


def _empty(parameter: nn.Parameter, dtype: torch.dtype, device: torch.device | str = "meta") -> torch.Tensor:
    """A tensor of the geometry of what this process has of a parameter, without content."""
    with raw():
        local = local_of(parameter)
        return torch.empty_strided(local.shape, local.stride(), dtype=dtype, device=device)

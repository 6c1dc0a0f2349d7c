# SPDX-License-Identifier: Apache-2.0
"""Parameters that are split over ranks, by fully_shard() (FSDP2) or by tensor parallelism: what this rank has of each lives in
Terrace.

FSDP keeps this rank's shard as the local tensor of a DTensor, and asks it for what is to be gathered, if it has a way
to say so (fsdp_pre_all_gather(), which is there for quantized weights). Ours says: leased memory. So whoever gathers,
and however early, leases for as long as gathering takes; what is gathered is FSDP's own memory, and so is what it
reduces gradients in. A shard of the gradient goes to Terrace as soon as FSDP has made it. Of what is not FSDP's, modules
lease the shards that they have, as they lease other parameters.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._leased.shown import owner_of
from .._parameters.gradient import Room
from .._parameters.like import Like
from .._parameters.shard import ManagedShard, Reference, ShardGradient
from .._parameters.shard_casts import cast_of
from .._pytorch.split import is_split, local_of
from .._tensors.offloaded import OffloadedTensor
from .fsdp import groups_of

if TYPE_CHECKING:
    from .._leased.slot import Slot
    from .._leased.store import Store
    from .._pytorch.private import FSDPParam, FSDPParamGroup


class OffloadedShard(OffloadedTensor):
    """This rank's shard of a parameter."""

    terrace_group: _Group
    terrace_padded: torch.Size  # what FSDP gathers of each rank; that of the last ones may have less
    terrace_shard: ManagedShard

    def terrace_alias(self) -> OffloadedShard:
        """Another one: what casts and moves a module may put it in this one's place."""
        made = OffloadedShard.of(self.terrace_slot, self.terrace_store)
        made.terrace_group = self.terrace_group
        made.terrace_padded = self.terrace_padded
        made.terrace_shard = self.terrace_shard
        return made

    def fsdp_pre_all_gather(self, mesh: Any, outer_size: torch.Size, outer_stride: tuple[int, ...], module: nn.Module,
                            mp_policy: Any) -> tuple[tuple[torch.Tensor, ...], None]:
        """What is gathered: the same values that FSDP gathers of a shard in memory."""
        shown = self.terrace_group.lease_for(self, mp_policy.param_dtype)
        if shown.shape != self.terrace_padded:
            padded = shown.new_zeros(self.terrace_padded)
            padded[:len(shown)].copy_(shown)
            shown = padded
        if mp_policy.param_dtype is not None and shown.is_floating_point():
            shown = shown.to(mp_policy.param_dtype)
        return (shown,), None

    def fsdp_post_all_gather(self, all_gather_outputs: Sequence[torch.Tensor], metadata: None,
                             param_dtype: torch.dtype, *, out: torch.Tensor | None = None) -> Any:
        """The parameter, of what was gathered: the same memory."""
        return None if out is not None else (all_gather_outputs[0], ())


class _Group:
    """The shards that FSDP gathers together, which are leased as one set."""

    def __init__(self, group: FSDPParamGroup, store: Store):
        self._reference = weakref.ref(group)
        self._store = store
        self._waiting: dict[Slot, torch.Tensor] = {}  # leased with the first of them, and not asked for yet

    def lease_for(self, shard: OffloadedShard, dtype: torch.dtype | None) -> torch.Tensor:
        """The shard's leased memory, or what its cast is in. dtype: in which it is gathered; None: in its own."""
        if shard.terrace_slot not in self._waiting:
            self._waiting = self._lease(self._shards(), dtype)
        return self._waiting.pop(shard.terrace_slot)

    def _shards(self) -> list[ManagedShard]:
        group = self._reference()
        assert group is not None  # it asks
        found = []
        for one in group.fsdp_params:
            shard = one._sharded_local_tensor
            if isinstance(shard, OffloadedShard):
                shard.terrace_shard.gradient.watch()  # it may have been unfrozen
                shard.terrace_shard.gradient.begin()
                found.append(shard.terrace_shard)
        return found

    def _lease(self, shards: Sequence[ManagedShard], dtype: torch.dtype | None) -> dict[Slot, torch.Tensor]:
        """Leases shards, or their casts, as one set, and writes the casts that are not what the shards are; by the shards'
        slots."""
        self._store.drop_unneeded()
        forms = [cast_of(shard, dtype) for shard in shards]
        current = [form.slot if form is not None and form.is_current() else None for form in forms]
        shown = self._store.lease([cast or shard.slot for shard, cast in zip(shards, current, strict=True)])
        for at, (form, cast) in enumerate(zip(forms, current, strict=True)):
            if form is not None and cast is None and (made := form.write(shown[at])) is not None:
                shown[at] = made  # the shard is not shown any more
                form.note_same()
            if form is not None:
                form.used = True
        return dict(zip((shard.slot for shard in shards), shown, strict=True))


class Shards:
    """Those of one job."""

    def __init__(self, store: Store, names: Mapping[nn.Parameter, tuple[str, str]], model: nn.Module,
                 gradient_like: Callable[[nn.Parameter, Like], Like]):
        """Makes room for them, and for their gradients. names: of the parameters to take, with their modules. gradient_like:
        what the gradient is made like of a parameter that is this slot."""
        self._store = store
        self._gradient_like = gradient_like
        groups = groups_of(model)
        self._references = {id(one): _in_module(part, key) for part in model.modules() for key, one in part._parameters.items()
                            if is_split(one)}
        self._references |= {id(one.sharded_param): _referred(one) for group in groups for one in group.fsdp_params}
        self._sets: list[list[_Moving]] = []
        left = dict.fromkeys(names)
        for group in groups:
            chosen = {one.sharded_param: one for one in group.fsdp_params if one.sharded_param in names}
            left = {one: None for one in left if one not in chosen}
            if chosen:
                made = self._make(list(chosen), names)
                its = _Group(group, store)
                self._sets.append([_OfGroup(one, chosen[one.parameter], its) for one in made])
        self._alone = [_Moving(one) for one in self._make(list(left), names)]
        self._by = {id(one.shard.parameter): one for one in self.all}

    def _make(self, parameters: Sequence[nn.Parameter], names: Mapping[nn.Parameter, tuple[str, str]]) -> list[ManagedShard]:
        slots = self._store.create([(*names[one], local_of(one)) for one in parameters])
        likes = [self._gradient_like(one, slot) for one, slot in zip(parameters, slots, strict=True)]
        trained = [like for one, like in zip(parameters, likes, strict=True) if one.requires_grad]
        made = self._store.create([(f"{like.name}/grad", like.owner, like.placeholder) for like in trained])
        rooms = {id(like): [room] for like, room in zip(trained, made, strict=True)}
        references = [self._references[id(one)] for one in parameters]
        return [ManagedShard(reference, slot, self._store, ShardGradient(reference, self._store, Room(like, rooms.get(id(like), []))))
                for reference, slot, like in zip(references, slots, likes, strict=True)]

    @property
    def alone(self) -> dict[int, ManagedShard]:
        """Those that modules lease, by the parameters' ids."""
        return {id(one.shard.parameter): one.shard for one in self._alone}

    @property
    def all(self) -> Iterator[_Moving]:
        """Each of them."""
        return itertools.chain(*self._sets, self._alone)

    def slot_of(self, parameter: nn.Parameter) -> Slot | None:
        """Where this rank's shard of a parameter is in Terrace, if it is one of these."""
        local = local_of(parameter)
        if isinstance(local, OffloadedTensor) and local.terrace_store is self._store:
            return local.terrace_slot
        found = self.shard_of(parameter)
        return None if found is None else found.slot

    def shard_of(self, parameter: nn.Parameter) -> ManagedShard | None:
        """What belongs to this rank's shard of a parameter, if it is one of these."""
        found = self._by.get(id(parameter))
        return found.shard if found is not None and found.is_of(parameter) else None

    def reference_to(self, parameter: nn.Parameter) -> Reference | None:
        """What refers to a parameter that is split over ranks, also where its shard stays in memory."""
        found = self._references.get(id(parameter))
        return found if found is not None and found() is parameter else None

    def largest(self) -> tuple[int, str]:
        """Bytes of the largest set that is leased at once, and what it is."""
        return max(((sum(one.slot.room_bytes for one in its), f"the group of '{its[0].slot.name}', gathered together,")
                    for its in self._sets), default=(0, ""))

    def move_in(self) -> None:
        """Moves them to Terrace."""
        for one in self.all:
            one.move_in()

    def replaced(self) -> list[str]:
        """The names of those that are not in Terrace any more: the model was given others."""
        return [one.slot.name for one in self.all if one.is_replaced()]


def _referred(of: FSDPParam) -> Reference:
    """What refers to the parameter that FSDP has, whichever that is."""
    reference = weakref.ref(of)

    def parameter() -> nn.Parameter | None:
        found = reference()
        return None if found is None else found.sharded_param

    return parameter


def _in_module(part: nn.Module, key: str) -> Reference:
    """What refers to the parameter that a module has under a name."""
    reference = weakref.ref(part)

    def parameter() -> nn.Parameter | None:
        found = reference()
        held = None if found is None else found._parameters.get(key)
        return held if is_split(held) else None

    return parameter


class _Moving:
    """One shard on its way to Terrace, or back."""

    def __init__(self, shard: ManagedShard):
        self.shard = shard
        self.slot = shard.slot
        self._store = shard.store
        self._moved = False

    def move_in(self) -> None:
        """Moves it to Terrace."""
        found: Any = self.shard.parameter
        (shown,) = self._store.lease([self.slot], "overwrite")
        shown.copy_(found._local_tensor)
        found._local_tensor = self._made()
        self._moved = True
        self.shard.gradient.watch()

    def _made(self) -> OffloadedTensor:
        """What is the local tensor from now on."""
        return OffloadedTensor.of(self.slot, self._store)

    def restore(self) -> None:
        """Makes it an ordinary one again, if it was moved."""
        found: Any = self.shard.reference()
        if found is not None and isinstance(found._local_tensor, OffloadedTensor):
            (shown,) = self._store.lease([self.slot])
            found._local_tensor = shown.clone()
            self.shard.gradient.unwatch()

    def is_of(self, parameter: nn.Parameter) -> bool:
        """Whether it is the shard of this very parameter, and in Terrace, or on its way there."""
        if self.shard.reference() is not parameter:
            return False
        return not self._moved or self._is_there(local_of(parameter))

    def is_replaced(self) -> bool:
        """Whether the model was given another parameter."""
        found = self.shard.reference()
        return found is not None and not self._is_there(local_of(found))

    def _is_there(self, local: torch.Tensor) -> bool:
        """Whether a local tensor is the shard in Terrace, leased or not."""
        owner = None if isinstance(local, OffloadedTensor) else owner_of(local)
        return isinstance(local, OffloadedTensor) or (owner is not None and owner() is self.slot)


class _OfGroup(_Moving):
    """One that FSDP gathers with others."""

    def __init__(self, shard: ManagedShard, of: FSDPParam, group: _Group):
        super().__init__(shard)
        self._of = weakref.ref(of)
        self._group = group

    def move_in(self) -> None:
        super().move_in()
        of: Any = self._of()
        # By this FSDP knows that it has what belongs to the local tensor; it is read in no other way.
        of._sharded_param_data = self.slot.placeholder.view(-1)
        of._init_extensions()

    def _made(self) -> OffloadedTensor:
        of: Any = self._of()
        made = OffloadedShard.of(self.slot, self._store)
        made.terrace_group = self._group
        made.terrace_padded = of.padded_sharded_param_size
        made.terrace_shard = self.shard
        return made

    def restore(self) -> None:
        super().restore()
        of: Any = self._of()
        if of is not None:
            of.reset_sharded_param()

# SPDX-License-Identifier: Apache-2.0
"""Casts of shards: of a shard in float32, which FSDP gathers in a narrower type, a second form in that type, kept in Terrace.

Gathering copies what it is given, so that nobody has a cast's content for longer than that takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..._errors import ResourceExhausted
from .._leased.slot import Slot
from .._pytorch.modes import ordinary
from .._pytorch.private import raw
from . import casts
from .forms import SecondForm
from .shard import ManagedShard


class ShardCast(SecondForm):
    """The cast of one shard to one type."""

    def __init__(self, shard: ManagedShard, dtype: torch.dtype):
        super().__init__(shard.reference, shard)
        self._shard = shard
        self._dtype = dtype
        self.slot: Slot | None = None  # where it is, once it was written
        self.used = False  # since it was written

    def write(self, shown: torch.Tensor) -> torch.Tensor | None:
        """Casts the shard, which is shown by this; note_same() is due once it is not. What shows the cast; None where there is
        no room for it now."""
        self.note_different()
        store, own = self._shard.store, self._shard.slot
        if store.client.leased_bytes + own.room_bytes // 2 > store.guarantee_bytes:
            return None
        try:
            if self.slot is None:
                self.slot = self._made(own)
            (cast,) = store.lease([self.slot], "overwrite")
        except ResourceExhausted:
            return None
        with torch.no_grad(), raw():
            cast.copy_(shown)
        self.used = False
        return cast

    def _made(self, own: Slot) -> Slot:
        store, geometry = self._shard.store, own.placeholder
        with ordinary():
            like = torch.empty_strided(geometry.shape, geometry.stride(), dtype=self._dtype, device="meta")
        (slot,) = store.create([(f"{own.name}/{self._dtype}".replace("torch.", ""), own.owner, like)], [own.device])
        store.plan()
        return slot

    def let_go(self) -> None:
        """Deletes it."""
        self.note_different()
        if self.slot is not None:
            self._shard.store.forget([self.slot])
            self.slot = None


def cast_of(shard: ManagedShard, dtype: torch.dtype | None) -> ShardCast | None:
    """The cast of a shard to the type in which it is gathered, where it pays; without content where it is new. dtype: None: it
    is gathered in its own."""
    found: ShardCast | None = shard.casts.get(dtype)
    if found is None and dtype in casts.NARROW and _pays(shard):
        found = shard.casts[dtype] = ShardCast(shard, dtype)
    return found


def _pays(shard: ManagedShard) -> bool:
    """Whether gathering a shard's cast in its place may be worth it, where all of a job does not fit."""
    own, store = shard.slot, shard.store
    return own.dtype is torch.float32 and own.nbytes >= casts.BYTES_MIN and not store.fits()


def write_casts_of(shards: Sequence[ManagedShard], shown: Sequence[torch.Tensor]) -> list[ShardCast]:
    """A step has written to shards, which are shown by these: casts that were used since the step before are made anew, and
    those that were not are deleted. Those of which note_same() is due once the shards are not shown."""
    written = []
    for shard, tensor in zip(shards, shown, strict=True):
        for form in list(shard.casts.values()):
            if not form.used:
                form.let_go()
            elif form.write(tensor) is not None:
                written.append(form)
    return written

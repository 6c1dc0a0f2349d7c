# SPDX-License-Identifier: Apache-2.0
"""Frozen parameters that the ranks of a node have in common: held once, in a share, and read side by side.

The first of a daemon's ranks makes the share and fills it. The others compare what they have with it, bit for bit, and
let go of their own. From then on nobody writes there. The share ends with the last of them. Ranks that lease in different
places have a share for each place, since a tensor is leased in one at a time.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..._client import Client
from ..._errors import Error, FailedPrecondition, InvalidArgument, PermissionDenied, ResourceExhausted
from ..._terrace import Tensor
from .._leased.slot import Slot, copy_bits
from .._leased.store import Store, Wanted
from .._pytorch.bits import same_bits
from .together import Ranks, digest, number

_CALL = "terrace.torch.offload(share_frozen=True)"
_TEAR_SECONDS = 1.0  # that other ranks' reading is waited for
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


class SharedStore(Store):
    """The share's tensors, as one rank sees them: to be read."""

    writable = False
    refusals_that_pass = (ResourceExhausted, FailedPrecondition)  # who waits for other ranks is to hold no lease meanwhile

    def __init__(self, client: Client, own: Store, wanted: Sequence[Wanted], ranks: int):
        """client: of the share alone, which is closed with the store. own: this rank's store for what is trained."""
        size = sum(like.nbytes for _, _, like in wanted)
        super().__init__(client, own.place, own.timeout, 2 * size + (1 << 20), own.operations, own.tally)
        self.ranks = ranks

    def fill(self, wanted: Sequence[Wanted]) -> dict[str, str]:
        """Makes the tensors; their names in the share, by the parameters'."""
        for slot, (_, _, like) in zip(self.create(wanted), wanted, strict=True):
            (shown,) = self.lease([slot], "overwrite")
            copy_bits(shown, like)
            del shown
        return {slot.name: slot.tensor.name for slot in self.slots}

    def find(self, wanted: Sequence[Wanted], names: Mapping[str, str]) -> None:
        """Takes those that another rank has made. InvalidArgument where this one has other bits."""
        found = self.client.find([names[name] for name, _, _ in wanted], timeout=self.timeout)
        for slot, (name, _, like) in zip(self._over(wanted, found), wanted, strict=True):
            (shown,) = self.lease([slot], noted=False)
            if not same_bits(shown, like):
                raise InvalidArgument(
                    f"{_CALL}: the frozen parameter '{name}' has other values on another rank of this node: give all "
                    "ranks the same ones, as DistributedDataParallel(model) does, or offload without share_frozen")
            del shown

    def written(self, slot: Slot) -> None:
        self.refuse_writes(slot)

    def may_be_written(self, slot: Slot) -> None:
        """Nothing is noted: what was written is refused when it is seen."""

    def refuse_writes(self, slot: Slot, *, done: bool = False) -> None:
        if done:
            self._tear(slot)
        said = ("was written to while its module ran, so that it is lost to all ranks: begin again, and write"
                if done else "was to be written to: write")
        raise PermissionDenied(
            f"the frozen parameter '{slot.name}', which is shared with the node's other ranks (share_frozen=True), "
            f"{said} before terrace.torch.offload(), or offload without share_frozen")

    def _tear(self, slot: Slot) -> None:
        """What is there is nobody's parameter any more: whoever reads it is told so, unless somebody does just now."""
        with contextlib.suppress(Error):
            for lease in self.client._acquire([slot.tensor], "overwrite", self.place, _TEAR_SECONDS, True):
                lease.abandon()

    @staticmethod
    def _end(client: Client, tensors: list[Tensor]) -> None:
        """The tensors are the other ranks' as well."""
        with contextlib.suppress(Error):
            client.close()
        tensors.clear()


class _Rank(NamedTuple):
    """One rank, as the others see it."""

    daemon: tuple[Any, ...]  # and the place there: who has the same can share
    frozen: str  # a digest of what is frozen, which those are to have alike


def share(own: Store, wanted: Sequence[Wanted], everyone: Ranks) -> SharedStore:
    """The store of what the ranks have in common, with a slot for each tensor. All ranks call this, and where one of
    them raises all do.

    own: this rank's store. everyone: the ranks, in this call. The share is guaranteed what its session is, but no more
    than is in it.
    """
    client, rank = own.client, number()
    ranks: list[_Rank] = everyone.together(lambda: _described(own, wanted))
    here = [at for at, one in enumerate(ranks) if one.daemon == ranks[rank].daemon]
    alike = len(set(ranks)) == len({one.daemon for one in ranks})  # so all ranks find
    frozen = [] if alike else everyone.together(lambda: _frozen(wanted))
    opened: list[SharedStore] = []

    def make() -> tuple[str, dict[str, str]] | None:
        if frozen:
            _check_alike(frozen[rank], [frozen[at] for at in here])
        if rank != here[0]:
            return None
        name = f"terrace.torch/{secrets.token_hex(8)}"
        made = client.create_share(name, guarantees=_guarantees(own, wanted), label=f"rank {rank}",
                                   timeout=own.timeout)
        opened.append(SharedStore(made, own, wanted, len(here)))
        return name, opened[0].fill(wanted)

    def join() -> None:
        if rank != here[0]:
            found = client.open_share(name, write=True, label=f"rank {rank}", timeout=own.timeout)
            opened.append(SharedStore(found, own, wanted, len(here)))
            opened[0].find(wanted, names)

    try:
        name, names = everyone.together(make)[here[0]]
        everyone.together(join)
    except BaseException:
        for store in opened:
            store.destroy()
        raise
    return opened[0]


def _described(own: Store, wanted: Sequence[Wanted]) -> _Rank:
    """This rank. A daemon's socket is told from all others, and who comes through it from other users."""
    if not wanted:
        raise InvalidArgument(f"{_CALL}: no parameter is frozen, or fully_shard() has split those that are, which are "
                              "there once: requires_grad_(False) what is not trained, or offload without share_frozen")
    socket = os.stat(own.client.socket)
    return _Rank((_BOOT.read_text(), socket.st_dev, socket.st_ino, os.geteuid(), own.place), digest(_frozen(wanted)))


def _frozen(wanted: Sequence[Wanted]) -> dict[str, tuple[Any, ...]]:
    """By name what of each parameter is to be alike."""
    return {name: (tuple(like.shape), like.stride(), str(like.dtype)) for name, _, like in wanted}


def _check_alike(own: dict[str, Any], ranks: Sequence[dict[str, Any]]) -> None:
    for other in ranks:
        for name in own | other:
            if own.get(name) != other.get(name):
                raise InvalidArgument(
                    f"{_CALL}: the parameter '{name}' is not frozen on every rank of this node, or not of the same "
                    "shape and type: the same model is to have the same ones frozen, or offload without share_frozen")


def _guarantees(own: Store, wanted: Sequence[Wanted]) -> dict[str, int]:
    size = sum(like.nbytes for _, _, like in wanted)
    return {offer.name: min(offer.guarantee_bytes, size) if offer.name == own.place else 0
            for offer in own.client.places()}

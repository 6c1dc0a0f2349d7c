# SPDX-License-Identifier: Apache-2.0
"""Whether what a job leases at once can be had."""

import math
import warnings
from collections.abc import Sequence

from torch import nn

from ..._errors import ResourceExhausted
from .._leased.place import Place
from .._leased.store import Store
from .._model import modules
from .._optimizer.optimizer import ManagedOptimizer
from .._parameters.in_memory import ParameterInMemory
from .._ranks.shards import Shards


def _most_at_once(model: nn.Module, store: Store, place: Place, shards: Shards, in_memory: Sequence[ParameterInMemory],
                  stepped: Sequence[ManagedOptimizer]) -> tuple[int, str]:
    """Bytes of the largest set that the job leases in a place from its own session at once, and what leases it."""
    most, what = max(modules.largest(model, store, place), shards.largest(),
                     *((one.like.room_bytes, f"the gradient of '{one.name}'") for one in in_memory
                       if store.place_on(one.like.placeholder.device) is place))
    for optimizer in stepped:
        of_step, name = optimizer.states.largest(store, place)
        if of_step > most:
            most, what = of_step, f"the optimizer's step on '{name}'"
    return most, what


def check_room(model: nn.Module, store: Store, shards: Shards, in_memory: Sequence[ParameterInMemory],
               stepped: Sequence[ManagedOptimizer]) -> None:
    """Looks at all that the job leases from its own session at once."""
    for place in store.places:
        check_fits(store, place, *_most_at_once(model, store, place, shards, in_memory, stepped))
    check_host_room(stepped)


def check_host_room(stepped: Sequence[ManagedOptimizer]) -> None:
    """Looks at what steps lease of the host's memory at once, where the model is elsewhere."""
    for optimizer in stepped:
        states = optimizer.states
        if states.own_store is not states.store:
            place = states.own_store.places[0]
            most, name = states.largest(states.own_store, place)
            check_fits(states.own_store, place, most, f"the optimizer's step on '{name}'")


def check_fits(store: Store, place: Place, most: int, what: str) -> None:
    """Raises ResourceExhausted if what is leased at once can never be; warns, once, if it is more than guaranteed."""
    mib = math.ceil(most / (1 << 20))
    if most > place.capacity_bytes:
        raise ResourceExhausted(
            f"terrace.torch.offload: {what} leases {most} bytes at once, and {place.name} has {place.capacity_bytes}: "
            f"give the daemon at least {mib} MiB of memory, or make the module smaller")
    of_all = most if store.ranks == 1 else min(most * store.ranks, store.bytes)
    if of_all > place.guarantee_bytes:
        mib = math.ceil(of_all / (1 << 20))
        ranks = "" if store.ranks == 1 else f" of what {store.ranks} ranks share, each by itself"
        warnings.warn(
            f"terrace.torch.offload: {what} leases {most} bytes at once{ranks}, and this session is guaranteed "
            f"{place.guarantee_bytes} bytes of {place.name}: while other sessions want theirs it may be refused. "
            f"Connect with terrace.Client(guarantees={{'{place.name}': {mib} << 20}})", stacklevel=5)  # where offload() was called


def check_shared_room(model: nn.Module, shared: Store | None) -> None:
    """Looks at what it leases at once of what other ranks have as well."""
    if shared is not None:
        place = shared.places[0]
        check_fits(shared, place, *modules.largest(model, shared, place))

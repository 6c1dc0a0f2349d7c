# SPDX-License-Identifier: Apache-2.0
"""Buffers that never move: for communication, preprocessing, and whatever else holds on to an address."""

import gc
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import torch

from ... import _checks
from ..._client import Client
from ..._errors import AlreadyExists, DeadlineExceeded, InvalidArgument, ResourceExhausted
from ..._terrace import Lease, Tensor
from .._device.device import device_of
from .._device.streams import stream_of, tensor_of
from .._leased.default_client import client_for
from .._pytorch.storages import over, shown

LOOK_SECONDS = 0.1  # after which it is looked whether leases may end yet
_CALL = "terrace.torch.scratch"
_numbers = itertools.count()


def scratch(shape: SupportsIndex | Sequence[SupportsIndex], dtype: torch.dtype = torch.float32, *,
            client: Client | None = None, place: str = "host") -> torch.Tensor:
    """A tensor over memory of Terrace that stays leased, so that it never moves and is never swapped out.

        buffer = terrace.torch.scratch((1024, 1024), torch.bfloat16)

    It is like torch.empty: contiguous, and its content is undefined. It counts as leased against the session's
    guarantee (client.leased_bytes), and is given back when the tensor and all views of it are gone.

    client: None: one of the process, opened when first needed. place: "host", or "device:N".
    ResourceExhausted, which names the number to change, where the session cannot lease so much at once. Leases are waited
    for, but not where this session's own leave no room and this is the script's only thread: nobody would end them.
    """
    owner = client_for(_CALL, client)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{_CALL}: dtype is {dtype!r}; it is a torch.dtype")
    extents = _extents(shape)
    size = math.prod(extents) * dtype.itemsize
    if size == 0:
        return torch.empty(extents, dtype=dtype, device=device_of(owner, place))
    try:
        storage = leased_storage(owner, _CALL, size, lambda tensor: _lease(owner, tensor, place))
    except ResourceExhausted as error:
        raise ResourceExhausted(
            f"{_CALL}: no {size} bytes that stay leased: {error}; this session holds {owner.leased_bytes} bytes leased "
            f'already: open it with terrace.Client(guarantees={{"{place}": {size + owner.leased_bytes}}}) or more') from error
    return over(storage, dtype, 0, extents, _strides(extents))


def _lease(client: Client, tensor: Tensor, place: str) -> Lease:
    try:
        return tensor.overwrite(place=place, timeout=LOOK_SECONDS)
    except DeadlineExceeded:
        pass  # room is being made
    except ResourceExhausted:
        gc.collect()  # what is gone may be held by a cycle
        capacity = next((offer.capacity_bytes for offer in client.places() if offer.name == place), 0)
        if threading.active_count() == 1 and client.leased_bytes + tensor.nbytes > capacity:
            raise
    return tensor.overwrite(place=place)


def _extents(shape: SupportsIndex | Sequence[SupportsIndex]) -> list[int]:
    extents = _checks.extents(_CALL, shape)
    if any(extent < 0 for extent in extents):
        raise InvalidArgument(f"{_CALL}: shape is {extents}; extents are 0 or more")
    return extents


def _strides(extents: list[int]) -> list[int]:
    return [math.prod(extents[at + 1:]) for at in range(len(extents))]


def leased_storage(client: Client, name: str, size: int, take: Callable[[Tensor], Lease]) -> torch.UntypedStorage:
    """A storage of `size` bytes of undefined content that stay leased as long as it is there, and go with it.

    take: leases a tensor of that size to overwrite it.
    """
    tensor = _create(client, name, size)
    try:
        with take(tensor) as lease:
            return _shown(lease).untyped_storage()
    finally:
        client.delete([tensor])  # the name goes now, the bytes with the lease


def _shown(lease: Lease) -> torch.Tensor:
    """A tensor over what is leased, of the host's memory or of a GPU's."""
    return shown(lease) if lease.cuda_device is None else tensor_of(lease.__dlpack__(stream=stream_of(lease.cuda_device)))


def _create(client: Client, name: str, size: int) -> Tensor:
    while True:
        try:
            return client.create(f"{name}/{next(_numbers)}", size, "uint8")
        except AlreadyExists:  # a name that the script took
            continue

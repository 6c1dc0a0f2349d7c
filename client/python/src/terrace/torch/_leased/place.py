# SPDX-License-Identifier: Apache-2.0
"""One place in which a job leases: the memory of the host, or of one GPU. A model that is on several GPUs has several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._device.device import device_of
from .._device.streams import Mark, check_not_captured
from .order import Order
from .passing import Passing
from .placeholder import PlaceholderSpace

if TYPE_CHECKING:
    from ..._client import Client
    from .slot import Slot


class Place:
    """What a job has there."""

    def __init__(self, client: Client, name: str, bytes_expected: int, *, alone: bool):
        """alone: nobody else uses what the job has there."""
        self.name = name
        self.device = device_of(client, name)
        self.space = PlaceholderSpace(bytes_expected, self.device)
        self.order = Order(client, name, alone=alone)
        self.passing = Passing(client, name)
        offer = next(offer for offer in client.places() if offer.name == name)
        self.capacity_bytes = offer.capacity_bytes
        self.guarantee_bytes = offer.guarantee_bytes
        self.bytes = 0  # of the job's tensors that are leased there
        self.unneeded: set[Slot] = set()
        self._mark: Mark | None = None  # in a GPU's stream: once it is passed, unneeded slots may be told of

    def passed(self) -> bool:
        """Whether the GPU has passed what lay in its stream when this was asked first; then it is asked anew."""
        check_not_captured(self.device)
        if self._mark is None:
            self._mark = Mark(self.device)
            return False
        passed = self._mark.passed()
        if passed:
            self._mark = None
        return passed

    def plan(self) -> None:
        """Fetches ahead from now on, if not everything fits."""
        self.order.ahead_bytes = self.guarantee_bytes // 4 if self.bytes > self.guarantee_bytes else 0
        # Unless a session asks for more it is guaranteed half of its part.
        self.order.room_bytes = min(self.capacity_bytes, 2 * self.guarantee_bytes)

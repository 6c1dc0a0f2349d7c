# SPDX-License-Identifier: Apache-2.0
"""Room that is asked for before it is needed, several tensors at a time: what is laid away next finds it there."""

from collections import deque
from collections.abc import Sequence

from ..._client import TIMEOUT_SECONDS, Client
from .asked import Asked, Together
from .box import Box


class Ahead:
    """Boxes that are leased to be overwritten, in the order in which they are going to be. Its user has a lock."""

    def __init__(self) -> None:
        self._waiting: deque[Box] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, client: Client, boxes: Sequence[Box]) -> None:
        """These come after the others."""
        group = Together(client._acquire_later([box.tensor for box in boxes], "overwrite", "host", TIMEOUT_SECONDS))
        for at, box in enumerate(boxes):
            box.asked = Asked(group, at)
        self._waiting += boxes
        self.nbytes += sum(box.size for box in boxes)

    def next(self, size: int) -> Box | None:
        """The next one, if it is of this size."""
        if not self._waiting or self._waiting[0].size != size:
            return None
        self.nbytes -= size
        return self._waiting.popleft()

    def clear(self) -> list[Box]:
        """None of them is needed: the boxes, which are leased until they are given up."""
        boxes = list(self._waiting)
        self._waiting.clear()
        self.nbytes = 0
        return boxes

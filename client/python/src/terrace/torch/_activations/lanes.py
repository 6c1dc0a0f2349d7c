# SPDX-License-Identifier: Apache-2.0
"""Copies between leased memory and a GPU, on two streams of ours: what is laid away goes down on one, what backward uses next
comes up on the other, both beside the script's kernels. A stream of the script's waits for events alone.

All of the GPU's memory is of the script's streams, which use it again in their own order, so that steps alike take the same
memory. What goes down is held until the script's stream has waited for its copy; what comes up goes to memory that the stream
which is going to use it has made room for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..._terrace import Lease
from .._device.streams import Mark, Stream, current_stream, stream_of, use_in

UNDER_WAY_BYTES_MAX = 16 << 20  # of a GPU's memory, that is held while it is copied, or made room in ahead of its use; or one storage


class Fetched(NamedTuple):
    """What is copied to a GPU, or was."""

    tensor: torch.Tensor
    stream: Stream  # of whose memory it is
    mark: Mark  # behind the copy

    def give_up(self) -> None:
        """Nobody uses it: its memory is not used again before the copy has come."""
        self.mark.come_before(self.stream)


def join(tensor: torch.Tensor, mark: Mark) -> None:
    """Has the current stream use what was fetched."""
    current = current_stream(tensor.device)
    mark.come_before(current)
    use_in(tensor, current)


class _Held(NamedTuple):
    """What is copied down, and by whom its memory was used last."""

    source: torch.Tensor
    mark: Mark
    stream: Stream


class Lanes:
    """Those of one GPU. Thread-safe."""

    def __init__(self, device: torch.device):
        self._device = device
        self._down = torch.Stream(device)
        self._up = torch.Stream(device)
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def lay(self, source: torch.Tensor, target: torch.Tensor, lease: Lease) -> Mark:
        """Begins to copy a GPU's tensor to leased memory; the lease ends behind the copy. What is behind it."""
        stream = follow_from(self._down)
        use_in(source, stream)  # it may be another one's memory
        mark = self._copy(self._down, source, target, lease)
        with self._lock:
            self._held.append(_Held(source, mark, stream))
            self._held_bytes += source.nbytes
            done = self._beyond(UNDER_WAY_BYTES_MAX)
        _let_go(done)
        return mark

    def fetch(self, source: torch.Tensor, laid: Mark | None, lease: Lease) -> Fetched:
        """Begins to copy leased memory to a GPU; the lease ends behind the copy. laid: what has to be there before."""
        made = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        stream = follow_from(self._up)  # the memory may yet be in use
        if laid is not None:
            laid.come_before(self._up)
        return Fetched(made, stream, self._copy(self._up, source, made, lease))

    def settle(self) -> None:
        """Nothing is laid away for a while: holds nothing any more."""
        with self._lock:
            done = self._beyond(0)
        _let_go(done)

    def _copy(self, lane: Stream, source: torch.Tensor, target: torch.Tensor, lease: Lease) -> Mark:
        try:
            with lane:
                target.copy_(source, non_blocking=True)
                lease.release(stream_of(self._device.index))
                return Mark(self._device)
        except BaseException:  # nobody is to have the memory while it is copied
            lane.synchronize()
            raise

    def _beyond(self, bytes_max: int) -> list[_Held]:
        """What is held beyond so many bytes, but for the last one if any may be held."""
        done = []
        while self._held_bytes > bytes_max and len(self._held) > (bytes_max > 0):
            done.append(self._held.popleft())
            self._held_bytes -= done[-1].source.nbytes
        return done


def follow_from(lane: Stream) -> Stream:
    """Has a lane wait for what lies in the current stream, which is returned."""
    current = current_stream(lane.device)
    lane.wait_stream(current)
    return current


def _let_go(held: Sequence[_Held]) -> None:
    """The streams that used them last wait for the copies, behind which their memory may be used again."""
    for one in held:
        one.mark.come_before(one.stream)


_lanes: dict[torch.device, Lanes] = {}
_lock = threading.Lock()


def lanes_of(device: torch.device) -> Lanes:
    """Those of a GPU, which are made when they are needed first."""
    with _lock:
        found = _lanes.get(device)
        if found is None:
            found = _lanes[device] = Lanes(device)
        return found


def settle() -> None:
    """Nothing is laid away for a while, of any GPU."""
    with _lock:
        made = list(_lanes.values())
    for one in made:
        one.settle()

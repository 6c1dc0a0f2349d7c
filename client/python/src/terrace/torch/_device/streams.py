# SPDX-License-Identifier: Apache-2.0
"""What a device with streams is asked: the current one, waits and marks in it, whether it is captured, and DLPack's number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..._errors import FailedPrecondition
from .accelerators import Stream as Stream
from .accelerators import in_force

_CAPTURED = ("terrace.torch: a CUDA graph was being captured as something in Terrace was to be leased, and would use the "
             "address of this one lease for good: capture only what works on ordinary memory")


def has_streams(device: torch.device) -> bool:
    """Whether what is done on a device goes on behind Python, in streams: on a GPU, and not on the CPU."""
    return device.type == in_force().kind


def can_be_in_terrace(device: torch.device) -> bool:
    """Whether tensors on a device can be in Terrace: the CPU's, and a GPU's of the kind in force."""
    return device.type == "cpu" or has_streams(device)


def is_captured(device: torch.device) -> bool:
    """Whether the current stream of a GPU is being captured into a graph."""
    return in_force().is_capturing(device)


def check_not_captured(device: torch.device) -> None:
    """Raises FailedPrecondition while the current stream of a GPU is captured into a graph."""
    if is_captured(device):
        raise FailedPrecondition(_CAPTURED)


def stream_of(index: int) -> int:
    """The current stream of a GPU, by its number for DLPack and for the end of a lease."""
    return in_force().stream_number(index)


def tensor_of(capsule: Any) -> torch.Tensor:
    """A tensor over the memory that a DLPack capsule of terrace's shows."""
    return in_force().tensor_of(capsule)


def current_stream(device: torch.device) -> Stream:
    """Behind which the script's work on a device lies now."""
    return in_force().current_stream(device)


def follow(device: torch.device, stream: Stream | None) -> Stream:
    """The current stream of a GPU, behind what lies in another one of its streams just now."""
    current = current_stream(device)
    if stream is not None and stream != current:
        current.wait_stream(stream)
    return current


def use_in(tensor: torch.Tensor, stream: Stream) -> None:
    """Has a tensor's memory be kept until a stream has come so far as now, where it may have been made on another one."""
    tensor.record_stream(stream)


def copied_down(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU, in pinned memory, of a dense tensor on a GPU. Waits for it."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)
    return made.copy_(tensor)


def wait_for_stream(device: torch.device) -> None:
    """Waits until a GPU has done what lies in this thread's current stream. The CPU has done so."""
    if has_streams(device):
        current_stream(device).synchronize()


@contextlib.contextmanager
def beside(device: torch.device, mark: Mark | None) -> Iterator[None]:
    """Has what this thread does on a GPU lie in a stream of its own, behind a mark in another one. Does nothing on the CPU,
    where there is no mark."""
    if mark is None:
        yield
        return
    stream = torch.Stream(device)
    mark.come_before(stream)
    with stream:
        yield


class Mark:
    """A mark in a GPU's current stream, as it is made."""

    def __init__(self, device: torch.device):
        self._event = in_force().event(device)

    def passed(self) -> bool:
        """Whether the GPU has come to it."""
        return bool(self._event.query())

    def come_before(self, stream: Stream) -> None:
        """Has what lies in a stream from now on wait for it."""
        stream.wait_event(self._event)


def generators() -> Sequence[torch.Generator]:
    """Of random numbers, those of GPUs that are in use."""
    return in_force().generators()

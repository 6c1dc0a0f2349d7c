# SPDX-License-Identifier: Apache-2.0
"""The kind of device with streams that this process computes on, and all that is asked of it: CUDA's, or a test's.

One kind is in force at a time. Whatever else knows a kind by name asks here.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch

from .._pytorch.private import from_capsule, raw_stream

Stream = torch.Stream


class Accelerator(abc.ABC):
    """A kind of device. What PyTorch asks of each of its accelerators in one way stands here; the rest is the kind's."""

    kind: str  # as torch.device has it

    def current_stream(self, device: torch.device) -> Stream:
        """Behind which the calling thread's work on a device lies."""
        return torch.accelerator.current_stream(device)

    def event(self, device: torch.device) -> torch.Event:
        """An event in a device's current stream, as it is now."""
        event = torch.Event(device)
        event.record(self.current_stream(device))
        return event

    def synchronize(self, device: torch.device) -> None:
        """Waits until a device is idle."""
        torch.accelerator.synchronize(device)

    @abc.abstractmethod
    def stream_number(self, index: int) -> int:
        """The driver's number of a device's current stream, which DLPack has, too."""

    @abc.abstractmethod
    def is_capturing(self, device: torch.device) -> bool:
        """Whether a device's current stream is captured into a graph."""

    @abc.abstractmethod
    def tensor_of(self, capsule: Any) -> torch.Tensor:
        """A tensor over what a DLPack capsule of terrace's shows, be it the host's memory or a GPU's."""

    @abc.abstractmethod
    def give_back_free(self, device: torch.device) -> None:
        """Has PyTorch give the memory of a device back that it has freed and keeps for itself."""

    @abc.abstractmethod
    def free_bytes(self, device: torch.device) -> int:
        """What is free of a device's memory, and what PyTorch has freed of it and keeps for itself."""

    @abc.abstractmethod
    def generators(self) -> Sequence[torch.Generator]:
        """Of random numbers, those of devices that are in use."""


class Cuda(Accelerator):
    """NVIDIA's GPUs, and AMD's, which PyTorch shows under the same names."""

    kind = "cuda"

    def stream_number(self, index: int) -> int:
        """See Accelerator."""
        return int(raw_stream(index))

    def is_capturing(self, device: torch.device) -> bool:
        """See Accelerator."""
        if device.index == torch.cuda.current_device():
            return bool(torch.cuda.is_current_stream_capturing())
        with torch.cuda.device(device):
            return bool(torch.cuda.is_current_stream_capturing())

    def tensor_of(self, capsule: Any) -> torch.Tensor:
        """See Accelerator."""
        return from_capsule(capsule)

    def give_back_free(self, device: torch.device) -> None:
        """See Accelerator."""
        if torch.cuda.is_initialized():
            with torch.cuda.device(device):
                torch.cuda.empty_cache()

    def free_bytes(self, device: torch.device) -> int:
        """See Accelerator."""
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(kept)

    def generators(self) -> Sequence[torch.Generator]:
        """See Accelerator."""
        return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


_in_force: Accelerator = Cuda()


def use(accelerator: Accelerator) -> None:
    """Has another kind be in force: before anything was leased."""
    global _in_force
    _in_force = accelerator


def in_force() -> Accelerator:
    """The kind that is asked."""
    return _in_force

# SPDX-License-Identifier: Apache-2.0
"""What a job on a GPU asks of PyTorch: where it computes, the streams behind which its leases end, and its cache."""

from typing import Any

import torch

from .._client import Client
from .._errors import FailedPrecondition
from ._heap import give_back_free_pages

_CAPTURED = ("terrace.torch: a CUDA graph was being captured as something in Terrace was to be leased, and would use the "
             "address of this one lease for good: capture only what works on ordinary memory")
_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # not of a PyTorch without CUDA


def device_of(client: Client, place: str) -> torch.device:
    """Where PyTorch computes on what is leased in a place. FailedPrecondition where this process cannot see that GPU."""
    cuda_device = client._cuda_device(place)
    return torch.device("cpu") if cuda_device is None else torch.device("cuda", cuda_device)


def check_not_captured() -> None:
    """Raises FailedPrecondition while the current stream is captured into a graph."""
    if torch.cuda.is_current_stream_capturing():
        raise FailedPrecondition(_CAPTURED)


def stream_of(cuda_device: int) -> int:
    """The current stream of a GPU, by its number for DLPack."""
    return int(_stream(cuda_device))


def give_back_free(device: torch.device) -> None:
    """Gives what PyTorch has freed on a device, and keeps for itself, back to the system, so that the daemon can have it."""
    if device.type == "cpu":
        give_back_free_pages()
    else:
        torch.cuda.empty_cache()

# SPDX-License-Identifier: Apache-2.0
"""What a job on a GPU asks of PyTorch: where it computes, the streams behind which its leases end, and its cache."""

import time

import torch

from ..._client import Client
from ..._errors import FailedPrecondition
from .._pytorch.private import raw_stream
from .heap import give_back_free_pages

_CAPTURED = ("terrace.torch: a CUDA graph was being captured as something in Terrace was to be leased, and would use the "
             "address of this one lease for good: capture only what works on ordinary memory")
_LOOK_SECONDS = 0.005  # the thread that ends leases looks more often
_LOOKS_MAX = 200


def device_of(client: Client, place: str) -> torch.device:
    """Where PyTorch computes on what is leased in a place. FailedPrecondition where this process cannot see that GPU."""
    cuda_device = client._cuda_device(place)
    return torch.device("cpu") if cuda_device is None else torch.device("cuda", cuda_device)


def is_captured(device: torch.device) -> bool:
    """Whether the current stream of a GPU is being captured into a graph."""
    if device.index == torch.cuda.current_device():
        return bool(torch.cuda.is_current_stream_capturing())
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


def check_not_captured(device: torch.device) -> None:
    """Raises FailedPrecondition while the current stream of a GPU is captured into a graph."""
    if is_captured(device):
        raise FailedPrecondition(_CAPTURED)


def stream_of(cuda_device: int) -> int:
    """The current stream of a GPU, by its number for DLPack."""
    return int(raw_stream(cuda_device))


def follow(device: torch.device, stream: torch.cuda.Stream | None) -> torch.cuda.Stream:
    """The current stream of a GPU, behind what lies in another one of its streams just now."""
    current: torch.cuda.Stream = torch.cuda.current_stream(device)
    if stream is not None and stream != current:
        current.wait_stream(stream)
    return current


def wait_for_leases(client: Client, device: torch.device) -> None:
    """Waits until a GPU is idle, and the leases have ended that were to end behind its streams: as long as there are fewer
    from look to look, and no longer than a second."""
    torch.cuda.synchronize(device)
    held, looks = client.held, _LOOKS_MAX
    while looks:
        time.sleep(_LOOK_SECONDS)
        looks, held, before = looks - 1, client.held, held
        if held == before:
            return


def give_back_free(device: torch.device) -> None:
    """Gives what PyTorch has freed on a device, and keeps for itself, back to the system, so that the daemon can have it."""
    if device.type == "cpu":
        give_back_free_pages()
    elif torch.cuda.is_initialized():
        with torch.cuda.device(device):
            torch.cuda.empty_cache()

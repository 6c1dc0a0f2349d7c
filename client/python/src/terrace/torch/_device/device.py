# SPDX-License-Identifier: Apache-2.0
"""Which device a place is the memory of, the end of leases behind its streams, and what its allocator keeps."""

import torch

from ..._client import Client
from .accelerators import in_force
from .heap import give_back_free_pages


def device_of(client: Client, place: str) -> torch.device:
    """Where PyTorch computes on what is leased in a place. FailedPrecondition where this process cannot see that GPU."""
    cuda_device = client._cuda_device(place)
    return torch.device("cpu") if cuda_device is None else torch.device(in_force().kind, cuda_device)


def wait_for_leases(client: Client, device: torch.device) -> None:
    """Waits until a GPU is idle, and, for a second at most, until the leases have ended that were to end behind its streams."""
    in_force().synchronize(device)
    client._await_passed()


def give_back_free(device: torch.device) -> None:
    """Gives what PyTorch has freed on a device, and keeps for itself, back to the system, so that the daemon can have it."""
    if device.type == "cpu":
        give_back_free_pages()
    else:
        in_force().give_back_free(device)

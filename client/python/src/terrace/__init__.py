# SPDX-License-Identifier: Apache-2.0
"""Terrace's Python client: tensors that the node's daemon keeps in HBM, DRAM and NVMe, and leases to this process.

    import terrace, torch

    with terrace.serve(memory="4GiB", block="/scratch:50GiB") as client:  # or terrace.Client(), where a daemon runs
        weights = client.from_array("weights", torch.randn(4096, 4096))
        with weights.read() as lease:                                     # leased: it stays where it is
            print(torch.from_dlpack(lease).norm())                        # no copy

A lease is a context manager; within it `lease.numpy()` is a numpy array and `torch.from_dlpack(lease)` a tensor over
the leased memory itself. Every array or tensor made from a lease owns a part of it: the lease ends with the last of
them, so none can dangle. Arrays of a read lease are read-only (PyTorch ignores that; see docs/reference/python.md). Calls that
wait release the GIL and can be interrupted by signals. All are thread-safe; none works in a forked child.
"""

from ._client import Client, LeaseSet, Place
from ._errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from ._serve import ServedClient, serve
from ._terrace import Lease, Tensor

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "Client",
    "DataLoss",
    "DeadlineExceeded",
    "Error",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "Lease",
    "LeaseSet",
    "NotFound",
    "PermissionDenied",
    "Place",
    "ResourceExhausted",
    "ServedClient",
    "Tensor",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "serve",
]

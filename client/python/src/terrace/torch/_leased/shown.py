# SPDX-License-Identifier: Apache-2.0
"""Which tensors show memory that Terrace leases: whoever moves tensors of its own leaves these alone.

A leased copy stays at its address for as long as anything shows it, so that an address names the lease while the lease
goes on, and is no proof of anything afterwards.
"""

from typing import Any

import torch

from ..._terrace import Lease

_ENTRIES_MIN = 1024

_shown: dict[int, tuple[Lease, Any]] = {}
_prune_at = _ENTRIES_MIN


def base_address(tensor: torch.Tensor) -> int:
    """Where the tensor's storage begins. The tensor is strided, and its memory the CPU's or a GPU's."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def remember(address: int, lease: Lease, owner: Any) -> None:
    """Says that a lease is shown at an address, on behalf of `owner` (a weak reference, where the owner has its own
    life)."""
    global _prune_at
    _shown[address] = (lease, owner)
    if len(_shown) >= _prune_at:
        for stale in [at for at, (held, _) in list(_shown.items()) if not held.shown]:
            _shown.pop(stale, None)
        _prune_at = max(_ENTRIES_MIN, 2 * len(_shown))


def owner_of(tensor: torch.Tensor) -> Any:
    """On whose behalf the memory that a tensor shows is leased; None where it is not leased."""
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter):
        return None
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    entry = _shown.get(base_address(tensor))
    return entry[1] if entry is not None and entry[0].shown else None


def is_managed(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows (a part of) memory that is leased from Terrace."""
    return owner_of(tensor) is not None

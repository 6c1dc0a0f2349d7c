# SPDX-License-Identifier: Apache-2.0
"""torch.utils.dlpack.to_dlpack(), which PyTorch asks no tensor about: it is given leased memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .._pytorch.private import TO_DLPACK
from .offloaded import OffloadedParameter, OffloadedTensor


def lease_for_capsules() -> None:
    """Looks at what is made a capsule from now on, by whoever looks the function up in PyTorch's modules."""
    for holder, name in TO_DLPACK:
        theirs = getattr(holder, name)
        if not hasattr(theirs, "terrace"):
            setattr(holder, name, _leasing(theirs))


def _leasing(to_dlpack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(to_dlpack)
    def leasing(tensor: Any) -> Any:
        if isinstance(tensor, OffloadedTensor | OffloadedParameter):
            return type(tensor).__torch_function__(to_dlpack, (type(tensor),), (tensor,))
        return to_dlpack(tensor)

    leasing.terrace = True  # type: ignore[attr-defined]
    return leasing

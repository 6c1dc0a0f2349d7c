# SPDX-License-Identifier: Apache-2.0
"""What of a tensor is in this process: of a DTensor, which is split over ranks, its local tensor."""

from typing import Any


def is_split(tensor: Any) -> bool:
    """Whether it is a DTensor. torch.distributed.tensor is not imported for the question."""
    return hasattr(tensor, "_local_tensor")


def is_made_of_others(tensor: Any) -> bool:
    """Whether it is over other tensors, which it names (`__tensor_flatten__`), and has no memory itself; but for a DTensor."""
    return hasattr(tensor, "__tensor_flatten__") and not is_split(tensor)


def local_of(tensor: Any) -> Any:
    """A DTensor's local tensor, and any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)

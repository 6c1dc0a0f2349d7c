# SPDX-License-Identifier: Apache-2.0
"""What of a tensor is in this process: of a DTensor, which is split over ranks, its local tensor."""

from typing import Any

import torch

from .modes import ordinary
from .private import split_alike


def is_split(tensor: Any) -> bool:
    """Whether it is a DTensor. torch.distributed.tensor is not imported for the question."""
    return hasattr(tensor, "_local_tensor")


def is_made_of_others(tensor: Any) -> bool:
    """Whether it is over other tensors, which it names (`__tensor_flatten__`), and has no memory itself; but for a DTensor."""
    return hasattr(tensor, "__tensor_flatten__") and not is_split(tensor)


def local_of(tensor: Any) -> Any:
    """A DTensor's local tensor, and any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def bytes_of(tensor: Any) -> int:
    """What a tensor takes of this process's memory: of one that is over others, as quantized weights are, what those take."""
    its = local_of(tensor)
    if is_made_of_others(its):
        return sum(bytes_of(getattr(its, name)) for name in its.__tensor_flatten__()[0])
    return int(its.nbytes)


def split_as(whole: Any, local: torch.Tensor, geometry: torch.Tensor | None = None) -> Any:
    """A DTensor that is split as another one is, of which this is the local tensor, of any type; the local tensor itself
    where the other is not split. geometry: an ordinary tensor of its geometry; None: it is one."""
    if not is_split(whole):
        return local
    with ordinary(), torch.no_grad():
        made = split_alike(whole, local if geometry is None else geometry)
    made._local_tensor = local
    return made

# SPDX-License-Identifier: Apache-2.0
"""Files that others write by the package `safetensors`: save_pretrained(), the checkpoints of a Trainer, Accelerate.

safetensors.torch.save_file() takes the addresses of a file's tensors before it writes the first, which would hold all of
them leased. Where one of them is in Terrace, ours writes the same bytes, and leases a tensor at a time.
"""

import functools
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from .._tensors.offloaded import OffloadedParameter, OffloadedTensor
from . import file_format
from .checkpoint import item_of
from .converted import ConvertedTensor, convert_when_written
from .staged import stage_leased

SaveFile = Callable[..., None]
_OURS = (OffloadedTensor, ConvertedTensor)


def stream_saves() -> None:
    """Has safetensors.torch.save_file() write what is in Terrace a tensor at a time, whoever calls it, and
    torch.distributed.checkpoint.async_save() copy it so."""
    stage_leased()
    convert_when_written()
    if importlib.util.find_spec("safetensors") is None:
        return
    import safetensors.torch

    theirs: SaveFile = safetensors.torch.save_file
    if hasattr(theirs, "terrace"):
        return
    ours = _streaming(theirs)
    for module in list(sys.modules.values()):  # many have imported it by name
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is theirs:
                setattr(module, name, ours)


def _streaming(theirs: SaveFile) -> SaveFile:
    @functools.wraps(theirs)
    def save_file(tensors: dict[str, torch.Tensor], filename: str | os.PathLike[str],
                  metadata: dict[str, str] | None = None) -> None:
        if isinstance(tensors, dict):  # a parameter's address is its placeholder's
            tensors = {name: one.detach() if isinstance(one, OffloadedParameter) else one
                       for name, one in tensors.items()}
        if _is_ours(tensors):
            items = [item_of(name, tensor) for name, tensor in tensors.items()]
            file_format.write(filename, file_format.in_file_order(items), metadata)
        else:
            theirs(tensors, filename, metadata)

    save_file.terrace = True  # type: ignore[attr-defined]
    return save_file


def _is_ours(tensors: Any) -> bool:
    """Whether something of it is in Terrace, and it is what save_file() takes: what it refuses it refuses itself."""
    if not isinstance(tensors, dict) or not any(isinstance(one, _OURS) for one in tensors.values()):
        return False
    plain = all(isinstance(one, torch.Tensor) and one.layout is torch.strided and one.is_contiguous()
                and file_format.can_name(one.dtype) for one in tensors.values())
    return plain and not _overlap(list(tensors.values()))


def _overlap(tensors: list[torch.Tensor]) -> bool:
    """Whether two of these contiguous tensors have an element in common."""
    slots = [one.terrace_slot for one in tensors if isinstance(one, OffloadedTensor)]
    areas = sorted((str(one.device), one.data_ptr(), one.data_ptr() + one.nbytes)
                   for one in tensors if not isinstance(one, _OURS) and one.nbytes)
    return len(set(slots)) < len(slots) or any(
        here[0] == there[0] and there[1] < here[2] for here, there in itertools.pairwise(areas))

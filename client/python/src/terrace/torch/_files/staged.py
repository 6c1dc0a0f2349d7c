# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint.async_save() copies before it returns: a state's tensors, storage by storage.

Its stager takes the storages of tensors, and copies attributes with them. A tensor in Terrace is handed to it as the leased
one, for as long as it copies that.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from .._pytorch.private import STAGER, STAGER_COPY, STAGER_MODULE
from .._tensors.offloaded import OffloadedParameter, OffloadedTensor

Copy = Callable[..., torch.Tensor]


def stage_leased() -> None:
    """Has PyTorch's stager copy what is in Terrace, whoever calls it. It is imported by those who need it, and takes its
    time: what is not there yet is seen to as it comes."""
    if STAGER_MODULE not in sys.modules:
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
        return
    stager = getattr(sys.modules[STAGER_MODULE], STAGER, None)
    theirs = getattr(stager, STAGER_COPY, None)
    if theirs is not None and not hasattr(theirs, "terrace"):
        setattr(stager, STAGER_COPY, _leasing(theirs))


class _Finder:
    """What is asked for modules that are imported: finds the stager as ever, and sees to it once it is there."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != STAGER_MODULE:
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                stage_leased()

            loader.exec_module = exec_module
        return spec


def _leasing(theirs: Copy) -> Copy:
    @functools.wraps(theirs)
    def copy(self: Any, tensor: torch.Tensor, memo: dict[int, Any], *more: Any, **options: Any) -> torch.Tensor:
        given = tensor.detach() if isinstance(tensor, OffloadedParameter) else tensor
        if not isinstance(given, OffloadedTensor):
            return theirs(self, given, memo, *more, **options)
        slot = given.terrace_slot
        if id(slot) not in memo:
            # A memo of its own: theirs knows storages by ids, which those of leased memory have one after the other.
            memo[id(slot)] = theirs(self, given.terrace_store.read_once(slot), {}, *more, **options)
        memo[id(tensor)] = copied = memo[id(slot)].detach()  # of tied weights one storage
        return copied

    copy.terrace = True  # type: ignore[attr-defined]
    return copy

# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a model fully_shard() (FSDP2) has split over ranks, and what of it cannot be offloaded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..._errors import FailedPrecondition, InvalidArgument
from .._tensors.offloaded import OffloadedTensor

if TYPE_CHECKING:
    from .._pytorch.private import FSDPParam, FSDPParamGroup

_CALL = "terrace.torch.offload"


def groups_of(model: nn.Module) -> list[FSDPParamGroup]:
    """The groups of parameters that FSDP gathers together, each once; none where FSDP was not imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return []
    states = [part._get_fsdp_state() for part in model.modules() if isinstance(part, fsdp.FSDPModule)]
    if not all(hasattr(state, "_fsdp_param_groups") for state in states):
        raise InvalidArgument(f"{_CALL}: how fully_shard() of PyTorch {torch.__version__} keeps what it has split is "
                              "not known; 2.13 works")
    return list(dict.fromkeys(group for state in states for group in state._fsdp_param_groups))


def check_groups(model: nn.Module) -> None:
    """Raises InvalidArgument for what fully_shard() was told that cannot be offloaded, and FailedPrecondition for a
    model that is not as it is between steps."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in groups_of(model):
        if not group.is_sharded:
            raise FailedPrecondition(
                f"{_CALL}: parameters that fully_shard() has split are gathered now, as in the midst of a step, or "
                "after a forward pass without a backward pass: call reshard() on the modules that have them first")
        _check_types(names, group)
        for one in group.fsdp_params:
            _check(names.get(one.sharded_param, one._module_info.param_name), group, one)


def _check_types(names: dict[nn.Parameter, str], group: FSDPParamGroup) -> None:
    trained = [one.sharded_param for one in group.fsdp_params if one.sharded_param.requires_grad]
    for one in trained[1:]:
        if one.dtype != trained[0].dtype:
            raise InvalidArgument(
                f"{_CALL}: the parameters '{names.get(trained[0])}' in {trained[0].dtype} and '{names.get(one)}' in {one.dtype} "
                "are of one group of fully_shard(), which reduces gradients of one type alone: cast the model to one type "
                "before it is split, or split modules of another type by themselves")


def _check(name: str, group: FSDPParamGroup, one: FSDPParam) -> None:
    what = f"{_CALL}: the parameter '{name}' was split by fully_shard()"
    if one.offload_to_cpu:
        raise InvalidArgument(f"{what} with CPUOffloadPolicy, which keeps it in memory as well; leave "
                              "offload_policy out")
    if group._use_post_forward_mesh:
        raise InvalidArgument(f"{what} with a number as reshard_after_forward, which keeps other shards after the "
                              "forward pass; use True or False")
    if one.is_dtensor:
        raise InvalidArgument(f"{what} after it was a DTensor already (tensor parallelism), which cannot be offloaded; "
                              "fully_shard() alone works")
    if isinstance(one._sharded_local_tensor, OffloadedTensor):
        raise FailedPrecondition(f"{_CALL}: the parameter '{name}' is offloaded already, with another model: offload models "
                                 "that share one together, as a torch.nn.ModuleList of them")
    if type(one._sharded_local_tensor) is not torch.Tensor:
        raise InvalidArgument(f"{what} and is a {type(one._sharded_local_tensor).__name__}; ordinary parameters can be "
                              "offloaded")

# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel around what is offloaded: what of it would be silently wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from ..._errors import FailedPrecondition
from .._pytorch.private import active_wrapper

if TYPE_CHECKING:
    from .._parameters.in_memory import ParameterInMemory
    from .._parameters.parameter import ManagedParameter


def wrong_with(wrapper: DistributedDataParallel, in_backward: bool, wide: bool = False) -> str:
    """What of it cannot be had, and what to do; empty where all can. wide: gradients of another type than their weights'."""
    if wide:
        return ("gradients=torch.float32 cannot be had with DistributedDataParallel, which averages gradients in the "
                "weights' type: leave gradients out")
    if wrapper.gradient_as_bucket_view:
        return ("DistributedDataParallel with gradient_as_bucket_view=True makes every gradient a view of its own "
                "buffers; build it without")
    if in_backward:
        return ("step_in_backward=True cannot be had with DistributedDataParallel, which averages a gradient over the "
                "ranks only after it has come, when its parameter would have been stepped; offload without it")
    return ""


def check_running(parameters: Sequence[ManagedParameter | ParameterInMemory]) -> None:
    """Raises FailedPrecondition where a wrapper that was built after offload() runs these, and would be wrong."""
    wrapper = active_wrapper()
    if wrapper is None:
        return
    wrong = wrong_with(wrapper, any(one.gradient is not None and one.gradient.in_backward for one in parameters),
                       any(one.gradient is not None and one.gradient.sum_in is not None for one in parameters))
    trained = [one for one in parameters if one.parameter.requires_grad] if wrong else []
    if not trained:
        return
    reduced = {id(parameter) for name, parameter in wrapper.module.named_parameters()
               if name not in wrapper.parameters_to_ignore}
    for one in trained:
        if id(one.parameter) in reduced:
            raise FailedPrecondition(f"the parameter '{one.name}' is in Terrace, and {wrong}")

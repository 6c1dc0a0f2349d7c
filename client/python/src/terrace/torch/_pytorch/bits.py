# SPDX-License-Identifier: Apache-2.0
"""Whether two tensors hold the same bits."""

import torch


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor is what it would be if the other one were copied to it."""
    if one.shape != other.shape:
        return False
    here, there = (part.detach().to(one.dtype).reshape(-1).contiguous().view(torch.uint8) for part in (one, other))
    return torch.equal(here, there)

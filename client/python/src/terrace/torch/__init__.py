# SPDX-License-Identifier: Apache-2.0
"""Terrace for PyTorch scripts: what a script trains lives in the node's tiers, and is leased when it is used.

    model, optimizer = terrace.torch.offload(model, optimizer)
"""

from . import _operations as _operations
from ._managed import is_managed
from ._offload import offload

__all__ = ["is_managed", "offload"]

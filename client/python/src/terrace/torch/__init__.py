# SPDX-License-Identifier: Apache-2.0
"""Terrace for PyTorch scripts: what a script trains lives in the node's tiers, and is leased when it is used.

    model, optimizer = terrace.torch.offload(model, optimizer)
"""

from . import _operations as _operations
from ._checkpoint import load, save
from ._managed import is_managed
from ._offload import offload
from ._summary import ModuleSummary, Summary, summary

__all__ = ["ModuleSummary", "Summary", "is_managed", "load", "offload", "save", "summary"]

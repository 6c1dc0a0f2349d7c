# SPDX-License-Identifier: Apache-2.0
"""Terrace for PyTorch scripts: what a script trains lives in the node's tiers, and is leased when it is used.

    model, optimizer = terrace.torch.offload(model, optimizer)  # parameters, gradients, optimizer states
    with terrace.torch.activations():                           # what autograd saves
        loss = model(batch).mean()
        loss.backward()
"""

from typing import TYPE_CHECKING, Any

from ._activations.activations import Activations, activations
from ._buffers.scratch import scratch
from ._buffers.stage import Stage, StagedBatches, stage
from ._files.checkpoint import load, save
from ._leased.shown import is_managed
from ._offload.init import init
from ._offload.offload import offload
from ._optimizer.kinds import declare, elementwise
from ._reports.estimate import Estimate, StepEstimate, estimate
from ._reports.progress import progress
from ._reports.summary import ActivationsSummary, LeaseSummary, ModuleSummary, Overview, Summary, summary

if TYPE_CHECKING:
    from ._reports.lightning import LightningCallback as LightningCallback
    from ._reports.trainer import TerraceCallback as TerraceCallback

__all__ = ["Activations", "ActivationsSummary", "Estimate", "LeaseSummary", "ModuleSummary", "Overview", "Stage", "StagedBatches",
           "StepEstimate", "Summary", "activations", "declare", "elementwise", "estimate", "init", "is_managed", "load", "offload", "progress", "save",
           "scratch", "stage", "summary"]


def __getattr__(name: str) -> Any:
    """The callbacks, which need `transformers` and `lightning`, are imported when they are asked for."""
    if name == "TerraceCallback":
        from ._reports.trainer import TerraceCallback

        return TerraceCallback
    if name == "LightningCallback":
        from ._reports.lightning import LightningCallback

        return LightningCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

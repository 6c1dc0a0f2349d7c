# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer: a callback that offloads what it fits. Imported when it is asked for, as it needs `lightning`, or
`pytorch_lightning`."""

from collections.abc import Iterable
from typing import Any

import torch

from ..._client import TIMEOUT_SECONDS, Client
from .._offload.job import is_offloaded, was_left
from .._offload.offload import TENSOR_BYTES_MIN, offload
from .._optimizer.optimizer import managed_optimizer

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    from pytorch_lightning import Callback, LightningModule, Trainer


class LightningCallback(Callback):  # type: ignore[misc]
    """Moves what a Trainer of Lightning's fits to Terrace when its fit begins, as offload() does.

        lightning.Trainer(callbacks=[terrace.torch.LightningCallback()]).fit(module, data)

    Losses, weights and checkpoints are those without it. What a fit resumes from is read into Terrace. The module stays there
    afterwards, and is validated, saved and fitted again as ever. At the end of a run Lightning moves the module and the
    optimizers' states to the CPU: these stay where they are. Arguments are offload()'s, but for step_in_backward: Lightning
    runs the backward pass within the optimizer's step. InvalidArgument, as a fit begins, for what offload() refuses.
    """

    def __init__(self, *, client: Client | None = None, what: str | Iterable[str] | None = None, place: str | None = None,
                 masters: torch.dtype | None = None, gradients: torch.dtype | None = None, step: str | None = None,
                 share_frozen: bool = False,
                 tensor_bytes_min: int = TENSOR_BYTES_MIN, timeout: float = TIMEOUT_SECONDS):
        self._options: dict[str, Any] = {
            "client": client, "what": what, "place": place, "masters": masters, "gradients": gradients, "step": step,
            "share_frozen": share_frozen, "tensor_bytes_min": tensor_bytes_min, "timeout": timeout}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """A run begins, of any kind; the module is not on its device yet."""
        if not hasattr(trainer.strategy.teardown, "terrace"):
            trainer.strategy.teardown = _Teardown(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The module is on its device, and has its optimizers; what it resumes from is not read yet."""
        new = [one for one in trainer.optimizers if managed_optimizer(one) is None]
        if new or not is_offloaded(pl_module):
            offload(pl_module, new or None, **self._options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Other callbacks have done what they do as a fit begins, and may have given it other optimizers."""
        if not was_left(pl_module):
            self.on_fit_start(trainer, pl_module)


class _Teardown:
    """What a strategy does at the end of a run, but for moving what is in Terrace to the CPU."""

    terrace = True

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._teardown = trainer.strategy.teardown

    def __call__(self) -> None:
        strategy, module = self._trainer.strategy, self._trainer.lightning_module
        if module is None or not is_offloaded(module):
            self._teardown()
            return
        optimizers, strategy.optimizers = strategy.optimizers, []
        module.cpu = lambda: module
        try:
            self._teardown()
        finally:
            strategy.optimizers = optimizers
            del module.cpu

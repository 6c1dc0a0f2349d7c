# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer: a callback that offloads what it trains. Imported when it is asked for, as it needs
`transformers`."""

import pathlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn, optim
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ... import _checks
from ..._client import TIMEOUT_SECONDS, Client
from ..._errors import InvalidArgument
from .._offload.job import is_offloaded, job_of
from .._offload.offload import TENSOR_BYTES_MIN, offload
from .._optimizer.optimizer import managed_optimizer, unwrapped
from .._optimizer.saved_masters import resumed_state
from .progress import Meter

_CALL = "terrace.torch.TerraceCallback"


class TerraceCallback(TrainerCallback):  # type: ignore[misc]
    """Moves what a Trainer trains to Terrace when the training begins, as offload() does.

        Trainer(model, arguments, train_dataset=data, callbacks=[terrace.torch.TerraceCallback()]).train()

    `log_history` is a list of its own, with one entry for each loss that the Trainer logs: the step, and since the entry
    before `hit_ratio`, of the leases those that found all in place, and `wait_share`, of the time what leasing took.

    With masters, what it resumes from is read once more: the Trainer has cast the optimizer's state to the weights' type.

    Losses, weights, checkpoints and what the Trainer logs are those without it. The model stays in Terrace afterwards: it
    is evaluated, saved and trained on as ever. Arguments are offload()'s, but for step_in_backward: a Trainer looks at
    all gradients for the norm that it logs. InvalidArgument for what offload() refuses, and for torch_compile=True.
    """

    def __init__(self, *, client: Client | None = None, what: str | Iterable[str] | None = None,
                 place: str | None = None, masters: torch.dtype | None = None, gradients: torch.dtype | None = None,
                 step: str | None = None, share_frozen: bool = False, tensor_bytes_min: int = TENSOR_BYTES_MIN, timeout: float = TIMEOUT_SECONDS):
        self.client = client
        self.what = what
        self.masters = masters
        self.gradients = gradients
        self.step = step
        self.share_frozen = _checks.flag(_CALL, "share_frozen", share_frozen)
        self.place = None if place is None else _checks.text(_CALL, "place", place)
        self.tensor_bytes_min = _checks.count(_CALL, "tensor_bytes_min", tensor_bytes_min, 1 << 40)
        self.timeout = _checks.seconds(_CALL, "timeout", timeout)
        self.log_history: list[dict[str, float]] = []
        self._meter: Meter | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                       model: nn.Module | None = None, optimizer: optim.Optimizer | None = None,
                       **kwargs: Any) -> None:
        """The Trainer has its model and its optimizer, with what it resumed from, and has not begun."""
        if model is None or optimizer is None:
            raise InvalidArgument(f"{_CALL}: there is no model or no optimizer to train; it is a callback of a Trainer")
        if is_offloaded(model) and managed_optimizer(optimizer) is not None:
            return  # trained once more
        if args.torch_compile:
            raise InvalidArgument(f"{_CALL}: torch_compile=True compiles the whole model; leave it out, and give the "
                                  "Trainer a model whose blocks are compiled by torch.compile(block)")
        steps = unwrapped(optimizer)
        resumed = None if self.masters is None else resumed_state(steps, _checkpoints(args, state))
        if resumed is not None:
            steps.state.clear()
        offload(model, optimizer, client=self.client, what=self.what, place=self.place, masters=self.masters,
                gradients=self.gradients, step=self.step, share_frozen=self.share_frozen, tensor_bytes_min=self.tensor_bytes_min,
                timeout=self.timeout)
        if resumed is not None:
            steps.load_state_dict(resumed)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                      model: nn.Module | None = None, **kwargs: Any) -> None:
        """The Trainer is about to take a step."""
        if model is not None and is_offloaded(model):
            store = job_of(model).store
            if self._meter is None or self._meter.store is not store:
                self._meter = Meter(store)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
               logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """The Trainer logs something."""
        if self._meter is not None and logs is not None and "loss" in logs:
            past = self._meter.take()
            self.log_history.append({"step": state.global_step, "hit_ratio": round(past.hit_ratio, 4),
                                     "wait_share": round(past.wait_share, 4)})


def _checkpoints(args: TrainingArguments, state: TrainerState) -> list[pathlib.Path]:
    """Where the optimizer's state may be that a Trainer has resumed from."""
    named = [] if not isinstance(args.resume_from_checkpoint, str) else [pathlib.Path(args.resume_from_checkpoint)]
    written = pathlib.Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
    return [folder / "optimizer.pt" for folder in (*named, written)]

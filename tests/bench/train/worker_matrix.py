# SPDX-License-Identifier: Apache-2.0
"""The equality matrix: a small model trained in every combination, each compared with plain PyTorch, bit for bit."""

import contextlib
import itertools

import torch
from gpt_model import loss_of
from torch.utils.checkpoint import checkpoint
from worker_training import Served, make_model

PARTS = ("parameters", "gradients", "states")
OFFLOADED = (*PARTS, "model", "model and optimizer", "activations", "all", "all, stepping in backward")


def combinations():
    """(what is offloaded, bf16 autocast, checkpointing, accumulated batches) of each."""
    return [(what, bfloat16, checkpointing, batches)
            for bfloat16, checkpointing, batches in itertools.product((False, True), (False, True), (1, 2))
            for what in OFFLOADED if batches == 1 or "backward" not in what]


class Matrix(Served):
    """SPEC's steps: of each combination."""

    def make(self):
        self.client = self.serve()
        self._plain = {}

    def describe(self):
        return {"combinations": len(combinations()), "steps": self.spec["steps"]}

    def run(self, index):
        """Trains one combination: its words, and at which step its losses differ first (null: nowhere)."""
        what, *how = combinations()[index]
        if tuple(how) not in self._plain:
            self._plain[tuple(how)] = self._train(None, *how)
        ours, plain = self._train(what, *how), self._plain[tuple(how)]
        differs = next((step for step, (one, other) in enumerate(zip(ours, plain, strict=True))
                        if one.hex() != other.hex()), None)
        words = [what, "bf16 autocast" if how[0] else "fp32", *(["checkpointing"] if how[1] else []),
                 *(["accumulation"] if how[2] > 1 else [])]
        return {"words": ", ".join(words), "steps": len(ours), "differs": differs}

    def _train(self, what, bfloat16, checkpointing, batches):
        import terrace.torch

        model = make_model(self.shape, self.recipe.seed)
        optimizer = self.recipe.optimizer(list(model.parameters()))
        if what in PARTS:
            terrace.torch.offload(model, optimizer, client=self.client, what=what)
        elif what == "model":
            terrace.torch.offload(model, client=self.client)
        elif what not in (None, "activations"):
            terrace.torch.offload(model, optimizer, client=self.client, step_in_backward="backward" in what)
        losses = []
        for step in range(self.spec["steps"]):
            for number in range(batches):
                moving = (contextlib.nullcontext() if what in (None, *PARTS, "model", "model and optimizer")
                          else terrace.torch.activations(self.client, min_bytes=1024))
                with moving:
                    loss = self._loss(model, step * batches + number, bfloat16, checkpointing) / batches
                    loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return losses

    def _loss(self, model, number, bfloat16, checkpointing):
        source, target = self.batch(number)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            hidden = source
            for layer in model:
                if checkpointing and hidden.is_floating_point():
                    hidden = checkpoint(layer, hidden, use_reentrant=False)
                else:
                    hidden = layer(hidden)
            return loss_of(hidden, target)

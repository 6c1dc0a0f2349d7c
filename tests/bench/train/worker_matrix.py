# SPDX-License-Identifier: Apache-2.0
"""The equality matrix: a small model trained in every combination, each compared with plain PyTorch, bit for bit."""

import contextlib
import itertools

import torch
from copies import Copies
from gpt_model import loss_of
from torch.utils.checkpoint import checkpoint
from worker_training import Served, make_model

PARTS = ("parameters", "gradients", "states")
OFFLOADED = (*PARTS, "model", "model and optimizer", "activations", "all", "all, stepping in backward")
STEPPED = ("states", "model and optimizer", "all", "all, stepping in backward")  # where an optimizer is in Terrace
PRECISIONS = ("fp32", "bf16 autocast", "bf16 with fp32 masters")


def combinations():
    """(what is offloaded, precision, checkpointing, accumulated batches) of each."""
    return [(what, precision, checkpointing, batches)
            for precision, checkpointing, batches in itertools.product(PRECISIONS, (False, True), (1, 2))
            for what in (STEPPED if "masters" in precision else OFFLOADED) if batches == 1 or "backward" not in what]


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
        words = [what, how[0], *(["checkpointing"] if how[1] else []), *(["accumulation"] if how[2] > 1 else [])]
        return {"words": ", ".join(words), "steps": len(ours), "differs": differs}

    def _offloaded(self, what, precision):
        """The model and its optimizer. what: of OFFLOADED; None: nothing is."""
        import terrace.torch

        model = make_model(self.shape, self.recipe.seed)
        options = {"client": self.client, "what": "all"}
        if "masters" in precision:
            model.to(torch.bfloat16)
            options["masters"] = torch.float32
        weights = list(model.parameters())
        if "masters" in precision and what is None:
            return model, Copies(weights, self.recipe.optimizer)
        optimizer = self.recipe.optimizer(weights)
        if what in PARTS:
            terrace.torch.offload(model, optimizer, **options | {"what": what})
        elif what == "model":
            terrace.torch.offload(model, **options)
        elif what not in (None, "activations"):
            terrace.torch.offload(model, optimizer, step_in_backward="backward" in what, **options)
        return model, optimizer

    def _train(self, what, precision, checkpointing, batches):
        import terrace.torch

        model, optimizer = self._offloaded(what, precision)
        losses = []
        for step in range(self.spec["steps"]):
            for number in range(batches):
                moving = (contextlib.nullcontext() if what in (None, *PARTS, "model", "model and optimizer")
                          else terrace.torch.activations(self.client, min_bytes=1024))
                with moving:
                    loss = self._loss(model, step * batches + number, "autocast" in precision, checkpointing) / batches
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

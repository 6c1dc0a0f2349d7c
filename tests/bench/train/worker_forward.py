# SPDX-License-Identifier: Apache-2.0
"""Jobs that only run forward, through a model that memory does not hold."""

import torch
from gpt_model import loss_of, make_layer
from worker_training import Job, Served, make_model


class _Forward:
    """A step is one pass."""

    def step(self, number):
        source, target = self.batch(number)
        with torch.no_grad():
            return loss_of(self.model(source), target).item()


class Plain(_Forward, Job):
    """All in memory."""

    def make(self):
        self.model = make_model(self.shape, self.recipe.seed).eval()


class Terrace(_Forward, Served):
    """The model is built straight into Terrace."""

    def make(self):
        import terrace.torch

        self.client = self.serve()
        with terrace.torch.init(client=self.client):
            model = make_model(self.shape, self.recipe.seed)
        self.model, _ = terrace.torch.offload(model.eval(), client=self.client, what="parameters")


class Accelerate(_Forward, Job):
    """Accelerate's disk_offload. The files it reads are written a layer at a time, as its own calls write them."""

    def make(self):
        import accelerate
        from accelerate.utils import offload_weight, save_offload_index

        folder = self.spec["folder"]
        index = {}
        for number in range(self.shape.layers):
            for name, parameter in make_layer(self.shape, number, self.recipe.seed).named_parameters():
                index = offload_weight(parameter.detach(), f"{number}.{name}", folder, index=index)
        save_offload_index(index, folder)
        with accelerate.init_empty_weights():
            model = make_model(self.shape, self.recipe.seed)
        self.model = accelerate.disk_offload(  # a layer of its own uses a weight that is one of its parts'
            model.eval(), folder, execution_device=torch.device("cpu"), preload_module_classes=["Embedding"])


def job_of(spec):
    """The job of a kind."""
    return {"forward_plain": Plain, "forward_terrace": Terrace, "forward_accelerate": Accelerate}[spec["kind"]](spec)


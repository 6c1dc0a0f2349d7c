# SPDX-License-Identifier: Apache-2.0
"""Jobs that train: with everything in memory, through terrace.torch, and with what autograd saves elsewhere."""

import contextlib
import os
import pathlib
import time

import torch
from copies import Copies
from gpt_model import Recipe, Shape, Text, loss_of, make_layer
from gpt_report import Metrics
from torch import nn

OWN_BYTES = 4 << 20  # of the memory tier: what the daemon itself uses of it, at most
REST_SECONDS = 0.3
REST_SECONDS_MAX = 60.0


def make_model(shape, seed, dtype=torch.float32):
    """The GPT, whose first weights depend on the seed alone."""
    return nn.Sequential(*(make_layer(shape, index, seed).to(dtype) for index in range(shape.layers)))


class Job:
    """A model, its text, and steps of training; a context manager, whose end ends all that it has started.

    masters: the model is in bfloat16, and its optimizer steps copies in float32. autocast: it computes in bfloat16.
    """

    def __init__(self, spec):
        self.spec = spec
        self.shape = Shape(**spec["shape"])
        self.recipe = Recipe()
        self.text = Text(4 << 20)
        self.dtype = torch.bfloat16 if spec.get("masters") else torch.float32
        self.owned = contextlib.ExitStack()

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.owned.close()
            raise
        return self

    def __exit__(self, *_):
        self.owned.close()

    def make(self):
        """Builds what steps need."""
        raise NotImplementedError

    def batch(self, number):
        """What a step learns: bytes, and each one's next byte."""
        return self.text.batch(self.shape, self.recipe.seed, number)

    def loss(self, number):
        """Of a batch, with its graph."""
        source, target = self.batch(number)
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(self.spec.get("autocast"))):
            return loss_of(self.model(source), target)

    def describe(self):
        """What is said once it is ready."""
        return {"parameters": sum(parameter.numel() for parameter in self.model.parameters())}

    def moved(self):
        """Bytes read from and written to the disk so far."""
        counts = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
        return int(counts["read_bytes"]), int(counts["write_bytes"])

    def rest(self):
        """Waits until nothing is under way any more."""


class Plain(Job):
    """Everything in memory: PyTorch as it comes.

    step_in_backward: AdamW steps each parameter as its gradient comes, so that the gradients need no room.
    mapped: with masters and step_in_backward, masters and moments are in mapped files.
    weights_only: no optimizer; for saving.
    """

    def make(self):
        self.model = make_model(self.shape, self.recipe.seed, self.dtype)
        self.optimizer = None
        if self.spec.get("step_in_backward"):
            for parameter in self.model.parameters():
                self._step_alone(parameter)
        elif not self.spec.get("weights_only"):
            self.optimizer = self._optimizer(list(self.model.parameters()))

    def _optimizer(self, parameters):
        if not self.spec.get("masters"):
            return self.recipe.optimizer(parameters)
        return Copies(parameters, self.recipe.optimizer, self.spec["folder"] if self.spec.get("mapped") else None)

    def _step_alone(self, parameter):
        optimizer = self._optimizer([parameter])

        def step(_):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)

    def step(self, number):
        loss = self.loss(number)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()

    def save(self, path):
        with open(path, "wb") as file:
            torch.save(self.model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())


class Served(Job):
    """A job with a daemon of its own. memory, block: the sizes of its tiers in bytes (block 0: none)."""

    def serve(self):
        """Starts the daemon; its client."""
        import terrace

        memory, block = int(self.spec["memory"]), int(self.spec["block"])
        return self.owned.enter_context(terrace.serve(
            memory=memory, block=f"{self.spec['folder']}:{block}" if block else None,
            guarantees={"host": memory - OWN_BYTES} if self.spec.get("all_guaranteed") else None, label="train_peers"))

    def metrics(self):
        """The daemon's counters."""
        return Metrics(self.client.metrics_url)

    def moved(self):
        now = self.metrics()
        return (int(now.sum("terrace_transfer_bytes_total", link="block_read*")),
                int(now.sum("terrace_transfer_bytes_total", link="block_write*")))

    def rest(self):
        """Until the daemon has moved nothing for a while."""
        limit = time.monotonic() + REST_SECONDS_MAX
        before, now = None, self.moved()
        while now != before and time.monotonic() < limit:
            time.sleep(REST_SECONDS)
            before, now = now, self.moved()


class Offloaded(Served):
    """Parameters, gradients and states in Terrace. what, step, step_in_backward: as of terrace.torch.offload. init: the
    model is built straight into Terrace."""

    def make(self):
        import terrace.torch

        self.client = self.serve()
        with terrace.torch.init(client=self.client) if self.spec.get("init") else contextlib.nullcontext():
            model = make_model(self.shape, self.recipe.seed, self.dtype)
        self.model, self.optimizer = terrace.torch.offload(
            model, self.recipe.optimizer(list(model.parameters())), client=self.client, what=self.spec.get("what", "all"),
            step=self.spec.get("step"), step_in_backward=bool(self.spec.get("step_in_backward")),
            masters=torch.float32 if self.spec.get("masters") else None)

    def step(self, number):
        loss = self.loss(number)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def save(self, path):
        import terrace.torch

        terrace.torch.save(path, self.model)

    def run(self, number):
        """Bytes that a forward and a backward pass move, without the step."""
        self.rest()
        before = self.moved()
        self.loss(number).backward()
        self.rest()
        after = self.moved()
        self.optimizer.zero_grad()
        return {"read_bytes": after[0] - before[0], "written_bytes": after[1] - before[1]}


def _torchtune():
    """torchtune's own context. It knows GPUs alone: where there is none, this machine's memory is the GPU's, too."""
    from torchtune.training import OffloadActivations

    if not torch.cuda.is_available():
        torch.cuda.default_stream = lambda: None
        torch.cuda.stream = lambda _: contextlib.nullcontext()
        to = torch.Tensor.to
        torch.Tensor.to = lambda tensor, *where, **options: (
            tensor.clone() if where == ("cuda",) else to(tensor, *where, **options))
    return OffloadActivations(use_pin_memory=False, use_streams=False)


class WithActivations(Served):
    """All in memory but what autograd saves. where: "here", "save_on_cpu", "torchtune", or "terrace", with keep_bytes
    as of terrace.torch.activations."""

    def make(self):
        self.client = None
        self.saving = self._saving(self.spec["where"])
        self.model = make_model(self.shape, self.recipe.seed)
        self.optimizer = self.recipe.optimizer(list(self.model.parameters()))

    def _saving(self, where):
        if where == "here":
            return contextlib.nullcontext()
        if where == "save_on_cpu":
            # As a GPU's script has it. Without pinning it gives a CPU's tensor back as it is, and does nothing.
            return torch.autograd.graph.save_on_cpu(pin_memory=True)
        if where == "torchtune":
            return _torchtune()
        import terrace.torch

        self.client = self.serve()
        return terrace.torch.activations(self.client, keep_bytes=self.spec.get("keep_bytes"))

    def step(self, number):
        source, target = self.batch(number)
        with self.saving:
            loss = loss_of(self.model(source), target)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def moved(self):
        return Job.moved(self) if self.client is None else super().moved()

    def rest(self):
        if self.client is not None:
            super().rest()

    def run(self):
        """What the context counted."""
        return {} if self.client is None else {"moved_bytes": self.saving.moved_bytes, "stayed": self.saving.stayed,
                                               "refused": self.saving.refused}

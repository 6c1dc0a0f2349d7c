# SPDX-License-Identifier: Apache-2.0
"""Trains gpt_model's GPT with every parameter, gradient and Adam moment in Terrace, leased layer by layer
by hand: what a program does that terrace.torch.offload() cannot serve, as one that computes elsewhere than where it
leases.

At no time does more than a layer or two of the state lie where PyTorch can reach it: each pass leases what the layer at
hand needs, tells Terrace which layer comes next, and lets go. Activations between layers stay in PyTorch's memory (they
are small here), those within a layer are computed again in the backward pass.
"""

import contextlib
import time
from collections.abc import Iterator

import torch
from gpt_model import Recipe, Shape, Step, Text, layer_class, loss_of, make_layer
from torch.func import functional_call

import terrace

KINDS = ("parameter", "gradient", "moment1", "moment2")


class LeasedLayer:
    """One layer: a module without memory of its own, and its tensors in Terrace, by kind and by parameter's name."""

    def __init__(self, client: terrace.Client, shape: Shape, index: int, place: str):
        with torch.device("meta"):
            self.module = layer_class(shape, index)(shape)
        self._client = client
        self._place = place
        self.tensors: dict[str, dict[str, terrace.Tensor]] = {}
        parameters = list(self.module.named_parameters())
        for kind in KINDS:
            made = client.create_many([(f"layer{index}/{name}/{kind}", tuple(parameter.shape), "float32")
                                       for name, parameter in parameters])
            self.tensors[kind] = {name: tensor for (name, _), tensor in zip(parameters, made)}

    @contextlib.contextmanager
    def lease(self, mode: str, *kinds: str) -> Iterator[list[dict[str, torch.Tensor]]]:
        """Leases all tensors of the kinds as one set; gives PyTorch tensors over the leased memory, without a copy.

        The views own the lease: it ends with the last of them, and so each dictionary is emptied at the end.
        """
        with self._client.acquire(self._wanted(kinds), mode=mode, place=self._place) as leases:
            views = [torch.from_dlpack(lease) for lease in reversed(leases)]
            leased = [{name: views.pop() for name in self.tensors[kind]} for kind in kinds]
            try:
                yield leased
            finally:
                for by_name in leased:
                    by_name.clear()

    def prefetch(self, *kinds: str) -> None:
        """Says that the kinds are needed soon."""
        self._client.prefetch(self._wanted(kinds), place=self._place)

    def dont_need(self, *kinds: str) -> None:
        """Says that the kinds' content is of no use any more: it is not written back."""
        if torch.cuda.is_available():  # what was exported to a GPU is leased until its stream has passed
            torch.cuda.current_stream().synchronize()
            limit = time.monotonic() + 10
            while self._client.held and time.monotonic() < limit:
                time.sleep(0.0001)
        self._client.dont_need(self._wanted(kinds))

    def _wanted(self, kinds: tuple[str, ...]) -> list[terrace.Tensor]:
        return [tensor for kind in kinds for tensor in self.tensors[kind].values()]

    def fill(self, shape: Shape, index: int, seed: int) -> None:
        """Writes the first weights and zero moments."""
        made = dict(make_layer(shape, index, seed).named_parameters())
        with torch.no_grad(), self.lease("overwrite", "parameter", "moment1", "moment2") as (into, first, second):
            for name, parameter in made.items():
                into[name].copy_(parameter)
                first[name].zero_()
                second[name].zero_()


class LeasedModel:
    """The whole model in Terrace. `device` is where PyTorch computes: "cpu" uses the leased memory itself."""

    def __init__(self, client: terrace.Client, shape: Shape, recipe: Recipe, place: str, device: torch.device):
        self.shape = shape
        self.recipe = recipe
        self.device = device
        self.layers = [LeasedLayer(client, shape, index, place) for index in range(shape.layers)]
        for index, layer in enumerate(self.layers):
            layer.fill(shape, index, recipe.seed)

    def step(self, number: int, source: torch.Tensor, target: torch.Tensor) -> float:
        """One step of training; the loss before it."""
        inputs = self._forward(source)
        loss = self._backward(inputs, target)
        self._optimize(number)
        return loss

    def _forward(self, source: torch.Tensor) -> list[torch.Tensor]:
        """Runs all layers but the head, without a graph; gives every layer's input."""
        inputs = [source]
        for layer, following in zip(self.layers[:-1], self.layers[1:]):
            following.prefetch("parameter")
            with torch.no_grad(), layer.lease("read", "parameter") as (leased,):
                inputs.append(functional_call(layer.module, self._here(leased), inputs[-1]))
        return inputs

    def _backward(self, inputs: list[torch.Tensor], target: torch.Tensor) -> float:
        """From the head down: each layer's gradients, written to Terrace. Gives the loss."""
        loss, gradient = self._backward_layer(self.shape.layers - 1, inputs.pop(), target, None)
        for index in reversed(range(self.shape.layers - 1)):
            _, gradient = self._backward_layer(index, inputs.pop(), target, gradient)
        return loss

    def _backward_layer(self, index: int, source: torch.Tensor, target: torch.Tensor, gradient: torch.Tensor | None):
        """Runs a layer again, now with a graph, and backward through it. Gives the loss (known to the head, which has
        no gradient from above; 0 elsewhere) and the gradient of the layer's input (None for the embedding)."""
        layer = self.layers[index]
        if index > 0:
            self.layers[index - 1].prefetch("parameter")
            source = source.detach().requires_grad_()
        loss, gradients = self._differentiate(layer, source, target, gradient)
        with layer.lease("overwrite", "gradient") as (written,):
            for name, view in written.items():
                view.copy_(gradients.pop(name))
            del view
        return loss, gradients.get("input")

    def _differentiate(self, layer: LeasedLayer, source: torch.Tensor, target: torch.Tensor,
                       gradient: torch.Tensor | None) -> tuple[float, dict[str, torch.Tensor]]:
        with layer.lease("read", "parameter") as (leased,):
            wanted = {name: view.detach().requires_grad_() for name, view in self._here(leased).items()}
            result = functional_call(layer.module, dict(wanted), source)
            if gradient is None:
                result = loss_of(result, target)
            if source.requires_grad:
                wanted["input"] = source
            gradients = torch.autograd.grad(result, list(wanted.values()), gradient)
            return result.item() if gradient is None else 0.0, dict(zip(wanted, gradients))

    def _optimize(self, number: int) -> None:
        """PyTorch's AdamW, a layer at a time, on the leased memory itself."""
        for index, layer in enumerate(self.layers):
            with (layer.lease("read", "gradient") as (gradients,),
                  layer.lease("write", "parameter", "moment1", "moment2") as (parameters, first, second)):
                if index + 1 < len(self.layers):
                    self.layers[index + 1].prefetch(*KINDS)
                self._update(number, parameters, gradients, first, second)
            layer.dont_need("gradient")

    def _update(self, number, parameters, gradients, first, second) -> None:
        leased = (parameters, gradients, first, second)
        here = [list(self._here(views).values()) for views in leased]
        optimizer = self.recipe.optimizer([view.requires_grad_() for view in here[0]])
        for parameter, gradient, moment1, moment2 in zip(*here):
            parameter.grad = gradient
            optimizer.state[parameter] = {"step": torch.tensor(float(number), device=self.device),
                                          "exp_avg": moment1, "exp_avg_sq": moment2}
        optimizer.step()
        if self.device.type != "cpu":
            with torch.no_grad():
                for views, values in zip((parameters, first, second), (here[0], here[2], here[3])):
                    for view, value in zip(views.values(), values):
                        view.copy_(value)

    def _here(self, views: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The views where PyTorch computes: themselves on a CPU, copies on a GPU."""
        return {name: view.to(self.device) for name, view in views.items()}


def train_leased(model: LeasedModel, client: terrace.Client, text: Text, steps: int) -> Iterator[Step]:
    """As gpt_model.train_in_memory, through Terrace."""
    for number in range(steps):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        client.mark_step()
        source, target = (part.to(model.device) for part in text.batch(model.shape, model.recipe.seed, number))
        loss = model.step(number, source, target)
        yield Step(number, loss, time.perf_counter() - begin, time.process_time() - cpu_begin)

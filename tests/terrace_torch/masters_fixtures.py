# SPDX-License-Identifier: Apache-2.0
"""What the tests of masters share: models in a narrow type, a plain loop that keeps copies in float32, which is what masters
are measured by, and optimizers of a user's own."""

import contextlib
import dataclasses

import terrace.torch
import torch
from model_fixtures import Recipe, assert_same, build, loss_of, weights
from torch import nn

BFLOAT16, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32
ADAMW = (("lr", 1e-3),)
SMALL = Recipe(blocks=2, options=ADAMW)


class SignMomentum(torch.optim.Optimizer):
    """A user's own, which updates each parameter as it comes to it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                assert parameter.dtype == parameter.grad.dtype == FLOAT
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.sub_(momentum.lerp_(parameter.grad, 0.1).sign(), alpha=group["lr"])


class Collecting(SignMomentum):
    """One that works on lists, and asks for things out of their turn."""

    @torch.no_grad()
    def step(self):
        for number in range(len(self.param_groups)):
            group = self.param_groups[number]
            group["steps"] = group.get("steps", 0) + 1
        for group in self.param_groups:
            found = [one for one in group["params"] if one.grad is not None]
            assert group["steps"] == 1 + self.state[found[0]].get("steps", 0)
            for one in found:
                self.state[one]["steps"] = group["steps"]
                one.grad.mul_(0.5)
            gradients = [one.grad for one in found]
            for one, gradient in zip(found, gradients, strict=True):
                momentum = self.state[one].setdefault("momentum", torch.zeros_like(one))
                one.sub_(momentum.lerp_(gradient, 0.1).sign(), alpha=group["lr"])


class Untold(SignMomentum):
    """One that nobody has declared, which steps nothing but float32, and keeps a row of each matrix."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.dtype != FLOAT or parameter.grad.dtype != FLOAT:
                    raise TypeError(f"steps {FLOAT}, not {parameter.dtype}")
                state = self.state[parameter]
                if not state:
                    state["row"] = torch.zeros(parameter.shape[-1:])
                state["row"].add_(parameter.grad.square().reshape(-1, parameter.shape[-1]).mean(0))
                parameter.sub_(parameter.grad / (state["row"] / group["steps"] + 0.1).sqrt(), alpha=group["lr"])


class Halving(torch.optim.SGD):
    """One that changes gradients in a loop of its own, and then runs PyTorch's step."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / 3)
        super().step()


for _kind in (SignMomentum, Collecting):
    terrace.torch.elementwise(_kind, states=["momentum"])
terrace.torch.elementwise(Halving)


def narrow(recipe, dtype, steps=lambda weight: weight):
    """The model in a narrow type, and an optimizer; the same ones each time. steps: gives what is stepped for a weight."""
    made, _ = build(dataclasses.replace(recipe, kind=torch.optim.SGD, options=(("lr", 0.1),)))
    model = made.to(dtype)
    trained = [one for one in model.parameters() if one.requires_grad]
    groups = [{"params": [steps(one) for one in trained if one.dim() > 1], "lr": 2e-3},
              {"params": [steps(one) for one in trained if one.dim() <= 1]}]
    return model, recipe.kind(groups, **dict(recipe.options))


class Copies:
    """A plain loop's: its optimizer steps copies in float32, and weights are copied from them."""

    def __init__(self, recipe, dtype, gradients=None):
        self.pairs, self.gradients = [], gradients
        self.model, self.optimizer = narrow(recipe, dtype, self._copy)

    def _copy(self, weight):
        self.pairs.append((weight, weight.detach().float().requires_grad_()))
        return self.pairs[-1][1]

    def take(self):
        """Gives the masters what backward has made."""
        for weight, master in self.pairs:
            if weight.grad is not None:
                made = weight.grad.float()
                master.grad = made if master.grad is None else master.grad + made
                weight.grad = None

    def step(self, scaler=None):
        self.take()
        self.optimizer.step() if scaler is None else scaler.step(self.optimizer)
        with torch.no_grad():
            for weight, master in self.pairs:
                weight.copy_(master)
                master.grad = None


def train(model, optimizer, recipe, *, steps=4, begin=0, activations=None, copies=None):
    """The losses of a run, and the norms where it clips. copies: the plain loop's."""
    said = []
    stepped = optimizer if copies is None else copies.optimizer
    scheduler = torch.optim.lr_scheduler.StepLR(stepped, 1, 0.97)
    wide = copies is not None and copies.gradients is not None
    clipped = [one for one in model.parameters() if one.requires_grad]
    if wide:
        of = dict(copies.pairs)
        clipped = [of[one] for one in clipped]
    for step in range(begin, begin + steps):
        torch.manual_seed(step)
        for part in range(recipe.accumulation):
            with contextlib.nullcontext() if activations is None else activations:
                loss = loss_of(model, step * recipe.accumulation + part) / recipe.accumulation
                loss.backward()
            said.append(loss.item())
            if wide:
                copies.take()
        if recipe.clip:
            said.append(nn.utils.clip_grad_norm_(clipped, 0.5).item())
        (optimizer if copies is None else copies).step()
        scheduler.step()
        if copies is None:
            optimizer.zero_grad(set_to_none=recipe.set_to_none)
    return said


def compare(client, recipe, dtype=BFLOAT16, *, steps=4, moves=False, gradients=None, tensor_bytes_min=1, **options):
    """Trains with Terrace and by the plain loop: losses and weights are equal bit for bit."""
    copies = Copies(recipe, dtype, gradients)
    wanted = train(copies.model, None, recipe, steps=steps, copies=copies)
    model, optimizer = narrow(recipe, dtype)
    terrace.torch.offload(model, optimizer, client=client, masters=FLOAT, gradients=gradients,
                          tensor_bytes_min=tensor_bytes_min, **options)
    activations = terrace.torch.activations(client, min_bytes=1024) if moves else None
    assert train(model, optimizer, recipe, steps=steps, activations=activations) == wanted
    if activations is not None:
        activations.clear()
    assert_same(weights(model), weights(copies.model))
    assert {one.dtype for one in model.state_dict().values()} <= {dtype}
    return model, optimizer


def replaced(**changes):
    return dataclasses.replace(SMALL, **changes)


def trained(client, recipe=SMALL, *, steps=3, **options):
    """A model that was offloaded with masters, and trained, beside the plain loop's."""
    copies = Copies(recipe, BFLOAT16)
    train(copies.model, None, recipe, steps=steps, copies=copies)
    model, optimizer = narrow(recipe, BFLOAT16)
    terrace.torch.offload(model, optimizer, client=client, masters=FLOAT, tensor_bytes_min=1, **options)
    train(model, optimizer, recipe, steps=steps)
    return model, optimizer, copies


def goes_on_as(copies, model, optimizer, recipe=SMALL, begin=3):
    """Trains both some more: they have the same bits."""
    wanted = train(copies.model, None, recipe, begin=begin, copies=copies)
    assert train(model, optimizer, recipe, begin=begin) == wanted
    assert_same(weights(model), weights(copies.model))


def fresh(client, recipe=SMALL, **options):
    """Another model of the same kind, which is to be loaded into."""
    model, optimizer = narrow(recipe, BFLOAT16)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.125)
    terrace.torch.offload(model, optimizer, client=client, masters=FLOAT, tensor_bytes_min=1, **options)
    return model, optimizer


class ByCopies(torch.optim.AdamW):
    """What a trainer is given without Terrace in the place of masters: it steps copies, and weights are copied from them."""

    def __init__(self, weights, **options):
        self.weights = list(weights)
        super().__init__([one.detach().float().requires_grad_() for one in self.weights], **options)

    def step(self, closure=None):
        with torch.enable_grad():
            loss = None if closure is None else closure()
        masters = self.param_groups[0]["params"]
        for weight, master in zip(self.weights, masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        super().step()
        with torch.no_grad():
            for weight, master in zip(self.weights, masters, strict=True):
                weight.copy_(master)
        return loss

    def zero_grad(self, set_to_none=True):
        for weight in self.weights:
            weight.grad = None

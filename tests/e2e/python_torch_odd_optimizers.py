# SPDX-License-Identifier: Apache-2.0
"""Shows that what a declared optimizer's step comes to does not depend on how much memory there is: over tiers of several
sizes the numbers are plain PyTorch's, bit for bit, or the step is refused, with the same words at each size."""

import collections
import contextlib
import gc
import itertools
import os
import random
import re
import shutil
import tempfile

import numpy
import pytest
import terrace.torch
import torch
from python_torch_models import Gpt, loss_of, weights

MEMORY = ("8MiB", "12MiB", "32MiB", "512MiB")  # the smallest one has room for a parameter or two at a time
STEPS = 4


class Odd(torch.optim.Optimizer):
    """Gradient descent whose rate is divided by what slowness() says as the step comes to a group."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})
        self.prepare()

    def prepare(self):
        """Makes what it keeps."""

    def slowness(self, group):
        return 1

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            rate = group["lr"] / self.slowness(group)
            for parameter in group["params"]:
                self.update(parameter, rate)

    def update(self, parameter, rate):
        parameter.sub_(parameter.grad, alpha=rate)


class Collecting(Odd):
    """Runs PyTorch's kernels of lists."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            rate = group["lr"] / self.slowness(group)
            parameters = [one for one in group["params"] if one.grad is not None]
            torch._foreach_add_(parameters, [one.grad for one in parameters], alpha=-rate)


# What each kind keeps, and changes once a group. -------------------------------------------------------------------------

class Tensor:
    def prepare(self):
        self.count = torch.zeros(())

    def slowness(self, group):
        return self.count.add_(1).item()


class TensorUnseen(Tensor):
    def slowness(self, group):
        self.count.data.add_(1)
        return self.count.item()


class List:
    def prepare(self):
        self.count = [0, "steps"]

    def slowness(self, group):
        self.count[0] += 1
        return self.count[0]


class Deep:
    """In an object, in a dictionary, in a tuple."""

    def prepare(self):
        self.count = type("Schedule", (), {})()
        self.count.inner = {"counts": ({"steps": 0},)}

    def slowness(self, group):
        self.count.inner["counts"][0]["steps"] += 1
        return self.count.inner["counts"][0]["steps"]


class Slotted:
    class Count:
        __slots__ = ("steps",)

    def prepare(self):
        self.count = self.Count()
        self.count.steps = 0

    def slowness(self, group):
        self.count.steps += 1
        return self.count.steps


class Array:
    def prepare(self):
        self.count = numpy.zeros(2)

    def slowness(self, group):
        self.count[1] += 1
        return self.count[1]


class Queue:
    def prepare(self):
        self.count = collections.deque(maxlen=100)

    def slowness(self, group):
        self.count.append(group["lr"])
        return len(self.count)


class Iterating:
    def prepare(self):
        self.count = itertools.count(1)

    def slowness(self, group):
        return next(self.count)


class Generating:
    def prepare(self):
        self.count = (number for number in range(1, 1000))

    def slowness(self, group):
        return next(self.count)


class Drawing:
    """From a generator of random numbers of its own."""

    def prepare(self):
        self.count = torch.Generator().manual_seed(1)

    def slowness(self, group):
        return 1 + torch.rand((), generator=self.count).item()


class DrawingNumbers:
    def prepare(self):
        self.count = random.Random(1), numpy.random.default_rng(1)

    def slowness(self, group):
        return 1 + self.count[0].random() + self.count[1].random()


class DrawingOfAll:
    """From PyTorch's own."""

    def slowness(self, group):
        return 1 + torch.rand(()).item()


class GroupNumber:
    def slowness(self, group):
        group["count"] = group.get("count", 0) + 1
        return group["count"]


class GroupTensor:
    def slowness(self, group):
        return group.setdefault("count", torch.zeros(1)).add_(1).item()


class GroupList:
    def slowness(self, group):
        group.setdefault("count", []).append(1)
        return len(group["count"])


class OfAllGroups:
    """In self.state, under a key that is no parameter."""

    def slowness(self, group):
        self.state["count"]["steps"] = self.state["count"].get("steps", 0) + 1
        return self.state["count"]["steps"]


class Number:
    def prepare(self):
        self.count = 0

    def slowness(self, group):
        self.count += 1
        return self.count


KEPT = [Tensor, TensorUnseen, List, Deep, Slotted, Array, Queue, Iterating, Generating, Drawing, DrawingNumbers, DrawingOfAll,
        GroupNumber, GroupTensor, GroupList, OfAllGroups, Number]
LOOPS = [type(f"Loop{kind.__name__}", (kind, Odd), {}) for kind in KEPT]
COLLECTING = [type(f"Collecting{kind.__name__}", (kind, Collecting), {}) for kind in KEPT]


# Steps that are odd in other ways, and right all the same. ---------------------------------------------------------------

class CountingAfterwards(Odd):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / group.get("count", 1))
            group["count"] = group.get("count", 1) + 1


class CountingByClosure(Odd):
    def prepare(self):
        count = 0

        def slowness(group):
            nonlocal count
            count += 1
            return count

        self.slowness = slowness


class WritingToData(GroupNumber, Odd):
    """As steps did before there was torch.no_grad()."""

    def update(self, parameter, rate):
        parameter.data.sub_(parameter.grad.data, alpha=rate)


class Paired(Odd):
    """With a list of as many as there are groups, and others of as many as there are parameters."""

    @torch.no_grad()
    def step(self):
        for index, (group, rate) in enumerate(zip(self.param_groups, (0.05, 0.01, 7))):
            numbers = range(1, len(self.param_groups[index]["params"]) + 1)
            for parameter, number in zip(group["params"], numbers):
                parameter.sub_(parameter.grad, alpha=rate / number / (index + 1))


class Noisy(Odd):
    """Draws for each parameter."""

    def update(self, parameter, rate):
        parameter.sub_(parameter.grad + 0.01 * torch.randn_like(parameter), alpha=rate)


class Scratching(Odd):
    """Keeps buffers by shape, for whoever comes next."""

    def prepare(self):
        self.buffers = {}

    def update(self, parameter, rate):
        buffer = self.buffers.setdefault(parameter.shape, torch.zeros_like(parameter))
        parameter.sub_(buffer.lerp_(parameter.grad, 0.5), alpha=rate)


class Sharing(Odd):
    """Parameters of a shape have one momentum."""

    def prepare(self):
        self.momenta = {}

    def update(self, parameter, rate):
        state = self.state[parameter]
        if not state:
            state["momentum"] = self.momenta.setdefault(parameter.shape, torch.zeros_like(parameter))
        parameter.sub_(state["momentum"].mul_(0.9).add_(parameter.grad), alpha=rate)


class SharingAtFirst(Odd):
    """Parameters of a shape begin with one momentum, and have each their own from the second step on."""

    def prepare(self):
        self.zeros = {}

    def update(self, parameter, rate):
        state = self.state[parameter]
        if state:
            state["momentum"] = 0.9 * state["momentum"] + parameter.grad
        else:
            state["momentum"] = self.zeros.setdefault(parameter.shape, torch.zeros_like(parameter))
        parameter.sub_(state["momentum"], alpha=rate)


class Looking(Odd):
    """Adds up what it comes to, in one loop, for the next step."""

    def prepare(self):
        self.norm = torch.ones(())

    @torch.no_grad()
    def step(self):
        norm = torch.zeros(())
        for group in self.param_groups:
            for parameter in group["params"]:
                norm += parameter.grad.square().sum()
                parameter.sub_(parameter.grad, alpha=group["lr"] / self.norm.item())
        self.norm.copy_(norm.sqrt())


class Numbered(Odd):
    """Asks for groups and parameters by number."""

    @torch.no_grad()
    def step(self):
        for at in range(len(self.param_groups)):
            for number in range(len(self.param_groups[at]["params"])):
                self.update(self.param_groups[at]["params"][number], 0.05 / (number + 1))


class CollectingAlone(Collecting):
    """Changes nothing."""


class OfPyTorch(torch.optim.AdamW):
    """Counts, and has PyTorch step."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=1e-3, foreach=True)
        self.count = torch.zeros(())

    def step(self):
        self.count += 1
        for group in self.param_groups:
            group["weight_decay"] = 0.1 / self.count.item()
        super().step()


# And what is refused. ----------------------------------------------------------------------------------------------------

class CollectingPaired(Collecting):
    @torch.no_grad()
    def step(self):
        for number, group in enumerate(self.param_groups):
            parameters = list(group["params"])
            torch._foreach_add_(parameters, [one.grad for one in parameters], alpha=-0.05 / (number + 1))


class CollectingPairs(Collecting):
    """Pairs parameters with a list of as many."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            pairs = list(zip(group["params"], itertools.count(1)))
            torch._foreach_add_([one for one, _ in pairs], [one.grad / number for one, number in pairs], alpha=-0.05)


class CollectingPart(Collecting):
    """Steps the first group alone."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            parameters = list(group["params"])
            torch._foreach_add_(parameters, [one.grad for one in parameters], alpha=-0.05)
            break


class StoppingEarly(Odd):
    """Steps the first parameter of each group."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.update(parameter, group["lr"])
                break


class Norm(Odd):
    """Takes the norm of a group, and then steps it."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            norm = sum(parameter.grad.norm() for parameter in group["params"])
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=0.05 / norm.item())


class SameMemory(Odd):
    """Keeps a parameter's own memory as a state."""

    def update(self, parameter, rate):
        before = self.state[parameter].setdefault("before", parameter.data)
        parameter.sub_(before + parameter.grad, alpha=rate)


RIGHT = [*LOOPS, CountingAfterwards, CountingByClosure, WritingToData, Paired, Noisy, Scratching, Sharing, SharingAtFirst,
         Looking, Numbered, CollectingAlone, OfPyTorch]
REFUSED = {**dict.fromkeys(COLLECTING, "changes (its own 'count'|'count' of parameter group 0|self.state\\['count'\\]|the state of "
                                       "PyTorch's random numbers)\\. .*step each parameter in that loop"),
           CollectingPaired: r"pairs its parameter groups with something \(enumerate, zip\)",
           CollectingPart: "collects the parameters of a group before it steps them",
           CollectingPairs: r"pairs the parameters of a group with something \(enumerate, zip, list\)",
           StoppingEarly: r"leaves its loop over group\['params'\] before the end",
           Norm: r"steps parameters in a second loop over group\['params'\]"}
IN_BACKWARD = {**dict.fromkeys([*LOOPS, *COLLECTING, CountingAfterwards, CountingByClosure, WritingToData, Noisy, Scratching,
                                Sharing, SharingAtFirst, Looking, OfPyTorch], "changes .*'.*offload without step_in_backward"),
               CollectingPaired: "pairs its parameter groups", Paired: "pairs its parameter groups",
               CollectingPairs: "pairs the parameters of a group", StoppingEarly: "leaves its loop",
               Norm: "steps parameters in a second loop", SameMemory: "the state 'before' of .*clone"}


@pytest.fixture(autouse=True)
def undeclared(monkeypatch):
    """What a test declares is forgotten after it."""
    from terrace.torch import _optimizers

    monkeypatch.setattr(_optimizers, "_STATES", dict(_optimizers._STATES))


@pytest.fixture(scope="module")
def clients():
    """A client of a daemon for each size of memory."""
    folder = tempfile.mkdtemp(prefix="e2e-", dir=os.environ["TERRACE_BUILD"])
    with contextlib.ExitStack() as daemons:
        daemons.callback(shutil.rmtree, folder)
        yield [daemons.enter_context(terrace.serve(size, block=f"{folder}:128MiB", metrics=False)) for size in MEMORY]


def trained(kind, client=None, **options):
    """Losses and weights of a run; or the words with which it was refused."""
    torch.manual_seed(1)
    model = Gpt(width=128, blocks=3)
    matrices, vectors = ([one for one in model.parameters() if (one.dim() > 1) == wanted] for wanted in (True, False))
    optimizer = kind([{"params": matrices, "lr": 0.04}, {"params": vectors}])
    if client is not None:
        terrace.torch.elementwise(kind)
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, **options)
    torch.manual_seed(2)
    losses = []
    try:
        for number in range(STEPS):
            loss = loss_of(model, number)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    except terrace.FailedPrecondition as refusal:
        return str(refusal)
    return losses, {name: one.numpy().tobytes() for name, one in weights(model).items()}


def names(kind):
    return getattr(kind, "__name__", "")


@pytest.mark.parametrize("kind", RIGHT, ids=names)
def test_the_numbers_are_the_same_at_every_size(clients, kind):
    wanted = trained(kind)
    assert all(trained(kind, client) == wanted for client in clients)
    assert all(client.leased_bytes == 0 for client in clients)


@pytest.mark.parametrize("kind, said", REFUSED.items(), ids=names)
def test_the_numbers_are_the_same_or_refused_by_name(clients, kind, said):
    wanted = trained(kind)
    *small, large = [trained(kind, client) for client in clients]
    assert re.search(f"the step of {kind.__name__} {said}", small[0], re.DOTALL)
    assert small == [small[0]] * len(small) and large == wanted  # which it steps at once
    assert all(client.leased_bytes == 0 for client in clients)


def test_a_state_that_is_a_parameters_memory_is_refused_at_every_size(clients):
    said = {trained(SameMemory, client) for client in clients}
    gc.collect()
    assert len(said) == 1 and re.search("the state 'before' of .* is the memory of .* itself.*clone", said.pop())
    assert all(client.leased_bytes == 0 for client in clients)


@pytest.mark.parametrize("kind, said", IN_BACKWARD.items(), ids=names)
def test_what_is_run_for_a_few_parameters_at_a_time_is_refused_by_name(clients, kind, said):
    for client in clients:
        assert re.search(said, trained(kind, client, step_in_backward=True), re.DOTALL)


def test_a_step_that_keeps_nothing_is_right_in_backward(clients):
    wanted = trained(CollectingAlone)
    assert all(trained(CollectingAlone, client, step_in_backward=True) == wanted for client in clients)


def test_a_state_that_parameters_share_already_stays_one(clients):
    def run(client):
        torch.manual_seed(1)
        model = Gpt(width=64, blocks=2)
        optimizer = Sharing(model.parameters())
        for number in range(3):
            if number == 1 and client is not None:
                terrace.torch.elementwise(Sharing)
                terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
            torch.manual_seed(number)
            loss_of(model, number).backward()
            optimizer.step()
            optimizer.zero_grad()
        return {name: one.numpy().tobytes() for name, one in weights(model).items()}

    assert run(clients[0]) == run(None)

# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose steps are odd in what they keep, and change once a group: for odd_steps.py."""

import collections
import functools
import itertools
import random
import weakref

import numpy
import torch

kept = []  # what is referred to weakly


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


class OwnParameter:
    def prepare(self):
        self.count = torch.nn.Parameter(torch.zeros(()), requires_grad=False)

    def slowness(self, group):
        return self.count.add_(1).item()


class GroupParameter:
    def slowness(self, group):
        if "count" not in group:
            group["count"] = torch.nn.Parameter(torch.zeros(()), requires_grad=False)
        return group["count"].add_(1).item()


class Function:
    """In its defaults and its attributes."""

    def prepare(self):
        def count(found=[0]):
            found[0] += 1
            count.calls += 1
            return found[0] + count.calls

        count.calls = 0
        self.count = count

    def slowness(self, group):
        return self.count()


class Partial:
    def prepare(self):
        def count(found):
            found[0] += 1
            return found[0]

        self.count = functools.partial(count, [0])

    def slowness(self, group):
        return self.count()


class Delegating:
    """To an iterator, which it has begun."""

    def prepare(self):
        def numbers():
            yield from range(1000)

        self.count = numbers()
        next(self.count)

    def slowness(self, group):
        return next(self.count)


class View:
    def prepare(self):
        self.count = memoryview(bytearray(8))

    def slowness(self, group):
        self.count[0] += 1
        return self.count[0]


class Weak:
    class Count:
        steps = 0

    def prepare(self):
        kept.append(self.Count())
        self.count = weakref.ref(kept[-1])

    def slowness(self, group):
        self.count().steps += 1
        return self.count().steps


class OfFirst:
    """In the state of the first parameter, as LBFGS has it."""

    def prepare(self):
        self.first = self.param_groups[0]["params"][0]

    def slowness(self, group):
        state = self.state[self.first]
        state["count"] = state.get("count", 0) + 1
        return state["count"]


class Number:
    def prepare(self):
        self.count = 0

    def slowness(self, group):
        self.count += 1
        return self.count


KEPT = [Tensor, TensorUnseen, List, Deep, Slotted, Array, Queue, Iterating, Generating, Drawing, DrawingNumbers, DrawingOfAll,
        GroupNumber, GroupTensor, GroupList, OfAllGroups, OwnParameter, GroupParameter, Function, Partial, Delegating, View,
        Weak, OfFirst, Number]
LOOPS = [type(f"Loop{kind.__name__}", (kind, Odd), {}) for kind in KEPT]
COLLECTING = [type(f"Collecting{kind.__name__}", (kind, Collecting), {}) for kind in KEPT]

# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose steps are odd, for python_torch_odd_optimizers.py: what each of them keeps, pairs, draws or counts; and what
is said of those that are refused."""

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


class SkippingFirst(Odd):
    """Unfreezes one parameter more a step, from the last to the first."""

    def prepare(self):
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            number = 0
            for parameter in group["params"]:
                number += 1
                if number > 6 - self.steps:
                    parameter.data.sub_(parameter.grad.data, alpha=group["lr"] / number)


class CollectingNumbered(Collecting):
    """Has numbers of groups and of parameters in names, and an iterator."""

    @torch.no_grad()
    def step(self):
        number = 0
        for group in self.param_groups:
            number += 1
            rates, found = iter(range(1, 1000)), []
            at = 0
            for parameter in group["params"]:
                found.append((parameter, 0.05 / (number + at + next(rates))))
                at += 1
            for parameter, rate in found:
                parameter.sub_(parameter.grad, alpha=rate)


class CollectingFlag(Collecting):
    @torch.no_grad()
    def step(self):
        rate = 0.05
        for group in self.param_groups:
            parameters = [one for one in group["params"]]
            torch._foreach_add_(parameters, [one.grad for one in parameters], alpha=-rate)
            rate = 0.01


class Popping(Collecting):
    @torch.no_grad()
    def step(self):
        rates = [0.05 / number for number in range(1, 100)]
        for group in self.param_groups:
            found = []
            for parameter in group["params"]:
                found.append((parameter, rates.pop()))
            for parameter, rate in found:
                parameter.sub_(parameter.grad, alpha=rate)


class Remembering(Odd):
    """What it came to last."""

    @torch.no_grad()
    def step(self):
        last = None
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / (1 if last is None else 1 + last.abs().mean().item()))
                last = parameter


class Slices(Odd):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for rate, part in ((0.05, group["params"][:3]), (0.01, group["params"][3:])):
                for parameter in part:
                    self.update(parameter, rate)


class Reversed(Odd):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            number = 0
            for parameter in reversed(group["params"]):
                number += 1
                self.update(parameter, 0.05 / number)


class CollectingData(Collecting):
    """As steps did before there was torch.no_grad()."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            parameters, gradients, momenta = [], [], []
            for parameter in group["params"]:
                momenta.append(self.state[parameter].setdefault("momentum", torch.zeros_like(parameter)))
                parameters.append(parameter)
                gradients.append(parameter.grad)
            torch._foreach_lerp_(momenta, gradients, 0.5)
            for parameter, momentum in zip(parameters, momenta):
                parameter.data.sub_(momentum, alpha=group["lr"] / (1 + len(parameters)))


class CollectingGroups(Collecting):
    """Steps once all groups are collected, and counts in these."""

    @torch.no_grad()
    def step(self):
        groups = list(self.param_groups)
        for group in groups:
            group["count"] = group.get("count", 0) + 1
            parameters = [*group["params"]]
            torch._foreach_add_(parameters, torch._foreach_mul([one.grad for one in parameters], -0.05 / group["count"]))


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


RIGHT = [*LOOPS, *COLLECTING, CountingAfterwards, CountingByClosure, WritingToData, Paired, Noisy, Scratching, Sharing,
         SharingAtFirst, Looking, Numbered, CollectingAlone, OfPyTorch, CollectingPaired, CollectingPart, CollectingPairs,
         StoppingEarly, Norm, SkippingFirst, CollectingNumbered, CollectingFlag, Popping, Remembering, Slices, Reversed,
         CollectingData, CollectingGroups]
IN_BACKWARD = {**dict.fromkeys([*LOOPS, *COLLECTING, CountingAfterwards, CountingByClosure, WritingToData, Noisy, Scratching,
                                Sharing, SharingAtFirst, OfPyTorch], "(changes|carries) .*offload without step_in_backward"),
               CollectingPaired: "pairs its parameter groups", Paired: "pairs its parameter groups",
               CollectingPairs: "counts or pairs the parameters of a group", StoppingEarly: "leaves its loop",
               CollectingPart: "leaves its loop over self.param_groups", Numbered: "counts or pairs the parameters of a group",
               **dict.fromkeys([SkippingFirst, CollectingNumbered, CollectingFlag, Popping, Remembering, Looking],
                               "carries '.*' from one parameter or group to the next"),
               Slices: "counts or pairs the parameters of a group", Reversed: "counts or pairs the parameters of a group",
               CollectingGroups: "pairs its parameter groups",
               Norm: r"runs several loops over group\['params'\]", SameMemory: "the state 'before' of .*clone"}

# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose steps are odd, for odd_optimizers_test.py: what each of them keeps, pairs, draws or counts; and what
is said of those that are refused."""

import itertools

import torch
from odd_kept import COLLECTING, LOOPS, Collecting, GroupNumber, Odd

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

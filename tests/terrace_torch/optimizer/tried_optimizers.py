# SPDX-License-Identifier: Apache-2.0
"""Optimizers that nobody has declared, each odd in one way: for tried_test.py."""

import collections
import enum
import types

import torch


class Base(torch.optim.Optimizer):
    """Gradient descent with what update() makes of a gradient."""

    def __init__(self, parameters, lr=0.02):
        super().__init__(parameters, {"lr": lr})
        self.prepare()

    def prepare(self):
        """Makes what it keeps."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate = group["lr"] / self.slowness(group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(self.update(parameter, self.state[parameter]), alpha=rate)
        return loss

    def slowness(self, group):
        """As the step comes to a group."""
        return 1

    def update(self, parameter, state):
        return parameter.grad


# What counts its steps elsewhere than in the states of parameters. ---------------------------------------------------------

class CountsInGroup(Base):
    """By assignment, as nearly all of pytorch_optimizer; and collects what it steps in lists."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter].setdefault("average", torch.zeros_like(parameter))
            found = [one for one in group["params"] if one.grad is not None]
            averages = [self.state[one]["average"] for one in found]
            if found:
                torch._foreach_lerp_(averages, [one.grad for one in found], 0.1)
                torch._foreach_add_(found, averages, alpha=-group["lr"] / group["step"])


class CountsInPlace(Base):
    def prepare(self):
        for group in self.param_groups:
            group["count"] = torch.zeros(())

    def slowness(self, group):
        return group["count"].add_(1).item()


class CountsOnItself(Base):
    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)

    def slowness(self, group):
        return self.count


class CountsInState(Base):
    """Under a key that is no parameter."""

    @torch.no_grad()
    def step(self):
        if "k" not in self.state:
            self.state["k"] = torch.zeros(1, dtype=torch.long)
        super().step()
        self.state["k"].add_(1)

    def slowness(self, group):
        return 1 + self.state["k"].item()


# What keeps states of many forms. -------------------------------------------------------------------------------------------

class Factored(Base):
    """A row and a column of each matrix, in half the precision, and a number."""

    def update(self, parameter, state):
        if parameter.dim() < 2:
            return parameter.grad
        if not state:
            state |= {"rows": torch.zeros(parameter.shape[0], 1024, dtype=torch.bfloat16), "steps": 0, "columns": None}
        state["steps"] += 1
        state["rows"].add_(parameter.grad.square().mean(1, keepdim=True))
        state["columns"] = parameter.grad.square().mean(0) / state["steps"]
        return parameter.grad / (state["rows"].mean(1, keepdim=True).float() + state["columns"] + 0.1).sqrt()


class InContainers(Base):
    """In a list, a tuple, a dictionary within a list, a deque and an object, some of them made anew in each step."""

    def update(self, parameter, state):
        zeros = torch.zeros_like(parameter)
        if not state:
            state |= {"list": [zeros, zeros.double()], "tuple": (zeros.clone(), 1), "deep": [{"inner": zeros.clone()}],
                      "last": collections.deque(maxlen=2), "object": types.SimpleNamespace(kept=zeros.clone(), none=None)}
        state["list"][0].lerp_(parameter.grad, 0.1)
        state["list"][1].add_(parameter.grad)
        state["tuple"] = (state["tuple"][0] * 0.9 + parameter.grad, state["tuple"][1] + 1)
        state["deep"][0]["inner"].add_(parameter.grad, alpha=0.5)
        state["last"].append(parameter.grad.clone())
        state["object"].kept.add_(state["last"][0])
        return (state["list"][0] + state["list"][1].float() * 0.1 + state["tuple"][0] / state["tuple"][1]
                + state["deep"][0]["inner"] * 0.1 + state["object"].kept * 0.1)


class Growing(Base):
    """Has a state of another shape in each step."""

    def update(self, parameter, state):
        past = state.get("past", parameter.grad.new_zeros((0, *parameter.shape)))
        state["past"] = torch.cat([past, parameter.grad[None]])[-3:]
        return state["past"].mean(0)


class ChangesType(Base):
    """Has a state of another type in every second step."""

    def update(self, parameter, state):
        average = state.get("average", torch.zeros_like(parameter)).float().lerp(parameter.grad, 0.1)
        state["steps"] = state.get("steps", 0) + 1
        state["average"] = average.to((torch.float32, torch.float64)[state["steps"] % 2])
        return average


class Halved(torch.Tensor):
    """A matrix in half of its bytes, with a scale: a tensor that is made of others."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, _context, _size, _stride):
        return cls(parts["codes"], parts["scale"])

    def write(self, value):
        self.scale.copy_(value.abs().amax(1, keepdim=True) / 30000 + 1e-9)
        self.codes.copy_((value / self.scale).round())

    def read(self):
        return self.codes.float() * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            return cls(*(func(one, **{}) if func is not torch.ops.aten._to_copy.default else one.clone()
                         for one in (args[0].codes, args[0].scale)))
        raise NotImplementedError(f"{func} of a Halved")


class Quantized(Base):
    def update(self, parameter, state):
        if parameter.dim() < 2:
            return parameter.grad
        if not state:
            state["average"] = Halved(torch.zeros(parameter.shape, dtype=torch.int16), torch.zeros(parameter.shape[0], 1))
        average = state["average"].read().lerp(parameter.grad, 0.1)
        state["average"].write(average)
        return average


class MadeAtFirst(Base):
    """Has its states from its constructor on."""

    def prepare(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["average"] = torch.zeros_like(parameter)

    def update(self, parameter, state):
        return state["average"].lerp_(parameter.grad, 0.1)


class ByParameter(Base):
    """Keeps what belongs to a parameter in a dictionary of its own."""

    def prepare(self):
        self.averages = {}

    def update(self, parameter, _state):
        return self.averages.setdefault(parameter, torch.zeros_like(parameter)).lerp_(parameter.grad, 0.1)


# What looks at its parameters otherwise. ------------------------------------------------------------------------------------

class Normalizing(Base):
    """By the norms of a parameter and its gradient, as LAMB and LARS."""

    def update(self, parameter, _state):
        return parameter.grad * (parameter.norm() + 0.01) / (parameter.grad.norm() + 1e-6)


class Noisy(Base):
    """Draws random numbers for each parameter."""

    def update(self, parameter, _state):
        return parameter.grad * (1 + 0.1 * torch.randn_like(parameter))


class DecaysAll(Base):
    """Also what has no gradient."""

    def step(self):
        super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.99)


class Enumerating(Base):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                assert index < len(group["params"])
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


class OverAll(Base):
    """Collects its parameters of all groups, and steps then."""

    @torch.no_grad()
    def step(self):
        found = [(group, one) for group in self.param_groups for one in group["params"] if one.grad is not None]
        for group, parameter in found:
            parameter.sub_(parameter.grad, alpha=group["lr"])


class Compiled(Base):
    """Compiles what it makes of a gradient, as torchao's do."""

    def update(self, parameter, state):
        average = state.setdefault("average", torch.zeros_like(parameter))
        return torch.compile(_averaged, fullgraph=True, backend="eager")(parameter.detach(), parameter.grad, average)


def _averaged(parameter, gradient, average):
    return average.lerp_(gradient, 0.1) + 0.01 * parameter.float()


# What depends on more than one parameter. -----------------------------------------------------------------------------------

class ClipsAll(Base):
    """By the norm of all gradients."""

    def step(self):
        norms = [one.grad.norm() for group in self.param_groups for one in group["params"] if one.grad is not None]
        self.norm = torch.stack(norms).norm()
        super().step()

    def update(self, parameter, _state):
        return parameter.grad / self.norm


class Prodigy(Base):
    """Has a number in its groups that it estimates over all parameters."""

    def slowness(self, group):
        group["d"] = max(group.get("d", 1e-2), sum(one.grad.abs().sum().item() for one in group["params"]
                                                   if one.grad is not None))
        return group["d"]


class MeanOfGroup(Base):
    """Divides by how many parameters a group has."""

    def slowness(self, group):
        return len(group["params"])


class Carries(Base):
    """Adds to each gradient what it made of the one before."""

    last = 0.0

    def update(self, parameter, _state):
        last, self.last = self.last, parameter.grad.mean().item()
        return parameter.grad + last


class DrawsOnce(Base):
    """Draws a random number for each group."""

    def slowness(self, group):
        return 1 + torch.rand(()).item()


# What asks one that the process has for all. ------------------------------------------------------------------------------

class Uncopied(torch.nn.Module):
    """As one is that lives in Terrace, and whose client is closed."""

    def __deepcopy__(self, _memo):
        raise ConnectionError("copied")


class Registry:
    """What scripts have said of parameters, by their places in a group: as bitsandbytes' managers."""

    def __init__(self):
        self.slower = {0: 2.0}
        self.modules = [Uncopied()]


Registry.only = Registry()


class Pace(enum.IntEnum):
    """Numbers that their class keeps, too."""

    SLOW = 1


class AsksRegistry(Base):
    def prepare(self):
        self.registry, self.pace = Registry.only, Pace.SLOW

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for at, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / self.registry.slower.get(at, 1.0))


# What is saved, what fails, and what its step does beside: for step="host". ----------------------------------------------------

class InLists(Base):
    """Tensors in a list, in a tuple and in a dictionary within a list, beside numbers."""

    def update(self, parameter, state):
        zeros = torch.zeros_like(parameter)
        if not state:
            state |= {"list": [zeros, zeros.double()], "tuple": (zeros.clone(), 1, ()), "deep": [{"inner": zeros.clone(), "none": None}, []]}
        state["list"][0].lerp_(parameter.grad, 0.1)
        state["list"][1].add_(parameter.grad)
        state["tuple"] = (state["tuple"][0].add_(0.1 * parameter.grad), state["tuple"][1] + 1, ())
        state["deep"][0]["inner"].sub_(parameter.grad)
        return state["list"][0] + state["list"][1].float() + state["tuple"][0] / state["tuple"][1] + state["deep"][0]["inner"]


class Numbered(Base):
    def update(self, parameter, state):
        state["numbered"] = {1: parameter.grad.clone()}
        return parameter.grad


class NeedsMore(Base):
    def step(self, rate, decay):
        super().step()


class Generating(Base):
    def prepare(self):
        self.rates = (1 / number for number in range(1, 100))

    def slowness(self, group):
        return next(self.rates)


class FailsInLoop(Base):
    """In the second step, after some parameters."""

    fails = False

    def update(self, parameter, state):
        if self.fails and parameter.dim() == 1:
            raise ZeroDivisionError("in the step")
        return parameter.grad


class Asks(Base):
    """A parameter how fast it is to go."""

    def update(self, parameter, state):
        return state.setdefault("average", torch.zeros_like(parameter)).lerp_(parameter.grad, 0.1) * getattr(parameter, "pace", 1)


class WritesGradients(CountsOnItself):
    def update(self, parameter, state):
        return parameter.grad.mul_(0.5)


class KeepsById(CountsOnItself):
    def prepare(self):
        self.known = {id(one): 1 for group in self.param_groups for one in group["params"]}


class Loops(Base):
    """Twice over its groups."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["seen"] = 1
        super().step()


class LooksByNumber(Base):
    def slowness(self, group):
        return 1 / (1 + self.param_groups[0]["lr"])


class WritesLater(CountsOnItself):
    """To gradients, as it never did in its trial."""

    @torch.no_grad()
    def update(self, parameter, state):
        return parameter.grad.mul_(0.5) if self.count > 20 else parameter.grad


class LoopsLater(CountsOnItself):
    def step(self, closure=None):
        super().step()
        if self.count > 20:
            list(self.param_groups)


ACCEPTED = [CountsInGroup, CountsInPlace, CountsOnItself, CountsInState, Factored, InContainers, Growing, ChangesType, Quantized, MadeAtFirst,
            ByParameter, Normalizing, Noisy, DecaysAll, Enumerating, OverAll, Compiled,
            AsksRegistry]
WHOLE = [Enumerating, AsksRegistry]  # of these, what sees each group whole
REFUSED = {ClipsAll: r"'norm' is .* by the step of one parameter, and .* by that of another",
           Prodigy: r"since it reduces over all of them for the size of its step: .*'d' of parameter group 0",
           MeanOfGroup: "a parameter of shape", Carries: "its own 'last' is .* by the step of one parameter",
           DrawsOnce: "a parameter of shape"}

# SPDX-License-Identifier: Apache-2.0
"""What the tests of fully_shard() share: a small GPT that is split over ranks, what is in states, whole, and the plain loop
that masters are measured by."""

import contextlib

import masters_fixtures
import terrace.torch
import torch
from model_fixtures import Gpt
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 33  # an odd one: of most parameters the second rank has less than the first


def build(*, dtype=torch.float32, width=WIDTH, checkpointing=None, frozen=False, prefetch=False, narrow=(), built_in=contextlib.nullcontext,
          kind=torch.optim.AdamW, options=(("lr", 1e-3),), **split):
    """The model, split over ranks, and its optimizer; the same ones each time."""
    torch.manual_seed(1)
    with built_in():
        model = Gpt(width, 3, checkpointing).to(dtype)
    for name in narrow:
        model.get_submodule(name).to(torch.bfloat16)
    if frozen:
        model.blocks[1].wide.weight.requires_grad_(False)
        model.blocks[1].norm.weight.requires_grad_(False)
    split.setdefault("mesh", init_device_mesh("cpu", (distributed.get_world_size(),)))
    for block in model.blocks:
        fully_shard(block, **split)
    fully_shard(model, **split)
    if prefetch:
        for before, after in zip(model.blocks, model.blocks[1:], strict=False):
            before.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([before])
    return model, kind([one for one in model.parameters() if one.requires_grad], **dict(options))


def flat(state, prefix=""):
    """What is in nested dictionaries and lists, each by its way there, and whole."""
    found = {}
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if isinstance(value, dict | list):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found


def assert_same(one, other):
    """States are equal bit for bit."""
    one, other = flat(one), flat(other)
    assert list(one) == list(other)
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype and torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


class Copies(masters_fixtures.Copies):
    """A plain loop's: its optimizer steps copies in float32 of this rank's shards, and weights are copied from them."""

    def __init__(self, model, plain, gradients=None, options=()):
        """plain: an optimizer of the model's own weights; another one of its kind steps the copies. options: its own."""
        self.model = model
        self.pairs = [(weight, weight.detach().float().requires_grad_()) for group in plain.param_groups
                      for weight in group["params"]]
        of = dict(self.pairs)
        groups = [{**group, "params": [of[weight] for weight in group["params"]]} for group in plain.param_groups]
        self.optimizer = type(plain)(groups, **dict(options))
        self.gradients = gradients

    @property
    def weights(self):
        return [weight for weight, _ in self.pairs]

    def unfreeze(self, weight):
        self.pairs.append((weight, weight.detach().float().requires_grad_()))
        self.optimizer.add_param_group({"params": [self.pairs[-1][1]]})

    def take_written(self):
        """What was written to a weight is its master's."""
        for weight, master in self.pairs:
            master.detach().copy_(torch.where(weight.detach() == master.detach().bfloat16(), master.detach(), weight.detach()))

    def zero_grad(self):
        """Nothing is left by a step."""


class Limited(contextlib.AbstractContextManager):
    """Lets a client lease to overwrite for a few times, and not after that."""

    def __init__(self, client, times):
        self._client, self._times, self._acquire = client, times, client._acquire

    def __enter__(self):
        self._client._acquire = self._take

    def __exit__(self, *_):
        self._client._acquire = self._acquire

    def _take(self, tensors, mode, *options):
        self._times -= mode == "overwrite"
        if mode == "overwrite" and self._times < 0:
            raise terrace.ResourceExhausted("no more, on purpose")
        return self._acquire(tensors, mode, *options)

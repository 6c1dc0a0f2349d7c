# SPDX-License-Identifier: Apache-2.0
"""Shows that two ranks of one daemon train under DistributedDataParallel, inside of what is offloaded or around it, to
the losses and weights that they have without Terrace, bit for bit; and that what would be silently wrong is refused."""

import contextlib
import json
import os
import pathlib
import subprocess

import pytest
import terrace.torch
import torch
from model_fixtures import Gpt, assert_same, loss_of, weights
from python_fixtures import LIMIT_SECONDS, disk  # noqa: F401 (a fixture)
from rank_fixtures import Checks, run_ranks
from terrace.torch._leased.store import Store
from terrace.torch._parameters import casts
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

CHECKS = Checks()


class Sparing(Gpt):
    """Leaves out a block for half of the texts."""

    def forward(self, text):
        x = self.embedding(text) + self.positions * self.scale
        for number, block in enumerate(self.blocks):
            if number != 1 or int(text[0, 0]) % 2:
                x = block(x)
        return self.head(self.norm(x))


def build(kind=Gpt):
    """The model and its optimizer; the same ones each time, and on each rank."""
    torch.manual_seed(1)
    model = kind(32, 3)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def plain(client, made, **wrapped):
    """Without Terrace."""
    model, optimizer = build(made)
    return DistributedDataParallel(model, **wrapped), model, optimizer


def inside(client, made, **wrapped):
    """What the wrapper gave is offloaded."""
    model, optimizer = build(made)
    wrapper = DistributedDataParallel(model, **wrapped)
    terrace.torch.offload(wrapper, optimizer, client=client, tensor_bytes_min=1)
    return wrapper, model, optimizer


def around(client, made, *, step_in_backward=False, **wrapped):
    """What is offloaded is wrapped."""
    model, optimizer = build(made)
    terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, step_in_backward=step_in_backward)
    return DistributedDataParallel(model, **wrapped), model, optimizer


def train(wrapper, optimizer, *, parts=1, unsynchronised=False, steps=4, autocast=False):
    """The losses of a run, in which each rank has batches of its own."""
    said = []
    torch.manual_seed(7)
    for step in range(steps):
        for part in range(parts):
            last = part == parts - 1
            with contextlib.nullcontext() if last or not unsynchronised else wrapper.no_sync():
                loss = loss_of(wrapper, 1000 * distributed.get_rank() + step * parts + part, autocast)
                loss.backward()
            said.append(loss.item())
        said.append(nn.utils.clip_grad_norm_(wrapper.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
    return said


def compare(client, made=Gpt, run=None, **wrapped):
    """Trains without Terrace, and in both orders with it."""
    run = run or {}
    wrapper, wanted, optimizer = plain(client, made, **wrapped)
    said = train(wrapper, optimizer, **run)
    for order in (inside, around):
        wrapper, model, optimizer = order(client, made, **wrapped)
        assert train(wrapper, optimizer, **run) == said, order.__name__
        assert_same(weights(model), weights(wanted))
        assert client.leased_bytes == 0 and client.held == 0
    averaged = [torch.empty_like(wanted.positions.detach()) for _ in range(distributed.get_world_size())]
    distributed.all_gather(averaged, wanted.positions.detach())
    assert torch.equal(*averaged), "the ranks have stepped alike"


@CHECKS.check
def ways_to_train(client, _folder):
    compare(client)
    compare(client, run={"parts": 3})
    compare(client, run={"parts": 3, "unsynchronised": True})


@CHECKS.check
def a_step_that_goes_on(client, _folder):
    """step() returns, and the ranks meet in the next backward pass."""
    wrapper, wanted, optimizer = plain(client, Gpt)
    said = train(wrapper, optimizer, parts=2)
    model, optimizer = build()
    wrapper = DistributedDataParallel(model)
    terrace.torch.offload(wrapper, optimizer, client=client, tensor_bytes_min=1, step="host")
    assert train(wrapper, optimizer, parts=2) == said
    assert_same(weights(model), weights(wanted))


@CHECKS.check
def autocast(client, _folder):
    """Weights are leased as what autocast casts them to."""
    casts.BYTES_MIN, Store.fits = 1, lambda _store: False
    compare(client, run={"parts": 2, "unsynchronised": True, "autocast": True})
    assert any(name.endswith("/bfloat16") for name in client.tensors())


@CHECKS.check
def ways_to_wrap(client, _folder):
    compare(client, static_graph=True)
    compare(client, find_unused_parameters=True)
    compare(client, Sparing, find_unused_parameters=True)
    compare(client, Sparing, run={"parts": 2, "unsynchronised": True}, find_unused_parameters=True)
    compare(client, bucket_cap_mb=1, broadcast_buffers=False)


@CHECKS.check
def parts(client, _folder):
    wrapper, wanted, optimizer = plain(client, Gpt)
    said = train(wrapper, optimizer, parts=2, unsynchronised=True)
    for what in ("parameters", "gradients", {"gradients", "states"}):
        model, own = build()
        wrapper = DistributedDataParallel(model)
        terrace.torch.offload(wrapper, own, client=client, tensor_bytes_min=1, what=what)
        assert train(wrapper, own, parts=2, unsynchronised=True) == said
        assert_same(weights(model), weights(wanted))
    model, own = build()
    terrace.torch.offload(model, own, client=client, tensor_bytes_min=1, what="gradients")
    wrapper = DistributedDataParallel(model, gradient_as_bucket_view=True)
    with pytest.raises(terrace.FailedPrecondition, match="gradient_as_bucket_view=True makes every"):
        loss_of(wrapper, 1)
    assert client.leased_bytes == 0


@CHECKS.check
def zero_redundancy(client, _folder):
    """Each rank has the states of a part of the parameters, and gets the others from the other rank."""
    found = []
    for offloads in (False, True):
        model, _ = build()
        wrapper = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(wrapper.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
        if offloads:
            terrace.torch.offload(wrapper, optimizer, client=client, tensor_bytes_min=1)
        said = train(wrapper, optimizer, parts=2)
        optimizer.consolidate_state_dict(0)
        found.append((said, weights(model)))
        assert client.leased_bytes == 0 and client.held == 0
    assert found[0][0] == found[1][0]
    assert_same(found[1][1], found[0][1])
    assert any("exp_avg" in name for name in client.tensors())


@CHECKS.check
def refused(client, _folder):
    model, optimizer = build()
    wrapper = DistributedDataParallel(model)
    with pytest.raises(terrace.InvalidArgument, match="step_in_backward=True .* averages a gradient over the ranks"):
        terrace.torch.offload(nn.Sequential(wrapper), optimizer, client=client, step_in_backward=True)
    terrace.torch.offload(wrapper, optimizer, client=client, tensor_bytes_min=1)
    train(wrapper, optimizer, steps=1)
    for said, options in (("step_in_backward=True cannot be had", {"step_in_backward": True}),
                          ("gradient_as_bucket_view=True makes every", {"gradient_as_bucket_view": True})):
        wrapper, model, optimizer = around(client, Gpt, **options)
        before = weights(model)
        for _ in range(2):
            with pytest.raises(terrace.FailedPrecondition, match=f"parameter '.*' is in Terrace, and .*{said}"):
                loss_of(wrapper, 1)
        assert client.leased_bytes == 0 and client.held == 0
        loss_of(model, 1).backward()  # by itself it is as ever
        optimizer.step()
        assert list(before) == list(weights(model))
        assert client.leased_bytes == 0


class Copying(torch.optim.AdamW):
    """What a plain loop with masters steps: copies in float32, from which weights are copied."""

    def __init__(self, weights, **options):
        self.weights = list(weights)
        super().__init__([one.detach().float().requires_grad_() for one in self.weights], **options)

    def step(self, closure=None):
        for weight, master in zip(self.weights, self.param_groups[0]["params"], strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        super().step(closure)
        with torch.no_grad():
            for weight, master in zip(self.weights, self.param_groups[0]["params"], strict=True):
                weight.copy_(master)
                weight.grad = None


@CHECKS.check
def masters(client, _folder):
    def wrapped(order):
        model = build()[0].to(torch.bfloat16)
        optimizer = (Copying if order is plain else torch.optim.AdamW)(model.parameters(), lr=1e-3)
        options = {"client": client, "tensor_bytes_min": 1, "masters": torch.float32}
        if order is around:
            terrace.torch.offload(model, optimizer, **options)
        wrapper = DistributedDataParallel(model)
        if order is inside:
            with pytest.raises(terrace.InvalidArgument, match="gradients=torch.float32 cannot be had"):
                terrace.torch.offload(wrapper, optimizer, gradients=torch.float32, **options)
            terrace.torch.offload(wrapper, optimizer, **options)
        return wrapper, model, optimizer

    for orders, run in (((inside,), {"steps": 50}), ((inside, around), {"parts": 2, "unsynchronised": True})):
        wrapper, wanted, optimizer = wrapped(plain)
        said = train(wrapper, optimizer, **run)
        for order in orders:
            wrapper, model, optimizer = wrapped(order)
            assert train(wrapper, optimizer, **run) == said, order.__name__
            assert_same(weights(model), weights(wanted))
    model = build()[0].to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    terrace.torch.offload(model, optimizer, client=client, masters=torch.float32, gradients=torch.float32)
    with pytest.raises(terrace.FailedPrecondition, match="gradients=torch.float32 cannot be had"):
        loss_of(DistributedDataParallel(model), 1)


class Taught(nn.Module):
    """Learns from what a frozen one says."""

    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher
        self.own = nn.Linear(64, 64)

    def forward(self, x):
        return (self.own(x) - self.teacher(x)).square().mean()


@CHECKS.check
def what_is_frozen_is_not_refused(client, _folder):
    teacher = nn.Linear(64, 64).requires_grad_(False)
    terrace.torch.offload(teacher, client=client, tensor_bytes_min=1)
    wrapper = DistributedDataParallel(Taught(teacher), gradient_as_bucket_view=True)
    wrapper(torch.randn(4, 64)).backward()
    assert wrapper.module.own.weight.grad is not None


def served(label):
    """Steps begun, and bytes brought to where they are leased, of each session of this label: the daemon's own counts."""
    said = subprocess.run([pathlib.Path(os.environ["TERRACE_BUILD"]) / "terracectl", "sessions", "--json"],
                          capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True).stdout
    sessions = [session for session in json.loads(said)["sessions"] if session["label"] == label]
    return ([session["step"] for session in sessions],
            [sum(session["foresight"][by] for by in ("planned_bytes", "demanded_bytes")) for session in sessions])


@CHECKS.check
def both_are_served_fairly(client, _folder):
    """Each trains for itself, so that neither waits for the other, in memory that holds less than a third of what both have."""
    layers, width, steps = 32, 320, 12
    parameter_bytes = layers * (width + 1) * width * 4
    with terrace.Client(client.socket, label="fair", guarantees={"host": 4 << 20}) as own:
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        terrace.torch.offload(model, optimizer, client=own, tensor_bytes_min=1)
        distributed.barrier()
        for _ in range(steps):
            model(torch.randn(4, width)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        begun, fetched = served("fair")  # whoever is first here sees how far the other has come
        distributed.barrier()
    assert len(begun) == distributed.get_world_size()
    assert 2 * min(begun) >= max(begun) >= steps, begun
    assert max(fetched) > steps * parameter_bytes, (fetched, "what it needs is not in memory for good")


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(disk, name):
    run_ranks(__file__, name, disk)

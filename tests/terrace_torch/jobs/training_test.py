# SPDX-License-Identifier: Apache-2.0
"""Shows that a model whose parameters, gradients and optimizer states live in Terrace trains to losses and weights that
are, bit for bit, those of plain PyTorch, also where little of it fits the memory tier; nothing stays leased."""

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (a fixture)
    Recipe,
    assert_same,
    batch,
    build,
    compare,
    loss_of,
    metric,
    restless,
    train,
    weights,
)
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)

ADAMW = {"foreach": (("lr", 1e-3), ("foreach", True)), "fused": (("lr", 1e-3), ("fused", True)),
         "single": (("lr", 1e-3), ("foreach", False))}


@pytest.mark.parametrize("kernels", ADAMW)
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("checkpointing", [None, True, False], ids=["kept", "reentrant", "checkpointed"])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_the_matrix(restless, autocast, checkpointing, accumulation, kernels):
    compare(Recipe(autocast=autocast, checkpointing=checkpointing, accumulation=accumulation, clip=accumulation == 2,
                   options=ADAMW[kernels]), restless)


@pytest.mark.parametrize("checkpointing", [None, True, False], ids=["kept", "reentrant", "checkpointed"])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_frozen_parameters(restless, autocast, checkpointing):
    compare(Recipe(autocast=autocast, checkpointing=checkpointing, frozen=True, accumulation=2), restless)


@pytest.mark.parametrize("kind, options", [
    ("Adadelta", {}), ("Adagrad", {}), ("Adam", {"amsgrad": True}), ("Adamax", {}), ("ASGD", {}), ("NAdam", {}),
    ("RAdam", {}), ("RMSprop", {"momentum": 0.9, "centered": True}), ("Rprop", {}), ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}), ("SGD", {"momentum": 0.9, "fused": True}),
    ("AdamW", {"maximize": True}), ("Adagrad", {"fused": True})])
def test_every_optimizer(restless, kind, options):
    compare(Recipe(kind=getattr(torch.optim, kind), options=(("lr", 1e-3), *options.items()), set_to_none=False),
            restless)


@pytest.mark.parametrize("checkpointing", [None, True, False], ids=["kept", "reentrant", "checkpointed"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_a_working_set_of_several_times_the_memory(disk, checkpointing, frozen):
    """17 MiB of state through a memory tier of 4: every step moves most of it down and up again."""
    recipe = Recipe(width=96, blocks=10, checkpointing=checkpointing, frozen=frozen, accumulation=2, clip=True)
    with terrace.serve("4MiB", block=f"{disk}:128MiB") as client:
        model, _ = compare(recipe, client)
        state = 16 * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        assert state > 4 * 4 * MIB
        assert metric(client, "terrace_transfer_bytes_total", link="block_read") > 4 * state
        assert metric(client, "terrace_transfer_bytes_total", link="block_write") > 3 * state
        assert metric(client, "terrace_checksum_failures_total") == 0
        assert client.leased_bytes_max <= 4 * MIB


@pytest.mark.parametrize(("policy", "times"), [("lru", 1), ("next-use", 0)])
def test_fresh_gradients_are_not_fetched(disk, policy, times):
    """A backward pass after zero_grad() reads the parameters that it needs, and none of the gradients before: all of
    them once and more on demand, and fewer by a plan, which keeps some."""
    recipe = Recipe(width=96, blocks=10)
    with terrace.serve("4MiB", block=f"{disk}:128MiB", policy=policy) as client:
        model, optimizer = build(recipe)
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        train(model, optimizer, recipe)
        size = 4 * sum(parameter.numel() for parameter in model.parameters())
        before = metric(client, "terrace_transfer_bytes_total", link="block_read")
        model(batch(1)[0]).sum().backward()
        read = metric(client, "terrace_transfer_bytes_total", link="block_read") - before
        assert times * size < read < 2.5 * size, "parameters twice, at most; gradients would make it three times"
        before = metric(client, "terrace_transfer_bytes_total", link="block_read")
        model(batch(1)[0]).sum().backward()
        assert metric(client, "terrace_transfer_bytes_total", link="block_read") - before > read + size / 2
        assert client.leased_bytes == 0


@pytest.mark.parametrize(("kind", "options"), [
    ("AdamW", {"fused": True}), ("AdamW", {"fused": True, "amsgrad": True}), ("Adam", {"foreach": True, "weight_decay": 0.1}),
    ("SGD", {"fused": True}), ("SGD", {"fused": True, "momentum": 0.9}), ("Adagrad", {"fused": True})])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_an_optimizer_that_is_not_offloaded_leases_one_by_one(disk, kind, options, scaled):
    """Its kernels are given all parameters at once, which are more than can be leased at once."""
    def run(client):
        model, _ = build(Recipe(width=96, blocks=10))
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, **options)
        if client is not None:
            terrace.torch.offload(model, client=client, tensor_bytes_min=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scaled)
        for number in range(3):
            scaler.scale(loss_of(model, number)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return weights(model)

    with terrace.serve("4MiB", block=f"{disk}:128MiB", metrics=False) as client:
        wanted = run(None)
        assert sum(weight.nbytes for weight in wanted.values()) > 4 * MIB
        assert_same(run(client), wanted)
        assert client.leased_bytes == 0


@pytest.mark.parametrize("kernels", ["foreach", "fused"])
def test_gradients_are_not_fetched_to_be_zeroed(disk, kernels):
    recipe = Recipe(width=96, blocks=10, set_to_none=False, options=ADAMW[kernels])
    with terrace.serve("4MiB", block=f"{disk}:128MiB", policy="lru") as client:
        model, optimizer = build(recipe)
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        train(model, optimizer, recipe)
        size = 4 * sum(parameter.numel() for parameter in model.parameters())
        before = metric(client, "terrace_transfer_bytes_total", link="block_read")
        optimizer.zero_grad(set_to_none=False)
        assert metric(client, "terrace_transfer_bytes_total", link="block_read") - before < size / 4
        assert not any(parameter.grad.any() for parameter in model.parameters())

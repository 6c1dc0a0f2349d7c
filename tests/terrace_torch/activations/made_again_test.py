# SPDX-License-Identifier: Apache-2.0
"""Shows that what a cheap operation made of a tensor that is saved as well is made again in backward where that costs
less than moving it: the same bits, whatever the operation, its geometry and the threads are; nothing moves for it."""

import contextlib
import threading

import pytest
import terrace
import terrace.torch
import torch
from python_fixtures import LIMIT_SECONDS, disk  # noqa: F401 (a fixture)
from terrace.torch._activations import backward_order
from terrace.torch._activations.costs import Saving, made_again, stay_in_memory
from torch import nn
from torch.nn import functional
from training_fixtures import leaves_nothing, model_of, roomy, same, train  # noqa: F401 (a fixture)

OPERATIONS = {"gelu": functional.gelu, "gelu-tanh": lambda value: functional.gelu(value, approximate="tanh"),
              "silu": functional.silu, "mish": functional.mish, "hardswish": functional.hardswish,
              "leaky_relu": lambda value: functional.leaky_relu(value, 0.2)}


@pytest.fixture
def always(monkeypatch):
    """Whatever can be is made again from the second step on, so that no clock decides."""
    monkeypatch.setattr(backward_order, "made_again", lambda savings: frozenset(
        number for number, saving in enumerate(savings) if saving.make_seconds is not None))


class Wide(nn.Module):
    """gated: by the first half of what is made, which has gaps."""

    def __init__(self, operation, width, gated):
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width if gated else 4 * width, width)
        self.operation, self.gated = operation, gated

    def forward(self, hidden):
        wide = self.up(hidden)
        if self.gated:
            gate, value = wide.chunk(2, -1)
            return self.down(self.operation(gate) * value)
        return self.down(self.operation(wide))


def gradients(layer, context, shape, count=2, bfloat16=False):
    """Of some steps, the last ones."""
    torch.manual_seed(4)
    for _ in range(count):
        layer.zero_grad()
        source = torch.randn(*shape).requires_grad_()
        with context, torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = layer(layer(source)).float().square().mean()
        loss.backward()
    return [source.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize("bfloat16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("gated", [False, True], ids=["whole", "gated"])
@pytest.mark.parametrize("shape", [(64, 37), (3, 41, 37)], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_equal_bit_for_bit(roomy, operation, shape, gated, bfloat16):
    layer = Wide(OPERATIONS[operation], shape[-1], gated)
    plain = gradients(layer, contextlib.nullcontext(), shape, bfloat16=bfloat16)
    moving = terrace.torch.activations(roomy, min_bytes=1024, keep_bytes=0, recompute=False)
    assert all(map(torch.equal, gradients(layer, moving, shape, bfloat16=bfloat16), plain))
    context = terrace.torch.activations(roomy, min_bytes=1024, keep_bytes=0, recompute=True)
    assert all(map(torch.equal, gradients(layer, context, shape, bfloat16=bfloat16), plain))
    assert (moving.remade, context.remade) == (0, 2), "in the second step, which tries"
    assert context.moved == moving.moved - 2 and leaves_nothing(context)


@pytest.mark.parametrize("checkpointing", [None, "plain", "reentrant", "selective"])
def test_a_model_through_the_block_tier(disk, always, checkpointing):
    options = {"batch": 24}
    plain = train(model_of(6, checkpointing=checkpointing), contextlib.nullcontext(), 4, **options)
    with terrace.serve("4MiB", block=f"{disk}:256MiB", metrics=False) as client:
        context = terrace.torch.activations(client, min_bytes=4096, keep_bytes=0, recompute=True)
        assert same(train(model_of(6, checkpointing=checkpointing), context, 4, **options), plain)
        assert (context.remade >= 3 * 6) == (checkpointing is None), "one a block; those of checkpoints are not saved"
        assert leaves_nothing(context)


def test_an_offloaded_model(disk, always):
    plain = train(model_of(4), contextlib.nullcontext(), 4)
    with terrace.serve("4MiB", block=f"{disk}:128MiB", metrics=False) as client:
        model = model_of(4)
        terrace.torch.offload(model, client=client)
        context = terrace.torch.activations(client, min_bytes=4096, keep_bytes=0, recompute=True)
        assert same(train(model, context, 4), plain)
        assert context.remade >= 3 * 4 and leaves_nothing(context)


def test_other_threads(roomy, always):
    """How many threads divide a tensor decides how its elements are computed: in backward it is as it was."""
    layer, shape = Wide(functional.gelu, 37, False), (3001, 37)
    number = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        plain = gradients(layer, contextlib.nullcontext(), shape)
        context = terrace.torch.activations(roomy, keep_bytes=0, recompute=True)
        ours = gradients(layer, context, shape)
        assert all(map(torch.equal, ours, plain))
        for _ in range(2):
            torch.set_num_threads(3)
            weight = torch.randn(300011).requires_grad_()
            with context:
                made = functional.gelu(torch.randn(300011).requires_grad_() * 1)
                result, expected = made * weight, made.detach().clone()
            del made
            torch.set_num_threads(1)
            result.sum().backward()
        assert torch.equal(weight.grad, expected) and context.remade > 0 and torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(number)


def test_an_input_that_was_saved_at_two_versions(roomy, always):
    """Which of them the operation has seen cannot be told: its result is moved."""
    def result(context):
        torch.manual_seed(5)
        weight = torch.randn(200, 200).requires_grad_()
        for _ in range(2):
            weight.grad = None
            with context:
                value = weight * 1
                value.square().sum().backward(retain_graph=True)
                value.detach().add_(1)
                made = functional.gelu(value)
                made.square().sum().backward()
        return weight.grad

    context = terrace.torch.activations(roomy, keep_bytes=0, recompute=True)
    assert torch.equal(result(context), result(contextlib.nullcontext()))
    assert context.remade == 0 and context.moved > 0


def test_what_is_changed_afterwards_is_moved(roomy, always):
    with terrace.torch.activations(roomy, keep_bytes=0, recompute=True) as context:
        for _ in range(2):
            value = torch.randn(200, 200).requires_grad_() * 1
            made = functional.gelu(value)
            made.detach().mul_(3)
            result = made.square()
            result.sum().backward()
    assert context.remade == 0


def test_it_can_be_had_after_its_operation_s_backward(roomy, always):
    """Parts of a graph may be used after others were freed, as without Terrace."""
    def result(context):
        torch.manual_seed(6)
        for _ in range(2):
            source, weight = torch.randn(200, 200).requires_grad_(), torch.randn(200, 200).requires_grad_()
            with context:
                value = source * 1
                made = functional.gelu(value)
                first, second = made.sum(), (made * weight).sum()
            del value, made
            first.backward()
            (found,) = torch.autograd.grad(second, weight)
        return found

    context = terrace.torch.activations(roomy, keep_bytes=0, recompute=True)
    assert torch.equal(result(context), result(contextlib.nullcontext()))
    assert context.remade > 0 and leaves_nothing(context)


def test_backward_on_another_thread_and_of_backward(roomy, always):
    def result(context):
        torch.manual_seed(7)
        for _ in range(2):
            weight = torch.randn(200, 200).requires_grad_()
            with context:
                loss = (functional.silu(weight @ weight) @ weight).square().mean()
                (first,) = torch.autograd.grad(loss, weight, create_graph=True)
                second = first.square().sum()
            del loss
            thread = threading.Thread(target=second.backward)
            thread.start()
            thread.join(LIMIT_SECONDS)
        return weight.grad

    context = terrace.torch.activations(roomy, keep_bytes=0, recompute=True)
    assert torch.equal(result(context), result(contextlib.nullcontext()))
    assert context.remade > 0


def test_what_costs_less_is_done():
    def saving(move, make):
        return Saving(size=1000, rest_seconds=1.0, move_seconds=move, outlived=False, make_seconds=make)

    assert made_again([saving(2.0, None), saving(2.0, 0.0), saving(2.0, 1.0), saving(2.0, 3.0), saving(0.0, 3.0)]) == {
        1, 2, 4}, "what cannot be, was not tried, takes less, takes more, and what Terrace did not take"
    # Of two that cost the same to move, the one that is cheap to make again is not what is worth the room.
    assert stay_in_memory([saving(2.0, 0.1), saving(2.0, None), saving(2.0, 0.1)], 1000) == {1}

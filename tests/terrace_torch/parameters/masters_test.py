# SPDX-License-Identifier: Apache-2.0
"""Shows that `masters=torch.float32` gives the losses and weights of a plain loop that keeps copies, bit for bit, over 50
steps and in all that such a loop does; and that forward and backward lease the narrow weights alone."""

import pytest
import terrace.torch
import torch
from masters_fixtures import (
    ADAMW,
    BFLOAT16,
    FLOAT,
    HALF,
    SMALL,
    Collecting,
    Copies,
    Halving,
    SignMomentum,
    Untold,
    compare,
    narrow,
    replaced,
    train,
)
from model_fixtures import (  # noqa: F401 (fixtures)
    assert_same,
    build,
    loss_of,
    nothing_stays_leased,
    restless,
    roomy,
    weights,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")

STEPS_LONG = 50


@pytest.mark.parametrize("recipe, options", [
    (SMALL, {}),
    (replaced(accumulation=2), {}),
    (replaced(clip=True), {}),
    (replaced(checkpointing=False), {}),
    (replaced(checkpointing=True, accumulation=2, clip=True, frozen=True), {"moves": True}),
    (SMALL, {"moves": True}),
    (SMALL, {"step_in_backward": True}),
    (replaced(accumulation=2, clip=True), {"gradients": FLOAT}),
], ids=str)
def test_fifty_steps_have_the_bits_of_a_loop_with_copies(roomy, recipe, options):
    compare(roomy, recipe, steps=STEPS_LONG, **options)


@pytest.mark.parametrize("dtype", [BFLOAT16, HALF], ids=str)
@pytest.mark.parametrize("recipe", [
    replaced(options=(*ADAMW, ("foreach", False))),
    replaced(options=(*ADAMW, ("foreach", True), ("amsgrad", True))),
    replaced(options=(*ADAMW, ("fused", True)), clip=True, accumulation=2),
    replaced(kind=torch.optim.SGD, options=(("lr", 0.1), ("momentum", 0.9), ("weight_decay", 0.1))),
    replaced(kind=torch.optim.SGD, options=(("lr", 0.1),), set_to_none=False),
    replaced(kind=torch.optim.Adagrad, options=(("lr", 0.01), ("initial_accumulator_value", 0.1))),
    replaced(kind=torch.optim.RMSprop, options=(("lr", 1e-3), ("centered", True))),
    replaced(kind=SignMomentum, options=ADAMW, accumulation=2), replaced(kind=Collecting, options=ADAMW, clip=True),
    replaced(kind=Untold, options=ADAMW, accumulation=2), replaced(kind=Untold, options=ADAMW),
    replaced(kind=Halving, options=(("lr", 0.1), ("momentum", 0.9)), accumulation=2)], ids=str)
def test_optimizers(restless, recipe, dtype):
    compare(restless, recipe, dtype)
    if "foreach" not in str(recipe.options):
        compare(restless, recipe, dtype, gradients=FLOAT)
    if not recipe.clip and recipe.accumulation == 1:
        compare(restless, recipe, dtype, step_in_backward=True)


@pytest.mark.parametrize("what", ["states", "parameters", "gradients", ("parameters", "states"), ("gradients", "states")])
@pytest.mark.parametrize("recipe", [replaced(clip=True, accumulation=2), replaced(kind=Collecting, options=ADAMW)], ids=str)
def test_parts(restless, recipe, what):
    compare(restless, recipe, what=what)
    compare(restless, recipe, what=what, gradients=FLOAT)
    compare(restless, recipe, what=what, tensor_bytes_min=2048)


@pytest.mark.parametrize("recipe", [replaced(kind=Collecting, options=ADAMW), SMALL], ids=str)
def test_many_batches(restless, monkeypatch, recipe):
    """A step that comes back to what it has collected finds it out of its turn."""
    monkeypatch.setattr("terrace.torch._optimizer.optimizer.BATCH_BYTES_MAX", 64 << 10)
    compare(restless, recipe)
    compare(restless, recipe, what=("parameters", "gradients"))


def test_room_is_made_for_all_that_there_is_going_to_be(roomy):
    model, optimizer = narrow(SMALL, BFLOAT16)
    terrace.torch.offload(model, optimizer, client=roomy, masters=FLOAT, tensor_bytes_min=1)
    there = roomy.tensors()
    assert {str(one.dtype) for name, one in there.items() if "/exp_avg" in name or "/master" in name} == {"float32"}
    train(model, optimizer, SMALL)
    assert roomy.tensors().keys() == there.keys()


def scaled(model, optimizer, *, copies=None, clip=None, unscales=True, spoiled=(), scale=2.0**8, parts=1, steps=5):
    """Losses, norms and scales of a run with a GradScaler. spoiled: steps in which a gradient is NaN."""
    said, scaler = [], torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    stepped = optimizer if copies is None else copies.optimizer
    for step in range(steps):
        for part in range(parts):
            loss = loss_of(model, step * parts + part) / parts
            scaler.scale(loss).backward()
        if step in spoiled:
            with torch.no_grad():
                model.blocks[0].wide.weight.grad[0, 0] = torch.nan
        if copies is not None:
            copies.take()
        if unscales:
            scaler.unscale_(stepped)
        if clip is not None:
            found = [one for one in model.parameters() if one.requires_grad]
            of = {} if copies is None else dict(copies.pairs)
            said.append(nn.utils.clip_grad_norm_([of.get(one, one) for one in found], clip).item())
        scaler.step(optimizer) if copies is None else copies.step(scaler)
        scaler.update()
        said += [loss.item(), scaler.get_scale()]
        if copies is None:
            optimizer.zero_grad(set_to_none=parts == 1)
    return said


@pytest.mark.parametrize("options", [
    {"unscales": False}, {"clip": 0.5}, {"parts": 2}, {"spoiled": {1, 3}}, {"unscales": False, "spoiled": {2}},
    {"scale": 2.0**40}], ids=str)
@pytest.mark.parametrize("fused, gradients", [(False, None), (True, None), (False, FLOAT)])
def test_a_gradient_scaler(restless, options, fused, gradients):
    if gradients is not None and "parts" in options:
        return  # sums of another type
    recipe = replaced(options=(*ADAMW, ("fused", fused)))
    copies = Copies(recipe, HALF)
    wanted = scaled(copies.model, None, copies=copies, **options)
    model, optimizer = narrow(recipe, HALF)
    terrace.torch.offload(model, optimizer, client=restless, masters=FLOAT, gradients=gradients, tensor_bytes_min=1)
    got = scaled(model, optimizer, **options)
    assert all(one == other or one != one and other != other for one, other in zip(got, wanted, strict=True))
    assert_same(weights(model), weights(copies.model))


def test_what_is_unfrozen_or_added_later_has_a_master(restless):
    def job(copies_of):
        made, _ = build(SMALL)
        model = made.to(BFLOAT16)
        model.positions.requires_grad_(False)
        pairs = []

        def of(weight):
            if copies_of:
                pairs.append((weight, weight.detach().float().requires_grad_()))
            return pairs[-1][1] if copies_of else weight

        added = list(model.blocks[1].parameters())
        optimizer = torch.optim.AdamW([of(one) for one in model.parameters() if not any(one is other for other in added)],
                                      lr=1e-3)
        if not copies_of:
            terrace.torch.offload(model, optimizer, client=restless, masters=FLOAT, tensor_bytes_min=1)
        losses = []
        for step in range(6):
            torch.manual_seed(step)
            if step == 2:
                model.positions.requires_grad_(True)
            if step == 4:
                optimizer.add_param_group({"params": [of(one) for one in added], "lr": 1e-2})
            loss = loss_of(model, step)
            loss.backward()
            losses.append(loss.item())
            for weight, master in pairs:
                master.grad = None if weight.grad is None else weight.grad.float()
            optimizer.step()
            with torch.no_grad():
                for weight, master in pairs:
                    weight.copy_(master)
            model.zero_grad()
        return losses, weights(model)

    (wanted, plain), (got, ours) = job(True), job(False)
    assert got == wanted
    assert_same(ours, plain)


@pytest.mark.parametrize("tied", [False, True])
def test_forward_and_backward_lease_half_the_bytes(roomy, tied):
    """Counted, beside the same model in float32."""
    def leased(dtype, **options):
        made, _ = build(SMALL)
        if not tied:
            made.head.weight = nn.Parameter(made.head.weight.detach().clone())
        model = made.to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1, **options)

        def so_far():
            return sum(one.leased_bytes for one in terrace.torch.summary(model).modules)

        passes = []
        for step in range(3):
            before = so_far()
            loss_of(model, step).backward()
            passes.append(so_far() - before)
            optimizer.step()
            optimizer.zero_grad()
        return passes

    wide, ours = leased(FLOAT), leased(BFLOAT16, masters=FLOAT)
    assert all(one <= 0.52 * other for one, other in zip(ours, wide, strict=True))


def test_a_model_in_several_types(restless):
    """What is float32 is stepped itself."""
    def job(offloads):
        made, _ = build(SMALL)
        model = made.to(BFLOAT16)
        model.norm.float().register_forward_pre_hook(lambda module, given: given[0].float())
        model.norm.register_forward_hook(lambda module, given, made: made.to(BFLOAT16))
        pairs = []

        def of(weight):
            if offloads or weight.dtype == FLOAT:
                return weight
            pairs.append((weight, weight.detach().float().requires_grad_()))
            return pairs[-1][1]

        optimizer = torch.optim.AdamW([of(one) for one in model.parameters()], lr=1e-3)
        if offloads:
            terrace.torch.offload(model, optimizer, client=restless, masters=FLOAT, tensor_bytes_min=1)
        losses = []
        for step in range(4):
            torch.manual_seed(step)
            loss = loss_of(model, step)
            loss.backward()
            losses.append(loss.item())
            for weight, master in pairs:
                master.grad = weight.grad.float()
            optimizer.step()
            with torch.no_grad():
                for weight, master in pairs:
                    weight.copy_(master)
            model.zero_grad()
            optimizer.zero_grad()
        return losses, weights(model)

    (wanted, plain), (got, ours) = job(False), job(True)
    assert got == wanted
    assert_same(ours, plain)

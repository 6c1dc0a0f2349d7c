# SPDX-License-Identifier: Apache-2.0
"""Shows that with step="host", with which the optimizer's step goes on when step() has returned, losses and weights are
PyTorch's, bit for bit; what of it is stepped before step() returns; and that a process that cannot have it steps all the
same."""

import contextlib
import dataclasses
import gc
import sys
import threading
import weakref

import pytest
import terrace.torch
import torch
from held_fixtures import HeldClient, begun, gate, held, offloaded, same  # noqa: F401 (fixtures)
from masters_fixtures import SMALL as NARROW
from masters_fixtures import Copies, narrow
from masters_fixtures import train as train_masters
from model_fixtures import (  # noqa: F401 (fixtures)
    Recipe,
    assert_same,
    build,
    loss_of,
    nothing_stays_leased,
    restless,
    train,
    weights,
)
from python_fixtures import wait_until
from terrace.torch._leased.store import Store
from terrace.torch._offload.job import job_of
from terrace.torch._optimizer import slices
from terrace.torch._optimizer.later_batch import LaterBatch
from terrace.torch._optimizer.optimizer import managed_optimizer
from terrace.torch._parameters import casts
from torch import nn

SGD, ADAMW = torch.optim.SGD, torch.optim.AdamW
MOMENTUM = (("lr", 0.1), ("momentum", 0.9))
SLICE = 1024  # elements: more than one in a parameter, the last one shorter


@pytest.mark.parametrize("recipe", [
    Recipe(), Recipe(accumulation=2, clip=True), Recipe(checkpointing=False, frozen=True), Recipe(checkpointing=True, autocast=True),
    Recipe(set_to_none=False), Recipe(kind=SGD, options=MOMENTUM), Recipe(kind=SGD, options=(("lr", 0.1),)),
    Recipe(options=(("lr", 1e-3), ("fused", True))), Recipe(options=(("lr", 1e-3), ("foreach", True), ("amsgrad", True))),
    Recipe(kind=torch.optim.Adafactor, options=(("lr", 1e-2),)), Recipe(kind=torch.optim.NAdam), Recipe(kind=torch.optim.ASGD),
    Recipe(kind=torch.optim.Adagrad),
], ids=str)
@pytest.mark.parametrize("where", ["restless", "held"])
@pytest.mark.usefixtures("nothing_stays_leased")
def test_the_same_bits(request, where, recipe):
    client = request.getfixturevalue(where)
    recipe = dataclasses.replace(recipe, steps=4)
    plain, plain_optimizer = build(recipe)
    wanted = train(plain, plain_optimizer, recipe)
    model, optimizer = offloaded(client, recipe)
    assert train(model, optimizer, recipe) == wanted
    assert_same(weights(model), weights(plain))
    assert len(optimizer.state) == len(plain_optimizer.state)  # waits for the step
    assert client.leased_bytes == 0 and client.held == 0


OPTIM = torch.optim


@pytest.mark.parametrize(("kind", "options"), [
    (ADAMW, {"amsgrad": True}), (OPTIM.Adam, {"weight_decay": 0.1}), (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (OPTIM.RMSprop, {"momentum": 0.9, "centered": True}), (OPTIM.Adagrad, {}), (OPTIM.Adadelta, {}), (OPTIM.Adamax, {}),
    (OPTIM.NAdam, {}), (OPTIM.RAdam, {}), (OPTIM.Rprop, {}), (ADAMW, {"fused": True}), (ADAMW, {"foreach": True})],
    ids=str)
@pytest.mark.usefixtures("nothing_stays_leased")
def test_slices_have_the_bits_of_the_whole(held, monkeypatch, kind, options):
    """Of parameters that do not divide into them, and of one that does not lie in one piece."""
    monkeypatch.setattr(slices, "_ELEMENTS", SLICE)

    def made():
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(37, 91), nn.Tanh(), nn.Linear(91, 37))
        model[2].weight = nn.Parameter(model[2].weight.detach().t().contiguous().t())
        return model, kind(model.parameters(), **options)

    def run(model, optimizer):
        for number in range(4):
            given = torch.randn(5, 37, generator=torch.Generator().manual_seed(number))
            model(given).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model), [{name: value.clone() for name, value in state.items()} for state in optimizer.state.values()]

    sizes, shown = set(), LaterBatch.shown
    monkeypatch.setattr(LaterBatch, "shown", lambda *args: (
        sizes.update(one.numel() for one in each[0]) or each for each in shown(*args)))
    ours = run(*terrace.torch.offload(*made(), client=held, step="host", tensor_bytes_min=1))
    wanted = run(*made())
    assert_same(ours[0], wanted[0])
    for one, other in zip(ours[1], wanted[1], strict=True):
        assert_same(one, other)
    whole = {3367, 91, 37}
    assert sizes == (whole if options.get("fused") else whole | {SLICE, 3367 % SLICE})


@pytest.mark.parametrize("kernels", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("options", [{}, {"gradients": torch.float32}])
@pytest.mark.parametrize("where", ["restless", "held"])
def test_masters(request, monkeypatch, where, options, kernels):
    client = request.getfixturevalue(where)
    monkeypatch.setattr(slices, "_ELEMENTS", SLICE if where == "held" else 1 << 20)
    recipe = dataclasses.replace(NARROW, accumulation=2, clip=True, options=(*NARROW.options, *kernels.items()))
    copies = Copies(recipe, torch.bfloat16, options.get("gradients"))
    wanted = train_masters(copies.model, None, recipe, steps=4, copies=copies)
    model, optimizer = narrow(recipe, torch.bfloat16)
    terrace.torch.offload(model, optimizer, client=client, masters=torch.float32, step="host", tensor_bytes_min=1, **options)
    assert train_masters(model, optimizer, recipe, steps=4) == wanted
    assert_same(weights(model), weights(copies.model))
    for state, (_, master) in zip(optimizer.state_dict()["state"].values(), copies.pairs, strict=True):
        assert torch.equal(state["terrace.master"], master)
    assert client.leased_bytes == 0 and client.held == 0


@pytest.mark.usefixtures("nothing_stays_leased")
def test_a_step_that_fails_within_a_parameter_leaves_weights_that_are_their_masters(held, monkeypatch):
    """Those before it, its own, and those after it."""
    monkeypatch.setattr(slices, "_ELEMENTS", SLICE)
    model, optimizer = narrow(dataclasses.replace(NARROW, kind=SGD, options=MOMENTUM), torch.bfloat16)
    terrace.torch.offload(model, optimizer, client=held, masters=torch.float32, step="host", tensor_bytes_min=1)

    def step(number):
        loss_of(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(0)
    len(optimizer.state)  # waits for its end
    module = sys.modules[SGD.__module__]
    calls, kernel = [], module._single_tensor_sgd

    def fails(params, *args, **options):
        calls.append(params[0].numel())
        if calls.count(SLICE) == 5:
            raise ZeroDivisionError("says the test")
        kernel(params, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(module, "_single_tensor_sgd", fails)
        step(1)
        with pytest.raises(ZeroDivisionError, match="says the test"):
            weights(model)
    assert calls.count(SLICE) == 5
    masters = [state["terrace.master"] for state in optimizer.state_dict()["state"].values()]
    stepped = [one for group in optimizer.param_groups for one in group["params"]]
    assert all(torch.equal(one, master.to(torch.bfloat16)) for one, master in zip(stepped, masters, strict=True))


def test_weights_that_stay_in_memory_are_stepped_at_once(held, gate):
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    model, optimizer = terrace.torch.offload(*build(Recipe()), client=held, step="host", tensor_bytes_min=4096)
    plain, plain_optimizer = build(Recipe())
    for of, steps in ((model, optimizer), (plain, plain_optimizer)):
        torch.manual_seed(3)
        for step in range(2):
            loss_of(of, step).backward()
            if not step:
                steps.step()
                steps.zero_grad()
    plain_optimizer.step()
    with gate.closed():
        optimizer.step()
        gate.await_arrival()
        assert torch.equal(model.norm.weight, plain.norm.weight)
        assert not gate.waits
    same(weights(model), weights(plain))


def test_what_a_script_keeps_of_a_weight_is_stepped_at_once(held, gate):
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    kept = []
    handle = model.blocks[0].wide.register_forward_hook(lambda module, *_: kept.append(module.weight.detach()[:]))
    with torch.no_grad():
        loss_of(model, 0)
    handle.remove()
    plain_optimizer.step()
    with gate.closed():
        optimizer.step()
        gate.await_arrival()
        assert torch.equal(kept[0], plain.blocks[0].wide.weight)
        assert not gate.waits
    same(weights(model), weights(plain))
    kept.clear()


@pytest.mark.parametrize("where", ["restless", "held"])
def test_casts_of_weights(request, gate, monkeypatch, where):
    """Forward uses what autocast casts weights to, which the step makes anew once it has stepped them."""
    monkeypatch.setattr(casts, "BYTES_MIN", 1)
    monkeypatch.setattr(Store, "fits", lambda _store: False)
    client = request.getfixturevalue(where)
    recipe = Recipe(autocast=True, blocks=2)
    plain, plain_optimizer = build(recipe)
    model, optimizer = offloaded(client, recipe)
    assert train(model, optimizer, recipe) == train(plain, plain_optimizer, recipe)
    assert any(slot.dtype == torch.bfloat16 for slot in job_of(model).store.slots)
    for of, steps in ((plain, plain_optimizer), (model, optimizer)):
        torch.manual_seed(6)
        loss_of(of, 3, True).backward()
        with gate.closed():
            steps.step()
            losses = [loss_of(of, 4, True).item() for _ in range(2)]
            assert of is plain or gate.waits or where == "restless"
        if of is plain:
            wanted = losses
    assert losses == wanted
    same(weights(model), weights(plain))


def test_what_would_take_the_room_of_others_is_stepped_at_once(held, gate):
    """Of what the session is guaranteed it would take more than a quarter."""
    torch.manual_seed(1)
    plain, model = (nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 16)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    optimizers = [ADAMW(one.parameters(), 1e-2) for one in (plain, model)]
    terrace.torch.offload(model, optimizers[1], client=held, step="host", tensor_bytes_min=1)
    for of, optimizer in zip((plain, model), optimizers, strict=True):
        for step in range(2):
            of(torch.ones(2, 512)).square().mean().backward()
            with gate.closed():
                optimizer.step()
                if step and of is model:
                    gate.await_arrival()
                    assert torch.equal(of[0].weight, plain[0].weight) and not gate.waits
            optimizer.zero_grad()
    same(weights(model), weights(plain))


def test_several_optimizers(held):
    """Their steps may go on at a time."""
    def made():
        model, _ = build(Recipe())
        matrices = [one for one in model.parameters() if one.dim() > 1]
        others = [one for one in model.parameters() if one.dim() < 2]
        return model, [SGD(matrices, 0.1, momentum=0.9), ADAMW(others, 1e-3)]

    plain, model = made(), made()
    terrace.torch.offload(*model, client=held, step="host", tensor_bytes_min=1)
    for of, optimizers in (plain, model):
        torch.manual_seed(3)
        for step in range(4):
            loss_of(of, step).backward()
            for one in optimizers:
                one.step()
            of.zero_grad()
    same(weights(model[0]), weights(plain[0]))


@pytest.mark.parametrize("recipe", [
    Recipe(), Recipe(checkpointing=True), Recipe(autocast=True, frozen=True), Recipe(set_to_none=False), Recipe(kind=SGD, options=MOMENTUM),
    Recipe(kind=torch.optim.NAdam), Recipe(options=(("lr", 1e-3), ("fused", True))), Recipe(kind=torch.optim.Muon, options=(("lr", 1e-2),)),
    Recipe(options=(("lr", 1e-3), ("foreach", True)))], ids=str)
@pytest.mark.parametrize("where", ["restless", "held"])
@pytest.mark.usefixtures("nothing_stays_leased")
def test_stepping_in_backward_as_well(request, where, recipe):
    """Of several parts, and with parameters that stay in memory."""
    client = request.getfixturevalue(where)
    recipe = dataclasses.replace(recipe, steps=4, width=64)
    build_ = matrices if recipe.kind is torch.optim.Muon else build
    plain, (model, optimizer) = build_(recipe), build_(recipe)
    terrace.torch.offload(model, optimizer, client=client, step="host", step_in_backward=True, tensor_bytes_min=1024)
    assert train(model, optimizer, recipe) == train(*plain, recipe)
    assert_same(weights(model), weights(plain[0]))
    assert len(optimizer.state) == len(plain[1].state)
    assert client.leased_bytes == 0 and client.held == 0


def matrices(recipe):
    model, _ = build(dataclasses.replace(recipe, kind=SGD))
    return model, recipe.kind([one for one in model.parameters() if one.dim() == 2], **dict(recipe.options))


def in_backward(client, recipe=Recipe(), **options):
    """A pair as of begun(), whose parameters are stepped in the backward pass, and which have not begun their second one."""
    pairs = build(recipe), offloaded(client, recipe, step_in_backward=True, **options)
    for model, optimizer in pairs:
        torch.manual_seed(3)
        loss_of(model, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    return pairs


def loss_seeded(model):
    torch.manual_seed(4)
    return loss_of(model, 1)


def test_backward_and_step_return_while_the_thread_steps(held, gate):
    """A part is handed over as its gradients come; a module waits for its own weights alone."""
    (plain, plain_optimizer), (model, optimizer) = in_backward(held, Recipe(width=64, blocks=2))
    loss_seeded(plain).backward()
    plain_optimizer.step()
    loss = loss_seeded(model)
    with gate.closed():
        loss.backward()
        optimizer.step()
        gate.await_arrival()
        assert not gate.waits
        hidden = model.blocks[0].wide(torch.ones(1, 64))
        assert gate.waits
    assert torch.equal(hidden, plain.blocks[0].wide(torch.ones(1, 64)))
    same(weights(model), weights(plain))


def test_backward_waits_for_the_thread_where_gradients_would_pile_up(held, gate):
    recipe = Recipe(width=128)
    (plain, plain_optimizer), (model, optimizer) = in_backward(held, recipe)
    loss_seeded(plain).backward()
    plain_optimizer.step()
    loss = loss_seeded(model)
    with gate.closed():
        loss.backward()
        assert gate.waits
    optimizer.step()
    same(weights(model), weights(plain))


def ended(optimizer):
    return lambda: all(one.work._ended.is_set() for one in managed_optimizer(optimizer)._under_way)


@pytest.mark.parametrize(("told", "blocks"), [("the step", 1), ("a weight", 1), ("backward", 4)])
def test_an_error_of_a_part_is_told_once(held, monkeypatch, told, blocks):
    """By the next that comes to it; then all goes on."""
    _, (model, optimizer) = in_backward(held, Recipe(width=64, blocks=blocks))
    loss = loss_seeded(model)
    with monkeypatch.context() as patched:
        patched.setattr(LaterBatch, "enter", no_room)
        with pytest.raises(terrace.ResourceExhausted, match="says the test") as raised:
            loss.backward()
            assert told != "backward"
            if told == "the step":
                wait_until(ended(optimizer), "the parts to end")
                optimizer.step()
            else:
                weights(model)
        assert "it had not stepped all of" in "".join(raised.value.__notes__)
        wait_until(ended(optimizer), "the parts to end")
    with contextlib.suppress(terrace.ResourceExhausted):  # of another part
        optimizer.state_dict()
    del raised
    gc.collect()
    with contextlib.nullcontext() if told != "backward" else pytest.raises(terrace.FailedPrecondition, match="of no use"):
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    optimizer.step()
    weights(model)
    assert optimizer.state and held.leased_bytes == 0 and held.held == 0


def no_room(_batch):
    raise terrace.ResourceExhausted("no room, says the test")


def test_an_optimizer_that_is_gone_leaves_nothing(held):
    _, (model, optimizer) = begun(held)
    optimizer.step()
    weights(model)
    optimizer.state_dict()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def no_more(_thread):
    raise RuntimeError("can't start new thread")


def test_a_process_that_can_have_no_more_threads(held, monkeypatch):
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    plain_optimizer.step()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more)
        optimizer.step()
    same(weights(model), weights(plain))


def test_the_step_is_not_refused_room_by_what_runs_meanwhile(held):
    """Forward and the step's thread lease side by side, and wait for each other's leases: neither is refused."""
    with HeldClient(held.socket, guarantees={"host": 1 << 20}) as client:
        recipe = Recipe(width=64, blocks=3, steps=4)
        plain, (model, optimizer) = build(recipe), offloaded(client, recipe)
        assert train(model, optimizer, recipe) == train(*plain, recipe)
        same(weights(model), weights(plain[0]))


class Counting(ADAMW):
    """One of a user's own."""


def test_an_optimizer_that_nobody_knows_steps_at_once(held, gate):
    """A class of ones own derived from PyTorch's is not tried."""
    torch.manual_seed(1)
    model = nn.Linear(64, 64, bias=False)
    optimizer = Counting(model.parameters(), lr=1e-2)
    terrace.torch.offload(model, optimizer, client=held, step="host", tensor_bytes_min=1)
    with gate.closed():
        for _ in range(2):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not gate.came and not gate.waits


def test_hooks_and_closures(held, gate):
    """What runs before the step is seen by it, and what runs after sees the finished step."""
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    said = {}

    def run(of, steps):
        seen = said[of] = []
        steps.register_step_pre_hook(lambda *_: [one.grad.mul_(0.5) for one in of.parameters()] and None)
        steps.register_step_post_hook(lambda *_: seen.append(of.head.weight.sum().item()))

        def closure():
            with torch.enable_grad():
                loss = loss_of(of, 5)
                loss.backward()
            return loss

        torch.manual_seed(6)
        seen.append(steps.step(closure).item())

    with gate.closed():
        run(model, optimizer)
        assert gate.came and gate.waits
    run(plain, plain_optimizer)
    assert said[model] == said[plain]
    same(weights(model), weights(plain))

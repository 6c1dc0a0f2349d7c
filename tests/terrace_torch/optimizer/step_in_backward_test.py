# SPDX-License-Identifier: Apache-2.0
"""Shows that stepping each parameter in the backward pass gives the same losses and weights, bit for bit, keeps no
gradients, and refuses by name whatever needs all gradients first."""

import copy
import threading

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    FailsInBackward,
    Recipe,
    assert_same,
    build,
    compare,
    loss_of,
    metric,
    nothing_stays_leased,
    roomy,
    train,
    weights,
)
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def offloaded(client, **options):
    return terrace.torch.offload(*build(Recipe()), client=client, tensor_bytes_min=1, step_in_backward=True, **options)


@pytest.mark.parametrize("recipe", [
    Recipe(), Recipe(options=(("lr", 1e-3), ("fused", True))), Recipe(autocast=True, frozen=True),
    Recipe(checkpointing=False), Recipe(set_to_none=False), Recipe(kind=torch.optim.SGD),
    Recipe(options=(("lr", 1e-3), ("foreach", True)), set_to_none=False),
    Recipe(kind=torch.optim.RMSprop)], ids=str)
def test_the_same_bits(roomy, recipe):
    compare(recipe, roomy, step_in_backward=True)
    assert not any("/grad" in name for name in roomy.tensors())


def test_small_parameters_are_stepped_as_ever(roomy):
    recipe = Recipe()
    plain, optimizer = build(recipe)
    wanted = train(plain, optimizer, recipe)
    model, optimizer = terrace.torch.offload(*build(recipe), client=roomy, tensor_bytes_min=4096, step_in_backward=True)
    assert train(model, optimizer, recipe) == wanted


def test_gradients_do_not_travel(disk):
    recipe = Recipe(width=96, blocks=10)
    moved = {}
    for in_backward in (False, True):
        with terrace.serve("4MiB", block=f"{disk}:128MiB") as client:
            model, optimizer = build(recipe)
            terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, step_in_backward=in_backward)
            train(model, optimizer, recipe)
            before = metric(client, "terrace_transfer_bytes_total", link="block_write")
            train(model, optimizer, recipe, begin=3)
            moved[in_backward] = metric(client, "terrace_transfer_bytes_total", link="block_write") - before
            size = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert moved[True] < moved[False] - 2 * size, "three steps without their gradients"


class CountingSGD(torch.optim.SGD):
    """Counts how often it steps what is in Terrace, and how much at a time."""

    stepped: list[int]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            found = []
            for parameter in group["params"]:
                found.append(parameter)
                parameter.sub_(parameter.grad, alpha=group["lr"])
            type(self).stepped.append(len(found))


def counting(client, *modules):
    CountingSGD.stepped = []
    model = nn.Sequential(*modules)
    terrace.torch.declare(CountingSGD)
    return terrace.torch.offload(model, CountingSGD(model.parameters(), lr=0.5), client=client, tensor_bytes_min=1,
                                 step_in_backward=True)


def test_small_gradients_are_stepped_together(roomy):
    model, optimizer = counting(roomy, *(nn.Linear(64, 64) for _ in range(8)))
    before = weights(model)
    model(torch.ones(2, 64)).sum().backward()
    assert CountingSGD.stepped == [16]
    assert not any(torch.equal(now, before[name]) for name, now in weights(model).items() if name.endswith("bias"))
    optimizer.step()


def test_large_gradients_are_stepped_in_parts(disk):
    with terrace.serve("32MiB", block=f"{disk}:64MiB") as client:
        model, optimizer = counting(client, *(nn.Linear(256, 256, bias=False) for _ in range(16)))
        model(torch.ones(2, 256)).sum().backward()
        assert CountingSGD.stepped == [4, 4, 4, 4], "256 KiB each, of which a sixteenth of 16 MiB is awaited"
        optimizer.step()


def test_a_backward_pass_that_fails_leaves_nothing_to_be_stepped_later(roomy):
    model, optimizer = counting(roomy, *(nn.Linear(64, 64) for _ in range(4)))
    before = weights(model)
    with pytest.raises(ZeroDivisionError, match="in backward"):
        model[2:](FailsInBackward.apply(model[:2](torch.ones(2, 64)))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert_same(weights(model), before)
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    assert CountingSGD.stepped == [8]


def test_a_backward_pass_that_stepped_nothing_can_be_had_again(roomy):
    model, optimizer = counting(roomy, nn.Linear(64, 64), nn.Linear(64, 64))
    with pytest.raises(ZeroDivisionError, match="in backward"):
        model[1](FailsInBackward.apply(model[0](torch.ones(2, 64)))).sum().backward()
    optimizer.zero_grad()
    model(torch.ones(2, 64)).sum().backward()
    assert CountingSGD.stepped == [4]
    optimizer.step()


class UsedTwice(nn.Module):
    """A weight that is used with its gradient, and without it before, by an alias."""

    def __init__(self, alias, width):
        super().__init__()
        self.alias = alias
        self.weight = nn.Parameter(torch.randn(width, width) / 32)

    def forward(self, x):
        return nn.functional.linear(nn.functional.linear(x, self.alias(self.weight)), self.weight)


ALIASES = [lambda weight: weight.detach(), lambda weight: weight.data, lambda weight: weight.detach()[:].view(-1, 1024)]
KERNELS = [{"fused": True}, {"foreach": True}]


def used_twice(alias, kernel, client=None, width=1024):
    """Its weight is stepped before what is below it is differentiated, if it is large; offloaded, if to a client."""
    torch.manual_seed(3)
    model = UsedTwice(alias, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, **kernel)
    if client is not None:
        terrace.torch.offload(model, optimizer, client=client, step_in_backward=True)
    return model, optimizer


def leaf(width=1024):
    return torch.randn(2, width, generator=torch.Generator().manual_seed(5)).requires_grad_()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("alias", ALIASES, ids=["detach", "data", "view"])
def test_an_alias_whose_weight_was_stepped_is_refused(roomy, alias, kernel):
    model, optimizer = used_twice(alias, kernel, roomy)
    x = leaf()
    with pytest.raises(terrace.FailedPrecondition, match=r"'weight' is stepped already.*\.detach\(\).*clone\(\)"):
        model(x).sum().backward()
    assert x.grad is None
    optimizer.step()
    optimizer.zero_grad()
    model(x.detach()).sum().backward()  # nobody needs the alias
    optimizer.step()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_an_alias_that_is_used_in_time_is_not(roomy, kernel):
    """What was cloned, and what waits for others to be stepped with, is as it ever was."""
    for alias, width in ((lambda weight: weight.detach().clone(), 1024), (lambda weight: weight.detach(), 128)):
        found = []
        for client in (None, roomy):
            model, optimizer = used_twice(alias, kernel, client, width)
            for _ in range(2):
                x = leaf(width)
                loss = model(x).sum()
                model.weight.data.norm()  # looked at after it was saved, and might have been written to
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append((x.grad, weights(model)["weight"]))
        assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_a_graph_that_is_kept_reads_what_plain_pytorch_does(roomy):
    """After optimizer.step() the weights are what they are; before it they are not there any more."""
    found = []
    for client in (None, roomy):
        model, optimizer = used_twice(lambda weight: weight.detach().clone(), {"fused": True}, client)
        x = leaf()
        outer = model(x)
        loss = outer.sum()
        loss.backward(retain_graph=True)
        if client is not None:
            with pytest.raises(terrace.FailedPrecondition, match=r"optimizer.step\(\) is yet to come"):
                torch.autograd.grad(loss, x, retain_graph=True)
        optimizer.step()
        found.append(torch.autograd.grad(loss, x)[0])
    assert torch.equal(*found)


class Waits(torch.autograd.Function):
    """The identity, whose backward waits until it may go on."""

    arrived = threading.Event()
    go_on = threading.Event()

    @staticmethod
    def forward(_context, tensor):
        return tensor.clone()

    @staticmethod
    def backward(_context, gradient):
        Waits.arrived.set()
        assert Waits.go_on.wait(60)
        return gradient


def test_a_step_in_another_thread_leaves_a_pass_that_runs_alone(roomy):
    model, optimizer = counting(roomy, *(nn.Linear(64, 64, bias=False) for _ in range(4)))
    before = weights(model)
    Waits.arrived.clear()
    Waits.go_on.clear()
    other = threading.Thread(target=lambda: model[3](Waits.apply(model[2](torch.ones(2, 64)))).sum().backward())
    other.start()
    assert Waits.arrived.wait(60)
    model[:2](torch.ones(2, 64)).sum().backward()
    optimizer.step()
    Waits.go_on.set()
    other.join(60)
    now = weights(model)
    assert [name for name in now if torch.equal(now[name], before[name])] == []
    model[:2].zero_grad()  # which optimizer.step() was called for
    optimizer.step()


def test_nested_passes_are_stepped_each_at_its_end(roomy):
    model, optimizer = counting(roomy, *(nn.Linear(64, 64) for _ in range(3)))
    before = weights(model)
    x = torch.ones(2, 64, requires_grad=True)
    for module in model:
        x = checkpoint(module, x, use_reentrant=True)
    x.sum().backward()
    assert CountingSGD.stepped == [2, 2, 2]
    now = weights(model)
    assert [name for name in now if torch.equal(now[name], before[name])] == []
    optimizer.step()


def test_a_closure_with_a_schedule(roomy):
    model, optimizer = offloaded(roomy)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        schedule.step()


def test_clipping_is_refused(roomy):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    with pytest.raises(terrace.FailedPrecondition, match="step_in_backward=True.*clipping"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 1).backward()


def test_accumulation_is_refused(roomy):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    with pytest.raises(terrace.FailedPrecondition, match="a second gradient.*accumulation.*without step_in_backward"):
        loss_of(model, 1).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.zero_grad()
    loss_of(model, 1).backward()


def test_a_gradient_scaler_is_refused(roomy):
    """Before anything is stepped; and where what it scales does not tell, before anything else is."""
    model, optimizer = offloaded(roomy)
    before = weights(model)
    scaler = torch.amp.GradScaler("cpu")
    for scale in (scaler.scale, lambda loss: scaler.scale([loss])[0]):
        with pytest.raises(terrace.FailedPrecondition, match="a GradScaler scaled .* nothing was stepped"):
            scale(loss_of(model, 0)).backward()
    assert_same(weights(model), before)
    other = nn.Linear(64, 64)
    scaler.scale(other(torch.randn(2, 64)).sum()).backward()  # another model's
    torch.amp.GradScaler("cpu", enabled=False).scale(loss_of(model, 0)).backward()
    with pytest.raises(terrace.FailedPrecondition, match="a GradScaler has stepped with what it scaled"):
        scaler.step(optimizer)


def test_options_that_change_before_the_step_are_refused(roomy):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    optimizer.param_groups[0]["lr"] *= 2
    with pytest.raises(terrace.FailedPrecondition, match="lr changed after the backward pass"):
        optimizer.step()
    optimizer.step()


def test_a_step_that_is_left_out_is_refused(roomy):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    optimizer.zero_grad()
    with pytest.raises(terrace.FailedPrecondition, match=r"optimizer.step\(\) was left out"):
        loss_of(model, 1).backward()
    with pytest.raises(terrace.FailedPrecondition, match="which was dropped"):
        optimizer.step()
    optimizer.step()


def test_the_last_step_that_is_left_out_is_refused(roomy):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    with torch.no_grad(), pytest.raises(terrace.FailedPrecondition, match=r"optimizer.step\(\) was left out.*Call it"):
        loss_of(model, 1)
    optimizer.step()
    with torch.no_grad():
        loss_of(model, 1)


def test_a_checkpoint_that_is_loaded_makes_up_for_a_step_that_is_left_out(roomy):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    best, states = weights(model), copy.deepcopy(optimizer.state_dict())
    model.eval()  # without dropout
    with torch.no_grad():
        expected = loss_of(model, 1)
    loss_of(model, 2).backward()
    model.load_state_dict(best)
    with torch.no_grad():
        assert torch.equal(loss_of(model, 1), expected)
    optimizer.load_state_dict(states)
    optimizer.zero_grad()
    loss_of(model, 3).backward()
    optimizer.step()


WRITES = {"data": lambda weight: weight.data.mul_(0.9), "in place": lambda weight: weight.detach().clamp_(-0.01, 0.01),
          "loaded": lambda weight: weight.copy_(torch.ones_like(weight))}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("within", [False, True], ids=["before", "in a hook of"])
def test_a_weight_that_is_written_to_between_the_pass_and_the_step_is_refused(roomy, write, within):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()

    @torch.no_grad()
    def written(*_):
        write(model.embedding.weight)

    if within:
        handle = optimizer.register_step_pre_hook(written)
    else:
        written()
    with pytest.raises(terrace.FailedPrecondition, match=r"'embedding.weight' was written to.*which has stepped it"):
        optimizer.step()
    if within:
        handle.remove()
    optimizer.zero_grad()
    loss_of(model, 1).backward()
    optimizer.step()


def test_a_weight_is_written_to_after_the_step(roomy):
    def run(model, optimizer):
        said = []
        for seed in range(3):
            loss = loss_of(model, seed)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.1, 0.1)
            said.append(loss.item())
        return said, weights(model)

    (losses, plain), (found, ours) = run(*build(Recipe())), run(*offloaded(roomy))
    assert losses == found
    assert_same(ours, plain)


@pytest.mark.parametrize("write", [lambda weight: weight.data.mul_(0.9), lambda weight: weight.clamp_(-0.01, 0.01)],
                         ids=["data", "in place"])
def test_a_step_that_is_left_out_is_refused_whatever_was_changed_of_its_weights(roomy, write):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            write(parameter)
    optimizer.zero_grad()
    with torch.no_grad(), pytest.raises(terrace.FailedPrecondition, match=r"optimizer.step\(\) was left out"):
        loss_of(model, 1)


def test_of_two_graphs_made_before_the_second_is_refused(roomy):
    model, optimizer = offloaded(roomy)
    losses = [loss_of(model, seed) for seed in range(2)]
    losses[0].backward()
    with pytest.raises(terrace.FailedPrecondition, match=r"step_in_backward"):
        losses[1].backward()
    optimizer.step()


def test_it_needs_an_optimizer(roomy):
    with pytest.raises(terrace.InvalidArgument, match="step_in_backward=True needs the optimizer"):
        terrace.torch.offload(nn.Linear(64, 64), client=roomy, step_in_backward=True)


@pytest.mark.parametrize("when", ["before", "within"])
def test_an_optimizer_that_is_gone(roomy, when):
    """The script has another one in its place, which nobody was told of."""
    model, optimizer = offloaded(roomy)
    before = weights(model)
    loss = loss_of(model, 0)
    if when == "within":
        held = [optimizer]
        model.head.weight.register_hook(lambda _gradient: held.clear())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for again in (loss, loss_of(model, 1)):
        with pytest.raises(terrace.FailedPrecondition, match="optimizer that this model was offloaded with is gone.*keep"):
            again.backward()
        optimizer.zero_grad()
    assert_same(weights(model), before)


@pytest.mark.parametrize("change, said", [
    (lambda model, optimizer: next(iter(optimizer.state.values()))["exp_avg"].zero_(), "the optimizer's states of a parameter"),
    (lambda model, optimizer: next(iter(optimizer.state.values())).update(exp_avg=torch.zeros(1)), "the optimizer's states"),
    (lambda model, optimizer: optimizer.state.clear(), "the optimizer's states of a parameter changed"),
    (lambda model, optimizer: optimizer.param_groups[0]["params"].pop(0), "a parameter was taken out of its group")],
    ids=["written", "replaced", "cleared", "taken_out"])
def test_what_the_step_would_have_seen_changed_is_said(roomy, change, said):
    model, optimizer = offloaded(roomy)
    loss_of(model, 1).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    change(model, optimizer)
    with pytest.raises(terrace.FailedPrecondition, match=f"{said}.* between the backward pass, which has stepped it"):
        optimizer.step()


def test_states_that_are_looked_at_before_the_step_are_no_change(roomy):
    model, optimizer = offloaded(roomy)
    for step in range(3):
        loss_of(model, step).backward()
        for state in optimizer.state.values():
            assert state["exp_avg"].norm() > 0 and (state["exp_avg_sq"] >= 0).all()
        optimizer.step()
        optimizer.zero_grad()

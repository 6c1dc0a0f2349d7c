# SPDX-License-Identifier: Apache-2.0
"""Shows that with step="host" the optimizer of a model on the test device runs on the CPU, over masters and states that are
in the host's memory: losses, norms and weights have the bits of a plain loop that hands gradients to PyTorch's CPU optimizer
and copies its weights back."""

import dataclasses

import pytest
import terrace.torch
import torch
from device_fixtures import (  # noqa: F401 (a fixture)
    DEVICE,
    PLAIN,
    OnCpu,
    assert_ended,
    assert_same,
    build,
    loss_of,
    on_device,
    seeded,
    small,
    train,
    try_seeds,
    under_seeds,
    weights,
)
from terrace.torch._device import streams
from terrace.torch._device.link import Link
from terrace.torch._leased.slot import Slot
from terrace.torch._offload import auto, stepping
from terrace.torch._offload.precision import Precision
from terrace.torch._optimizer import later_batch, slices
from terrace.torch._parameters.masters import Masters
from torch import nn

PATIENCE_SECONDS = 0.002
LONG_PATIENCE_SECONDS = 0.05  # nothing runs that nobody waits for, though the machine is busy
FLOAT = torch.float32
SLICE = 64  # elements: whole lines of the cache
SGD = torch.optim.SGD


def plain(recipe, dtype=None):
    model, optimizer = build(recipe)
    optimizer = OnCpu(optimizer, dtype)
    return train(model, optimizer, recipe), weights(model), optimizer


def on_host(client, recipe, *, tensor_bytes_min=1, **options):
    return terrace.torch.offload(*build(recipe), client=client, step="host", tensor_bytes_min=tensor_bytes_min, **options)


class Signs(torch.optim.Optimizer):
    """A user's own, which nobody has declared: its trial shows that its step may go on. It counts its steps."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self):
        self.count += 1
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    momentum = self.state[one].setdefault("momentum", torch.zeros_like(one))
                    one.sub_(momentum.lerp_(one.grad, 0.1).sign(), alpha=group["lr"] / self.count)


WAYS = {
    "fp32": PLAIN,
    "bf16, checkpointing": dataclasses.replace(PLAIN, dtype=torch.bfloat16, checkpointing=False),
    "fp16, scaler, clipping, accumulation": dataclasses.replace(PLAIN, dtype=torch.float16, clip=True, accumulation=2),
    "the CPU's own loop": dataclasses.replace(PLAIN, options=(("lr", 1e-2),)),
    "fused": dataclasses.replace(PLAIN, options=(("lr", 1e-2), ("fused", True))),
    "one's own": dataclasses.replace(PLAIN, kind=Signs, options=(("lr", 0.01),)),
    "momentum": dataclasses.replace(PLAIN, kind=SGD, options=(("lr", 0.1), ("momentum", 0.9))),
}


@pytest.mark.parametrize("offloaded", [{}, {"what": "parameters"}, {"what": "states"}, {"what": "auto"}, {"tensor_bytes_min": 4096}],
                         ids=lambda each: str(each))
@pytest.mark.parametrize("way", WAYS)
def test_the_bits_of_the_cpus_optimizer(small, way, offloaded):
    said, there, _ = plain(WAYS[way])
    with seeded(0, PATIENCE_SECONDS):
        model, optimizer = on_host(small, WAYS[way], **offloaded)
        assert train(model, optimizer, WAYS[way]) == said
        assert_same(weights(model), there)
    assert_ended(small)


@pytest.mark.parametrize("way", ["bf16, checkpointing", "the CPU's own loop", "fused", "momentum"])
def test_slices_have_the_bits_of_the_whole(small, monkeypatch, way):
    """What one kernel steps is stepped whole: its weight is made on the device, of all of the master."""
    monkeypatch.setattr(slices, "_ELEMENTS", SLICE)
    sizes, shown = [], later_batch.LaterBatch.shown
    monkeypatch.setattr(later_batch.LaterBatch, "shown", lambda *args: (
        sizes.extend(one.numel() for one in each[0]) or each for each in shown(*args)))
    said, there, _ = plain(WAYS[way])
    model, optimizer = on_host(small, WAYS[way])
    assert train(model, optimizer, WAYS[way]) == said
    assert_same(weights(model), there)
    assert (max(sizes) <= SLICE * torch.get_num_threads()) == (way != "fused")
    assert_ended(small)


def test_slices_of_masters(small, monkeypatch):
    """Each slice's gradient is cast."""
    monkeypatch.setattr(slices, "_ELEMENTS", SLICE)
    under_seeds(lambda: loop(small), PATIENCE_SECONDS)
    assert_ended(small)


def trains_alike(model, optimizer, reference, recipe, begin):
    """Trains both some more: they say the same, and have the same bits."""
    theirs, on_cpu = reference
    said = train(theirs, on_cpu, recipe, begin=begin)
    assert train(model, optimizer, recipe, begin=begin) == said
    assert_same(weights(model), weights(theirs))


def narrow():
    """A model in bfloat16, whose optimizer has two groups; the same ones each time."""
    torch.manual_seed(1)
    model = on_device(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 32)))
    with torch.no_grad():
        for one in model.parameters():
            one.data = one.data.to(torch.bfloat16)
    matrices = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() < 2]
    return model, torch.optim.AdamW([{"params": matrices}, {"params": others, "lr": 1e-2}], lr=1e-3)


def train_narrow(model, optimizer, clip=False, begin=0, steps=3):
    schedule, said = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), []
    for step in range(begin, begin + steps):
        batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(step)).to(DEVICE, torch.bfloat16)
        loss = (model(batch) - batch.roll(1, 0)).square().mean()
        loss.backward()
        said.append(loss.item())
        if clip:
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return said


@pytest.mark.parametrize("gradients", [None, FLOAT])
@pytest.mark.parametrize("options", [{}, {"what": "parameters"}, {"step_in_backward": True}], ids=lambda each: str(each))
@pytest.mark.parametrize("masters", [None, FLOAT])
def test_masters_are_the_hosts(small, masters, options, gradients):
    if gradients is not None and masters is None:
        return
    clip = gradients is None and not options.get("step_in_backward")
    (theirs, there), (model, optimizer) = narrow(), narrow()
    there = OnCpu(there, masters)
    with seeded(1, PATIENCE_SECONDS):
        terrace.torch.offload(model, optimizer, client=small, step="host", masters=masters, gradients=gradients,
                              tensor_bytes_min=1, **options)
        assert train_narrow(model, optimizer, clip) == train_narrow(theirs, there, clip)
        assert_same(weights(model), weights(theirs))
    saved = optimizer.state_dict()["state"].values()
    assert all(("terrace.master" in state) == (masters is not None) for state in saved)
    assert_ended(small)


def test_what_is_the_steps_own_is_in_the_hosts_memory(small):
    """States are the CPU's, the model's session has no copy of them on the device, and forward leases nothing of them."""
    model, optimizer = on_host(small, PLAIN)
    train(model, optimizer, PLAIN)
    weight = model.blocks[0].up.weight
    assert weight.device == DEVICE
    assert {value.device.type for value in optimizer.state[weight].values()} == {"cpu"}
    assert "terrace.master" not in optimizer.state_dict()["state"][0]
    assert_ended(small)
    own = {name: one for name, one in small.tensors().items() if "/master" in name or "/exp_avg" in name}
    assert own and not any(small._resident(one, "device:0") for one in own.values())


@pytest.mark.parametrize("way", ["state dicts", "files"])
def test_what_is_saved_goes_on_with_us_and_without(small, way, tmp_path):
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2),))
    model, optimizer = on_host(small, recipe)
    reference = build(recipe)
    reference = reference[0], OnCpu(reference[1])
    trains_alike(model, optimizer, reference, recipe, 0)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
    terrace.torch.save(tmp_path / "model.safetensors", model, optimizer)
    trains_alike(model, optimizer, reference, recipe, 3)
    wanted = weights(model)
    for other in (on_host(small, recipe), build(recipe)):
        model, optimizer = other
        if way == "files":
            terrace.torch.load(tmp_path / "model.safetensors", model, optimizer)
        else:
            saved = torch.load(tmp_path / "both.pt")
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        train(model, optimizer, recipe, begin=3)
        if type(model.head.weight) is not nn.Parameter:
            assert_same(weights(model), wanted)
        else:  # a step on the device, which has these states as its own
            assert {value.device for value in optimizer.state[model.head.weight].values() if value.dim()} == {DEVICE}
    assert_ended(small)


def test_states_that_there_are_come_down(small):
    """Of an optimizer that has stepped on the device already."""
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2),))
    reference, mine = build(recipe), build(recipe)
    for each in (reference, mine):
        train(*each, recipe)
    on_cpu = OnCpu(reference[1])
    on_cpu.on_cpu.load_state_dict(reference[1].state_dict())
    terrace.torch.offload(*mine, client=small, step="host", tensor_bytes_min=1)
    trains_alike(*mine, (reference[0], on_cpu), recipe, 3)
    assert_ended(small)


def test_what_is_written_to_a_weight_is_stepped_on(small):
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2),))
    model, optimizer = on_host(small, recipe)
    reference = build(recipe)
    reference = reference[0], OnCpu(reference[1])
    trains_alike(model, optimizer, reference, recipe, 0)
    with torch.no_grad():
        for of in (model, reference[0]):
            of.blocks[1].up.weight[3].zero_()
            of.blocks[2].down.weight.data.mul_(0.5)
        for weight, copied in zip(reference[1].param_groups[0]["params"], reference[1].on_cpu.param_groups[0]["params"],
                                  strict=True):
            copied.copy_(weight)
    trains_alike(model, optimizer, reference, recipe, 3)


def test_frozen_and_unfrozen_weights(small):
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2),))
    model, optimizer = build(recipe)
    theirs, there = build(recipe)
    for of in (model, theirs):
        of.blocks[0].requires_grad_(False)
    reference = theirs, OnCpu(there)
    terrace.torch.offload(model, optimizer, client=small, step="host", tensor_bytes_min=1)
    trains_alike(model, optimizer, reference, recipe, 0)
    assert model.blocks[0].up.weight not in optimizer.state
    for of in (model, theirs):
        of.blocks[0].requires_grad_(True)
    for copied in reference[1].on_cpu.param_groups[0]["params"]:
        copied.requires_grad_(True)
    trains_alike(model, optimizer, reference, recipe, 3)
    assert_ended(small)


class Halves(torch.optim.Optimizer):
    """A user's own, which looks at all gradients first, changes them, and works on lists."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            found = [one for one in group["params"] if one.grad is not None]
            assert all(one.device.type == one.grad.device.type == "cpu" for one in found)
            gradients = [one.grad for one in found]
            for gradient in gradients:
                gradient.mul_(0.5)
            for one, gradient in zip(found, gradients, strict=True):
                momentum = self.state[one].setdefault("momentum", torch.zeros_like(one))
                one.sub_(momentum.lerp_(gradient, 0.1).sign(), alpha=group["lr"])


terrace.torch.declare(Halves, states=["momentum"])


class HalvesOnCpu(OnCpu):
    """The plain loop's of it, whose gradients are changed, too."""

    @torch.no_grad()
    def step(self):
        super().step()
        for weight, copied in zip(self.param_groups[0]["params"], self.on_cpu.param_groups[0]["params"], strict=True):
            weight.grad.copy_(copied.grad)


def test_an_optimizer_of_ones_own_changes_gradients(small):
    """Also those that are added to afterwards, as zero_grad() is left out."""
    recipe = dataclasses.replace(PLAIN, kind=Halves, options=(("lr", 1e-2),))
    model, optimizer = on_host(small, recipe)
    theirs, there = build(recipe)
    there = HalvesOnCpu(there)
    for step in range(3):
        for of, steps in ((model, optimizer), (theirs, there)):
            loss_of(of, step).backward()
            steps.step()
    assert_same(weights(model), weights(theirs))
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine.grad.cpu(), other.grad.cpu())
    optimizer.zero_grad()
    assert_ended(small)


def test_an_exception_in_a_step_leaves_the_next_one_right(small):
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2),))
    model, optimizer = on_host(small, recipe)
    theirs, there = build(recipe)
    there = OnCpu(there)
    trains_alike(model, optimizer, (theirs, there), recipe, 0)
    loss_of(model, 7).backward()
    handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    handle.remove()
    optimizer.zero_grad()
    trains_alike(model, optimizer, (theirs, there), recipe, 3)
    assert_ended(small)


def test_what_cannot_be_had(small):
    model, optimizer = build(PLAIN)
    kept, there = weights(model), small.tensors().keys()
    for options, error, said in (
            ({"step": "cpu"}, terrace.InvalidArgument, "step is 'cpu'; it is 'device'"),
            ({"step": 1}, TypeError, "step is 1; it is 'device', 'host' or 'auto'"),
            ({"step": "host", "optimizer": None}, terrace.InvalidArgument, "none is given")):
        with pytest.raises(error, match=said):
            terrace.torch.offload(model, **{"optimizer": optimizer, "client": small, **options})
    optimizer.param_groups[0]["capturable"] = True
    with pytest.raises(terrace.InvalidArgument, match="parameter group 0 of AdamW has capturable=True"):
        terrace.torch.offload(model, optimizer, client=small, step="host")
    optimizer.param_groups[0]["capturable"] = False
    model.blocks[0].first.weight = nn.Parameter(model.blocks[0].second.weight.data)
    optimizer.add_param_group({"params": [model.blocks[0].first.weight]})
    with pytest.raises(terrace.InvalidArgument, match="show the same memory"):
        terrace.torch.offload(model, optimizer, client=small, step="host")
    assert_same(weights(model), {**kept, "blocks.0.first.weight": kept["blocks.0.second.weight"]})
    assert type(model.head.weight) is nn.Parameter and small.tensors().keys() <= there


MEASURED = (Link(1e9, 1e9), 1e-6)  # a step on the CPU takes no time to speak of


@pytest.mark.parametrize(("measured", "change", "step", "said"), [
    (MEASURED, None, "host", "its link takes"), ((Link(1e9, 1e9), 1.0), None, "device", "1 s on 1 threads"),
    (MEASURED, lambda optimizer: optimizer.param_groups[0].update(capturable=True), "device",
     "the CPU cannot step this (parameter group 0 of AdamW has capturable=True"),
], ids=["the link is slow", "the CPU is", "it cannot"])
def test_a_step_that_is_picked(small, monkeypatch, measured, change, step, said):
    monkeypatch.setattr(stepping, "_measured", lambda *_: measured)
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2), ("amsgrad", True)))
    model, optimizer = build(recipe)
    if change is not None:
        change(optimizer)
    terrace.torch.offload(model, optimizer, client=small, step="auto", tensor_bytes_min=1)
    given = terrace.torch.summary(model)
    assert given.step == step and said in given.step_why
    theirs, there = build(recipe)
    if step == "host":
        trains_alike(model, optimizer, (theirs, OnCpu(there)), recipe, 0)
    assert_ended(small)


def test_what_is_picked_finds_no_room(small, monkeypatch, capfd):
    """There is a place for what the device steps, and none for masters as well: it steps."""
    monkeypatch.setattr(stepping, "_measured", lambda *_: MEASURED)
    monkeypatch.setattr(Masters, "make", no_room)
    monkeypatch.setattr(auto, "free_bytes", lambda device, tiers: 0)
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2), ("amsgrad", True)))
    model, optimizer = build(recipe)
    terrace.torch.offload(model, optimizer, client=small, what="auto", step="auto", tensor_bytes_min=1)
    given = terrace.torch.summary(model)
    assert given.step == "device" and given.step_why == "there is no room for what the CPU would step (no home, says the test)"
    assert capfd.readouterr().err.count("all of the job") == 1, "what goes is said once"
    train(model, optimizer, recipe)
    assert_ended(small)


def test_what_is_stepped_on_the_cpu_has_its_states_in_terrace(small, capfd):
    """Where all would have room on the device, too: it is said what goes."""
    recipe = dataclasses.replace(PLAIN, options=(("lr", 1e-2),))
    model, optimizer = build(recipe)
    theirs, there = build(recipe)
    terrace.torch.offload(model, optimizer, client=small, what="auto", step="host", tensor_bytes_min=1)
    assert "go to Terrace, where the CPU steps, and parameters and gradients stay" in capfd.readouterr().err
    assert [type(one) for one in model.parameters()] == [torch.nn.Parameter] * len(list(model.parameters()))
    trains_alike(model, optimizer, (theirs, OnCpu(there)), recipe, 0)
    assert_ended(small)


def no_room(_masters, wanted):
    if wanted:
        raise terrace.ResourceExhausted("no home, says the test")


def test_what_is_measured(small):
    """The link and the optimizer's kernels are run, and nothing that they take is left, or disturbs."""
    _, optimizer = build(PLAIN)
    state = torch.get_rng_state()
    link, seconds = stepping._measured([optimizer], Precision(FLOAT, None), DEVICE)
    assert link.up > 0 and link.down > 0 and seconds > 0
    assert torch.equal(torch.get_rng_state(), state) and not optimizer.state


def test_a_second_call_has_the_same_step(small):
    model, optimizer = on_host(small, PLAIN)
    with pytest.raises(terrace.InvalidArgument, match="step is 'device'"):
        terrace.torch.offload(model, SGD(model.parameters(), 0.1), client=small, step="device")
    recipe = dataclasses.replace(PLAIN, kind=SGD, options=(("lr", 0.1), ("momentum", 0.9)))
    second = SGD(model.parameters(), 0.1, momentum=0.9)
    terrace.torch.offload(model, second, client=small, tensor_bytes_min=1)
    theirs, _ = build(recipe)
    trains_alike(model, second, (theirs, OnCpu(SGD(theirs.parameters(), 0.1, momentum=0.9))), recipe, 0)
    assert_ended(small)


def loop(client, **options):
    """Weights after a loop that never waits for the device, and PyTorch's alone. A fresh model each time."""
    def run(model, optimizer):
        for step in range(3):
            batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(step)).to(DEVICE, torch.bfloat16)
            (model(batch) - batch.roll(1, 0)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model)

    model, optimizer = narrow()
    wanted = run(model, OnCpu(optimizer, FLOAT))
    model, optimizer = narrow()
    terrace.torch.offload(model, optimizer, client=client, step="host", masters=FLOAT, tensor_bytes_min=1, **options)
    assert_same(run(model, optimizer), wanted)


@pytest.mark.parametrize("in_backward", [False, True])
def test_a_loop_that_never_waits_for_the_device(small, in_backward):
    under_seeds(lambda: loop(small, step_in_backward=in_backward), PATIENCE_SECONDS)
    assert_ended(small)


@pytest.mark.parametrize("planted", [
    (streams.Mark, "come_before", lambda mark, stream: None),  # gradients go down before they are made
    (later_batch, "wait_for_stream", lambda device: None),  # weights are used before they have come up
    (Slot, "wait", lambda slot: None),  # or before they are stepped
    (streams.Mark, "come_before", lambda mark, stream: None, True),
], ids=lambda each: f"{each[1]}{' in backward' * len(each[3:])}")
def test_each_wait_that_is_left_out_is_found(small, monkeypatch, planted):
    with monkeypatch.context() as patched:
        patched.setattr(*planted[:3])
        failed = []
        for _attempt in range(4):
            failed += try_seeds(lambda: loop(small, step_in_backward=len(planted) > 3), LONG_PATIENCE_SECONDS)
            if failed:
                break
    assert failed

# SPDX-License-Identifier: Apache-2.0
"""Shows that weights in float32 under autocast are leased as what autocast casts them to, with the losses and weights of plain
PyTorch, bit for bit: whatever else uses a weight, whoever writes to it, and whatever the regions are."""

import pytest
import terrace.torch
import torch
import torch.utils.checkpoint
from model_fixtures import (  # noqa: F401 (fixtures)
    Recipe,
    assert_same,
    compare,
    loss_of,
    nothing_stays_leased,
    restless,
    same_for_both,
    weights,
)
from terrace.torch._leased.store import Store
from terrace.torch._offload.job import job_of
from terrace.torch._parameters import casts
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")
BF16, FP16 = torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def pays(monkeypatch):
    """Casts pay however small a weight is, and though all fits."""
    monkeypatch.setattr(casts, "BYTES_MIN", 1)
    monkeypatch.setattr(Store, "fits", lambda _store: False)


def slots_of_casts(model):
    return [slot for slot in job_of(model).store.slots if slot.dtype in (BF16, FP16)]


def cast_of(model):
    """The names of weights that were cast, and the type of each."""
    return {tuple(slot.name.rsplit("/", 1)) for slot in slots_of_casts(model)}


def region(dtype=BF16, **options):
    return torch.autocast("cpu", dtype, **options)


IN_BACKWARD = {"step_in_backward": True}
FUSED, ONE_BY_ONE = (("lr", 1e-3), ("fused", True)), (("lr", 1e-3), ("foreach", False))


@pytest.mark.parametrize("recipe, options", [
    ({}, {}), ({}, IN_BACKWARD), ({}, {"what": {"parameters"}}), ({"set_to_none": False}, {}), ({"options": FUSED}, {}),
    ({"options": FUSED}, IN_BACKWARD), ({"options": ONE_BY_ONE}, {}), ({"frozen": True}, {}), ({"checkpointing": False}, {}),
    ({"checkpointing": True}, {}), ({"checkpointing": False}, IN_BACKWARD),
    ({"frozen": True, "checkpointing": True}, {"what": {"parameters"}}),
    ({"kind": torch.optim.SGD, "options": (("lr", 0.1), ("momentum", 0.9))}, {}),
    ({"accumulation": 2, "checkpointing": False, "clip": True}, {})], ids=str)
def test_losses_and_weights(restless, recipe, options):
    model, _ = compare(Recipe(autocast=True, blocks=2, **recipe), restless, **options)
    matrices = {f"blocks.{number}.{name}.weight" for number in range(2) for name in ("query_key_value", "out", "wide", "narrow")}
    assert cast_of(model) == {(name, "bfloat16") for name in matrices | {"embedding.weight"}}, "positions are no matrix"


def leased(model, name):
    (slot,) = [one for one in job_of(model).store.slots if one.name == name]
    return slot.waits.leases


def test_what_is_leased(restless):
    """The weight by the step alone, once its module is known; its cast by forward and backward; the embedding, too."""
    def run(model, optimizer):
        said = []
        for number in range(4):
            before = {name: leased(model, name) for name in asked} if number > 1 and hasattr(model.positions, "terrace") else {}
            loss = loss_of(model, number, True)
            loss.backward()
            for name, count in before.items():
                seen.append((name, leased(model, name) - count))
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        return said

    asked, seen = ("blocks.0.wide.weight", "blocks.1.out.weight", "blocks.2.norm.weight", "embedding.weight"), []
    same_for_both(restless, run)
    assert set(seen) == {(asked[0], 0), (asked[1], 0), (asked[2], 2), (asked[3], 1)}


def network(_recipe=None):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 24, bias=False), nn.GELU(), nn.Linear(24, 24))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def given(number=0):
    return torch.randn(4, 24, generator=torch.Generator().manual_seed(number))


def trained(model, optimizer, loss, count=3):
    said = []
    for number in range(count):
        found = loss(model, number)
        found.backward()
        said += [found.item(), *(one.grad.sum().item() for one in model.parameters() if one.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
    return said


def of_two_types(model, number):
    with region():
        one = model(given(number)).float().square().mean()
    with region(FP16):
        other = model(given(number)).float().mean()
    return one + other + model(given(number)).square().mean()


def in_one_region_twice(model, number):
    """Its gradients meet in bf16, before the cast's."""
    with region():
        return model(model(given(number))).float().square().mean()


def without_a_cache(model, number):
    with region(cache_enabled=False):
        return model(model(given(number))).float().square().mean()


def switched_off_within(model, number):
    with region():
        one = model[0](given(number))
        with region(enabled=False):
            two = model[2](one.float())
        return model[4](two).float().square().mean() + model(given(number)).float().mean()


def a_region_within(model, number):
    with region():
        one = model(given(number))
        with region():
            two = model(one)
        torch.clear_autocast_cache()
        return (model(two) + one).float().square().mean()


def first_without_gradients(model, number):
    with region():
        with torch.no_grad():
            one = model(given(number))
        return model(one).float().square().mean()


def used_both_ways(model, number):
    """A penalty that autocast keeps in float32, and a weight that is part of an operation outside its module."""
    with region():
        one = model(given(number))
        two = functional.linear(one, model[2].weight, model[0].bias) + one @ model[0].weight.t() + one @ model[4].weight
        norm = sum(part.weight.norm() + part.weight.square().mean() for part in model[::2])
        return two.float().square().mean() + 0.1 * norm + torch.softmax(model[4].weight, -1).max()


def with_hooks_of_others(model, number):
    with region(), torch.autograd.graph.save_on_cpu():
        return model(given(number)).float().square().mean()


def with_activations(model, number):
    with region(), terrace.torch.activations(client=CLIENT[0], min_bytes=1) if hasattr(
            model[0].weight, "terrace") else torch.enable_grad():
        return model(given(number)).float().square().mean()


def with_hooks_within(model, number):
    kept = []

    def pack(tensor):
        kept.append(tensor.float().sum().item())
        return tensor

    hook = model[2].register_forward_pre_hook(lambda _module, inputs: functional.linear(inputs[0], model[2].weight) * 2)
    with region(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        one = model(given(number)).float()
        two = functional.linear(one, model[4].weight).float()
    hook.remove()
    return one.square().mean() + two.mean()


CLIENT = []


@pytest.mark.parametrize("loss", [of_two_types, in_one_region_twice, without_a_cache, switched_off_within, a_region_within,
                                  first_without_gradients, used_both_ways, with_hooks_of_others, with_activations,
                                  with_hooks_within], ids=lambda loss: loss.__name__)
def test_regions_and_uses(restless, loss):
    CLIENT[:] = [restless]
    model, _ = same_for_both(restless, lambda *of: trained(*of, loss), network)
    assert slots_of_casts(model)


@pytest.mark.parametrize("write", [
    lambda weight: weight.mul_(2), lambda weight: weight.data.mul_(2), lambda weight: weight.copy_(torch.ones_like(weight)),
    lambda weight: weight[3].zero_(), lambda weight: setattr(weight, "data", weight.data * 3),
    lambda weight: torch._foreach_mul_([weight], 2.0), lambda weight: nn.init.constant_(weight, 0.5)],
    ids=["mul_", "data.mul_", "copy_", "a row", "data =", "a list", "init"])
@pytest.mark.parametrize("within", [False, True], ids=["between regions", "within one"])
def test_who_writes(restless, write, within):
    """The cast is made anew where it is used next; within a region autocast goes on with the one that it has."""
    def loss(model, number):
        kept = []
        with region():
            one = model(given(number)).float().square().mean()
            if within:
                with torch.no_grad():
                    write(model[2].weight)
                kept.append(model(given(number + 1)).float().mean())
        if not within:
            one.backward()
            with torch.no_grad():
                write(model[2].weight)
        with region():
            two = model(given(number)).float().mean()
        return sum(kept, two) + (one if within else 0)

    same_for_both(restless, lambda *of: trained(*of, loss), network)


def test_what_a_script_keeps_of_a_weight(restless):
    """Nothing tells of what is written to that."""
    def run(model, optimizer):
        kept = model[0].weight.data
        said = []
        for number in range(3):
            with region():
                said.append(model(given(number)).float().square().mean().item())
            kept.mul_(1.5)
            array = kept.numpy() if number == 1 else None
            if array is not None:
                array += 1
        return said

    same_for_both(restless, run, network)


def test_a_scaler(restless):
    def run(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8, growth_interval=2)
        said = []
        for number in range(4):
            with region(FP16):
                loss = model(given(number)).float().square().mean() * (torch.inf if number == 1 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).nan_to_num(0, 0, 0).item())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            said.append(scaler.get_scale())
        return said

    model, _ = same_for_both(restless, run, network)
    assert {dtype for _, dtype in cast_of(model)} == {"float16"}


class Own(nn.Linear):
    """Reads its weight as an extension's C++ does: nothing of PyTorch's is asked."""

    def forward(self, x):
        with torch._C.DisableTorchFunctionSubclass():
            return functional.linear(x, self.weight, self.bias)


class Compiled(nn.Linear):
    """Gives its weight to a compiled function."""

    def forward(self, x):
        return compiled_linear(x, self.weight)


compiled_linear = torch.compile(lambda x, weight: functional.linear(x, weight), backend="aot_eager")


@pytest.mark.parametrize("kind", [Own, Compiled])
def test_a_forward_that_is_not_pytorchs(restless, kind):
    def make(_recipe=None):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(24, 24), kind(24, 24))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, _ = same_for_both(restless, lambda *of: trained(*of, in_one_region_twice), make)
    assert cast_of(model) == {("0.weight", "bfloat16")}


def test_a_module_that_needs_more_than_the_cast(restless):
    """From its second run on it leases its weight once, and the cast goes."""
    def make(_recipe=None):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24))
        model[1].register_forward_hook(lambda module, _inputs, made: made * module.weight.norm() + module.weight.square().mean())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run(model, optimizer):
        said = trained(model, optimizer, in_one_region_twice, count=2)
        before = hasattr(model[0].weight, "terrace") and leased(model, "1.weight")
        with region(), torch.no_grad():
            said.append(model(given()).sum().item())
        if before:
            assert leased(model, "1.weight") == before + 1
        return said

    model, _ = same_for_both(restless, run, make)
    assert cast_of(model) == {("0.weight", "bfloat16")}


def pictures(_recipe=None):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 3), nn.Flatten(),
                          nn.Linear(8 * 64, 8))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("checkpointing", [None, False, True], ids=str)
def test_convolutions(restless, checkpointing):
    def loss(model, number):
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number)).requires_grad_()
        with region():
            x = model[:3](x)
            x = (model[3:5](x) if checkpointing is None else
                 torch.utils.checkpoint.checkpoint(model[3:5], x, use_reentrant=checkpointing))
            return model[5](x).float().square().mean()

    model, _ = same_for_both(restless, lambda *of: trained(*of, loss), pictures)
    assert len(cast_of(model)) == 3


def attentive(_recipe=None):
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
    model = nn.ModuleDict({"layers": nn.TransformerEncoder(layer, 2), "cells": nn.LSTM(24, 24, batch_first=True),
                           "weighed": nn.utils.parametrizations.weight_norm(nn.Linear(24, 24)), "twice": nn.Bilinear(24, 24, 8)})
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_modules_that_read_weights_in_ways_of_their_own(restless):
    def loss(model, number):
        with region():
            x = model["layers"](given(number)[None])
            x, _ = model["cells"](x.float())
            x = model["weighed"](x)
            return model["twice"](x.float(), x.float()).float().square().mean()

    same_for_both(restless, lambda *of: trained(*of, loss), attentive)


def test_evaluation(restless):
    def run(model, optimizer):
        said = trained(model, optimizer, in_one_region_twice)
        for context in (torch.no_grad(), torch.inference_mode()):
            with context, region():
                said.append(model(given()).float().sum().item())
        with region(), torch.no_grad():
            said.append(model(given()).float().sum().item())
        return said + trained(model, optimizer, in_one_region_twice)

    same_for_both(restless, run, network)


def test_what_is_loaded_and_saved(restless, tmp_path):
    """A state_dict() and files have the weights alone."""
    def run(model, optimizer):
        said = trained(model, optimizer, in_one_region_twice)
        kept = weights(model)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        said += trained(model, optimizer, in_one_region_twice)
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
        said.append(in_one_region_twice(model, 1).item())
        assert_same(weights(model), kept)
        return said + trained(model, optimizer, in_one_region_twice)

    model, _ = same_for_both(restless, run, network)
    assert {one.dtype for one in model.state_dict().values()} == {torch.float32}


def test_a_compiled_block(restless):
    """Compiled code casts by itself: it has the weights, and what is beside it the casts."""
    def make(_recipe=None):
        model, _ = network()
        model = nn.Sequential(torch.compile(nn.Sequential(*model[:3]), backend="aot_eager"), model[4])
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(model, number):
        with region():
            return model(given(number)).float().square().mean()

    model, _ = same_for_both(restless, lambda *of: trained(*of, loss), make)
    assert cast_of(model) == {("1.weight", "bfloat16")}


def test_torch_func(restless):
    """Transforms are given the weights."""
    def run(model, _optimizer):
        named = dict(model.named_parameters())

        def loss(values, x):
            with region():
                return torch.func.functional_call(model, values, (x,)).float().square().mean()

        with region():
            model(given())
            grads = torch.func.grad(loss)(named, given(1))
        return [one.sum().item() for one in grads.values()]

    same_for_both(restless, run, network)

# SPDX-License-Identifier: Apache-2.0
"""Shows how long Terrace keeps what autocast casts weights to: for as long as something has it, and no longer than it is used;
that nothing is kept where it does not pay, or has no room; and that what tells nobody of a use or a write is right too."""

import ctypes
import gc

import pytest
import terrace.torch
import torch
from autocast_test import (  # noqa: F401 (a fixture)
    cast_of,
    given,
    in_one_region_twice,
    network,
    pays,
    region,
    slots_of_casts,
    trained,
)
from model_fixtures import (  # noqa: F401 (fixtures)
    Recipe,
    assert_same,
    compare,
    nothing_stays_leased,
    restless,
    roomy,
    same_for_both,
    weights,
)
from terrace.torch._leased.store import Store
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def test_a_graph_that_outlives_the_step(restless):
    """What autograd has saved is the cast of then, and so is what autocast has until its region ends."""
    def run(model, optimizer):
        said = []
        for number in range(3):
            with region():
                one = model(given(number)).float().square().mean()
                one.backward(retain_graph=True)
                optimizer.step()
                said.append(model(given(number)).float().mean().item())
            one.backward()
            optimizer.step()
            said += [parameter.grad.sum().item() for parameter in model.parameters()]
            optimizer.zero_grad()
        return said

    model, _ = same_for_both(restless, run, network)
    gc.collect()
    trained(*network(), lambda model, number: model(given(number)).mean())
    with region():
        model(given())
    assert len(slots_of_casts(model)) <= 6, "at most one to spare of each"


def test_a_step_within_a_region(restless):
    def run(model, optimizer):
        said = []
        for number in range(4):
            with region():
                loss = model(given(number)).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                said.append(loss.item())
        return said

    model, _ = same_for_both(restless, run, network)
    assert len(slots_of_casts(model)) <= 6


def test_casts_that_are_not_used_any_more_go(restless):
    def run(model, optimizer):
        said = trained(model, optimizer, in_one_region_twice)
        counts.append(hasattr(model[0].weight, "terrace") and len(slots_of_casts(model)))
        said += trained(model, optimizer, lambda model, number: model(given(number)).mean())
        counts.append(hasattr(model[0].weight, "terrace") and len(slots_of_casts(model)))
        return said + trained(model, optimizer, in_one_region_twice)

    counts = []
    same_for_both(restless, run, network)
    assert counts == [False, False, 3, 0]


def test_what_the_model_loses_goes(roomy):
    model, optimizer = network()
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    trained(model, optimizer, in_one_region_twice)
    del optimizer
    model[2] = nn.Linear(24, 24, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
    assert cast_of(model) == {("0.weight", "bfloat16"), ("4.weight", "bfloat16")}
    assert len(roomy.tensors()) == 4 * 5 + 2


def test_nothing_is_cast_where_it_does_not_pay(roomy, monkeypatch):
    """Where all fits; and of weights that are small, or no matrices."""
    monkeypatch.undo()
    model, _ = compare(Recipe(autocast=True), roomy)
    assert not slots_of_casts(model)
    monkeypatch.setattr(Store, "fits", lambda _store: False)
    model, _ = compare(Recipe(autocast=True), roomy)
    assert not slots_of_casts(model)


def test_one_that_does_not_fit():
    """Where there is no room for a weight and its cast, the weight is leased."""
    def make():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Linear(1024, 8, bias=False))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model, number):
        with region():
            return model(torch.full((2, 512), number + 1.0)).float().square().mean()

    plain = make()
    wanted = trained(*plain, loss)
    with terrace.serve("5MiB", metrics=False) as client:
        model, optimizer = make()
        terrace.torch.offload(model, optimizer, client=client, what={"parameters"}, tensor_bytes_min=1)
        assert trained(model, optimizer, loss) == wanted
        assert_same(weights(model), weights(plain[0]))


def test_a_model_of_a_device():
    """Casts are leased where weights are."""
    with terrace.serve("32MiB", device="16MiB", metrics=False) as client:
        model, _ = compare(Recipe(autocast=True, blocks=1), client, place="device:0")
        assert len(slots_of_casts(model)) == 5
        assert all(client._resident(slot.tensor, "device:0") for slot in slots_of_casts(model))


def numpy_row(weight):
    weight.detach().numpy()[3] = 0.5


PAST_THE_PARAMETER = {
    "a row of data": lambda weight: weight.data[3].zero_(),
    "a row of detach()": lambda weight: weight.detach()[3].zero_(),
    "a part of a view": lambda weight: weight.data.view(-1)[5:50].fill_(0.25),
    "a transposed one": lambda weight: weight.data.t().mul_(2),
    "chunks": lambda weight: [part.mul_(2) for part in weight.data.chunk(3)],
    "numpy": numpy_row,
    "the storage": lambda weight: weight.data.untyped_storage().fill_(0)}


@pytest.mark.parametrize("write", PAST_THE_PARAMETER.values(), ids=PAST_THE_PARAMETER)
def test_what_is_written_past_the_parameter(restless, write):
    """To what was taken of its data, once its module is known and its cast current."""
    def loss(model, number):
        with region():
            found = model(given(number)).float().square().mean()
        return found

    def run(model, optimizer):
        said = trained(model, optimizer, loss)
        write(model[0].weight)
        said += trained(model, optimizer, loss, 1)
        write(model[2].weight)
        return said + trained(model, optimizer, loss)

    same_for_both(restless, run, network)


def test_a_row_that_a_script_keeps(restless):
    def run(model, optimizer):
        said = []
        for number in range(6):
            with region(), torch.no_grad():
                said.append(model(given(number)).float().square().mean().item())
            if number == 2:
                row = model[0].weight.data[3]
            if number > 1:
                row.add_(1)
        return said

    same_for_both(restless, run, network)


class Unwrapping(torch.Tensor):
    """Computes as its elements would, whatever else there is."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def plainly(model, number):
    with torch._C.DisableTorchFunctionSubclass():
        return model(given(number))


def by_address(model, number):
    """A hook reads the weight past all that could tell."""
    read = []
    hook = model[0].register_forward_hook(
        lambda module, inputs, made: read.append(torch.frombuffer((ctypes.c_float * 576).from_address(module.weight.data_ptr()),
                                                                  dtype=torch.float32).sum().item()))
    made = model(given(number))
    hook.remove()
    return made * read[0]


def into_one(model, number):
    """Autocast has no kernel of it."""
    return torch.mm(given(number), model[2].weight, out=torch.empty(4, 24))


@pytest.mark.parametrize("use", [lambda model, number: model(given(number).as_subclass(Unwrapping)), plainly, by_address, into_one],
                         ids=["a subclass", "no subclasses", "a hook", "out="])
def test_what_does_not_ask(restless, use):
    """Once modules are known, the weight is used in a way that tells nobody."""
    def run(model, optimizer):
        said = []
        for number in range(4):
            with region(), torch.no_grad():
                said.append(model(given(number)).float().square().mean().item())
                if number > 1:
                    said.append(use(model, number).float().square().mean().item())
        return said

    same_for_both(restless, run, network)

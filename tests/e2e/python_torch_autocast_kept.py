# SPDX-License-Identifier: Apache-2.0
"""Shows how long Terrace keeps what autocast casts weights to: for as long as something has it, and no longer than it is used;
and that nothing is kept where it does not pay, or has no room."""

import gc

import pytest
import terrace.torch
import torch
from python_torch_autocast import (  # noqa: F401 (a fixture)
    cast_of,
    given,
    in_one_region_twice,
    network,
    pays,
    region,
    slots_of_casts,
    trained,
)
from python_torch_models import (  # noqa: F401 (fixtures)
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

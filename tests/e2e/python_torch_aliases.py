# SPDX-License-Identifier: Apache-2.0
"""Shows that tensors which share a parameter's memory give what they give without Terrace, or are refused by name."""

import pytest
import terrace.torch
import torch
from python_torch_models import nothing_stays_leased, roomy  # noqa: F401 (fixtures)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def offloaded(client, model=None, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) if model is None else model
    return terrace.torch.offload(model, client=client, tensor_bytes_min=1, **options)[0]


@pytest.mark.parametrize("take", [lambda one: one.data, lambda one: one.detach(), lambda one: one.data.view(-1)],
                         ids=["data", "detach", "view"])
def test_data_is_not_replaced_under_what_was_taken_from_it(roomy, take):
    weight = offloaded(roomy)[0].weight
    before, old = weight.detach().clone(), take(weight)
    with pytest.raises(terrace.FailedPrecondition, match=r"'0.weight' was given new data.*clone\(\)"):
        weight.data = torch.zeros(8, 8)
    assert torch.equal(weight, before)
    weight.data = weight.data if take(weight).dim() == 2 else weight
    del old
    weight.data = torch.zeros(8, 8)
    assert not weight.any()


def test_data_is_not_replaced_under_what_a_forward_took(roomy):
    model = offloaded(roomy)
    seen = []

    def swap(module, _inputs):
        old = module.weight.data
        with pytest.raises(terrace.FailedPrecondition, match="was given new data"):
            module.weight.data = torch.zeros(8, 8)
        seen.append(float(old.abs().sum()))

    model[0].register_forward_pre_hook(swap)
    model(torch.ones(1, 8))
    assert seen[0] > 0


def test_parameters_do_not_come_to_share_memory(roomy):
    model = offloaded(roomy)
    before = model[1].weight.detach().clone()
    for value in (model[0].weight.data, model[0].weight):
        with pytest.raises(terrace.FailedPrecondition, match="'1.weight' was given the memory of '0.weight'.*tie"):
            model[1].weight.data = value
    one, other = model[0].weight.data, model[1].weight.data
    with pytest.raises(terrace.FailedPrecondition, match="would share it"):
        model[0].weight.data, model[1].weight.data = other, one
    del one, other, value
    assert torch.equal(model[1].weight, before)
    model[1].weight.data = model[0].weight.data.clone()
    assert torch.equal(model[1].weight, model[0].weight)

# SPDX-License-Identifier: Apache-2.0
"""Shows that a job can be leased in an emulated device's tier: in tiers that are too small for it the losses and weights
are those of plain PyTorch, bit for bit, and bytes move between all three tiers."""

import pytest
import terrace.torch
from model_fixtures import Recipe, assert_same, build, compare, metric, train, weights
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)

RECIPE = Recipe(width=96, blocks=10)  # 17 MiB of state
LINKS = ("host_to_device", "device_to_host", "block_read", "block_write")


@pytest.fixture
def tiered(disk):
    """A client of tiers that are too small: 4 MiB of a device, of which the session is guaranteed 2, and 4 of memory."""
    with terrace.serve("4MiB", device="4MiB", block=f"{disk}:128MiB") as served:
        yield served


def places_leased_in(client, monkeypatch):
    """Notes where leases are taken from now on."""
    found = set()
    acquire = client._acquire
    monkeypatch.setattr(client, "_acquire", lambda tensors, mode, place, *more: (
        found.add(place), acquire(tensors, mode, place, *more))[1], raising=False)
    return found


@pytest.mark.parametrize("step_in_backward", [False, True])
def test_a_job_in_a_devices_tier(tiered, monkeypatch, step_in_backward):
    places = places_leased_in(tiered, monkeypatch)
    before = {link: metric(tiered, "terrace_transfer_bytes_total", link=link) for link in LINKS}
    compare(RECIPE, tiered, place="device:0", step_in_backward=step_in_backward)
    assert places == {"device:0"}
    assert tiered.leased_bytes_max <= 2 * MIB
    for link in LINKS:
        assert metric(tiered, "terrace_transfer_bytes_total", link=link) - before[link] > 4 * MIB, link


def test_a_model_that_is_built_there(tiered, monkeypatch):
    places = places_leased_in(tiered, monkeypatch)
    plain, plain_optimizer = build(RECIPE)
    with terrace.torch.init(client=tiered, place="device:0", tensor_bytes_min=1):
        model, optimizer = build(RECIPE)
    terrace.torch.offload(model, optimizer, place="device:0", tensor_bytes_min=1)
    assert train(model, optimizer, RECIPE) == train(plain, plain_optimizer, RECIPE)
    assert_same(weights(model), weights(plain))
    assert places == {"device:0"}

# SPDX-License-Identifier: Apache-2.0
"""Shows what a summary says: module by module where its bytes are, what had to be fetched, and what was waited for; and
of a process that offloads several models, and activations, all of it."""

import gc
import re

import pytest
import terrace.torch
import torch
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)
from torch import nn

LAYERS, WIDTH = 4, 128
WEIGHT_BYTES = WIDTH * WIDTH * 4


@pytest.fixture
def served(disk):  # noqa: F811
    with terrace.serve("16MiB", device="4MiB", block=f"{disk}:64MiB", metrics=False) as client:
        yield client


class Layers(nn.Sequential):
    pass


def offloaded(client, place="host", **options):
    torch.manual_seed(1)
    model = Layers(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1, momentum=0.9)
    return terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, place=place, **options)


def step(model, optimizer):
    model(torch.randn(2, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def by_name(model):
    return {one.name: one for one in terrace.torch.summary(model).modules}


def weight_of(layer):
    return layer.weight.terrace.slot.tensor


def test_where_its_bytes_are(served):
    model, _ = offloaded(served)
    frozen = by_name(model)["0"]
    assert frozen.nbytes == WEIGHT_BYTES and frozen.place_bytes == {"host": WEIGHT_BYTES} and not frozen.below_bytes
    assert by_name(model)["1"].below_bytes == 2 * WEIGHT_BYTES, "its gradient and its moments have no content yet"
    served.swap_out([weight_of(model[0])])
    frozen = by_name(model)["0"]
    assert frozen.place_bytes == {} and frozen.below_bytes == WEIGHT_BYTES
    served.swap_in([weight_of(model[0])], place="device:0")
    assert by_name(model)["0"].place_bytes == {"device:0": WEIGHT_BYTES}
    assert served.held == 0


def test_what_was_fetched_and_what_was_waited_for(served):
    model, optimizer = offloaded(served)
    step(model, optimizer)
    before = by_name(model)
    assert all(one.fetched_bytes == 0 and one.fetch_seconds == 0 for one in before.values())
    assert before["1"].room_seconds > 0, "of its gradient, which took the room of nothing"
    assert before["1"].wait_seconds > before["1"].room_seconds, "what was there took time, too"
    served.swap_out([weight_of(model[2])])
    model(torch.randn(2, WIDTH))
    after = by_name(model)
    assert {name: one.fetched_bytes for name, one in after.items()} == {"0": 0, "1": 0, "2": WEIGHT_BYTES, "3": 0}
    assert after["2"].fetch_seconds == pytest.approx(after["2"].wait_seconds - before["2"].wait_seconds) != 0
    assert after["2"].leases == before["2"].leases + 1
    assert after["2"].leased_bytes == before["2"].leased_bytes + WEIGHT_BYTES


@pytest.mark.filterwarnings("ignore:terrace.torch.offload")  # of a guarantee of nothing
def test_where_all_fits_room_is_asked_for_once(served, monkeypatch):
    """A gradient that zero_grad() drops leaves its place to the next one; in a larger job, to whatever comes."""
    for guarantee, others, drops in ((4 << 20, 0, False), (0, 0, True), (4 << 20, 4 << 20, True)):
        with terrace.Client(served.socket, guarantees={"host": guarantee}) as client:
            client.create("others", others + 1, "uint8")  # as activations are
            dropped = []
            dont_need = client.dont_need
            monkeypatch.setattr(client, "dont_need", lambda tensors: dropped.extend(tensors) or dont_need(tensors))
            model, optimizer = offloaded(client)
            for _ in range(2):
                step(model, optimizer)
            before = by_name(model)["1"].room_seconds
            step(model, optimizer)
            assert (by_name(model)["1"].room_seconds > before) == drops == bool(dropped)
            del model, optimizer


def test_as_a_table(served):
    model, optimizer = offloaded(served, share_frozen=True)
    step(model, optimizer)
    said = terrace.torch.summary(model)
    assert said.name == "Layers" and said.place == "host" and said.shared_bytes == WEIGHT_BYTES
    assert sum(one.nbytes for one in said.modules) == said.nbytes == (1 + 3 * (LAYERS - 1)) * WEIGHT_BYTES
    head, *rows = str(said).splitlines()
    assert head.split()[:4] == ["module", "MiB", "in", "host"]
    numbers = {row.split()[0]: row.split()[1:] for row in rows[:LAYERS + 1]}
    assert list(numbers) == ["1", "2", "3", "0", "all"]
    assert all(len(row) == 8 for row in numbers.values())
    assert float(numbers["1"][0]) == pytest.approx(3 * WEIGHT_BYTES / MIB, abs=0.01)
    assert float(numbers["all"][0]) == pytest.approx(said.nbytes / MIB, abs=0.01)
    assert "0.06 MiB are shared with this node's other ranks" in rows


def test_all_of_a_process(served):
    gc.collect()
    before = terrace.torch.summary()
    jobs = [offloaded(served), offloaded(served, place="device:0")]
    for job in jobs:
        with terrace.torch.activations(served, min_bytes=1, keep_bytes=0):
            step(*job)
    said = terrace.torch.summary()
    assert [(one.name, one.place) for one in said.jobs[len(before.jobs):]] == [
        ("Layers", "host"), ("Layers", "device:0")]
    assert said.jobs[-1].modules[1].place_bytes.keys() == {"device:0"}
    (saved,) = said.activations
    assert saved.nbytes > 0 and saved.stored.leases > 0 and saved.read.leases > 0
    assert saved.stored.leased_bytes >= saved.stored.leases * WIDTH * 2 * 4 and saved.stored.room_seconds > 0
    assert saved.read.fetched_bytes == 0 and saved.read.wait_seconds > 0
    assert re.search(r"^Layers\nmodule .*^Layers\nmodule .*^activations: ", str(said), re.MULTILINE | re.DOTALL)
    assert f"{saved.read.leases} times read, waited " in str(said)
    del jobs, job
    gc.collect()
    assert len(terrace.torch.summary().jobs) == len(before.jobs)


def test_where_a_client_is_closed(served):
    """Its job says so, and the others are there."""
    with terrace.Client(served.socket, guarantees={"host": 1 << 20}) as other:
        gone = offloaded(other)
        with terrace.torch.activations(other, min_bytes=1, keep_bytes=0):
            step(*gone)
    here = offloaded(served)
    said = terrace.torch.summary()
    *_, lost, held = said.jobs
    assert lost.closed and not held.closed and held.modules[0].place_bytes == {"host": WEIGHT_BYTES}
    assert sum(one.leases for one in lost.modules) > 0 and all(not one.place_bytes for one in lost.modules)
    assert "its client is closed" in str(terrace.torch.summary(gone[0])) and "closed" not in str(held)
    del gone, here

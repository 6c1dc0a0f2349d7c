# SPDX-License-Identifier: Apache-2.0
"""Shows that what comes next is declared ahead of its use, in the order of the last step of the same kind: in training,
in forward passes alone, without an optimizer of ours and in between; and that who misses nothing asks for nothing."""

import copy

import pytest
import terrace.torch
import torch
from model_fixtures import metric
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)
from torch import nn

WIDTH = 128
LAYERS = 48  # of 64 KiB each


class Recording(terrace.Client):
    """Notes what is declared."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.declared = []

    def prefetch(self, tensors, *, place="host"):
        self.declared += tensors
        super().prefetch(tensors, place=place)

    def numbers(self):
        """Of the layers whose weights were declared since it was asked before."""
        declared, self.declared = self.declared, []
        tails = [tensor.name.rpartition("/")[2].split(".") for tensor in declared]
        return [int(tail[0]) for tail in tails if tail[1:] == ["weight"]]


@pytest.fixture
def crowded(disk):
    """A client of a daemon whose memory holds less than the model's weights."""
    with (terrace.serve("2MiB", block=f"{disk}:128MiB", guarantees={"host": 0}) as served,
          Recording(served.socket, guarantees={"host": 2 * MIB}) as client):
        client.metrics_url = served.metrics_url
        yield client


def offloaded(client, *, optimizer=False):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    trained = torch.optim.SGD(model.parameters(), lr=0.1)
    terrace.torch.offload(model, trained if optimizer else None, client=client)
    return model, trained


def backward(model):
    model(torch.randn(2, WIDTH)).square().mean().backward()


def evaluate(model):
    with torch.no_grad():
        return model(torch.randn(2, WIDTH))


def test_forward_passes_alone_go_round(crowded):
    model, _ = offloaded(crowded)
    evaluate(model)
    assert crowded.numbers() == [], "there is nothing to go by"
    evaluate(model)
    first = crowded.numbers()
    assert first[:LAYERS - 1] == [*range(1, LAYERS)]
    begins = first[LAYERS - 1:]
    assert begins == [*range(len(begins))] and begins, "the next pass, as this one ends"
    for _ in range(3):
        evaluate(model)
    said = crowded.numbers()
    assert said == [number % LAYERS for number in range(len(begins), len(begins) + len(said))]
    assert len(said) == 3 * LAYERS, "each once a pass"
    assert metric(crowded, "terrace_prefetches_total", outcome="used") > 0


def test_of_passes_that_go_round_a_part_stays_in_memory(crowded):
    """Sent down least recently used first, all of it would be read in each pass."""
    model, _ = offloaded(crowded)
    for _ in range(3):
        evaluate(model)
    before = metric(crowded, "terrace_transfer_bytes_total", link="block_read")
    torch.manual_seed(3)
    said = [evaluate(model) for _ in range(4)]
    read = metric(crowded, "terrace_transfer_bytes_total", link="block_read") - before
    weights = LAYERS * WIDTH * WIDTH * 4
    assert 0 < read < 4 * weights * 7 // 8
    torch.manual_seed(3)
    plain = copy.deepcopy(model)
    assert all(torch.equal(one, evaluate(plain)) for one in said)


def test_of_a_frozen_model_too(crowded):
    """In training mode, and without no_grad()."""
    model, _ = offloaded(crowded)
    model.requires_grad_(False)
    for _ in range(2):
        model(torch.randn(2, WIDTH))
    assert crowded.numbers()[:LAYERS - 1] == [*range(1, LAYERS)]


@pytest.mark.parametrize("ours", [True, False], ids=["with the optimizer", "without it"])
def test_training(crowded, ours):
    """There and back; and then, as the step ends, what the next one begins with."""
    model, optimizer = offloaded(crowded, optimizer=ours)

    def step():
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        return crowded.numbers()

    step()
    said = step()
    assert said[:LAYERS - 1] == [*range(1, LAYERS)]
    back = said[LAYERS - 1:said.index(1, 1)]
    assert len(back) > LAYERS // 2 and back == [*range(back[0], 1, -1)]
    before = step()
    assert before[-3:] == [*range(before[-1] - 2, before[-1] + 1)]
    assert step()[0] == before[-1] + 1, "goes on where that ended"
    assert metric(crowded, "terrace_prefetches_total", outcome="used") > 0


def test_each_kind_of_step_has_its_order(crowded):
    model, optimizer = offloaded(crowded, optimizer=True)
    for _ in range(3):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        crowded.numbers()
        evaluate(model)
        evaluated = crowded.numbers()
    assert evaluated[:LAYERS - 1] == [*range(1, LAYERS)], "forward, and not back"
    assert LAYERS - 1 not in evaluated[LAYERS - 1:]


def test_what_misses_nothing_asks_nothing(disk):
    """Though it is more than the guarantee."""
    with (terrace.serve("32MiB", block=f"{disk}:128MiB", metrics=False, guarantees={"host": 0}) as served,
          Recording(served.socket, guarantees={"host": MIB}) as client):
        model, optimizer = offloaded(client, optimizer=True)
        for _ in range(3):
            evaluate(model)
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        assert not client.declared
        client.swap_out([one.terrace.slot.tensor for one in model.parameters()])
        evaluate(model)
        assert client.declared, "what was sent down is"
        for _ in range(8):
            evaluate(model)
        client.declared.clear()
        evaluate(model)
        assert not client.declared, "and not for ever"

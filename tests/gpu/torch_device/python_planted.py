# SPDX-License-Identifier: Apache-2.0
"""Shows that bugs of streams and leases in terrace.torch are found: each is planted, and its workload gives a wrong number
under some seed; without it, the right one under each. A bug that was hard to find belongs into PLANTED."""

import contextlib
import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import terrace.torch
import torch
from device_fixtures import DEVICE, SEEDS, expect, serve, try_seeds, under_seeds
from python_fixtures import disk, wait_until  # noqa: F401 (a fixture)
from terrace.torch._activations import in_terrace, lanes
from terrace.torch._activations.shelf import Shelf
from terrace.torch._device.streams import Mark
from terrace.torch._leased import slot
from terrace.torch._optimizer import due
from torch import nn

COUNT = 4096
SEEDS_MAX = 30
PATIENCE_SECONDS = 0.05  # a daemon that is waited for moves nothing sooner
_numbers = itertools.count(3)


@pytest.fixture
def client(disk):
    """HBM for less than the models here, and not much more memory, which is pinned."""
    with serve("4MiB", "16MiB", f"{disk}:256MiB") as served:
        warm = served.create("warm", (COUNT,), "float32")
        warm.overwrite().release()
        wait_until(lambda: served.pinned_bytes > 0, "memory to be pinned")
        served.delete([warm])
        yield served


def start() -> torch.Tensor:
    weight = torch.full((COUNT,), 2.0, device=DEVICE).requires_grad_()
    torch.accelerator.synchronize()
    return weight


def saving(client: terrace.Client) -> contextlib.AbstractContextManager:
    return terrace.torch.activations(client, min_bytes=1, keep_bytes=0)


class Keeps(torch.autograd.Function):
    """A square, whose backward pass keeps what it was saved."""

    kept: list[torch.Tensor] = []

    @staticmethod
    def forward(context, tensor):
        context.save_for_backward(tensor)
        return tensor.square()

    @staticmethod
    def backward(context, gradient):
        (saved,) = context.saved_tensors
        Keeps.kept.append(saved)
        return 2 * saved * gradient


def saved_on_one_stream_and_used_on_another(client):
    """What both streams' operators save is one storage: laid away on the first one, fetched by the second one's backward."""
    weight, first, second = start(), torch.Stream(DEVICE), torch.Stream(DEVICE)
    number = next(_numbers)  # what a box has of the run before is another one
    with saving(client):
        made = weight * number
        for stream in (first, second):
            stream.wait_stream(torch.accelerator.current_stream())
        with first:
            one = made.square()
        with second:
            other = Keeps.apply(made)
        del made
        for stream in (first, second):
            torch.accelerator.current_stream().wait_stream(stream)
    (one + other).sum().backward()
    Keeps.kept.clear()
    expect(weight.grad, 2 * 2 * (2 * number) * number)


def saved_on_another_stream_than_it_is_of(client):
    """Its memory is the first stream's, which may have it again as soon as nobody shows it."""
    weight, stream = start(), torch.Stream(DEVICE)
    with saving(client):
        made = weight * 3
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            squared = made.square()
        del made
    taken = torch.full((COUNT,), 9.0, device=DEVICE)
    torch.accelerator.current_stream().wait_stream(stream)
    squared.sum().backward()
    expect(weight.grad, 2 * 6 * 3)
    expect(taken, 9)


def laid_on_one_stream_and_fetched_on_another(client):
    """By streams that do not wait for each other."""
    box, number, stream = Shelf(client, "laid").take(4 * COUNT), next(_numbers), torch.Stream(DEVICE)
    source = torch.full((COUNT,), float(number), device=DEVICE)
    box.lay(source.view(torch.uint8), box.overwrite())
    with stream:
        fetched = box.fetch(DEVICE, 4 * COUNT)
        lanes.join(fetched.tensor, fetched.mark)
        expect(fetched.tensor.view(torch.float32), number)
    lanes.settle()


def laid_away_where_its_memory_is_used_again(client):
    """What is saved goes down, its memory is used again at once, and so is what a kernel has yet to read as it comes up."""
    weight, begin = start(), next(_numbers)
    with saving(client):
        parts = [(weight * number).square() for number in range(begin, begin + 6)]
    taken = [torch.full((COUNT,), 9.0, device=DEVICE) for _ in range(6)]
    kept = [torch.full((COUNT,), 5.0, device=DEVICE) for _ in range(4)]
    twice = [one * 2 for one in kept]
    del kept
    sum(parts).sum().backward()
    expect(weight.grad, sum(2 * 2 * number * number for number in range(begin, begin + 6)))
    for one in taken:
        expect(one, 9)
    for one in twice:
        expect(one, 10)


def saved_by_the_cpu_where_a_gpu_still_copies(client):
    """Memory that a GPU's tensor has left is laid into by the CPU, which no stream holds back."""
    weight = start()
    here = torch.full((COUNT,), 5.0).requires_grad_()
    with saving(client):
        made = (weight * 3).square().sum()
        made.backward()
        del made
        squared = sum((here * number).square().sum() for number in range(1, 8))
    expect(weight.grad, 2 * 6 * 3)
    squared.backward()
    expect(here.grad, sum(2 * 5 * number * number for number in range(8)))


def saved_where_little_is_free(client):
    """More than memory has, each tensor with a number of its own: what is laid away is written down, and comes back."""
    weight = start()
    with saving(client):
        parts = [torch.full((1 << 19,), float(number), device=DEVICE) * weight[0] for number in range(12)]
        squared = sum(part.square().sum() for part in parts)
        del parts
    squared.backward()
    expect(weight.grad[:1], sum(2 * 2 * number * number for number in range(12)) * (1 << 19))


def layers(count: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count))).to(DEVICE)


def gradients_of_several_streams_stepped_in_backward(client):
    """Layers' passes are on three streams by turns, and some gradients at a time are stepped, on the last one's stream."""
    model = layers(12, 128)
    before = [layer.weight.detach().cpu().clone() for layer in model]
    model, optimizer = terrace.torch.offload(model, torch.optim.SGD(model.parameters(), lr=1.0), client=client,
                                             tensor_bytes_min=1, step_in_backward=True)
    batch, streams, outs = torch.ones(2, 128, device=DEVICE), [torch.Stream(DEVICE) for _ in range(3)], []
    for number, layer in enumerate(model):
        stream = streams[number % 3]
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            outs.append(layer(batch).sum() * (number + 1))
    for stream in streams:
        torch.accelerator.current_stream().wait_stream(stream)
    sum(outs).backward()
    optimizer.step()
    for number, (layer, old) in enumerate(zip(model, before, strict=True), 1):
        expect(layer.weight.detach().cpu() - (old - 2 * number), 0)


def leased_on_a_side_stream_where_hbm_is_small(client):
    """A pass on a side stream, of more than HBM holds: what a kernel has yet to read is not to be moved away."""
    model = layers(12, 512)
    with torch.no_grad():
        for number, layer in enumerate(model):
            layer.weight.fill_(number + 1)
    model, _ = terrace.torch.offload(model, client=client, tensor_bytes_min=1)
    stream = torch.Stream(DEVICE)
    torch.accelerator.synchronize()
    with torch.no_grad(), stream:
        batch = torch.ones(1, 512, device=DEVICE)
        outs = [layer(batch) for layer in model]
    stream.synchronize()
    for number, out in enumerate(outs):
        expect(out, 512 * (number + 1))


Workload = Callable[[terrace.Client], None]


class Planted(NamedTuple):
    """What is put in the place of something of terrace.torch's."""

    where: object
    name: str
    instead: Callable
    workload: Workload


def current(device, _stream):
    return torch.accelerator.current_stream(device)


def end_early(self, lane, source, target, lease):
    with lane:
        target.copy_(source, non_blocking=True)
        lease.release()
        return Mark(self._device)


def fetch_into_memory_in_use(self, source, laid, lease):
    made = torch.empty(source.shape, dtype=source.dtype, device=self._device)
    laid.come_before(self._up)
    return lanes.Fetched(made, torch.accelerator.current_stream(), self._copy(self._up, source, made, lease))


def fetch_what_is_not_laid(self, source, _laid, lease, fetch=lanes.Lanes.fetch):
    return fetch(self, source, None, lease)


def nothing(*_):
    pass


PLANTED = {
    "what is fetched is not waited for": Planted(in_terrace, "join", nothing, saved_on_one_stream_and_used_on_another),
    "record_stream of what is laid away is forgotten": Planted(lanes, "use_in", nothing, saved_on_another_stream_than_it_is_of),
    "what is laid away is let go of before its copy": Planted(
        lanes, "_let_go", nothing, laid_away_where_its_memory_is_used_again),
    "what is laid away is copied before it is made": Planted(
        lanes, "follow_from", lambda lane: torch.accelerator.current_stream(), laid_away_where_its_memory_is_used_again),
    "what is fetched comes before it is laid": Planted(
        lanes.Lanes, "fetch", fetch_what_is_not_laid, laid_on_one_stream_and_fetched_on_another),
    "what is fetched ahead goes to memory that is in use": Planted(
        lanes.Lanes, "fetch", fetch_into_memory_in_use, laid_away_where_its_memory_is_used_again),
    "a pinned buffer is used again too early": Planted(
        lanes.Lanes, "_copy", end_early, saved_by_the_cpu_where_a_gpu_still_copies),
    "the lease of a copy ends early": Planted(lanes.Lanes, "_copy", end_early, saved_where_little_is_free),
    "a step does not wait for its gradients": Planted(due, "follow", current, gradients_of_several_streams_stepped_in_backward),
    "record_stream of gradients is forgotten": Planted(
        due, "use_in", nothing, gradients_of_several_streams_stepped_in_backward),
    "a lease ends behind another stream": Planted(
        slot, "stream_of", lambda index: 0, leased_on_a_side_stream_where_hbm_is_small),
}
WORKLOADS = {planted.workload for planted in PLANTED.values()}


@pytest.mark.parametrize("workload", sorted(WORKLOADS, key=lambda each: each.__name__), ids=lambda each: each.__name__)
def test_a_workload_is_right_under_each_seed(client, workload):
    under_seeds(lambda: workload(client), PATIENCE_SECONDS)


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_planted_bug_is_found(client, planted, monkeypatch):
    monkeypatch.setattr(planted.where, planted.name, planted.instead)
    found = next((seed for seed in range(SEEDS.start, SEEDS.start + SEEDS_MAX)
                  if try_seeds(lambda: planted.workload(client), PATIENCE_SECONDS, [seed])), None)
    assert found is not None, f"none of {SEEDS_MAX} seeds from {SEEDS.start} on finds it"
    print(f"found with seed {found}")

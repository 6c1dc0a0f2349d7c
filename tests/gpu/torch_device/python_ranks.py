# SPDX-License-Identifier: Apache-2.0
"""Shows several processes on the test device: their collectives run on a stream of their own and give gloo's numbers, and
ranks of DistributedDataParallel train with Terrace to the bits that they have without it."""

import sys

import fakegpu
import pytest
import terrace.torch
import torch
from device_fixtures import DEVICE, Model, assert_same, on_device, weights
from device_rank_fixtures import RANKS, Checks, client_of_rank, run_ranks
from python_fixtures import disk  # noqa: F401 (a fixture)
from torch import distributed, nn

CHECKS = Checks()


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, Model.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(10 * step + rank))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, device: torch.device) -> list[float]:
    losses = []
    for step in range(3):
        text = batch(step, rank).to(device)
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def made() -> nn.Module:
    torch.manual_seed(0)
    return Model()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2, foreach=True)


@CHECKS.check
def collectives(rank: int, _socket: str) -> None:
    mine = torch.arange(4., device=DEVICE) + rank
    distributed.all_reduce(summed := mine.clone())
    assert summed.tolist() == [1, 3, 5, 7]
    distributed.broadcast(given := mine.clone(), 1)
    assert given.tolist() == [1, 2, 3, 4]
    distributed.all_gather(each := [torch.empty_like(mine) for _ in range(RANKS)], mine)
    assert [one.tolist() for one in each] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    distributed.all_gather_into_tensor(whole := torch.empty(8, device=DEVICE), mine)
    assert whole.tolist() == [0, 1, 2, 3, 1, 2, 3, 4]
    distributed.reduce_scatter_tensor(part := torch.empty(2, device=DEVICE), mine, distributed.ReduceOp.AVG)
    assert part.tolist() == [[0.5, 1.5], [2.5, 3.5]][rank]
    work = distributed.all_reduce(later := torch.ones(4, device=DEVICE), async_op=True)
    work.wait()  # the current stream does
    assert (later * 2).tolist() == [4, 4, 4, 4]


@CHECKS.check
def data_parallel(rank: int, socket: str) -> None:
    wanted = None
    for client in (None, client_of_rank(socket)):
        model = nn.parallel.DistributedDataParallel(on_device(made()))
        optimizer = adamw(model)
        if client is not None:
            model, optimizer = terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        for seed in (1, 2):
            with fakegpu.turns(seed + rank):
                losses = train(model, optimizer, rank, DEVICE)
        found = losses, weights(model)
        if wanted is not None:
            assert found[0] == wanted[0]
            assert_same(found[1], wanted[1])
        wanted = found


@pytest.mark.parametrize("name", CHECKS)
def test_ranks(name, disk):  # noqa: F811
    run_ranks(__file__, name, disk)


if __name__ == "__main__":
    CHECKS.be_a_rank(*sys.argv[1:])

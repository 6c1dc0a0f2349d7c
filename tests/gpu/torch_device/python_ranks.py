# SPDX-License-Identifier: Apache-2.0
"""Shows several processes on the test device: their collectives run on streams of their own and give gloo's numbers, ranks
of DistributedDataParallel train with Terrace to the bits that they have without it, and ranks on one device have frozen weights
there once."""

import contextlib
import os

import fakegpu
import pytest
import terrace.torch
import torch
from device_fixtures import DEVICE, Model, assert_ended, assert_same, on_device, weights
from device_rank_fixtures import RANKS, Checks, client_of_rank, run_ranks
from python_fixtures import disk  # noqa: F401 (a fixture)
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

CHECKS = Checks()
WIDTH = 256


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
    parts = [torch.full((4,), float(one), device=DEVICE) for one in range(RANKS)]
    distributed.scatter(part := torch.empty(4, device=DEVICE), parts if rank == 1 else None, 1)
    assert part.tolist() == [rank] * 4
    came = torch.empty(4, device=DEVICE)
    for work in distributed.batch_isend_irecv([distributed.P2POp(distributed.isend, mine, 1 - rank),
                                               distributed.P2POp(distributed.irecv, came, 1 - rank)]):
        work.wait()
    assert came.tolist() == [1 - rank + number for number in range(4)]


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


class Adapted(nn.Module):
    """A frozen matrix, and a small trained change of it."""

    def __init__(self, width: int):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + nn.functional.gelu(self.base(hidden) + self.up(self.down(hidden)))


def adapt(rank: int, client: terrace.Client | None) -> tuple[list[float], nn.Module]:
    """Trains changes of frozen weights, each rank with batches of its own, under the orders of two seeds; the losses, and the
    model."""
    torch.manual_seed(3)
    device = torch.device(fakegpu.KIND, torch.accelerator.current_device_index())
    model = nn.Sequential(*(Adapted(WIDTH) for _ in range(20))).to(device)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], 1e-2, foreach=True)
    wrapped = nn.parallel.DistributedDataParallel(model)
    if client is not None:
        terrace.torch.offload(wrapped, optimizer, client=client, tensor_bytes_min=1, share_frozen=True)
    losses = []
    for seed in (1, 2):
        with fakegpu.turns(seed + rank):
            for step in range(3):
                torch.manual_seed(100 * seed + 10 * step + rank)
                hidden = torch.randn(4, WIDTH).to(device)
                for _ in range((step + rank) % 2):  # one is ahead of the other by turns
                    hidden = model(hidden).detach()
                loss = wrapped(hidden).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    return losses, model


@CHECKS.check
def shares_what_is_frozen(rank: int, socket: str) -> None:
    """Of 5 MiB, of which HBM has no more than two thirds: once for both ranks on one device, and for each on one each."""
    alone = int(os.environ["TIERS"]) > 1
    wanted, plain = adapt(rank, None)
    client = client_of_rank(socket)
    losses, model = adapt(rank, client)
    assert losses == wanted
    assert_same(weights(model), weights(plain))
    store = model[0].base.weight.terrace.store
    assert store.place == f"device:{rank * alone}" and store.ranks == RANKS - alone
    assert store.guarantee_bytes == 2 << 20 < store.bytes
    assert_ended(store.client)
    store.client.create(f"from {rank}", 1, "uint8")
    distributed.barrier()
    with pytest.raises(terrace.NotFound) if alone else contextlib.nullcontext():
        store.client.find([f"from {1 - rank}"])
    distributed.barrier()
    with pytest.raises(terrace.InvalidArgument, match="no parameter is frozen"):
        terrace.torch.offload(nn.Linear(64, 64).to(model[0].base.weight.device), client=client, share_frozen=True)
    with pytest.raises(terrace.FailedPrecondition, match="is frozen, and shared .*unfreeze it before"):
        model[0].base.weight.requires_grad_(True)
    with torch.no_grad(), pytest.raises(terrace.PermissionDenied, match="was to be written to: write before"):
        model[0].base.weight.mul_(2)


def run_stage(rank: int, client: terrace.Client | None) -> tuple[list[float], nn.Module]:
    """Trains this rank's half of a model, a stage of a pipeline, by two parts of a batch at a time; the losses, where the last
    stage has them, and the half."""
    torch.manual_seed(5)
    device = torch.device(fakegpu.KIND, torch.accelerator.current_device_index())
    half = nn.Sequential(*(Adapted(WIDTH).requires_grad_() for _ in range(8)))[4 * rank:4 * rank + 4].to(device)
    optimizer = torch.optim.AdamW(half.parameters(), 1e-2, foreach=True)
    if client is not None:
        terrace.torch.offload(half, optimizer, client=client, tensor_bytes_min=1)
    stage = PipelineStage(half, rank, RANKS, device)
    schedule = Schedule1F1B(stage, 2, lambda made, wanted: (made - wanted).square().mean())
    said: list[float] = []
    for step in range(3):
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step)).to(device)
        losses: list[torch.Tensor] = []
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank else None, losses=losses)
        said += [loss.item() for loss in losses]
        optimizer.step()
        optimizer.zero_grad()
    return said, half


@CHECKS.check
def stages_of_a_pipeline(rank: int, socket: str) -> None:
    wanted, plain = run_stage(rank, None)
    client = client_of_rank(socket)
    with fakegpu.turns(1 + rank):
        losses, half = run_stage(rank, client)
    assert losses == wanted and len(losses) == (6 if rank else 0)
    assert_same(weights(half), weights(plain))
    assert_ended(client)


@pytest.mark.parametrize(("name", "devices"), [
    ("collectives", 1), ("data_parallel", 1), ("shares_what_is_frozen", 1), ("shares_what_is_frozen", RANKS),
    ("stages_of_a_pipeline", RANKS)])
def test_ranks(name, devices, disk):  # noqa: F811
    run_ranks(__file__, name, disk, devices, "6MiB")

# SPDX-License-Identifier: Apache-2.0
"""Shows several processes on the test device: their collectives run on a stream of their own and give gloo's numbers, and
ranks of DistributedDataParallel, with Terrace and without, and of fully_shard train with the same bits."""

import copy
import os
import pathlib
import subprocess
import sys

import fakegpu
import pytest
import terrace.torch
import torch
from device_fixtures import DEVICE, Model, assert_same, on_device, serve, weights
from python_fixtures import LIMIT_SECONDS, disk  # noqa: F401 (a fixture)
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2
CHECKS = {}


def check(function):
    """Adds what each rank of a test does, by name."""
    CHECKS[function.__name__] = function
    return function


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


@check
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


@check
def data_parallel(rank: int, socket: str) -> None:
    wanted = None
    for client in (None, terrace.Client(socket, guarantees={"host": 4 << 20, "device:0": 2 << 20})):
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


@check
def fully_sharded(rank: int, _socket: str) -> None:
    found = []
    for device in (torch.device("cpu"), DEVICE):
        model = made()
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())  # to(device) would make one two there
        model = copy.deepcopy(model).to(device)
        mesh = init_device_mesh(device.type, (RANKS,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        losses = train(model, adamw(model), rank, device)
        found.append((losses, {name: (value.full_tensor() if hasattr(value, "full_tensor") else value).cpu()
                               for name, value in model.state_dict().items()}))
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])


@pytest.mark.parametrize("name", CHECKS)
def test_ranks(name, disk):
    with serve("8MiB", "16MiB", f"{disk}:64MiB") as served:
        ranks = [subprocess.Popen([sys.executable, "-B", __file__, name, str(rank), str(disk), served.socket],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
                 for rank in range(RANKS)]
        try:
            said = [rank.communicate(timeout=2 * LIMIT_SECONDS)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, "\n".join(said)


def be_a_rank(name: str, rank: str, folder: str, socket: str) -> None:
    distributed.init_process_group(fakegpu.register_collectives(), init_method=f"file://{folder}/rendezvous",
                                   rank=int(rank), world_size=RANKS)
    CHECKS[name](int(rank), socket)
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's own threads abort now and then as the interpreter ends (pytorch/pytorch#179291)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    be_a_rank(*sys.argv[1:])

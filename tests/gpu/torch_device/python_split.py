# SPDX-License-Identifier: Apache-2.0
"""Shows models that are split over ranks on the test device, by fully_shard() and by tensor parallelism: two ranks on one
device, and on one each, train with their shards in its memory to the bits that they have there without Terrace, which are the
CPU's, also where the CPU steps; what they save is loaded by one rank, and by four; and a planted bug of streams is found."""

import gc
import os
import pathlib

import fakegpu
import pytest
import terrace.torch
import torch
from device_fixtures import SEED_FIRST, OnCpu, assert_ended, assert_same
from device_rank_fixtures import RANKS, Checks, client_of_rank, run_ranks
from masters_fixtures import Collecting
from python_fixtures import disk  # noqa: F401 (a fixture)
from split_fixtures import Copies
from terrace.torch._leased import slot
from terrace.torch._leased.store import Store
from terrace.torch._offload.job import job_of
from terrace.torch._parameters import casts
from torch import distributed, nn
from torch.distributed import checkpoint as checkpoints
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

CHECKS = Checks()
FOLDER = pathlib.Path(os.environ.get("FOLDER", "."))
SEEDS_MAX = 20
PATIENCE_SECONDS = 0.02
WIDTH = 129  # an odd one: the second rank has less than the first
HBM_BYTES = 2 << 20  # of each rank: half of what belongs to its part of a model
OPTIONS = (("lr", 1e-2), ("foreach", True))
ONE_BY_ONE = (("lr", 1e-2), ("foreach", False))  # PyTorch's foreach operators take split and whole weights apart alone
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Block(nn.Module):
    """Of operators that have the CPU's kernels for bfloat16 on the device, too; a layer norm has not, in backward."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden):
        return hidden + self.down(nn.functional.gelu(self.up(hidden)))


class Model(nn.Module):
    VOCABULARY = 32

    def __init__(self, width=WIDTH, checkpointing=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(self.VOCABULARY, width), nn.Linear(width, self.VOCABULARY)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.checkpointing = checkpointing

    def forward(self, text):
        hidden = self.embedding(text)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpointing else block(hidden)
        return self.head(hidden)


def build(device=fakegpu.KIND, dtype=torch.float32, checkpointing=False, shape=(RANKS,), width=WIDTH, kind=torch.optim.AdamW,
          options=OPTIONS, **split):
    """The model, split over ranks, on a kind of device, and its optimizer; the same ones each time."""
    torch.manual_seed(0)
    model = Model(width, checkpointing).to(dtype).to(device)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("copies", "parts")[-len(shape):])
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **split)
    fully_shard(model, mesh=mesh, **split)
    return model, kind(model.parameters(), **dict(options))


def build_parallel(device=fakegpu.KIND, dtype=torch.float32, checkpointing=False, frozen=False):
    """The same, of which each rank has a part of the blocks' weights (tensor parallelism)."""
    torch.manual_seed(0)
    model = Model(checkpointing=checkpointing).to(dtype).to(device)
    plan = {f"blocks.{number}.{name}": kind() for number in range(3)
            for name, kind in (("up", ColwiseParallel), ("down", RowwiseParallel))}
    parallelize_module(model, init_device_mesh(device, (RANKS,)), plan)
    model.blocks[1].up.weight.requires_grad_(not frozen)
    return model, torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], **dict(ONE_BY_ONE))


def loss_of(model, number):
    device = next(model.parameters()).device
    text = torch.randint(0, Model.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(number)).to(device)
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())


def train(model, optimizer, begin=0, steps=2, parts=1, sync=True):
    """The losses and norms of a run, in which each rank has batches of its own if it has all of the layers, and the weights,
    whole."""
    said = []
    shards = hasattr(model, "set_requires_gradient_sync")
    for step in range(begin, begin + steps):
        for part in range(parts):
            if shards:
                model.set_requires_gradient_sync(sync or part == parts - 1)
            loss = loss_of(model, 100 * distributed.get_rank() * shards + step * parts + part)
            loss.backward()
            said.append(loss.item())
        if shards:
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
    return said, {name: whole(one).cpu() for name, one in model.state_dict().items()}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def assert_equal(one, other):
    assert one[0] == other[0]
    assert_same(one[1], other[1])


def plain_stepper(plain, build, options):
    """What steps a model without Terrace."""
    if "step" in options:
        return OnCpu(plain[1], options.get("masters"))
    return Copies(*plain, options=ONE_BY_ONE if build is build_parallel else OPTIONS) if "masters" in options else plain[1]


def compare(rank, client, made, run=None, seeds=(1,), build=build, **options):
    """Trains without Terrace and with it."""
    plain = build(**made)
    wanted = train(plain[0], plain_stepper(plain, build, options), **(run or {}))
    for seed in seeds:
        model, optimizer = terrace.torch.offload(*build(**made), client=client, tensor_bytes_min=1, **options)
        with fakegpu.turns(seed + rank):
            assert_equal(train(model, optimizer, **(run or {})), wanted)
        assert_ended(client)
    return model


@CHECKS.check
def on_one_device(rank, socket):
    client = client_of_rank(socket, HBM_BYTES)
    assert_equal(train(*build()), train(*build("cpu")))
    compare(rank, client, {}, seeds=(1, 2))
    compare(rank, client, {"checkpointing": True, "shape": (1, RANKS)}, {"parts": 2})
    compare(rank, client, {"shape": (RANKS, 1), "reshard_after_forward": False}, {"parts": 2, "sync": False})
    compare(rank, client, {"dtype": torch.bfloat16}, {"parts": 2}, masters=torch.float32)
    steps_on_the_host(rank, client)
    tensor_parallel(rank, client)
    casts_of_shards(rank, client)


@CHECKS.check
def on_one_each(rank, socket):
    assert torch.accelerator.current_device_index() == rank
    client = client_of_rank(socket, HBM_BYTES)
    compare(rank, client, {}, {"parts": 2}, seeds=(1, 2))
    compare(rank, client, {"dtype": torch.bfloat16}, masters=torch.float32)
    compare(rank, client, {}, {"parts": 2}, step="host")


def steps_on_the_host(rank, client):
    """Each rank's CPU steps its shards."""
    compare(rank, client, {"checkpointing": True}, {"parts": 2}, seeds=(1, 2), step="host")
    compare(rank, client, {"dtype": torch.bfloat16}, {"parts": 2, "sync": False}, masters=torch.float32, step="host")
    compare(rank, client, {}, what=("parameters", "gradients"), step="host")
    compare(rank, client, {"kind": Collecting, "options": (("lr", 1e-2),)}, {"parts": 2}, step="host")
    compare(rank, client, {"options": (("lr", 1e-2), ("fused", True))}, step="host")
    compare(rank, client, {"frozen": True}, build=build_parallel, step="host")


def tensor_parallel(rank, client):
    assert_equal(train(*build_parallel()), train(*build_parallel("cpu")))
    compare(rank, client, {"checkpointing": True, "frozen": True}, {"parts": 2}, seeds=(1, 2), build=build_parallel)
    compare(rank, client, {"dtype": torch.bfloat16}, build=build_parallel, masters=torch.float32)


def casts_of_shards(rank, client):
    """Under mixed precision, where not all fits."""
    casts.BYTES_MIN, Store.fits = 1, lambda _store: False
    model = compare(rank, client, {"mp_policy": BFLOAT16, "checkpointing": True}, {"parts": 2}, seeds=(1, 2))
    assert any(slot.dtype is torch.bfloat16 for slot in job_of(model).store.slots)
    compare(rank, client, {"mp_policy": BFLOAT16}, {"parts": 2}, step="host")


def state_of(model, optimizer):
    return dict(zip("mo", get_state_dict(model, optimizer), strict=True))


@CHECKS.check
def resumes_on_the_host(rank, socket):
    """States that are the CPU's go through a checkpoint."""
    client = client_of_rank(socket, HBM_BYTES)

    def job():
        return terrace.torch.offload(*build(dtype=torch.bfloat16), client=client, tensor_bytes_min=1, step="host", masters=torch.float32)

    model, optimizer = job()
    train(model, optimizer)
    checkpoints.save(state_of(model, optimizer), checkpoint_id=FOLDER / "host")
    wanted = train(model, optimizer, begin=2)
    model, optimizer = job()
    state = state_of(model, optimizer)
    checkpoints.load(state, checkpoint_id=FOLDER / "host")
    set_state_dict(model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])
    assert {one.device.type for its in optimizer.state.values() for one in its.values()} == {"cpu"}
    del state
    assert_equal(train(model, optimizer, begin=2), wanted)


@CHECKS.check
def saves(rank, socket):
    client = client_of_rank(socket, HBM_BYTES)
    model, optimizer = terrace.torch.offload(*build(), client=client, tensor_bytes_min=1)
    with fakegpu.turns(1 + rank):
        _, weights = train(model, optimizer)
        checkpoints.save(state_of(model, optimizer), checkpoint_id=FOLDER / "saved")
    if rank == 0:
        torch.save(weights, FOLDER / "whole.pt")


@CHECKS.check
def loads(rank, socket):
    """By another number of ranks than it was saved by: with Terrace what there is without it."""
    client = client_of_rank(socket, HBM_BYTES)
    wanted = None
    for ours in (False, True):
        model, optimizer = build(shape=(distributed.get_world_size(),))
        if ours:
            terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        state = state_of(model, optimizer)
        checkpoints.load(state, checkpoint_id=FOLDER / "saved")
        set_state_dict(model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])
        del state
        assert_same({name: whole(one).cpu() for name, one in model.state_dict().items()}, torch.load(FOLDER / "whole.pt"))
        with fakegpu.turns(1 + rank):
            said = train(model, optimizer, begin=2)
        if wanted is not None:
            assert_equal(said, wanted)
        wanted = said
    assert_ended(client)


PLANTED = {
    "the lease of a shard ends behind another stream": (slot, "stream_of", lambda _index: 0),
}


def run_ahead(model):
    """Passes of more than HBM holds, that nobody waits for between."""
    with torch.no_grad():
        made = [model(torch.full((1, 8), number, device=fakegpu.KIND)) for number in range(4)]
    return torch.stack(made).cpu()


@CHECKS.check
def finds_planted_bugs(rank, socket):
    client = client_of_rank(socket, HBM_BYTES)
    wanted = run_ahead(build(width=257)[0])
    model, _ = terrace.torch.offload(build(width=257)[0], client=client, tensor_bytes_min=1)
    for bug, planted in {"none": None, **PLANTED}.items():
        for seed in range(SEED_FIRST, SEED_FIRST + (2 if planted is None else SEEDS_MAX)):
            with pytest.MonkeyPatch.context() as patch, fakegpu.turns(seed + rank, PATIENCE_SECONDS):
                if planted is not None:
                    patch.setattr(*planted)
                wrong = not torch.equal(run_ahead(model), wanted)
                torch.accelerator.synchronize()
            distributed.all_gather_object(found := [None] * RANKS, wrong)
            if any(found):
                break
        assert any(found) == (planted is not None), f"seeds to {seed} find {bug}: {found}"
        print(f"{bug}: found with seed {seed}" if planted is not None else "")


def test_a_checkpoint_is_loaded_by_another_number_of_ranks(disk):  # noqa: F811
    run_ranks(__file__, "saves", disk, RANKS, f"{RANKS * HBM_BYTES}")
    run_ranks(__file__, "loads", disk, 1, f"{RANKS * HBM_BYTES}", 1)
    run_ranks(__file__, "loads", disk, RANKS, f"{2 * RANKS * HBM_BYTES}", 2 * RANKS)


@pytest.mark.parametrize(("name", "devices"), [("on_one_device", 1), ("on_one_each", RANKS), ("resumes_on_the_host", 1), ("finds_planted_bugs", 1)])
def test_ranks(name, devices, disk):  # noqa: F811
    run_ranks(__file__, name, disk, devices, f"{RANKS * HBM_BYTES}")

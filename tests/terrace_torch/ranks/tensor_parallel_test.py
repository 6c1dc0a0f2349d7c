# SPDX-License-Identifier: Apache-2.0
"""Shows that two ranks over which parallelize_module() has split a model's weights train with their parts of them in Terrace,
to the losses and weights that they have without it, bit for bit."""


import pytest
import terrace.torch
import torch
from model_fixtures import roomy  # noqa: F401 (a fixture)
from python_fixtures import disk  # noqa: F401 (a fixture)
from rank_fixtures import Checks, run_ranks
from split_fixtures import Copies, assert_same
from terrace.torch._offload.job import job_of
from terrace.torch._tensors.offloaded import OffloadedTensor
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint as checkpointed

CHECKS = Checks()
WIDTH = 32
OPTIONS = (("lr", 1e-2),)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self, checkpointing):
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 64, bias=False)
        self.checkpointing = checkpointing

    def forward(self, text):
        hidden = self.embedding(text)
        for block in self.blocks:
            hidden = checkpointed(block, hidden, use_reentrant=False) if self.checkpointing else block(hidden)
        return self.head(hidden)


def build(dtype=torch.float32, checkpointing=False, frozen=False, kind=torch.optim.AdamW, options=OPTIONS):
    torch.manual_seed(1)
    model = Model(checkpointing).to(dtype)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {f"blocks.{number}.{name}": kind() for number in range(3) for name, kind in (("up", ColwiseParallel), ("down", RowwiseParallel))}
    parallelize_module(model, mesh, plan)
    if frozen:
        model.blocks[1].up.weight.requires_grad_(False)
    return model, kind([one for one in model.parameters() if one.requires_grad], **dict(options))


def loss_of(model, number):
    text = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(number))
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())


def train(model, optimizer, begin=0, steps=3, parts=1, set_to_none=True):
    """The losses of a run; ranks of one group have the same batches."""
    said = []
    for step in range(begin, begin + steps):
        for part in range(parts):
            loss = loss_of(model, step * parts + part)
            loss.backward()
            said.append(loss.item())
        optimizer.step()
        optimizer.zero_grad() if set_to_none else optimizer.zero_grad(set_to_none=False)
    return said


def offload(client, model, optimizer=None, **options):
    return terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, **options)


def compare(client, made, run=None, masters=None, **options):
    """Trains without Terrace and with it."""
    plain = build(**made)
    wanted = train(plain[0], plain[1] if masters is None else Copies(*plain, None, OPTIONS), **(run or {}))
    model, optimizer = offload(client, *build(**made), masters=masters, **options)
    split = [one for one in model.parameters() if hasattr(one, "_local_tensor")]
    assert len(split) == 12 and all(isinstance(one._local_tensor, OffloadedTensor) for one in split)
    assert train(model, optimizer, **(run or {})) == wanted
    assert client.leased_bytes == 0 and client.held == 0
    loss = loss_of(model, 50)
    assert client.leased_bytes == 0, "a graph keeps nothing leased"
    loss.backward()
    held = [one.grad for one in split if one.requires_grad]
    assert client.leased_bytes == 0 and all(isinstance(one._local_tensor, OffloadedTensor) for one in (*split, *held))
    optimizer.zero_grad()
    assert_same(model.state_dict(), plain[0].state_dict())
    return model, optimizer, plain


@CHECKS.check
def ways_to_train(client, folder):
    for made, run in (({}, {"parts": 2}), ({"checkpointing": True, "frozen": True}, {}), ({}, {"set_to_none": False, "parts": 2}),
                      ({"kind": torch.optim.SGD, "options": (("lr", 0.1), ("momentum", 0.9))}, {})):
        compare(client, made, run)
    compare(client, {"dtype": torch.bfloat16}, {"parts": 2}, masters=torch.float32)
    model, optimizer, plain = compare(client, {})
    for one, steps in ((model, optimizer), plain):
        with torch.no_grad():
            one.blocks[0].up.weight.mul_(0.5)
            one.blocks[1].down.weight.to_local()[:2] = 0.25
        loss = loss_of(one, 3)
        with torch.no_grad():
            one.blocks[2].down.weight.mul_(0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        steps.zero_grad()
    assert train(model, optimizer, begin=3) == train(*plain, begin=3)
    checkpoint.save(dict(zip("mo", get_state_dict(model, optimizer), strict=True)), checkpoint_id=folder / "saved")
    other, stepped = offload(client, *build())
    state = dict(zip("mo", get_state_dict(other, stepped), strict=True))
    checkpoint.load(state, checkpoint_id=folder / "saved")
    set_state_dict(other, stepped, model_state_dict=state["m"], optim_state_dict=state["o"])
    del state
    assert train(other, stepped, begin=6) == train(*plain, begin=6)
    assert_same(other.state_dict(), plain[0].state_dict())
    with pytest.raises(terrace.FailedPrecondition, match="'weight' is split over ranks .* offloaded already, with another"):
        offload(client, model.blocks[0].up)
    with pytest.raises(terrace.InvalidArgument, match="step_in_backward=True cannot be had with .* split over ranks, as 'blocks.0.up"):
        offload(client, *build(), step_in_backward=True)
    compiled, _ = build()
    compiled.blocks[0] = torch.compile(compiled.blocks[0])
    with pytest.raises(terrace.InvalidArgument, match="'blocks.0' is compiled, and has parameters that are split over ranks"):
        offload(client, compiled)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(disk, name):  # noqa: F811
    run_ranks(__file__, name, disk)

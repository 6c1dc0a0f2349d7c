# SPDX-License-Identifier: Apache-2.0
"""Shows that one model whose modules are on several devices is trained where each is, in its own device's memory: to the bits
that it has there without Terrace, whatever is offloaded and however it is trained."""

import contextlib
import functools
import os

import fakegpu
import pytest
import terrace.torch
import torch
from device_fixtures import DEVICE, assert_ended, assert_same, seeded, serve, weights
from split_fixtures import Copies
from terrace.torch._offload import auto
from terrace.torch._offload.job import job_of
from torch import nn
from torch.utils.checkpoint import checkpoint

OTHER, CPU = torch.device(fakegpu.KIND, 1), torch.device("cpu")
WIDTH = 128


@pytest.fixture(scope="module")
def client():
    """HBM of each device for half of what belongs to its part of a model."""
    with serve("2MiB", "8MiB", f"{os.environ['TERRACE_BUILD']}:256MiB", "cuda:all") as served:
        yield served


class Block(nn.Module):
    """Of operators that have kernels for bfloat16 on the device, too."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.down(nn.functional.gelu(self.up(hidden)))


class Spread(nn.Module):
    """Blocks, each on its device."""

    def __init__(self, devices, dtype=torch.float32, checkpointing=False):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(Block().to(dtype) for _ in devices)
        for block, device in zip(self.blocks, devices, strict=True):
            block.to(device)
        self.checkpointing = checkpointing

    def forward(self, hidden):
        for block in self.blocks:
            hidden = hidden.to(block.up.weight.device)
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpointing else block(hidden)
        return hidden


def build(devices, dtype=torch.float32, checkpointing=False, options=(("foreach", True),)):
    model = Spread(devices, dtype, checkpointing)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, **dict(options))


def train(model, optimizer, *, begin=0, steps=3, parts=1, cast=None, clip=False, saved=contextlib.nullcontext):
    first, last = model.blocks[0].up.weight, model.blocks[-1].up.weight.device
    scaler = torch.amp.GradScaler(fakegpu.KIND, enabled=cast is torch.float16, growth_interval=2)
    said = []
    for step in range(begin, begin + steps):
        for part in range(parts):
            batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + part)).to(first.dtype)
            with saved(), torch.autocast(fakegpu.KIND, cast or torch.bfloat16, enabled=cast is not None):
                loss = model(batch.to(first.device)).square().mean()
            scaler.scale(loss).backward()
            said.append(loss.item())
        if clip:
            scaler.unscale_(optimizer)
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert loss.device == last
    return said


TWO, TURNS, MIXED = (DEVICE, DEVICE, OTHER, OTHER), (DEVICE, OTHER, DEVICE, OTHER), (DEVICE, CPU, OTHER, CPU)
CASES = {
    "two": (TWO, {}, {}, {}),
    "checkpointing, without states": (TWO, {"checkpointing": True}, {"parts": 2, "clip": True}, {"what": ("parameters", "gradients")}),
    "by turns, with a scaler": (TURNS, {}, {"cast": torch.float16, "parts": 2, "clip": True}, {}),
    "by turns, in backward": (TURNS, {"options": (("fused", True),)}, {}, {"step_in_backward": True}),
    "by turns, masters": (TURNS, {"dtype": torch.bfloat16}, {"parts": 2}, {"masters": torch.float32}),
    "states alone": (TWO, {}, {"parts": 2}, {"what": "states"}),
    "with the CPU": (MIXED, {}, {"clip": True}, {}),
    "with the CPU, in backward": (MIXED, {"checkpointing": True}, {}, {"step_in_backward": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(client, name):
    devices, made, run, options = CASES[name]
    plain = build(devices, **made)
    masters = "masters" in options
    said = train(plain[0], Copies(*plain, options=(("lr", 1e-2), ("foreach", True))) if masters else plain[1], **run)
    model, optimizer = terrace.torch.offload(*build(devices, **made), client=client, tensor_bytes_min=1, **options)
    with seeded(list(CASES).index(name)):
        assert train(model, optimizer, **run) == said
    assert_same(weights(model), weights(plain[0]))
    store = job_of(model).store
    assert {place.device for place in store.places} == set(devices)
    assert all(place.bytes == sum(slot.nbytes for slot in store.slots if slot.device == place.device) > 0 for place in store.places)
    assert "what" in options or all(block.up.weight.terrace.slot.device == device
                                    for block, device in zip(model.blocks, devices, strict=True))
    assert_ended(client)


def test_its_activations(client):
    plain = build(TURNS)
    said = train(*plain)
    model, optimizer = terrace.torch.offload(*build(TURNS), client=client, tensor_bytes_min=1)
    saved = functools.partial(terrace.torch.activations, client, min_bytes=1, keep_bytes=0)
    with seeded(len(CASES)):
        assert train(model, optimizer, saved=saved) == said
    assert_same(weights(model), weights(plain[0]))


def test_it_is_saved_and_grows(client, tmp_path):
    plain, ours = build(TWO), terrace.torch.offload(*build(TWO), client=client, tensor_bytes_min=1)
    assert train(*ours, steps=2) == train(*plain, steps=2)
    terrace.torch.save(tmp_path / "model.safetensors", *ours)
    again = terrace.torch.offload(*build(TWO), client=client, tensor_bytes_min=1)
    terrace.torch.load(tmp_path / "model.safetensors", *again)
    for model, optimizer in (plain, again):
        torch.manual_seed(2)
        model.blocks[3].down = nn.Linear(4 * WIDTH, WIDTH, bias=False).to(OTHER)
        optimizer.add_param_group({"params": [model.blocks[3].down.weight]})
    terrace.torch.offload(*again, client=client, tensor_bytes_min=1)
    assert again[0].blocks[3].down.weight.terrace.slot.device == OTHER
    assert train(*again, begin=2) == train(*plain, begin=2)
    assert_same(weights(again[0]), weights(plain[0]))
    assert terrace.torch.summary(again[0]).place == "device:0+device:1"
    again[0].blocks[0].up = nn.Linear(WIDTH, 4 * WIDTH)
    with pytest.raises(terrace.InvalidArgument, match="'blocks.0.up.weight', which is new, is on cpu, and the model was .* fakegpu:0, "):
        terrace.torch.offload(*again, client=client, tensor_bytes_min=1)


def test_what_cannot_be_had_of_it_is_refused_by_name(client):
    model, optimizer = build(TWO)
    with pytest.raises(terrace.InvalidArgument, match="memory of fakegpu:0, and the parameter 'blocks.2.up.weight' is on fakegpu:1"):
        terrace.torch.offload(model, optimizer, client=client, place="device:0")
    with pytest.raises(terrace.InvalidArgument, match="step='host' cannot be had of a model that is in device:0 and device:1"):
        terrace.torch.offload(model, optimizer, client=client, step="host")
    model.blocks[0].requires_grad_(False)
    with pytest.raises(terrace.InvalidArgument, match="share_frozen=True shares .* this model is in device:0 and device:1"):
        terrace.torch.offload(model, optimizer, client=client, share_frozen=True)
    assert all(type(one) is nn.Parameter for one in model.parameters())
    with serve("2MiB", "8MiB") as one, pytest.raises(
            terrace.InvalidArgument, match="the parameter 'blocks.2.up.weight' is on fakegpu:1, and none of this session's places"):
        terrace.torch.offload(model, optimizer, client=one)


def test_what_stays_is_asked_of_each_device(client, monkeypatch):
    """Where one of them has room for all and the other has not, all goes."""
    monkeypatch.setattr(auto, "free_bytes", lambda device, tiers: 1 << (30 if device == DEVICE else 20))
    model, optimizer = terrace.torch.offload(*build(TWO), client=client, what="auto", tensor_bytes_min=1)
    assert job_of(model).parts == {"parameters", "gradients", "states"}
    monkeypatch.setattr(auto, "free_bytes", lambda device, tiers: 1 << 30)
    model, optimizer = terrace.torch.offload(*build(TWO), client=client, what="auto")
    assert all(type(one) is nn.Parameter for one in model.parameters())

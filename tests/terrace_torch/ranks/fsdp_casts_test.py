# SPDX-License-Identifier: Apache-2.0
"""Shows that two ranks that have split a model in float32 by fully_shard() with mixed precision gather casts of their shards,
which are kept in Terrace, to the losses and weights that they have without it, bit for bit."""

import contextlib

import pytest
import terrace.torch
import torch
from model_fixtures import loss_of
from python_fixtures import disk  # noqa: F401 (a fixture)
from rank_fixtures import Checks, run_ranks
from split_fixtures import assert_same, build
from terrace.torch._leased.store import Store
from terrace.torch._offload.job import job_of
from terrace.torch._parameters import casts
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy


class EveryCast(Checks):
    """Checks in which every weight has a cast, however small it is and however little it saves."""

    def be_a_rank(self, *arguments):
        casts.BYTES_MIN, Store.fits = 1, lambda _store: False
        super().be_a_rank(*arguments)


CHECKS = EveryCast()
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
NARROW = MixedPrecisionPolicy(param_dtype=torch.float16)


def train(model, optimizer, *, begin=0, steps=3, parts=1, sync=True, between=None):
    """The losses and norms of a run, in which each rank has batches of its own. between: is called after each step."""
    said = []
    for step in range(begin, begin + steps):
        torch.manual_seed(step)
        for part in range(parts):
            model.set_requires_gradient_sync(sync or part == parts - 1)
            loss = loss_of(model, 1000 * distributed.get_rank() + step * parts + part)
            loss.backward()
            said.append(loss.item())
        said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
        if between is not None:
            between(model, step)
    return said


def compare(client, made, bytes_min=1, **run):
    """Trains without Terrace and with it."""
    made = {"mp_policy": BFLOAT16, **made}
    plain, plain_optimizer = build(**made)
    wanted = train(plain, plain_optimizer, **run)
    model, optimizer = build(**made)
    terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=bytes_min)
    assert train(model, optimizer, **run) == wanted
    assert_same(model.state_dict(), plain.state_dict())
    vars(model).pop("kept", None)
    assert client.leased_bytes == 0 and client.held == 0
    return model, optimizer


def cast_slots(model):
    return [slot for slot in job_of(model).store.slots if slot.dtype in (torch.bfloat16, torch.float16)]


@contextlib.contextmanager
def read_by(client):
    """The bytes of each tensor, by its handle, that are leased to be read meanwhile."""
    acquire, found = client._acquire, {}

    def counted(tensors, mode, *given):
        for tensor, one in zip(tensors, [mode] * len(tensors) if isinstance(mode, str) else mode, strict=True):
            found[tensor.handle] = found.get(tensor.handle, 0) + (tensor.nbytes if one == "read" else 0)
        return acquire(tensors, mode, *given)

    client._acquire = counted
    yield found
    client._acquire = acquire


def writes(model, step):
    """What a script may write to shards between steps, in ways that PyTorch tells of and in others."""
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            if number % 3 == step % 3:
                weight.mul_(0.75)
            elif number % 3 == (step + 1) % 3:
                weight.to_local().flatten()[:3] = 0.5
    kept = getattr(model, "kept", None)
    model.kept = model.blocks[1].wide.weight.to_local().detach()
    if kept is not None:
        kept.add_(0.25)


@CHECKS.check
def ways_to_train(client, _folder):
    for made, run in (({}, {"parts": 3}), ({"mp_policy": NARROW}, {"parts": 2, "sync": False}),
                      ({"reshard_after_forward": False, "frozen": True}, {"between": writes}),
                      ({"options": (("lr", 1e-3), ("fused", True)), "checkpointing": False, "prefetch": True}, {"between": writes}),
                      ({"width": 32}, {"bytes_min": 4096, "steps": 2})):
        model, _ = compare(client, made, **run)
        assert cast_slots(model)
    little_room(client)


@CHECKS.check
def what_is_leased(client, _folder):
    """By forward and backward the casts alone, once they were written; by the step the shards, which writes them."""
    model, optimizer = compare(client, {"frozen": True})
    wide, stepped = compare(client, {"frozen": True, "mp_policy": MixedPrecisionPolicy()})
    assert not cast_slots(wide)
    read = []
    for one, steps in ((model, optimizer), (wide, stepped)):
        train(one, steps, begin=3, steps=1)  # after a look at all of them
        with read_by(client) as found:
            loss_of(one, 9).backward()
        read.append(sum(found.values()))
        steps.step()
        steps.zero_grad()
    assert 0.48 * read[1] <= read[0] <= 0.52 * read[1], read
    casts_of = {slot.name: slot for slot in cast_slots(model)}
    of_whole = {slot.name: slot for slot in job_of(model).store.slots if f"{slot.name}/bfloat16" in casts_of}
    assert len(casts_of) == len(of_whole) >= 30
    with read_by(client) as found:
        loss_of(model, 9).backward()
    assert not any(slot.tensor.handle in found for slot in of_whole.values())
    for name, slot in casts_of.items():  # the root's stay gathered from forward to backward
        assert found[slot.tensor.handle] == (1 + name.startswith("blocks")) * slot.nbytes, name
    optimizer.step()
    optimizer.step()
    left = [name for name in casts_of if client.tensors() and name in {slot.name for slot in cast_slots(model)}]
    assert left == ["blocks.1.norm.weight/bfloat16", "blocks.1.wide.weight/bfloat16"], "the others were not used in between"


def little_room(client):
    """Where a cast has no room beside its shard, the shard is gathered."""
    plain, ours = build(mp_policy=BFLOAT16), build(mp_policy=BFLOAT16)
    terrace.torch.offload(*ours, client=client, tensor_bytes_min=1)
    guarantee = job_of(ours[0]).store.guarantee_bytes
    for step, room in enumerate((0, guarantee, 0, guarantee)):
        job_of(ours[0]).store.guarantee_bytes = room
        assert train(*ours, begin=step, steps=1) == train(*plain, begin=step, steps=1)
    assert_same(ours[0].state_dict(), plain[0].state_dict())


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(disk, name):  # noqa: F811
    run_ranks(__file__, name, disk)

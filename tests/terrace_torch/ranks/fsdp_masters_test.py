# SPDX-License-Identifier: Apache-2.0
"""Shows that two ranks that have split a model in bfloat16 by fully_shard() train with masters of their shards in float32,
to the losses and weights of a plain loop that keeps copies, bit for bit."""

import copy

import pytest
import terrace.torch
import torch
from masters_fixtures import Collecting, SignMomentum
from model_fixtures import loss_of
from python_fixtures import disk  # noqa: F401 (a fixture)
from rank_fixtures import Checks, run_ranks
from split_fixtures import Copies, Limited, assert_same, build
from terrace.torch._offload.job import job_of
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy

CHECKS = Checks()
BFLOAT16, FLOAT = torch.bfloat16, torch.float32


def train(model, optimizer, copies=None, *, begin=0, steps=2, parts=1, sync=True, clip=True, set_to_none=True, scaler=None):
    """The losses and norms of a run. copies: the plain loop's."""
    said = []
    wide = copies is not None and (copies.gradients is not None or scaler is not None)
    stepped = optimizer if copies is None else copies.optimizer
    for step in range(begin, begin + steps):
        torch.manual_seed(step)
        for part in range(parts):
            model.set_requires_gradient_sync(sync or part == parts - 1)
            loss = loss_of(model, 1000 * distributed.get_rank() + step * parts + part)
            (loss if scaler is None else scaler.scale(loss)).backward()
            said.append(loss.item())
            if copies is not None and copies.gradients is not None:
                copies.take()
        if wide:
            copies.take()
        if scaler is not None:
            scaler.unscale_(stepped)
        if clip:
            clipped = [master for _, master in copies.pairs] if wide else list(model.parameters())
            said.append(nn.utils.clip_grad_norm_(clipped, 0.5).full_tensor().item())
        if copies is not None:
            copies.step(scaler)
        elif scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        if copies is None:
            optimizer.zero_grad(set_to_none=set_to_none)
    return said


def copies_of(made, gradients=None):
    return Copies(*build(dtype=BFLOAT16, **made), gradients, made.get("options", ()))


def compare(client, made, run=None, gradients=None, bytes_min=1, **options):
    copies = copies_of(made, gradients)
    run = run if callable(run) else lambda given=run or {}: given
    wanted = train(copies.model, None, copies, **run())
    model, optimizer = build(dtype=BFLOAT16, **made)
    terrace.torch.offload(model, optimizer, client=client, masters=FLOAT, gradients=gradients, tensor_bytes_min=bytes_min,
                          **options)
    assert train(model, optimizer, **run()) == wanted
    assert_same(model.state_dict(), copies.model.state_dict())
    assert client.leased_bytes == 0 and client.held == 0
    return model, optimizer, copies



HALF = MixedPrecisionPolicy(reduce_dtype=FLOAT)


@CHECKS.check
def ways_to_train(client, _folder):
    what_is_leased(client)
    model, _, _ = compare(client, {}, {"parts": 3})
    trained = [one for one in model.parameters() if one.numel()]
    masters = list(job_of(model).masters.all)
    assert len(masters) == len(trained) and all(one.slot is not None or not one.parameter._local_tensor.numel() for one in masters)
    for made, run in (({"mp_policy": HALF, "frozen": True}, {"parts": 3, "sync": False}),
                      ({"reshard_after_forward": False, "checkpointing": False}, {"set_to_none": False})):
        compare(client, made, run)
    compare(client, {}, {"parts": 3}, gradients=FLOAT)
    compare(client, {}, {"parts": 2}, bytes_min=4096)
    compare(client, {}, what={"parameters", "gradients"})
    for gradients, set_to_none in ((None, False), (FLOAT, True)):
        scalers = iter(torch.amp.GradScaler("cpu", init_scale=16.0) for _ in range(2))
        compare(client, {}, lambda: {"parts": 2, "scaler": next(scalers), "set_to_none": set_to_none}, gradients=gradients)


@CHECKS.check
def optimizers(client, _folder):
    for kind, *options in ((torch.optim.AdamW, ("fused", True)), (torch.optim.AdamW, ("foreach", False), ("amsgrad", True)),
                           (torch.optim.SGD, ("momentum", 0.9)), (torch.optim.Adagrad,), (SignMomentum,), (Collecting,)):
        compare(client, {"kind": kind, "options": (("lr", 1e-2), *options)})


def slot_of(model, name):
    (slot,) = [one for one in job_of(model).store.slots if one.name == name]
    return slot


def leased_by_passes(model, number):
    """What forward and backward lease."""
    store = job_of(model).store
    before = store.leased.nbytes
    loss_of(model, number).backward()
    return store.leased.nbytes - before


def what_is_leased(client):
    """Masters by the step alone, and a weight by it to be overwritten. Passes move half of what float32 moves."""
    model, optimizer, _ = compare(client, {})
    wide, stepped = terrace.torch.offload(*build(), client=client, tensor_bytes_min=1)
    for one in ((model, optimizer), (wide, stepped)):
        train(*one, steps=1)
    weight, master = (slot_of(model, f"blocks.1.wide.weight{name}") for name in ("", "/master"))
    leases = weight.waits.leases, master.waits.leases
    assert leased_by_passes(model, 1) <= 0.52 * leased_by_passes(wide, 1)
    assert (weight.waits.leases, master.waits.leases) == (leases[0] + 2, leases[1])
    acquire, modes = client._acquire, {}
    client._acquire = lambda tensors, mode, *given: [
        modes.setdefault(tensor.handle, []).append(one) for tensor, one in
        zip(tensors, [mode] * len(tensors) if isinstance(mode, str) else mode, strict=True)] and acquire(tensors, mode, *given)
    optimizer.step()
    client._acquire = acquire
    assert (modes[weight.tensor.handle], modes[master.tensor.handle]) == (["overwrite"], ["write"])


def goes_on(copies, model, optimizer, begin):
    wanted = train(copies.model, None, copies, begin=begin, steps=2)
    assert train(model, optimizer, begin=begin, steps=2) == wanted
    assert_same(model.state_dict(), copies.model.state_dict())


@CHECKS.check
def between_steps(client, _folder):
    """What a script writes to shards, freezes, moves and leaves undone between steps."""
    model, optimizer, copies = compare(client, {"frozen": True})
    for one, steps in ((model, optimizer), (copies.model, None)):
        with torch.no_grad():
            for number, weight in enumerate(one.parameters()):
                if number % 2:
                    weight.mul_(0.75)
                else:
                    weight.to_local().flatten()[:3] = 0.5
        one.to("cpu")
        frozen = one.blocks[1].wide.weight
        frozen.requires_grad_(True)
        one.blocks[2].out.weight.requires_grad_(False)
        if steps is None:
            copies.unfreeze(frozen)
        else:
            steps.add_param_group({"params": [frozen]})
        one.blocks[2].out.weight.grad = None
        loss_of(one, 3).backward()  # and is not stepped
        one.zero_grad()
    copies.take_written()
    goes_on(copies, model, optimizer, 3)
    handle = model.blocks[1].wide.register_forward_pre_hook(_fails)
    with pytest.raises(ValueError, match="on purpose"):
        loss_of(model, 1)
    handle.remove()
    model._get_fsdp_state()._reset_iter_state()  # FSDP's own way to go on
    goes_on(copies, model, optimizer, 5)
    assert client.leased_bytes == 0


def _fails(*_):
    raise ValueError("on purpose")


@CHECKS.check
def states(client, folder):
    model, optimizer, copies = compare(client, {})
    saved = optimizer.state_dict()
    of = {id(weight): master for weight, master in copies.pairs}
    for number, weight in enumerate(copies.weights):
        assert torch.equal(saved["state"][number]["terrace.master"].full_tensor(), of[id(weight)].detach().full_tensor())
    checkpoint.save(dict(zip("mo", get_state_dict(model, optimizer), strict=True)), checkpoint_id=folder / "saved")
    kept = copy.deepcopy(model.state_dict()), copy.deepcopy(saved)
    del saved
    assert client.leased_bytes == 0
    other, stepped = fresh(client)
    state = dict(zip("mo", get_state_dict(other, stepped), strict=True))
    checkpoint.load(state, checkpoint_id=folder / "saved")
    set_state_dict(other, stepped, model_state_dict=state["m"], optim_state_dict=state["o"])
    del state
    wanted = train(copies.model, None, copies, begin=3, steps=2)
    for one, steps in ((model, optimizer), (other, stepped)):
        assert train(one, steps, begin=3, steps=2) == wanted
        assert_same(one.state_dict(), copies.model.state_dict())
    other, stepped = fresh(client)
    stepped.load_state_dict(kept[1])
    other.load_state_dict(kept[0])
    assert train(other, stepped, begin=3, steps=2) == wanted
    part = {0: {"terrace.master": torch.zeros(16, 33)}}
    with pytest.raises(terrace.InvalidArgument, match="parameter 0 has a master that is not split over ranks as .*torch.distributed.checkpoint"):
        stepped.load_state_dict({**kept[1], "state": part})
    assert train(other, stepped, begin=5, steps=1) == train(copies.model, None, copies, begin=5, steps=1)
    without_masters(client, folder)


def fresh(client):
    """Another model of the same kind, which is to be loaded into."""
    model, optimizer = build(dtype=BFLOAT16)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.125)
    return terrace.torch.offload(model, optimizer, client=client, masters=FLOAT, tensor_bytes_min=1)


def without_masters(client, folder):
    """A checkpoint that has none is loaded: each is made of its weight."""
    plain, steps = build(dtype=BFLOAT16)
    train(plain, steps, steps=2)
    checkpoint.save(dict(zip("mo", get_state_dict(plain, steps), strict=True)), checkpoint_id=folder / "narrow")
    copies = copies_of({})
    copies.model.load_state_dict(plain.state_dict())
    for weight, master in copies.pairs:
        master.detach().copy_(weight)
    copies.optimizer.load_state_dict(steps.state_dict())
    wanted = train(copies.model, None, copies, begin=2)
    model, optimizer = fresh(client)
    state = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
    checkpoint.load(state, checkpoint_id=folder / "narrow", planner=DefaultLoadPlanner(allow_partial_load=True))
    set_state_dict(model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])
    assert train(model, optimizer, begin=2) == wanted
    assert_same(model.state_dict(), copies.model.state_dict())


@CHECKS.check
def ranks_that_disagree(client, _folder):
    """Each is told so, before anything moved."""
    first = distributed.get_rank() == 0
    model, optimizer = build(dtype=BFLOAT16)
    copies = copies_of({})

    def offload(model=model, optimizer=optimizer, **options):
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, **options)

    with pytest.raises(terrace.InvalidArgument, match=r"masters is torch.float32 on rank 0 of .*, and None on rank 1: give all"):
        offload(masters=FLOAT if first else None)
    with pytest.raises(terrace.InvalidArgument, match=r"share_frozen is False on rank 0 .* True on rank 1"):
        offload(share_frozen=not first)
    other = build(dtype=BFLOAT16 if first else FLOAT)
    with pytest.raises(terrace.InvalidArgument, match=r"'positions', .* is \(16, 33\) of torch.bfloat16 on rank 0 .* torch.float32 "):
        offload(*other)
    with pytest.raises(terrace.InvalidArgument, match="'nonsense'" + ".*rank 1 of" * first):
        offload(masters=FLOAT, place="host" if first else "nonsense")
    assert not client.tensors()
    if first:
        with pytest.raises(terrace.DeadlineExceeded, match="rank 1 of torch.distributed did not come to the same call within 1 s"):
            offload(timeout=1, masters=FLOAT)
    distributed.barrier()
    if not first:
        with pytest.raises(terrace.DeadlineExceeded, match="rank 1 of .* did not come .*so rank 0 of torch.distributed says"):
            offload(masters=FLOAT)
    with pytest.raises(terrace.ResourceExhausted, match="on purpose" + " .*so rank 1" * first), Limited(client, 999 if first else 20):
        offload(masters=FLOAT)
    assert not client.tensors()
    offload(masters=FLOAT)
    goes_on(copies, model, optimizer, 0)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(disk, name):  # noqa: F811
    run_ranks(__file__, name, disk)

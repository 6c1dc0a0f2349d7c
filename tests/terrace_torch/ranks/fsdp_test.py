# SPDX-License-Identifier: Apache-2.0
"""Shows that two ranks of one daemon that have split a model by fully_shard() train, with their shards in Terrace, to
the losses and weights that they have without it, bit for bit; that states and checkpoints are those without it; and
what is refused by name."""

import contextlib
import copy

import pytest
import terrace.torch
import torch
from masters_fixtures import Collecting, SignMomentum
from model_fixtures import batch, loss_of, roomy  # noqa: F401 (a fixture)
from python_fixtures import disk  # noqa: F401 (a fixture)
from rank_fixtures import Checks, run_ranks
from split_fixtures import Limited, assert_same, build
from terrace.torch._tensors.offloaded import OffloadedTensor
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CHECKS = Checks()


def train(model, optimizer, *, seed=7, steps=2, parts=1, sync=True, set_to_none=True, autocast=False, scaler=None,
          activations=contextlib.nullcontext):
    """The losses and norms of a run, in which each rank has batches of its own."""
    said = []
    torch.manual_seed(seed)
    for step in range(steps):
        for part in range(parts):
            model.set_requires_gradient_sync(sync or part == parts - 1)
            with activations():
                loss = loss_of(model, 1000 * distributed.get_rank() + step * parts + part, autocast)
                (loss if scaler is None else scaler.scale(loss)).backward()
            said.append(loss.item())
        if scaler is not None:
            scaler.unscale_(optimizer)
        said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=set_to_none)
    return said


def offload(client, model, optimizer, bytes_min=1):
    return terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=bytes_min)


def assert_in_terrace(model, optimizer):
    """All that the rank has of the model waits in Terrace; what FSDP refers to reads as NaN."""
    for part in model.modules():
        for group in part._get_fsdp_state()._fsdp_param_groups if hasattr(part, "unshard") else ():
            assert group.fsdp_params and all(one._sharded_param_data.isnan().all() for one in group.fsdp_params)
    held = [one for one in model.parameters() if one.requires_grad]
    held += [one.grad for one in held if one.grad is not None]
    states = {} if optimizer is None else optimizer.state
    held += [value for state in states.values() for value in state.values() if isinstance(value, DTensor)]
    assert all(isinstance(one._local_tensor, OffloadedTensor) for one in held)


def compare(client, made, run, *, with_optimizer=True, bytes_min=1):
    """Trains without Terrace and with it."""
    plain, plain_optimizer = build(**made)
    wanted = train(plain, plain_optimizer, **run())
    model, optimizer = build(**made)
    if with_optimizer:
        offload(client, model, optimizer, bytes_min)
    else:
        offload(client, model, None)
    assert train(model, optimizer, **run()) == wanted
    assert client.leased_bytes == 0 and client.held == 0
    loss_of(model, 5).backward()
    assert all(one.grad is not None for one in model.parameters() if one.requires_grad)
    if bytes_min == 1:
        assert_in_terrace(model, optimizer if with_optimizer else None)
    assert_same(model.state_dict(), plain.state_dict())
    assert client.leased_bytes == 0 and client.held == 0


def _last_extent(parameter):
    return Shard(parameter.dim() - 1)


@CHECKS.check
def ways_to_split(client, _folder):
    whole, halves = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts")), init_device_mesh("cpu", (2,))
    compare(client, {}, lambda: {"steps": 8})
    for made in ({"reshard_after_forward": False}, {"reshard_after_forward": True}, {"mp_policy": BFLOAT16},
                 {"prefetch": True}, {"mesh": whole}, {"width": 32, "mesh": halves, "shard_placement_fn": _last_extent},
                 {"built_in": lambda: terrace.torch.init(client=client)}):
        compare(client, made, dict)
    for policy in (MixedPrecisionPolicy(), BFLOAT16):
        compare(client, {"mp_policy": policy}, dict, bytes_min=4096)  # some shards of each group stay in memory


@CHECKS.check
def ways_to_train(client, _folder):
    ours = {"activations": lambda: terrace.torch.activations(client, min_bytes=64)}
    for made, run in (({}, {"parts": 3}), ({}, {"parts": 3, "sync": False}), ({}, {"set_to_none": False}),
                      ({}, {"autocast": True}), ({"checkpointing": False, "frozen": True}, {}),
                      ({"checkpointing": True}, {}), ({"checkpointing": False}, ours)):
        compare(client, made, lambda run=run: run)
    compare(client, {}, lambda: {"scaler": torch.amp.GradScaler("cpu", init_scale=16.0)})


@CHECKS.check
def a_step_on_the_host(client, _folder):
    plain, plain_optimizer = build()
    wanted = train(plain, plain_optimizer)
    model, optimizer = terrace.torch.offload(*build(), client=client, tensor_bytes_min=1, step="host")
    assert train(model, optimizer) == wanted
    assert_same(model.state_dict(), plain.state_dict())


@CHECKS.check
def optimizers(client, _folder):
    for kind, *options in ((torch.optim.AdamW, ("lr", 1e-3), ("foreach", True), ("amsgrad", True)),
                           (torch.optim.AdamW, ("lr", 1e-3), ("fused", True), ("maximize", True)),
                           (torch.optim.SGD, ("lr", 0.1), ("momentum", 0.9), ("nesterov", True)),
                           (torch.optim.Adagrad, ("lr", 1e-2)), (SignMomentum, ("lr", 1e-2)), (Collecting, ("lr", 1e-2))):
        compare(client, {"kind": kind, "options": tuple(options)}, lambda: {"steps": 3})
    compare(client, {}, dict, with_optimizer=False)


@CHECKS.check
def states(client, folder):
    plain, ours = build(), build()
    train(*plain, steps=1)
    train(*ours, steps=1)
    offload(client, *ours)  # in the midst of a training
    assert train(*ours, seed=8) == train(*plain, seed=8)
    for options in (StateDictOptions(), StateDictOptions(full_state_dict=True)):
        assert_same(get_state_dict(*ours, options=options), get_state_dict(*plain, options=options))
    assert_same(ours[1].state_dict(), plain[1].state_dict())
    assert client.leased_bytes == 0
    file = folder / f"{distributed.get_rank()}.pt"
    torch.save(ours[0].state_dict(), file)
    assert client.leased_bytes == 0
    assert_same(torch.load(file, weights_only=False), plain[0].state_dict())
    model, optimizer = offload(client, *build())
    model.load_state_dict(plain[0].state_dict())
    optimizer.load_state_dict(copy.deepcopy(plain[1].state_dict()))
    assert train(model, optimizer, seed=9) == train(*plain, seed=9)
    assert_in_terrace(model, optimizer)
    with pytest.raises(terrace.InvalidArgument, match="'positions' is split over ranks.*torch.distributed.checkpoint"):
        terrace.torch.save(folder / "model.safetensors", model)


@CHECKS.check
def checkpoints(client, folder):
    plain, ours = build(), offload(client, *build())
    assert train(*ours) == train(*plain)
    for name, pair in (("plain", plain), ("ours", ours)):
        checkpoint.save(dict(zip("mo", get_state_dict(*pair), strict=True)), checkpoint_id=folder / name)
    assert client.leased_bytes == 0
    wanted = train(*plain, seed=8)
    for name, offloaded in (("plain", True), ("ours", True), ("ours", False)):
        model, optimizer = build()
        with torch.no_grad():
            for one in model.parameters():
                one.zero_()
        if offloaded:
            offload(client, model, optimizer)
        state = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
        checkpoint.load(state, checkpoint_id=folder / name)
        set_state_dict(model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])
        del state
        assert train(model, optimizer, seed=8) == wanted
        assert_same(model.state_dict(), plain[0].state_dict())
        assert client.leased_bytes == 0


@CHECKS.check
def between_steps(client, _folder):
    plain, ours = build(frozen=True), offload(client, *build(frozen=True))
    said = []
    for model, optimizer in (plain, ours):
        said.append(train(model, optimizer))
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                said[-1] += model.eval()(batch(1)[0]).flatten().tolist()
        model.train()
        handle = model.blocks[1].wide.register_forward_pre_hook(_fails)
        with pytest.raises(ValueError, match="on purpose"):
            loss_of(model, 1)
        handle.remove()
        model._get_fsdp_state()._reset_iter_state()  # FSDP's own way to go on
        frozen = model.blocks[1].wide.weight
        frozen.requires_grad_(True)
        optimizer.add_param_group({"params": [frozen]})
        loss_of(model, 1).backward()
        sum(one.square().sum() for one in model.parameters()).full_tensor().backward()  # of the shards themselves
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(0.9)
                if one.grad is not None:
                    one.grad.mul_(0.5)
        model.to("cpu")
        loss_of(model, 2).backward()
        said[-1] += train(model, optimizer, seed=8)
    assert said[0] == said[1]
    assert_same(ours[0].state_dict(), plain[0].state_dict())
    assert client.leased_bytes == 0
    assert_in_terrace(*ours)


def _fails(*_):
    raise ValueError("on purpose")


@CHECKS.check
def refused_later(client, _folder):
    plain, (model, optimizer) = build(), build()
    train(model, optimizer)
    train(*plain)
    with pytest.raises(terrace.ResourceExhausted), Limited(client, 40):
        offload(client, model, optimizer)
    assert train(model, optimizer, seed=8) == train(*plain, seed=8), "it is as it was"
    offload(client, model, optimizer)
    with pytest.raises(terrace.FailedPrecondition, match="weight' is offloaded already, with another model"):
        terrace.torch.offload(nn.Sequential(model.blocks[0]), client=client)
    with pytest.raises(terrace.FailedPrecondition, match="'embedding.weight' lives in Terrace as torch.float32"):
        model.to(torch.bfloat16)
    assert train(model, optimizer, seed=9) == train(*plain, seed=9)
    model.load_state_dict(plain[0].state_dict(), assign=True)
    with pytest.warns(UserWarning, match="'positions' was replaced after"):
        train(model, optimizer)
    fresh = build()
    fresh[0](batch(1)[0])
    with pytest.raises(terrace.FailedPrecondition, match="gathered now.*reshard"):
        offload(client, *fresh)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(disk, name):
    run_ranks(__file__, name, disk)


@pytest.fixture
def four_ranks():
    """This process is one of four, whose others there are not."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (4,))
    distributed.destroy_process_group()


def test_what_is_refused_by_name(roomy, four_ranks):
    for reason, options in (("CPUOffloadPolicy.*leave offload_policy out", {"offload_policy": CPUOffloadPolicy(False)}),
                            ("a number as reshard_after_forward.*True or False", {"reshard_after_forward": 2})):
        with pytest.raises(terrace.InvalidArgument, match=f"'embedding.weight' was split by fully_shard.* {reason}"):
            offload(roomy, *build(width=32, **options))
    with pytest.raises(terrace.InvalidArgument, match=r"'blocks.1.norm.weight' in torch.bfloat16 and 'blocks.1.query\S* in torch.fl"):
        offload(roomy, *build(width=32, narrow=("blocks.1.norm",)))
    model, optimizer = build(width=32)
    with pytest.raises(terrace.InvalidArgument, match="step_in_backward=True .* are split over ranks, as 'blocks"):
        terrace.torch.offload(model, optimizer, client=roomy, step_in_backward=True)
    with pytest.raises(terrace.InvalidArgument, match="is split over ranks, as .*, parameters and gradients go toget"):
        terrace.torch.offload(model, optimizer, client=roomy, what="states")
    planes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    other = nn.Linear(64, 64, bias=False)
    other.weight = nn.Parameter(distribute_tensor(other.weight.detach(), planes["tensor"], [Shard(0)]))
    fully_shard(other, mesh=planes["data"])
    with pytest.raises(terrace.InvalidArgument, match="'weight' was split by fully_shard.. after it was a DTensor"):
        terrace.torch.offload(other, client=roomy)
    assert roomy.leased_bytes == 0 and not roomy.tensors()

# SPDX-License-Identifier: Apache-2.0
"""Shows that two ranks of one daemon have frozen parameters once, with the losses and weights that they have without
Terrace, bit for bit; that what one rank alone would see otherwise is refused by name on all of them; and that whoever
is left when a rank dies goes on."""

import gc
import os
import signal

import pytest
import terrace.torch
import torch
from model_fixtures import assert_same, metric, roomy, weights  # noqa: F401 (a fixture)
from python_fixtures import disk, wait_until  # noqa: F401 (a fixture)
from rank_fixtures import Checks, run_ranks
from terrace.torch._pytorch.bits import same_bits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, BLOCKS = 64, 4
CHECKS = Checks()


class Adapted(nn.Module):
    """A frozen matrix with a bias that is trained, and a small trained change of the matrix (LoRA)."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.weight.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)

    def forward(self, x):
        return x + nn.functional.gelu(self.base(x) + self.up(self.down(x)))


def make_model():
    torch.manual_seed(1)
    model = nn.Sequential(*(Adapted() for _ in range(BLOCKS)), nn.Linear(WIDTH, WIDTH))
    model[-1].requires_grad_(False)
    model[-1].weight = model[0].base.weight  # tied
    return model


def build(optimized=lambda model: model.parameters()):
    model = make_model()
    return model, torch.optim.AdamW(optimized(model), lr=1e-2)


def frozen_bytes(model):
    return sum(parameter.nbytes for parameter in model.parameters() if not parameter.requires_grad)


def trained_bytes(model):
    """Of what AdamW has of it in Terrace: itself, its gradient and two moments."""
    return 4 * sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def train(model, optimizer, begin=0, steps=4, seed=0):
    losses = []
    for step in range(begin, begin + steps):
        torch.manual_seed(100 * step + seed)
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def offload(client, model, optimizer=None, **options):
    return terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, share_frozen=True, **options)


def nothing_leased(client):
    return client.leased_bytes == 0 and client.held == 0


@CHECKS.check
def held_once_and_the_same_losses(client, _folder):
    model, optimizer = build()
    plain = DistributedDataParallel(model)
    wanted = train(plain, optimizer, seed=distributed.get_rank())
    for around in (False, True):
        ours, optimizer = build(lambda one: [part for part in one.parameters() if part.requires_grad or around])
        before = metric(client, "terrace_tensor_bytes")
        distributed.barrier()
        wrapper = ours if around else DistributedDataParallel(ours)
        offload(client, wrapper, optimizer)
        wrapper = DistributedDataParallel(ours) if around else wrapper
        distributed.barrier()
        taken = metric(client, "terrace_tensor_bytes") - before
        assert taken == frozen_bytes(ours) + distributed.get_world_size() * trained_bytes(ours)
        assert train(wrapper, optimizer, seed=distributed.get_rank()) == wanted and len(set(wanted)) == len(wanted)
        assert_same(weights(ours), weights(model))
        assert nothing_leased(client)
        distributed.barrier()
        del ours, wrapper, optimizer
        gc.collect()
        wait_until(lambda: metric(client, "terrace_tensor_bytes") == before, "the share to end with the last of them")
        distributed.barrier()


@CHECKS.check
def without_an_optimizer_and_built_within_init(client, folder):
    torch.manual_seed(2)
    wanted = make_model()(torch.ones(3, WIDTH))
    before = metric(client, "terrace_tensor_bytes")
    distributed.barrier()
    with terrace.torch.init(client=client, tensor_bytes_min=1):
        model = make_model()
    kept = model[0].base.weight.detach()
    model.requires_grad_(False)
    offload(client, model)
    distributed.barrier()
    assert metric(client, "terrace_tensor_bytes") - before == frozen_bytes(model)
    for _ in range(2):
        assert torch.equal(model(torch.ones(3, WIDTH)), wanted)
    assert torch.equal(kept, make_model()[0].base.weight)
    distributed.barrier()
    path = folder / f"rank{distributed.get_rank()}.safetensors"
    terrace.torch.save(path, model)
    terrace.torch.load(path, model)  # what is there already
    model.load_state_dict(make_model().state_dict())
    assert torch.equal(model(torch.ones(3, WIDTH)), wanted) and nothing_leased(client)


@CHECKS.check
def what_differs_is_refused_on_each_rank(client, _folder):
    rank = distributed.get_rank()
    model, optimizer = build()
    if rank == 1:
        with torch.no_grad():
            model[2].base.weight[3, 4] += 1
    before = weights(model)
    with pytest.raises(terrace.InvalidArgument, match="frozen parameter '2.base.weight' has other values on another"):
        offload(client, model, optimizer)
    assert_same(weights(model), before)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters()) and not client.tensors()
    if rank == 1:
        model[1].base.weight.requires_grad_(True)
    with pytest.raises(terrace.InvalidArgument, match="parameter '1.base.weight' is not frozen on every rank"):
        offload(client, model, optimizer)
    with terrace.torch.init(client=client, tensor_bytes_min=1):
        model = make_model()
    with torch.no_grad():
        model[0].base.weight.fill_(rank)
    with pytest.raises(terrace.InvalidArgument, match="'0.base.weight' has other values"):
        offload(client, model)
    assert model[0].base.weight.mean().item() == rank
    terrace.torch.offload(model, client=client)
    assert model(torch.ones(2, WIDTH)).isfinite().all() and nothing_leased(client)


@CHECKS.check
def what_fails_on_one_before_the_share_fails_on_all(client, _folder):
    model, optimizer = build()
    before = weights(model)
    if distributed.get_rank() == 1:
        optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(terrace.InvalidArgument, match="LBFGS does not treat its parameters one by one"):
        offload(client, model, optimizer)
    assert_as_it_was(client, model, before)


def has_no_room_on_one(client, extra_mib):
    """Rank 1 trains a parameter of its own that the daemon has no room for."""
    wanted = train(*build(), steps=2)
    model, optimizer = build()
    if distributed.get_rank() == 1:
        model.register_parameter("extra", nn.Parameter(torch.zeros(extra_mib << 18)))
        optimizer.add_param_group({"params": [model.extra]})
    before = weights(model)
    with pytest.raises(terrace.ResourceExhausted):
        offload(client, model, optimizer)
    assert_as_it_was(client, model, before)
    if distributed.get_rank() == 1:
        del model.extra, optimizer.param_groups[1]
    model, optimizer = offload(client, model, optimizer)
    assert train(model, optimizer, steps=2) == wanted and nothing_leased(client)


@CHECKS.check
def one_has_no_room_for_its_gradients(client, _folder):
    has_no_room_on_one(client, 140)


@CHECKS.check
def one_has_no_room_for_its_states(client, _folder):
    has_no_room_on_one(client, 80)


def assert_as_it_was(client, model, before):
    assert_same(weights(model), before)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters()) and not client.tensors()


class Deep(nn.Module):
    """Checkpointed blocks of 1 MiB each; more than half of the memory tier, and more than the share's guarantee."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(nn.Linear(512, 512, bias=False).requires_grad_(False) for _ in range(24))
        self.scale = nn.Parameter(torch.ones(512))

    def forward(self, x):
        x = x * self.scale
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


@CHECKS.check
def more_than_its_guarantee(client, _folder):
    """The ranks are at different blocks, in turns ahead of each other."""
    rank = distributed.get_rank()

    def run(model, optimizer):
        said = []
        for step in range(4):
            torch.manual_seed(10 * step + rank)
            for _ in range(1 + (step + rank) % 2):  # one goes twice, the other once
                loss = model(torch.randn(2, 512)).square().mean()
                loss.backward()
                said.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return said

    model = Deep()
    wanted = run(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    ours = Deep()
    optimizer = torch.optim.SGD(ours.parameters(), lr=1e-3)
    offload(client, ours, optimizer)
    store = ours.blocks[0].weight.terrace.store
    assert store.guarantee_bytes == 8 << 20 < store.bytes and store.ranks == 2
    if rank == 0:
        store.client.swap_out([slot.tensor for slot in store.slots])
    distributed.barrier()
    assert run(ours, optimizer) == wanted and torch.equal(ours.scale, model.scale)
    assert metric(client, "terrace_transfer_bytes_total", link="block_read") >= store.bytes
    assert nothing_leased(client) and store.client.held == 0


@CHECKS.check
def a_guarantee_that_is_too_small_for_all(client, _folder):
    """It is 8 MiB, which is enough for one of them."""
    torch.manual_seed(4)
    model = nn.Sequential(*(nn.Linear(1280, 1024, bias=False) for _ in range(2))).requires_grad_(False)
    with pytest.warns(UserWarning, match=r"'[01]' leases 5242880 bytes at once of what 2 ranks share, .*10 << 20"):
        offload(client, model)


def trains_on_alone(client, dies):
    """One of them is killed after a step; it takes its own session with it, and the other one has the share."""
    rank = distributed.get_rank()
    wanted = train(*build(), steps=3, seed=rank)
    model, optimizer = offload(client, *build())
    assert train(model, optimizer, steps=1, seed=rank) == wanted[:1]
    sessions = metric(client, "terrace_sessions")
    distributed.barrier()
    distributed.destroy_process_group()
    if rank == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_until(lambda: metric(client, "terrace_sessions") < sessions, "the other rank's end")
    shared = model[0].base.weight.terrace.store
    shared.client.swap_out([slot.tensor for slot in shared.slots])
    assert train(model, optimizer, begin=1, steps=2, seed=rank) == wanted[1:] and nothing_leased(client)


@CHECKS.check
def who_made_the_share_dies(client, _folder):
    trains_on_alone(client, 0)


@CHECKS.check
def who_joined_the_share_dies(client, _folder):
    trains_on_alone(client, 1)


def test_what_it_cannot_do_is_refused_by_name(roomy):  # noqa: F811
    """Here there is one rank, without torch.distributed."""
    with pytest.raises(terrace.InvalidArgument, match="no parameter is frozen, or.*requires_grad_"):
        offload(roomy, nn.Linear(64, 64))
    model, optimizer = build()
    plain, plain_optimizer = build()
    offload(roomy, model, optimizer)
    weight = model[1].base.weight
    for unfreeze in (weight.requires_grad_, lambda: setattr(weight, "requires_grad", True), model.requires_grad_):
        with pytest.raises(terrace.FailedPrecondition, match=r"'.*weight' is frozen, and shared .*unfreeze it before"):
            unfreeze()
    before = weights(model)
    writes = [lambda: weight.fill_(1), lambda: weight.__setitem__(0, 1), lambda: weight.add_(1), lambda: weight.zero_(),
              lambda: torch.add(plain[0].base.weight, 1, out=weight), lambda: torch.nn.init.normal_(weight),
              lambda: setattr(weight, "data", torch.zeros(64, 64)), lambda: weight.data.mul_(2),
              lambda: weight.__iadd__(1), lambda: torch._foreach_add_([weight], 1),
              lambda: weight.copy_(torch.zeros(64, 64)), lambda: weight.copy_(other=torch.zeros(64, 64)),
              lambda: torch.ops.aten.mul_(weight, 2), lambda: torch.ops.aten.copy_(weight, src=torch.zeros(64, 64)),
              lambda: torch.ops.aten.mul(plain[1].base.weight, 2, out=weight),
              lambda: model.load_state_dict({**weights(plain), "1.base.weight": torch.zeros(64, 64)})]
    for write in writes:
        with torch.no_grad(), pytest.raises((terrace.PermissionDenied, RuntimeError),
                                            match=r"'1.base.weight', which .*, was to be written to: write before"):
            write()
        assert_same(weights(model), before)
    with torch.no_grad():
        assert torch.equal(torch.zeros(64, 64).copy_(weight).lerp_(weight, 0.5), plain[1].base.weight)
        weight.copy_(plain[1].base.weight)
        weight.copy_(other=plain[1].base.weight)
        torch.ops.aten.copy_(weight, src=plain[1].base.weight)
        weight.data = plain[1].base.weight.data
    for read in (torch.ops.aten.mul, torch.ops.aten.mul.Tensor):  # neither of which writes to it
        assert torch.equal(read(weight, torch.tensor(2.0)), 2 * plain[1].base.weight)
    assert torch.equal(torch.ops.aten.mul(weight, 2), 2 * plain[1].base.weight)
    assert train(model, optimizer) == train(plain, plain_optimizer)
    assert_same(weights(model), weights(plain))
    assert nothing_leased(roomy)


class Careless(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(2)
        return super().forward(x)


def test_bits_are_compared_whatever_the_strides():
    every = torch.arange(8.0)
    assert same_bits(every[::2].clone(), every[::2])
    assert not same_bits(every[1::2].clone(), every[::2])


def test_a_module_that_writes_is_told_so(roomy):  # noqa: F811
    """And all others, who would go on with what it wrote."""
    model = nn.Sequential(Careless(64, 64)).requires_grad_(False)
    offload(roomy, model)
    with pytest.raises(terrace.PermissionDenied, match="'0.weight', .* was written to while .* begin again, and write"):
        model(torch.ones(2, 64))
    with pytest.raises(terrace.FailedPrecondition, match="torn"):
        model[0].weight.sum()
    assert torch.equal(model[0].bias, model[0].bias) and nothing_leased(roomy)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(disk, name):  # noqa: F811
    run_ranks(__file__, name, disk, dies={"who_made_the_share_dies": 0, "who_joined_the_share_dies": 1}.get(name))

# SPDX-License-Identifier: Apache-2.0
"""Shows that adapters are trained over frozen quantized weights of every kind to the bits of plain PyTorch, while only the
quantized bytes are leased, and that these are saved, copied and refused as without Terrace."""

import copy
import gc
import io

import pytest
import terrace
import terrace.torch
import torch
from model_fixtures import nothing_stays_leased, restless, roomy  # noqa: F401 (fixtures)
from quantized_fixtures import KINDS, WIDTH, bits, build, loss_of, state_bits, train
from terrace.torch._optimizer.states import States
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")

PACKED = {"nf4": WIDTH * WIDTH // 2, "nf4 twice": WIDTH * WIDTH // 2, "fp4 in bfloat16": WIDTH * WIDTH // 2,
          "llm.int8": WIDTH * WIDTH, "torchao int8": WIDTH * WIDTH, "torchao int4": WIDTH * WIDTH,
          "torchao float8": WIDTH * WIDTH, "torchao nf4": WIDTH * WIDTH // 2, "buffers": WIDTH * WIDTH * 9 // 2,
          "microscaled": WIDTH * WIDTH // 2, "microscaled buffers": WIDTH * WIDTH // 2, "shell type": WIDTH * WIDTH,
          "attributes": WIDTH * WIDTH * 9}


def is_base(one):
    return one.name.endswith("base")


def compare(client, kind, checkpointed=None, what=None, **how):
    """Trains with Terrace and without; the model in Terrace."""
    plain = build(kind, checkpointed)
    wanted = train(*plain, **how)
    model, optimizer = build(kind, checkpointed)
    terrace.torch.offload(model, optimizer, client=client, what=what)
    assert train(model, optimizer, **how) == wanted
    assert state_bits(model) == state_bits(plain[0])
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_weights(restless, kind):
    compare(restless, kind, parts=2, clip=1.0, reference=True)
    gc.collect()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_checkpointed(restless, kind, checkpointed):
    compare(restless, kind, checkpointed=checkpointed)


@pytest.mark.parametrize("kind", ["nf4 twice", "llm.int8", "torchao int8", "buffers", "shell type"])
def test_states_alone(restless, kind):
    model = compare(restless, kind, what={"states"})
    assert all(one.leased_bytes == 0 for one in terrace.torch.summary(model).modules if is_base(one))


@pytest.mark.parametrize("kind", PACKED)
def test_the_packed_bytes_are_leased_and_nothing_of_them_in_between(roomy, kind):
    model, optimizer = build(kind)
    terrace.torch.offload(model, optimizer, client=roomy)
    bases = [one for one in terrace.torch.summary(model).modules if is_base(one)]
    assert len(bases) == 3 and all(PACKED[kind] <= one.nbytes <= PACKED[kind] * 1.13 for one in bases)
    loss = loss_of(model, 0)
    assert all(one.kept_bytes == 0 for one in terrace.torch.summary(model).modules if is_base(one))
    assert roomy.leased_bytes == 0
    loss.backward()
    assert roomy.leased_bytes == 0
    once, twice = PACKED[kind], 3.4 * PACKED[kind]
    assert all(once <= one.leased_bytes <= twice for one in terrace.torch.summary(model).modules if is_base(one))


def outcome(action, model):
    """What a line of a script comes to, with an error or without."""
    try:
        return action(model)
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]


def as_pickle(state):
    written = io.BytesIO()
    torch.save(state, written)
    written.seek(0)
    return torch.load(written, weights_only=False)


def copies(model):
    another = copy.deepcopy(model)
    kinds = [type(one) for part in another.modules() for one in part._parameters.values()]
    return state_bits(another), kinds, loss_of(another, 0).item()


def pickles(model):
    another = as_pickle(model)
    kinds = [type(one) for part in another.modules() for one in part._parameters.values()]
    return state_bits(another), kinds, loss_of(another, 0).item()


def saves(model):
    state = as_pickle(model.state_dict())
    return {name: bits(value) for name, value in state.items()}, [type(value) for value in state.values()]


def loads(model, state):
    missing = model.load_state_dict(state, strict=False)
    return sorted(missing.unexpected_keys), state_bits(model), loss_of(model, 1).item()


@pytest.mark.parametrize("kind", KINDS)
def test_copying_saving_and_loading(restless, kind):
    plain, _ = build(kind)
    other = build(kind, seed=5)[0].state_dict()
    actions = {"copies": copies, "pickles": pickles, "saves": saves, "loads": lambda model: loads(model, other)}
    model, optimizer = build(kind)
    terrace.torch.offload(model, optimizer, client=restless)
    for name, action in actions.items():
        assert outcome(action, model) == outcome(action, plain), name
    assert state_bits(model) == state_bits(plain)


def test_a_weight_that_is_packed_anew_where_it_runs(restless):
    """As bitsandbytes packs a weight for the CPU when a model is evaluated, and back when it is saved."""
    class Repacking(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = Packed(torch.arange(WIDTH * WIDTH, dtype=torch.int32).view(WIDTH, WIDTH), requires_grad=False)
            self.weight.scale = torch.rand(WIDTH, WIDTH)

        def forward(self, given):
            if self.weight.shape[0] == WIDTH:
                self.weight.data = self.weight.data.flatten()[:-8].view(-1, 8).short()
                self.weight.scale = self.weight.scale.flatten()[:-8].view(-1, 8).bfloat16()
            return given * (self.weight.float() * self.weight.scale).sum()

    class Packed(nn.Parameter):
        pass

    def run(offload):
        torch.manual_seed(1)
        model = nn.Sequential(Repacking(), nn.Linear(WIDTH, WIDTH))
        offload(model)
        losses = [model(torch.ones(2, WIDTH)).sum().item() for _ in range(3)]
        model[0].weight.data = model[0].weight.data[:100]
        return [*losses, model[0].weight.float().sum().item(), list(model[0].weight.shape)]

    assert run(lambda model: terrace.torch.offload(model, client=restless)) == run(lambda model: None)


def test_one_that_requires_a_gradient_is_refused_by_name(roomy):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = type("Packed", (nn.Parameter,), {})(torch.ones(WIDTH, WIDTH))

    with pytest.raises(terrace.InvalidArgument, match=r"'0\.weight' is a Packed that requires a gradient.*frozen ones"):
        terrace.torch.offload(nn.Sequential(Layer()), client=roomy)


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_at_the_end_leaves_all_as_it_was(roomy, kind, monkeypatch):
    def fails(self):
        raise terrace.ResourceExhausted("no room")

    model, optimizer = build(kind)
    wanted, kinds = state_bits(model), [type(one) for one in model.parameters()]
    loss = loss_of(model, 0).item()
    monkeypatch.setattr(States, "adopt_all", fails)
    with pytest.raises(terrace.ResourceExhausted):
        terrace.torch.offload(model, optimizer, client=roomy)
    assert [type(one) for one in model.parameters()] == kinds
    assert state_bits(model) == wanted and loss_of(model, 0).item() == loss


@pytest.fixture
def alone():
    """A group of ranks that has one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["nf4 twice", "llm.int8", "buffers"])
@pytest.mark.parametrize("first", ["wrapped", "offloaded"])
def test_distributed_data_parallel(restless, alone, kind, first):
    """Which sends all buffers to all ranks in each step."""
    def run(offload):
        model, optimizer = build(kind)
        if first == "offloaded":
            offload(model, optimizer)
        wrapped = nn.parallel.DistributedDataParallel(model)
        if first == "wrapped":
            offload(wrapped, optimizer)
        return train(wrapped, optimizer), state_bits(model)

    assert run(lambda *both: terrace.torch.offload(*both, client=restless)) == run(lambda *both: None)


@pytest.mark.parametrize("kind", ["nf4 twice", "llm.int8", "torchao int8", "buffers", "buffers, a function's", "microscaled",
                                  "attributes"])
def test_compiled_blocks(roomy, kind):
    def run(offload):
        torch._dynamo.reset()
        model, optimizer = build(kind)
        for at, block in enumerate(model.blocks):
            model.blocks[at] = torch.compile(block, backend="aot_eager")
        offload(model, optimizer)
        return train(model, optimizer, steps=2), state_bits(model)

    wanted = outcome(lambda _: run(lambda model, optimizer: None), None)
    assert outcome(lambda _: run(lambda model, optimizer: terrace.torch.offload(model, optimizer, client=roomy)), None) == wanted
    assert isinstance(wanted[0], list), wanted


def test_quantized_states_are_copied_as_they_are(restless):
    """A copy of a state that is made of tensors, by the functions of its own class."""
    from torchao.optim import AdamW8bit

    def run(offload):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
        optimizer = AdamW8bit(model.parameters(), block_size=256)
        offload(model, optimizer)
        for step in range(2):
            model(torch.full((2, WIDTH), step + 1.0)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        states = list(optimizer.state.values())
        return [{key: bits(take(value)) for key, value in state.items() if hasattr(value, "codes")}
                for take in (torch.detach, lambda value: value.to(torch.bfloat16)) for state in states]

    wanted = run(lambda *both: None)
    assert all(wanted)
    assert run(lambda *both: terrace.torch.offload(*both, client=restless)) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_evaluating_between_steps(restless, kind):
    def run(offload):
        model, optimizer = build(kind)
        offload(model, optimizer)
        said = []
        for step in range(2):
            said += train(model, optimizer, steps=1)
            model.eval()
            with torch.inference_mode():
                said.append(loss_of(model, step).item())
            with torch.no_grad():
                said.append(loss_of(model, step).item())
            model.train()
        return said, state_bits(model)

    assert run(lambda *both: terrace.torch.offload(*both, client=restless)) == run(lambda *both: None)

# SPDX-License-Identifier: Apache-2.0
"""Shows that an optimizer which nobody knows is tried as it is offloaded: one that treats its parameters one by one steps over
leased memory to the numbers of plain PyTorch, bit for bit, whatever it keeps and wherever it counts; another one is refused
with what differed. With step="host" those go on when step() has returned that ask for no more than a trial has seen."""

import contextlib
import os
import random
import shutil
import tempfile

import numpy
import pytest
import terrace.torch
import torch
from held_fixtures import gate, held  # noqa: F401 (fixtures)
from model_fixtures import Gpt, loss_of
from terrace.torch._optimizer import kinds
from tried_optimizers import (
    ACCEPTED,
    REFUSED,
    WHOLE,
    Asks,
    ByParameter,
    Compiled,
    CountsInGroup,
    CountsInPlace,
    CountsInState,
    CountsOnItself,
    Enumerating,
    Factored,
    FailsInLoop,
    Generating,
    InContainers,
    InLists,
    KeepsById,
    LooksByNumber,
    Loops,
    LoopsLater,
    MadeAtFirst,
    NeedsMore,
    Noisy,
    Numbered,
    Quantized,
    WritesGradients,
    WritesLater,
)

MEMORY = ("8MiB", "64MiB")  # in the first there is room for a few parameters at a time


@pytest.fixture(scope="module")
def clients():
    """A client of a daemon for each size of memory."""
    folder = tempfile.mkdtemp(prefix="e2e-", dir=os.environ["TERRACE_BUILD"])
    with contextlib.ExitStack() as daemons:
        daemons.callback(shutil.rmtree, folder)
        yield [daemons.enter_context(terrace.serve(size, block=f"{folder}:128MiB", metrics=False)) for size in MEMORY]


@pytest.fixture(autouse=True)
def nothing_stays_leased(clients):
    yield
    assert all(client.leased_bytes == 0 for client in clients)


def made(kind):
    torch.manual_seed(1)
    model = Gpt(width=128, blocks=3)
    matrices, vectors = ([one for one in model.parameters() if (one.dim() > 1) == wanted] for wanted in (True, False))
    return model, kind([{"params": matrices, "lr": 0.04}, {"params": vectors}])


def trained(model, optimizer, steps, parts=1):
    """A loop with accumulation, a schedule, and parameters that have no gradient in some steps."""
    losses = []
    for number in steps:
        torch.manual_seed(number)
        for part in range(parts):
            loss = loss_of(model, 10 * number + part)
            loss.backward()
            losses.append(loss.item())
        if number == 2:
            for parameter in model.blocks[1].parameters():
                parameter.grad = None
        optimizer.step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    return losses


def plain(value):
    """A value with its tensors as bytes, and those that are made of others as what they are made of."""
    if hasattr(value, "__tensor_flatten__") and type(value) is not torch.Tensor:
        return {name: plain(getattr(value, name)) for name in value.__tensor_flatten__()[0]}
    if isinstance(value, torch.Tensor):
        return value.dtype, value.detach().clone().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key if isinstance(key, str | int) else "parameter": plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple) or hasattr(value, "popleft"):
        return [plain(one) for one in value]
    return plain(vars(value)) if hasattr(value, "__dict__") else value


def said(model, optimizer, losses):
    return losses, plain(model.state_dict()), plain(optimizer.state_dict())


def names(kind):
    return kind.__name__


@pytest.mark.parametrize("kind", ACCEPTED, ids=names)
def test_the_same_bits_at_every_size(clients, kind):
    model, optimizer = made(kind)
    wanted = said(model, optimizer, trained(model, optimizer, range(4), parts=2))
    for client, step in ((clients[0], "device"), (clients[1], "device"), (clients[0], "host")):
        model, optimizer = made(kind)
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, step=step)
        assert said(model, optimizer, trained(model, optimizer, range(4), parts=2)) == wanted
        assert kinds.tried(optimizer).in_parts == (kind not in WHOLE)


@pytest.mark.parametrize("kind", ACCEPTED, ids=names)
def test_stepping_in_backward(clients, kind):
    """What takes effect once a step does so; what is refused is refused by name, and gives no other numbers."""
    model, optimizer = made(kind)
    trained(model, optimizer, range(2))
    wanted = said(model, optimizer, [])
    model, optimizer = made(kind)
    terrace.torch.offload(model, optimizer, client=clients[0], tensor_bytes_min=1, step_in_backward=True)
    refused = {"Enumerating": "counts or pairs the parameters", "AsksRegistry": "counts or pairs the parameters",
               "Noisy": "the state of PyTorch's random numbers",
               "OverAll": "was written to", "DecaysAll": "", "ByParameter": "its own 'averages'"}.get(kind.__name__)
    try:
        trained(model, optimizer, range(2))
    except terrace.FailedPrecondition as error:
        assert refused is not None and refused in str(error)
    else:
        assert said(model, optimizer, []) == wanted


@pytest.mark.parametrize("kind", [CountsInGroup, InContainers, Quantized], ids=names)
def test_a_run_goes_on_from_what_was_saved(clients, kind):
    model, optimizer = made(kind)
    trained(model, optimizer, range(2))
    saved = {key: value.clone() for key, value in model.state_dict().items()}, optimizer.state_dict()
    others = []
    for client in (None, *clients):
        other, its = made(kind)
        if client is not None:
            terrace.torch.offload(other, its, client=client, tensor_bytes_min=1)
        trained(other, its, range(1))
        other.load_state_dict(saved[0])
        its.load_state_dict(_copied(saved[1]))
        others.append(said(other, its, trained(other, its, range(3, 5))))
    assert others[1] == others[0] and others[2] == others[0]


@pytest.mark.parametrize("kind", [CountsInGroup, InContainers, Quantized, MadeAtFirst], ids=names)
def test_what_was_stepped_before_it_is_offloaded(clients, kind):
    found = []
    for client in (None, clients[0]):
        model, optimizer = made(kind)
        trained(model, optimizer, range(2))
        if client is not None:
            terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        found.append(said(model, optimizer, trained(model, optimizer, range(3, 5))))
    assert found[1] == found[0]


def _copied(state):
    """Of a state dict, tensors of its own."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copied(value) for value in state)
    if hasattr(state, "popleft"):
        return type(state)(map(_copied, state), state.maxlen)
    return type(state)(**_copied(vars(state))) if hasattr(state, "kept") else state


def test_states_are_in_terrace_whatever_they_are_in(clients):
    for kind, wanted in ((InContainers, 7), (Quantized, 1)):
        model, optimizer = made(kind)
        terrace.torch.offload(model, optimizer, client=clients[1])
        trained(model, optimizer, range(3))
        state = optimizer.state[model.blocks[0].narrow.weight]
        assert sum(type(one).__name__ == "OffloadedTensor" for one in _leaves(state)) == wanted


@pytest.mark.parametrize("here, there", [(True, True), (False, True), (True, False)], ids=["in Terrace", "into Terrace", "out of it"])
def test_states_in_lists_are_saved(clients, tmp_path, here, there):
    """And go on where they are loaded, in Terrace or not."""
    model, optimizer = made(InLists)
    if here:
        terrace.torch.offload(model, optimizer, client=clients[1], tensor_bytes_min=1)
    trained(model, optimizer, range(2))
    terrace.torch.save(tmp_path / "model.safetensors", model, optimizer)
    other, its = made(InLists)
    if there:
        terrace.torch.offload(other, its, client=clients[1], tensor_bytes_min=1)
    terrace.torch.load(tmp_path / "model.safetensors", other, its)
    assert plain(its.state_dict()) == plain(optimizer.state_dict())
    state = its.state[other.blocks[0].narrow.weight]
    assert {type(one).__name__ for one in (*state["list"], state["tuple"][0], state["deep"][0]["inner"])} == {
        "OffloadedTensor" if there else "Tensor"}
    assert said(other, its, trained(other, its, range(3, 5))) == said(model, optimizer, trained(model, optimizer, range(3, 5)))


@pytest.mark.parametrize("kind, said", [(Quantized, r"'average' of its state of parameter 0 is of a class .*as safe, tried_optimizers\.Halved"),
                                        (InContainers, "'last' of its state of parameter 0 is of type deque"),
                                        (Numbered, "'numbered' of its state of parameter 0 has the key 1")], ids=["Quantized", "InContainers", "Numbered"])
def test_what_safetensors_cannot_hold(clients, tmp_path, kind, said):
    """torch.save() does, and any script loads it."""
    model, optimizer = made(kind)
    terrace.torch.offload(model, optimizer, client=clients[1])
    trained(model, optimizer, range(1))
    with pytest.raises(terrace.InvalidArgument, match=said):
        terrace.torch.save(tmp_path / "model.safetensors", model, optimizer)
    assert not list(tmp_path.iterdir())
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    read = torch.load(tmp_path / "optimizer.pt", weights_only=False)
    assert plain(read) == plain(optimizer.state_dict())
    assert not any(type(one).__name__ == "OffloadedTensor" for state in read["state"].values() for one in _leaves(state))


def _leaves(value):
    if hasattr(value, "codes"):
        return [value.codes]
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) or hasattr(value, "popleft"):
        return [leaf for one in value for leaf in _leaves(one)]
    return _leaves(vars(value)) if hasattr(value, "__dict__") else []


@pytest.mark.parametrize("kind, said", REFUSED.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_what_depends_on_more_than_one_parameter_is_refused(clients, kind, said):
    model, optimizer = made(kind)
    with pytest.raises(terrace.InvalidArgument, match=f"{kind.__name__} does not treat its parameters one by one.*{said}"):
        terrace.torch.offload(model, optimizer, client=clients[0])
    assert all(type(one) is torch.nn.Parameter for one in model.parameters())


@pytest.mark.parametrize("kind, said", [(NeedsMore, r"missing 2 required positional arguments"),
                                        (Generating, "its own 'rates' cannot be copied")], ids=["NeedsMore", "Generating"])
def test_what_cannot_be_tried_is_to_be_declared(clients, kind, said, monkeypatch):
    monkeypatch.setattr(kinds, "_STATES", dict(kinds._STATES))
    model, optimizer = made(kind)
    with pytest.raises(terrace.InvalidArgument, match=rf"cannot be tried: .*{said}.*declare\({kind.__name__}\)"):
        terrace.torch.offload(model, optimizer, client=clients[0])
    assert terrace.torch.elementwise is terrace.torch.declare
    terrace.torch.declare(kind)
    terrace.torch.offload(model, optimizer, client=clients[0])


def test_a_trial_leaves_no_trace(clients):
    """Random numbers are as they were; nothing of the optimizer is."""
    kind = next(one for one in ACCEPTED if one.__name__ == "Noisy")
    model, optimizer = made(kind)
    kept = dict(vars(optimizer))
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    terrace.torch.offload(model, optimizer, client=clients[0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before[1:]
    assert {name: value for name, value in vars(optimizer).items() if "hooks" not in name} == {
        name: value for name, value in kept.items() if "hooks" not in name}


def test_an_exception_in_the_step(clients):
    """What was stepped before it is, and training goes on as without Terrace."""
    found = []
    for client in (None, *clients):
        model, optimizer = made(FailsInLoop)
        if client is not None:
            terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        losses = trained(model, optimizer, range(2))
        optimizer.fails = True
        with pytest.raises(ZeroDivisionError, match="in the step"):
            trained(model, optimizer, range(2, 3))
        optimizer.fails = False
        optimizer.zero_grad()
        found.append(said(model, optimizer, losses + trained(model, optimizer, range(3, 5))))
    assert found[1] == found[0] and found[2] == found[0]


@pytest.mark.parametrize("options", [{}, {"step_in_backward": True}], ids=str)
def test_several_optimizers_share_one_call(clients, options):
    found = []
    for client in (None, *clients):
        torch.manual_seed(1)
        model = Gpt(width=128, blocks=3)
        matrices = [one for one in model.blocks.parameters() if one.dim() == 2]
        others = [one for one in model.parameters() if not any(one is matrix for matrix in matrices)]
        optimizers = [torch.optim.Muon(matrices, lr=0.01), CountsInGroup(others)]
        if client is not None:
            given = terrace.torch.offload(model, optimizers, client=client, tensor_bytes_min=1, **options)
            assert given[1] is optimizers
        for number in range(3):
            loss_of(model, number).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        found.append([said(model, optimizer, []) for optimizer in optimizers])
    assert found[1] == found[0] and found[2] == found[0]


def test_several_optimizers_that_cannot_be_had(clients):
    model, optimizer = made(CountsInGroup)
    for wrong, words in (([], "the list of optimizers is empty"),
                         ([optimizer, torch.optim.SGD(model.parameters())], "CountsInGroup and SGD both step a parameter"),
                         ([optimizer, model], "Gpt is no torch.optim.Optimizer")):
        with pytest.raises(terrace.InvalidArgument, match=words):
            terrace.torch.offload(model, wrong, client=clients[0])


@pytest.mark.parametrize("what", [None, "gradients"], ids=str)
@pytest.mark.parametrize("kind", [Compiled, next(iter(REFUSED)), torch.optim.AdamW], ids=names)
def test_an_optimizer_that_was_not_given_steps_over_leased_memory(clients, kind, what):
    """So what its step compiles sees ordinary tensors; its states stay where they are."""
    found = []
    for client in (None, *clients):
        model, optimizer = made(kind)
        if client is not None:
            terrace.torch.offload(model, client=client, tensor_bytes_min=1, what=what)
        found.append(said(model, optimizer, trained(model, optimizer, range(3))))
    assert found[1] == found[0] and found[2] == found[0]


# step="host" ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options", [{}, {"masters": torch.float32}, {"masters": torch.float32, "step": "host"}, {"step": "host"}], ids=str)
def test_what_a_script_has_said_of_a_parameter(held, options):
    """Its optimizer is told, whatever is stepped in the parameter's place."""
    (theirs, _), (model, optimizer) = linear(Asks), linear(Asks)
    dtype = torch.bfloat16 if "masters" in options else torch.float32
    for each in (theirs, model):
        each.to(dtype)
        each[1].weight.pace = 7
    copies = [one.detach().float().requires_grad_() for one in theirs.parameters()]
    for one, copied in zip(theirs.parameters(), copies, strict=True):
        copied.pace = getattr(one, "pace", 1)
    there = Asks(copies)
    terrace.torch.offload(model, optimizer, client=held, tensor_bytes_min=1, **options)
    for number in range(3):
        given = torch.randn(2, 64, generator=torch.Generator().manual_seed(number)).to(dtype)
        for each in (theirs, model):
            each(given).square().sum().backward()
        for one, copied in zip(theirs.parameters(), copies, strict=True):
            copied.grad, one.grad = one.grad.float(), None
        there.step()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for one, copied in zip(theirs.parameters(), copies, strict=True):
                one.copy_(copied)
        assert plain(model.state_dict()) == plain(theirs.state_dict())


def linear(kind):
    """A model of two groups, all of whose parameters have a gradient each time."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    matrices, others = ([one for one in model.parameters() if (one.dim() > 1) == wanted] for wanted in (True, False))
    return model, kind([{"params": matrices[:2]}, {"params": matrices[2:] if kind is torch.optim.Muon else matrices[2:] + others}])


def backward(model, number):
    torch.manual_seed(number)
    model(torch.randn(2, 64)).square().sum().backward()


def written(optimizer):
    """What is there of no parameter."""
    of_groups = [{name: plain(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return of_groups, vars(optimizer).get("count")


@pytest.mark.parametrize("kind", [CountsInGroup, CountsInPlace, CountsOnItself, CountsInState, Factored, MadeAtFirst, torch.optim.Muon,
                                  torch.optim.Adafactor, torch.optim.ASGD], ids=names)
def test_a_step_goes_on_that_a_trial_has_shown_to_be_sound(held, gate, kind):
    """What it writes to its group, or to itself, is there when step() returns, and what the script writes is the next one's."""
    (plain_model, theirs), (model, optimizer) = linear(kind), linear(kind)
    terrace.torch.offload(model, optimizer, client=held, step="host", tensor_bytes_min=1)
    first = int(kind not in (CountsInPlace, CountsOnItself, CountsInState, MadeAtFirst))  # no step is to make their states
    for number in range(4):
        found = []
        for each, of in ((plain_model, theirs), (model, optimizer)):
            backward(each, number)
            with gate.closed() if number == first else contextlib.nullcontext():
                of.step()
                if number == first and of is optimizer:
                    gate.await_arrival()
                found.append(written(of))
                for group in of.param_groups:
                    group["lr"] = group["lr"] * 0.9
                of.zero_grad()
                waits = kind is CountsInState  # whose step looks at its state last
                assert of is theirs or number != first or waits or not gate.waits
        assert found[0] == found[1]
        assert plain(model.state_dict()) == plain(plain_model.state_dict())
    assert plain(optimizer.state_dict()) == plain(theirs.state_dict())


def test_a_group_that_is_added_has_its_states_in_terrace(held):
    """Its first step makes them, before step() returns."""
    pairs = [linear(CountsInGroup) for _ in range(2)]
    added = [optimizer.param_groups.pop() for _, optimizer in pairs]
    terrace.torch.offload(*pairs[1], client=held, step="host", tensor_bytes_min=1)
    for number in range(2):
        for (model, optimizer), group in zip(pairs, added, strict=True):
            backward(model, number)
            if number == 1:
                optimizer.add_param_group({"params": group["params"]})
            optimizer.step()
            optimizer.zero_grad()
    assert plain(pairs[1][0].state_dict()) == plain(pairs[0][0].state_dict())
    kept = [state["average"] for state in pairs[1][1].state.values()]
    assert len(kept) == 6 and all(type(one).__name__ == "OffloadedTensor" for one in kept)


@pytest.mark.parametrize("kind", [InContainers, Quantized, Noisy, ByParameter, Enumerating, WritesGradients, KeepsById, Loops, LooksByNumber],
                         ids=names)
def test_a_step_that_asks_for_more_does_not_go_on(held, gate, kind):
    model, optimizer = linear(kind)
    terrace.torch.offload(model, optimizer, client=held, step="host", tensor_bytes_min=1)
    with gate.closed():
        for number in range(2):
            backward(model, number)
            optimizer.step()
            optimizer.zero_grad()
        assert not gate.came and not gate.waits


@pytest.mark.parametrize("kind, said", [(WritesLater, "writes to gradients, which it did not do in its trial"),
                                        (LoopsLater, "loops over self.param_groups once more, which it did not")],
                         ids=["gradients", "loops"])
def test_a_step_that_does_otherwise_than_in_its_trial(held, kind, said):
    model, optimizer = linear(kind)
    terrace.torch.offload(model, optimizer, client=held, step="host", tensor_bytes_min=1)
    optimizer.count = 20
    backward(model, 0)
    with pytest.raises(terrace.FailedPrecondition, match=said):
        optimizer.step()
        plain(model.state_dict())
    optimizer.count = 0
    optimizer.zero_grad()
    backward(model, 1)
    optimizer.step()
    plain(model.state_dict())

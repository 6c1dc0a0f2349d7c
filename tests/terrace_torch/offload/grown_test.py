# SPDX-License-Identifier: Apache-2.0
"""Shows that offload() takes in what a model was given after it was offloaded (a larger vocabulary, a layer, an adapter), with
the weights of plain PyTorch doing the same, bit for bit, or says by name what cannot be; and that what was replaced goes."""

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    RECIPE,
    assert_same,
    build,
    loss_of,
    nothing_stays_leased,
    restless,
    roomy,
    weights,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")

KINDS = [{}, {"what": {"parameters"}}, {"what": {"gradients"}}, {"what": {"states"}}, {"what": {"gradients", "states"}},
         {"step_in_backward": True}]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def larger(model, rows=96):
    """Gives a model a larger vocabulary: another module, tied to the head."""
    old, made = model.embedding, nn.Embedding(rows, model.embedding.embedding_dim)
    with torch.no_grad():
        made.weight[:len(old.weight)] = old.weight.data
    model.embedding = made
    model.head = nn.Linear(made.embedding_dim, rows, bias=False)
    model.head.weight = made.weight


def larger_in_place(model, rows=96):
    """The same, as resize_token_embeddings() of Transformers does it: the parameter is given larger memory."""
    old = model.embedding.weight
    made = nn.Embedding(rows, old.shape[1]).weight
    made.data[:len(old)] = old.data[:len(old)]
    old.data = made.data
    model.embedding.num_embeddings = model.head.out_features = rows


class Adapted(nn.Module):
    """A layer that is kept as it is, and what is trained beside it."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def adapted(model):
    """Gives a model adapters; the parameters that are new."""
    for block in model.blocks:
        block.out = Adapted(block.out)
    return [one for block in model.blocks for part in (block.out.down, block.out.up) for one in part.parameters()]


def same_with_and_without(client, run, **options):
    """Runs a script's lines with plain PyTorch and with Terrace; what they say and the weights are the same. Gives the model.
    Its `offload` does nothing, or what it says."""
    def offload(model, *optimizer):
        terrace.torch.offload(model, *optimizer, client=client, tensor_bytes_min=1, **options)

    found = []
    for offloads in (lambda *_: None, offload):
        torch.manual_seed(7)
        model = build(RECIPE)[0]
        found.append((run(model, offloads), weights(model)))
    assert found[0][0] == found[1][0]
    assert_same(found[1][1], found[0][1])
    return model


def train(model, optimizer, count=2):
    said = []
    for number in range(count):
        for part in range(1 if getattr(optimizer, "at_once", True) else 2):
            loss = loss_of(model, 2 * number + part)
            loss.backward()
            said.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return said


def in_terrace(model):
    """Names of a model's parameters that are there."""
    return {name for name, one in model.named_parameters() if hasattr(one, "terrace")}


@pytest.mark.parametrize("grow", [larger, larger_in_place])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_larger_vocabulary_with_a_new_optimizer(restless, options, grow):
    """What is new is where the rest is, and what was replaced has no room in Terrace any more."""
    def run(model, offload):
        optimizer = adamw(model)
        offload(model, optimizer)
        said = train(model, optimizer)
        for rows in (96, 128):
            del optimizer
            grow(model, rows)
            said.append(loss_of(model, 0).item())
            optimizer = adamw(model)
            offload(model, optimizer)
            said += train(model, optimizer)
        if terrace.torch._offload.job.is_offloaded(model):
            there = {slot.name for slot in terrace.torch._offload.job.job_of(model).store.slots}
            counts[0], wanted = len(restless.tensors()), options.get("what", {"parameters", "gradients", "states"})
            assert ("embedding.weight" in there) == ("parameters" in wanted)
            each = (("parameters" in wanted) + 2 * ("states" in wanted)
                    + ("gradients" in wanted and "step_in_backward" not in options))
            assert counts[0] == each * len(list(model.parameters())), [one for one in sorted(restless.tensors()) if "embedding" in one]
        return said

    counts = [0]
    model = same_with_and_without(restless, run, **options)
    assert counts[0]
    assert in_terrace(model) == ({name for name, _ in model.named_parameters()} if "parameters" in options.get(
        "what", {"parameters"}) else set())


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("before", [True, False], ids=["trained before it is offloaded again", "at once"])
def test_adapters_in_a_group_that_is_added(restless, options, before):
    """The same optimizer goes on: offload() is given it again, and its new states go where the others are."""
    def run(model, offload):
        optimizer = adamw(model)
        offload(model, optimizer)
        said = train(model, optimizer)
        optimizer.add_param_group({"params": adapted(model), "lr": 1e-3})
        if before:
            said += train(model, optimizer)
        offload(model, optimizer)
        said += train(model, optimizer)
        if terrace.torch._offload.job.is_offloaded(model) and "states" in options.get("what", {"states"}):
            for one in model.parameters():
                assert all(type(value).__name__ == "OffloadedTensor" for key, value in optimizer.state.get(one, {}).items()
                           if key != "step")
            checked.append(True)
        return said + train(model, optimizer)

    checked = []
    model = same_with_and_without(restless, run, **options)
    assert checked or "states" not in options.get("what", {"states"})
    assert {name for name, _ in model.named_parameters()} == in_terrace(model) or "parameters" not in options.get(
        "what", {"parameters"})


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_what_is_new_and_not_offloaded(restless, options):
    """It stays in memory, and the numbers are the same."""
    def run(model, offload):
        optimizer = adamw(model)
        offload(model, optimizer)
        said = train(model, optimizer)
        optimizer.add_param_group({"params": adapted(model)})
        model.head = nn.Linear(32, 80)
        optimizer.add_param_group({"params": model.head.parameters()})
        return said + train(model, optimizer)

    same_with_and_without(restless, run, **options)


def test_a_larger_weight_that_is_not_offloaded_again(restless):
    """It is an ordinary parameter, in memory, and what it had in Terrace stays until the next offload()."""
    def run(model, offload):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        offload(model, optimizer)
        said = train(model, optimizer)
        larger_in_place(model)
        return said + train(model, optimizer)

    with pytest.warns(UserWarning, match="'embedding.weight' was replaced after .* the new one is not in Terrace"):
        model = same_with_and_without(restless, run)
    assert "embedding.weight" not in in_terrace(model)
    model.blocks.append(nn.Identity())
    before = len(restless.tensors())
    terrace.torch.offload(model, tensor_bytes_min=1)
    assert in_terrace(model) == {name for name, _ in model.named_parameters()}
    assert len(restless.tensors()) == before, "as many as were deleted"


def test_a_weight_that_is_in_use_keeps_its_shape(roomy):
    model, optimizer = build(RECIPE)
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    kept = model.embedding.weight.data
    with pytest.raises(terrace.FailedPrecondition, match="lives in Terrace as .* and cannot become"):
        model.embedding.weight.data = torch.zeros(96, 32)
    del kept
    with pytest.raises(terrace.FailedPrecondition, match="lives in Terrace as .* and cannot become"):
        model.embedding.weight.data = torch.zeros(96, 32, dtype=torch.float64)
    train(model, optimizer)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_weight_that_a_backward_pass_needs_as_it_was(restless, frozen):
    """It may have another shape; the pass says that it was given one, and the next ones are right."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64, bias=False))
    model[1].weight.requires_grad_(not frozen)
    terrace.torch.offload(model, torch.optim.SGD(model[0].parameters(), 0.1), client=restless, tensor_bytes_min=1)
    loss = model(torch.ones(2, 64)).sum()
    model[1].weight.data = torch.ones(32, 64)
    with pytest.raises(terrace.FailedPrecondition, match=r"'1.weight' was given the shape \(32, 64\) .* needs it as it was, \(64, 64\)"):
        loss.backward()
    del loss
    model(torch.ones(2, 64)).sum().backward()
    assert torch.equal(model[0].bias.grad, torch.full((64,), 64.0))


def test_a_model_without_its_optimizer(restless):
    """offload(model) takes in what is new, and is refused where nothing is."""
    def run(model, offload):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        offload(model)
        said = train(model, optimizer)
        model.blocks.append(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32, bias=False)))
        optimizer.add_param_group({"params": model.blocks[-1].parameters()})
        offload(model)
        return said + train(model, optimizer)

    model = same_with_and_without(restless, run)
    assert in_terrace(model) == {name for name, _ in model.named_parameters()}
    with pytest.raises(terrace.FailedPrecondition, match="this model is offloaded already"):
        terrace.torch.offload(model)


def test_another_weight_in_the_same_module(restless):
    """One that takes the place of a parameter that nobody has any more."""
    def run(model, offload):
        optimizer = adamw(model)
        offload(model, optimizer)
        said = train(model, optimizer)
        del optimizer
        for block in model.blocks:
            block.wide.weight = nn.Parameter(block.wide.weight.detach().clone() * 2)
        optimizer = adamw(model)
        said += [loss_of(model, 1).item()]
        offload(model, optimizer)
        if terrace.torch._offload.job.is_offloaded(model):
            assert len(restless.tensors()) == 4 * len(list(model.parameters()))
        return said + train(model, optimizer)

    model = same_with_and_without(restless, run)
    assert in_terrace(model) == {name for name, _ in model.named_parameters()}


def test_masters_of_what_has_another_shape(restless):
    """A master of the old shape goes, and the new one begins with the weight."""
    torch.manual_seed(3)
    model, plain = (nn.Sequential(nn.Linear(16, 8, bias=False)).to(torch.bfloat16) for _ in range(2))
    for number in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        terrace.torch.offload(model, optimizer, client=restless, tensor_bytes_min=1, masters=torch.float32)
        if number == 1:
            plain[0].weight.data = model[0].weight.detach().clone()
            master = plain[0].weight.detach().float()
        for _ in range(3):
            for one in (model, plain) if number == 1 else (model,):
                one(torch.full((2, 16), 0.7, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
            if number == 1:
                master -= 0.1 * plain[0].weight.grad.float()
                plain[0].weight.data.copy_(master)
            for one in (model, plain):
                one.zero_grad()
        assert len(restless.tensors()) == 3, "the weight, its gradient, and its master"
        assert number == 0 or torch.equal(model[0].weight, plain[0].weight)
        model[0].weight.data = model[0].weight.data.clone().repeat(2, 1)
        del optimizer


@pytest.mark.parametrize("gradients", [None, torch.float32], ids=str)
@pytest.mark.parametrize("at", [0, 2, 3], ids=["before the first step", "after steps", "between backward and step"])
def test_masters_of_what_is_new(restless, at, gradients):
    """Also of what the optimizer has stepped before it was offloaded, with a master in memory: that one's content goes on."""
    def run(at):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8)).to(torch.bfloat16)
        later = nn.Linear(8, 8).to(torch.bfloat16)
        options = {"tensor_bytes_min": 1, "masters": torch.float32, "gradients": gradients}
        optimizer = torch.optim.AdamW([*model.parameters(), *later.parameters()], lr=1e-2)
        if at is None:
            model.append(later)
        terrace.torch.offload(model, optimizer, client=restless, **options)
        for number in range(5):
            if number == at != 3:
                model.append(later)
                terrace.torch.offload(model, optimizer, **options)
            for part in range(2):
                hidden = model(torch.full((2, 16), number + part + 1.0, dtype=torch.bfloat16))
                (hidden if len(model) == 4 else later(hidden)).float().square().mean().backward()
            if number == at == 3:
                model.append(later)
                terrace.torch.offload(model, optimizer, **options)
            optimizer.step()
            optimizer.zero_grad()
        assert in_terrace(model) == {name for name, _ in model.named_parameters()}
        return weights(model)

    assert_same(run(at), run(None))


def test_what_init_built(roomy):
    """A layer that was built in Terrace is taken as it is."""
    model, _ = build(RECIPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    with terrace.torch.init(client=roomy):
        model.blocks.append(nn.Sequential(nn.Linear(32, 32)))
    optimizer.add_param_group({"params": model.blocks[-1].parameters()})
    terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
    train(model, optimizer)
    assert in_terrace(model) == {name for name, _ in model.named_parameters()}


class Odd(nn.Parameter):
    """A parameter of a kind of its own."""


@pytest.mark.parametrize("given, said", [
    (lambda: Odd(torch.zeros(8)), "'extra' is a Odd that requires a gradient"),
    (lambda: nn.parameter.UninitializedParameter(), "'extra' has no shape yet"),
    (lambda: nn.Parameter(torch.zeros(8, device="meta")), "'extra' is on meta")])
def test_what_cannot_be_taken_in_changes_nothing(roomy, given, said):
    model, optimizer = build(RECIPE)
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    adapted(model)
    there, held = in_terrace(model), len(roomy.tensors())
    model.register_parameter("extra", given())
    with pytest.raises(terrace.InvalidArgument, match=said):
        terrace.torch.offload(model, adamw(model), tensor_bytes_min=1)
    assert in_terrace(model) == there and len(roomy.tensors()) == held


def test_a_model_around_one_that_is_offloaded(roomy):
    model, optimizer = build(RECIPE)
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    around = nn.Sequential(model, nn.Linear(64, 64))
    with pytest.raises(terrace.FailedPrecondition, match=r"give offload\(\) the model that was offloaded, where this one"):
        terrace.torch.offload(around, adamw(around), tensor_bytes_min=1)


def test_what_does_not_fit_changes_nothing():
    """Neither where the new parameters are, nor what is in Terrace, nor the numbers."""
    def run(model, optimizer, refused):
        said = train(model, optimizer)
        optimizer.add_param_group({"params": adapted(model)})
        large = nn.Linear(32, 1 << 15, bias=False)
        refused(model, large)
        return said + train(model, optimizer)

    plain, plain_optimizer = build(RECIPE)
    wanted = run(plain, plain_optimizer, lambda *_: None)
    with terrace.serve("4MiB", metrics=False) as client:
        model, optimizer = build(RECIPE)
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)

        def refused(model, large):
            there, held = in_terrace(model), len(client.tensors())
            model.large = large
            for steps in (optimizer, adamw(large)):
                with pytest.raises(terrace.ResourceExhausted):
                    terrace.torch.offload(model, steps, tensor_bytes_min=1)
                assert in_terrace(model) == there and len(client.tensors()) == held
                assert all(type(one) is nn.Parameter for one in large.parameters())
            del model.large

        assert run(model, optimizer, refused) == wanted
        assert_same(weights(model), weights(plain))
        terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
        train(model, optimizer)
        assert in_terrace(model) == {name for name, _ in model.named_parameters()}
        assert client.leased_bytes == 0 and client.held == 0

# SPDX-License-Identifier: Apache-2.0
"""Shows that parameters, gradients and optimizer states can each be in Terrace without the others: the same losses and
weights bit for bit, what was named in Terrace and nothing else; and what cannot be had that way is refused by name."""

import copy
import io
import itertools

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    Recipe,
    assert_same,
    build,
    compare,
    in_terrace,
    loss_of,
    nothing_stays_leased,
    restless,
    roomy,
    steps,
    train,
    weights,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")

PARTS = ("parameters", "gradients", "states")
SUBSETS = [set(some) for count in (1, 2, 3) for some in itertools.combinations(PARTS, count)]


@pytest.mark.parametrize("recipe", [
    Recipe(accumulation=2, clip=True), Recipe(autocast=True, frozen=True),
    Recipe(checkpointing=True, set_to_none=False), Recipe(kind=torch.optim.SGD)], ids=["accumulated", "bf16", "checkpointed", "no-states"])
@pytest.mark.parametrize("what", SUBSETS, ids="+".join)
def test_the_same_bits(restless, what, recipe):
    model, optimizer = compare(recipe, restless, what=what)
    loss_of(model, 9).backward()
    for parameter in model.parameters():
        assert in_terrace(parameter) == ("parameters" in what)
        if parameter.requires_grad:
            assert in_terrace(parameter.grad) == ("gradients" in what)
        for state in optimizer.state.get(parameter, {}).values():
            assert in_terrace(state) == ("states" in what and state.numel() > 1)
    held = {part: 0 for part in PARTS}
    for name in restless.tensors():
        held["gradients" if "/grad" in name else "states" if "exp_avg" in name else "parameters"] += 1
    assert {part for part in PARTS if held[part]} == what - ({"states"} if recipe.kind is torch.optim.SGD else set())


@pytest.mark.parametrize("what", ["parameters", {"parameters", "states"}, PARTS], ids=str)
def test_stepping_in_backward(roomy, what):
    compare(Recipe(), roomy, what=what, step_in_backward=True)


@pytest.mark.parametrize("what", ["parameters", "gradients"])
def test_without_the_optimizer(restless, what):
    plain, optimizer = build(Recipe())
    wanted = train(plain, optimizer, Recipe())
    model, optimizer = build(Recipe())
    terrace.torch.offload(model, client=restless, tensor_bytes_min=1, what=what)
    assert train(model, optimizer, Recipe()) == wanted
    assert_same(weights(model), weights(plain))


def test_what_is_unfrozen_later(roomy):
    """Its gradients go where the others go, whether it was frozen when the model was offloaded or not."""
    def run(model, optimizer):
        torch.manual_seed(7)
        steps(model, optimizer)
        model.blocks[1].wide.weight.requires_grad_(True)
        optimizer.add_param_group({"params": [model.blocks[1].wide.weight]})
        steps(model, optimizer)
        loss_of(model, 9).backward()

    recipe = Recipe(frozen=True)
    plain, ours = build(recipe), build(recipe)
    terrace.torch.offload(*ours, client=roomy, tensor_bytes_min=1, what={"gradients", "states"})
    run(*plain)
    run(*ours)
    weight = ours[0].blocks[1].wide.weight
    assert in_terrace(weight.grad) and in_terrace(ours[1].state[weight]["exp_avg"])
    assert_same(weights(ours[0]), weights(plain[0]))


@pytest.mark.parametrize("what", PARTS)
def test_saving_and_loading(roomy, what):
    """From one to the other, whole models among it, and a copy is an ordinary model."""
    plain, optimizer = build(Recipe())
    steps(plain, optimizer)
    model, ours = terrace.torch.offload(*build(Recipe()), client=roomy, tensor_bytes_min=1, what=what)
    model.load_state_dict(plain.state_dict())
    ours.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # or both would step the same ones
    for trained in ((plain, optimizer), (model, ours)):
        torch.manual_seed(7)
        steps(*trained)
    file = io.BytesIO()
    torch.save((model, ours.state_dict()), file)
    file.seek(0)
    loaded, states = torch.load(file, weights_only=False)
    assert_same(weights(loaded), weights(plain))
    assert all(type(parameter) is nn.Parameter for parameter in loaded.parameters())
    wanted = optimizer.state_dict()["state"]
    for number, state in states["state"].items():
        assert all(torch.equal(state[key], wanted[number][key]) for key in state)


def test_parameters_that_stay_are_the_script_s(roomy):
    """They may be moved, written to behind anybody's back, and looked at for nothing."""
    model, optimizer = terrace.torch.offload(*build(Recipe()), client=roomy, tensor_bytes_min=1, what="states")
    before = {id(parameter): parameter.data_ptr() for parameter in model.parameters()}
    model.norm.weight.data = model.norm.weight.data * 2
    steps(model, optimizer)
    changed = [name for name, parameter in model.named_parameters() if parameter.data_ptr() != before[id(parameter)]]
    assert changed == ["norm.weight"] and roomy.leased_bytes == 0


@pytest.mark.parametrize("said, options", [
    (r"what has 'weights'; it is 'auto', 'all', or a set of 'parameters'", {"what": {"weights"}}),
    (r"what is empty; it is .auto., .all., or a set of .parameters.", {"what": ()}),
    (r"what has 'states', and no optimizer is given", {"what": {"states"}, "optimizer": None}),
    (r"step_in_backward=True steps parameters .* give what= 'parameters' as well",
     {"what": {"gradients", "states"}, "step_in_backward": True})])
def test_what_cannot_be_had(roomy, said, options):
    model, optimizer = build(Recipe())
    before = weights(model)
    with pytest.raises(terrace.InvalidArgument, match=f"terrace.torch.offload: {said}"):
        terrace.torch.offload(model, options.pop("optimizer", optimizer), client=roomy, **options)
    assert_same(weights(model), before)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


@pytest.mark.parametrize("again", PARTS)
def test_a_parameter_is_of_one_job(roomy, again):
    """Also one that stays in memory."""
    model, optimizer = build(Recipe())
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1, what={"gradients", "states"})
    block = model.blocks[0]
    name = next(iter(dict(block.named_parameters())))
    with pytest.raises(terrace.FailedPrecondition, match=f"the parameter '{name}' is offloaded already, with another"):
        terrace.torch.offload(block, torch.optim.AdamW(block.parameters()), client=roomy, what=again)
    steps(model, optimizer)
    loss_of(model, 9).backward()
    assert in_terrace(block.wide.weight.grad) and type(block.wide.weight) is nn.Parameter


def test_what_is_no_set(roomy):
    with pytest.raises(TypeError, match="what is 3; it is 'auto', 'all', or a set of 'parameters'"):
        terrace.torch.offload(nn.Linear(64, 64), client=roomy, what=3)


def test_what_was_built_in_terrace_stays_there(roomy):
    with terrace.torch.init(client=roomy):
        model = nn.Linear(64, 64)
    with pytest.raises(terrace.InvalidArgument, match=r"'weight' was built in Terrace by terrace.torch.init\(\)"):
        terrace.torch.offload(model, torch.optim.AdamW(model.parameters()), client=roomy, what="states")


def test_it_can_be_offloaded_where_that_failed(roomy):
    """A tier without room for the states leaves the model and its optimizer as they were."""
    with terrace.serve("4MiB", metrics=False) as client:
        plain, small = nn.Linear(512, 512), nn.Linear(512, 512)
        small.load_state_dict(plain.state_dict())
        optimizer = torch.optim.AdamW(small.parameters(), amsgrad=True)
        held = torch.optim.AdamW(plain.parameters(), amsgrad=True)
        with pytest.raises(terrace.ResourceExhausted):
            terrace.torch.offload(small, optimizer, client=client)
        terrace.torch.offload(small, optimizer, client=client, what="gradients")
        for model, stepping in ((plain, held), (small, optimizer)):
            model(torch.ones(2, 512)).square().mean().backward()
            stepping.step()
        assert_same(weights(small), weights(plain))
        assert in_terrace(small.weight.grad)

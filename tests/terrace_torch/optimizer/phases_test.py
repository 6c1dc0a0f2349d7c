# SPDX-License-Identifier: Apache-2.0
"""Shows that an offloaded model takes other optimizers, one after the other or several at once, with the weights of plain
PyTorch doing the same, bit for bit; and that the states of one that is gone go."""

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    RECIPE,
    Recipe,
    assert_same,
    build,
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


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)


def same_with_and_without(client, run, **options):
    """Runs a script's lines with plain PyTorch and with Terrace. Its `offload` does nothing, or what it says."""
    def offload(model, optimizer=None):
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, **options)

    found = []
    for offloads in (lambda *_: None, offload):
        torch.manual_seed(7)
        model, _ = build(RECIPE)
        found.append((run(model, offloads), weights(model)))
    assert found[0][0] == found[1][0]
    assert_same(found[1][1], found[0][1])


@pytest.mark.parametrize("loads", [False, True], ids=["fresh", "loaded"])
@pytest.mark.parametrize("options", [{}, {"what": {"states"}}, {"what": {"parameters"}}, {"step_in_backward": True}],
                         ids=str)
def test_a_second_phase(restless, options, loads):
    """Warm up, unfreeze, and go on with a new optimizer, which may have what the one before has learned."""
    def run(model, offload):
        model.blocks[0].requires_grad_(False)
        optimizer = adamw(model)
        offload(model, optimizer)
        said = train(model, optimizer, RECIPE)
        model.blocks.requires_grad_(True)
        kept = optimizer.state_dict() if loads else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
        if kept is not None:
            optimizer.load_state_dict(kept | {"param_groups": optimizer.state_dict()["param_groups"]})
            for state in optimizer.state.values():
                state["max_exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
            kept = None
        offload(model, optimizer)
        return said + train(model, optimizer, RECIPE, begin=3)

    same_with_and_without(restless, run, **options)


def test_a_model_gets_its_optimizer_later(restless):
    def run(model, offload):
        offload(model)
        optimizer = adamw(model)
        steps(model, optimizer)
        offload(model, optimizer)
        return train(model, optimizer, RECIPE)

    same_with_and_without(restless, run)
    assert not restless.tensors()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_several_optimizers_of_one_model(restless, accumulation):
    """Of disjoint parameters, and one of all of them besides."""
    def run(model, offload):
        optimizers = [adamw(model.blocks), torch.optim.SGD(model.norm.parameters(), lr=0.1, momentum=0.9),
                      torch.optim.SGD(model.parameters(), lr=0.1)]
        for optimizer in optimizers:
            offload(model, optimizer)
        said = []
        for number in range(6):
            loss_of(model, number).backward()
            if number % accumulation == accumulation - 1:
                for optimizer in optimizers:
                    optimizer.step()
                model.zero_grad()
            said.append(loss_of(model, number).item())
        return said

    same_with_and_without(restless, run)


@pytest.mark.parametrize("options", [{}, {"what": {"states"}}, {"step_in_backward": True}], ids=str)
def test_a_new_head_with_a_new_optimizer(restless, options):
    """What was learned goes on, and the old head is gone before anybody asks for it."""
    def run(offload):
        body = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        optimizer = adamw(body)
        offload(body, optimizer)
        said = []
        for width in (16, 4, 8):
            for _ in range(3):
                loss = body(torch.ones(2, 16)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                said.append(loss.item())
            body[2] = nn.Linear(16, width)
            del optimizer
            optimizer = adamw(body)
            offload(body, optimizer)
        return said, [parameter.detach().clone() for parameter in body.parameters()]

    found = []
    for offloads in (lambda *_: None,
                     lambda *of: terrace.torch.offload(*of, client=restless, tensor_bytes_min=1, **options)):
        torch.manual_seed(7)
        found.append(run(offloads))
    (losses, wanted), (said, got) = found
    assert said == losses
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_the_states_of_what_is_gone_go(roomy):
    """With the one that is kept they stay."""
    model, optimizer = build(RECIPE)
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    train(model, optimizer, RECIPE)
    count, nbytes = len(roomy.tensors()), terrace.torch.summary(model).nbytes
    for _ in range(3):
        kept, optimizer = optimizer.state[model.positions]["exp_avg"], adamw(model)
        terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
        assert len(roomy.tensors()) == count + 1 and kept.isfinite().all(), "what the script has kept"
        train(model, optimizer, RECIPE)
        del kept
        optimizer = adamw(model)
        terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
        train(model, optimizer, RECIPE)
        assert len(roomy.tensors()) == count
    both = [optimizer, adamw(model)]
    terrace.torch.offload(model, both[1], tensor_bytes_min=1)
    assert terrace.torch.summary(model).nbytes > nbytes * 5 / 4


def test_what_does_not_fit_changes_nothing():
    """Neither the model, nor the optimizers, nor what is in Terrace."""
    plain, plain_optimizer = build(Recipe(width=64))
    model, optimizer = build(Recipe(width=64))
    with terrace.serve("4MiB", metrics=False) as client:
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        second = adamw(model)
        second.state[model.positions] = {"step": torch.tensor(1.0)} | {
            key: torch.ones_like(model.positions) for key in ("exp_avg", "exp_avg_sq")}
        held = len(client.tensors())
        with pytest.raises(terrace.ResourceExhausted):
            terrace.torch.offload(model, second, tensor_bytes_min=1)
        assert len(client.tensors()) == held and type(second.state[model.positions]["exp_avg"]) is torch.Tensor
        assert train(model, optimizer, RECIPE) == train(plain, plain_optimizer, RECIPE)
        del optimizer
        terrace.torch.offload(model, second, tensor_bytes_min=1)  # in the place of the other one
        train(model, second, RECIPE)


def test_what_would_make_another_job_of_it(roomy):
    model, optimizer = build(RECIPE)
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1, step_in_backward=True)
    other = adamw(model)
    with pytest.raises(terrace.FailedPrecondition, match=r"offloaded already; offload\(model, optimizer\) takes another"):
        terrace.torch.offload(model)
    with pytest.raises(terrace.FailedPrecondition, match="this model is offloaded already, with this optimizer"):
        terrace.torch.offload(model, optimizer)
    with pytest.raises(terrace.FailedPrecondition, match="it has the optimizers of one call: let go of those before first"):
        terrace.torch.offload(model, other, step_in_backward=True)
    with terrace.Client(roomy.socket) as session:
        for options, said in (({}, "step_in_backward is False"), ({"client": session}, "client is of another session"),
                              ({"place": "device:0"}, "place is 'device:0'"),
                              ({"what": {"parameters"}, "step_in_backward": True}, r"what is \['parameters'\]")):
            with pytest.raises(terrace.InvalidArgument, match=f"{said}.*stay as they are.*place='host'"):
                terrace.torch.offload(model, other, **options)
    with pytest.raises(terrace.InvalidArgument, match="LBFGS does not treat its parameters one by one"):
        terrace.torch.offload(model, torch.optim.LBFGS(model.parameters()), step_in_backward=True)
    steps(model, optimizer)


def test_a_model_of_a_device():
    with terrace.serve("16MiB", device="8MiB", metrics=False) as client:
        model, optimizer = build(RECIPE)
        terrace.torch.offload(model, optimizer, client=client, place="device:0", tensor_bytes_min=1)
        optimizer = adamw(model)
        terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
        steps(model, optimizer)
        rows = terrace.torch.summary(model).modules
        assert {place for row in rows for place in row.place_bytes} == {"device:0"}

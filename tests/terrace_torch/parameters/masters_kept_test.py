# SPDX-License-Identifier: Apache-2.0
"""Shows what becomes of masters that are saved, loaded, stepped by another optimizer, or whose weights are written by hand;
that an exception leaves them as they should be; and what is refused by name before anything moved."""

import copy
import gc
import pkgutil

import pytest
import terrace.torch
import torch
from masters_fixtures import (
    BFLOAT16,
    FLOAT,
    SMALL,
    Copies,
    SignMomentum,
    Untold,
    fresh,
    goes_on_as,
    narrow,
    replaced,
    train,
    trained,
)
from model_fixtures import (  # noqa: F401 (fixtures)
    FailsInBackward,
    assert_same,
    loss_of,
    nothing_stays_leased,
    restless,
    roomy,
    weights,
)
from python_fixtures import disk  # noqa: F401 (a fixture)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


@pytest.mark.parametrize("first", ["model", "optimizer"])
@pytest.mark.parametrize("what", [("parameters", "gradients", "states"), ("parameters",), ("states",)])
def test_a_state_that_is_loaded_goes_on(restless, first, what, tmp_path):
    model, optimizer, copies = trained(restless, what=what)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    del model, optimizer
    saved = torch.load(tmp_path / "saved.pt")
    assert {value.dtype for value in saved["model"].values()} == {BFLOAT16}
    assert {value.dtype for state in saved["optimizer"]["state"].values() for value in state.values()} == {FLOAT}
    model, optimizer = fresh(restless, what=what)
    train(model, optimizer, SMALL, steps=1)
    loads = {"model": model, "optimizer": optimizer}
    for name in (first, *(loads.keys() - {first})):
        loads[name].load_state_dict(saved[name])
    goes_on_as(copies, model, optimizer)


def test_files_have_masters(restless, tmp_path):
    model, optimizer, copies = trained(restless)
    terrace.torch.save(tmp_path / "model.safetensors", model, optimizer)
    model, optimizer = fresh(restless)
    terrace.torch.load(tmp_path / "model.safetensors", model, optimizer)
    goes_on_as(copies, model, optimizer)
    plain, steps = narrow(SMALL, BFLOAT16)
    terrace.torch.offload(plain, steps, client=restless, tensor_bytes_min=1)
    with pytest.raises(terrace.InvalidArgument, match="masters=torch.float32"):
        terrace.torch.load(tmp_path / "model.safetensors", plain, steps)
    with pytest.raises(terrace.InvalidArgument, match="masters=torch.float32"):
        steps.load_state_dict(optimizer.state_dict())
    assert not steps.state


@pytest.mark.parametrize("way", ["state dicts", "files", "before offload"])
def test_a_checkpoint_without_masters_loads(restless, way, tmp_path):
    """It has weights in bfloat16, and states too: both become float32, as in a loop whose copies are made of the weights."""
    before, optimizer = narrow(SMALL, BFLOAT16)
    train(before, optimizer, SMALL)
    saved = before.state_dict(), optimizer.state_dict()
    terrace.torch.save(tmp_path / "model.safetensors", before, optimizer)
    copies = Copies(SMALL, BFLOAT16)
    copies.model.load_state_dict(saved[0])
    with torch.no_grad():
        for weight, master in copies.pairs:
            master.copy_(weight)
    copies.optimizer.load_state_dict(saved[1])
    model, optimizer = fresh(restless)
    train(model, optimizer, SMALL, steps=1)
    if way == "files":
        terrace.torch.load(tmp_path / "model.safetensors", model, optimizer)
    elif way == "state dicts":
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    else:
        model, optimizer = narrow(SMALL, BFLOAT16)
        model.load_state_dict(saved[0])
        terrace.torch.offload(model, optimizer, client=restless, masters=FLOAT, tensor_bytes_min=1)
        optimizer.load_state_dict(saved[1])
    goes_on_as(copies, model, optimizer)


def test_a_state_of_masters_loads_into_plain_pytorch(roomy):
    model, optimizer, copies = trained(roomy)
    plain, steps = narrow(SMALL, BFLOAT16)
    steps.load_state_dict(optimizer.state_dict())
    train(plain, steps, SMALL)
    for (weight, master), state in zip(copies.pairs, optimizer.state_dict()["state"].values(), strict=True):
        assert torch.equal(state["terrace.master"], master) and state["exp_avg"].dtype == FLOAT
        assert weight.dtype == BFLOAT16


@pytest.mark.parametrize("what", [("parameters", "gradients", "states"), ("states",), ("parameters",)])
def test_what_is_written_to_a_weight_its_master_takes_over(restless, what):
    """An element that is still what its master rounds to keeps the master's; any other is what was written."""
    model, optimizer, copies = trained(restless, what=what)
    kept = []
    for of in (copies.model, model):
        block = of.blocks[0]
        with torch.no_grad():
            block.wide.weight[3].zero_()
            block.out.weight.data.mul_(0.5)
            kept.append(block.narrow.weight.clone())  # swapped out and in again, as averaged weights are
            block.narrow.weight.fill_(1.0)
            block.narrow.weight.copy_(kept[-1])
    for weight, master in copies.pairs:
        with torch.no_grad():
            other = master.to(BFLOAT16) != weight
            master.copy_(torch.where(other, weight.float(), master))
    goes_on_as(copies, model, optimizer)


@pytest.mark.parametrize("take", [lambda weight: weight.data, lambda weight: weight.detach().view(torch.int16).numpy()])
@pytest.mark.parametrize("stepped_meanwhile", [False, True])
def test_a_write_that_nobody_sees(restless, take, stepped_meanwhile):
    """Through what a script has kept of a weight's memory, from before a step or after it."""
    model, optimizer, copies = trained(restless)
    kept = []
    hook = model.blocks[0].wide.register_forward_hook(lambda module, *_: kept.append(take(module.weight)))
    loss_of(model, 0)
    hook.remove()
    if stepped_meanwhile:
        goes_on_as(copies, model, optimizer)
    kept[0][3] = 0
    kept.clear()
    weight = copies.model.blocks[0].wide.weight
    with torch.no_grad():
        weight[3] = 0
        next(master for one, master in copies.pairs if one is weight)[3] = 0
    goes_on_as(copies, model, optimizer, begin=7)


def test_a_graph_of_the_weights_before_is_not_run(restless):
    for of in (trained(restless)[0], trained(restless)[2].model):
        loss = loss_of(of, 0)
        optimizer = torch.optim.SGD(of.parameters(), lr=0.1)
        if isinstance(of.positions, nn.Parameter) and "terrace" in vars(of.positions):
            terrace.torch.offload(of, optimizer)
            loss_of(of, 1).backward()
            optimizer.step()
        else:
            with torch.no_grad():
                for one in of.parameters():
                    one.copy_(one.float())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_an_exception_in_the_step(restless):
    """What was stepped before it stays stepped, weights and masters alike, and the next step goes on."""
    model, optimizer = narrow(replaced(kind=SignMomentum), BFLOAT16)
    terrace.torch.offload(model, optimizer, client=restless, masters=FLOAT, tensor_bytes_min=1)
    train(model, optimizer, SMALL, steps=1)
    loss_of(model, 1).backward()
    states = {id(one): state["momentum"] for one, state in optimizer.state.items()}
    last = optimizer.param_groups[-1]["params"][-1]
    optimizer.state[last]["momentum"] = None
    with pytest.raises(AttributeError):
        optimizer.step()
    optimizer.state[last]["momentum"] = states[id(last)]
    saved = {number: state["terrace.master"].clone() for number, state in optimizer.state_dict()["state"].items()}
    of = [one for group in optimizer.param_groups for one in group["params"]]
    for number, master in saved.items():
        assert torch.equal(master.to(BFLOAT16), of[number].detach().clone()), number
    optimizer.step()
    optimizer.zero_grad()
    assert all(one.grad is None for one in model.parameters())
    train(model, optimizer, SMALL, steps=1)


@pytest.mark.parametrize("where", ["masters.MastersOfBatch._show_gradient", "masters.MastersOfBatch._put_back_gradient",
                                   "optimizer.ManagedOptimizer._note_ahead"])
def test_an_interrupt_in_the_step(restless, monkeypatch, where):
    """As it shows the third gradient, takes one back, or has made a weight anew: nothing stays leased, and no weight is lost."""
    model, optimizer, _ = trained(restless)
    loss_of(model, 0).backward()
    name = f"terrace.torch._optimizer.{where}"
    done, calls = pkgutil.resolve_name(f"{name.rpartition('.')[0].replace('.Ma', ':Ma')}.{name.rpartition('.')[2]}"), []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return done(*arguments)

    monkeypatch.setattr(name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    monkeypatch.undo()
    gc.collect()
    assert len(calls) >= 3 and restless.leased_bytes == 0 and restless.held == 0
    masters = {number: state["terrace.master"].clone() for number, state in optimizer.state_dict()["state"].items()}
    for number, one in enumerate(one for group in optimizer.param_groups for one in group["params"]):
        assert torch.equal(one.detach().clone(), masters[number].to(BFLOAT16))
    loss_of(model, 1).backward()
    optimizer.step()
    assert all(bool(one.isfinite().all()) for one in weights(model).values())


def test_an_exception_in_the_backward_pass(restless):
    for gradients in (None, FLOAT):
        copies = Copies(replaced(accumulation=2), BFLOAT16, gradients)
        model, optimizer = narrow(SMALL, BFLOAT16)
        terrace.torch.offload(model, optimizer, client=restless, masters=FLOAT, gradients=gradients, tensor_bytes_min=1)
        torch.manual_seed(1)
        loss_of(model, 0).backward()
        with pytest.raises(ZeroDivisionError):
            FailsInBackward.apply(loss_of(model, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.manual_seed(1)
        loss_of(copies.model, 0).backward()
        copies.step()
        assert_same(weights(model), weights(copies.model))


def test_another_optimizer_takes_the_same_masters(restless):
    """In the plain loop the new optimizer has the copies that there are."""
    model, optimizer, copies = trained(restless)
    second = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    terrace.torch.offload(model, second)
    of = dict(copies.pairs)
    copies.optimizer = torch.optim.SGD([of[one] for one in copies.model.parameters()], lr=0.1, momentum=0.9)
    del optimizer
    goes_on_as(copies, model, second)
    with pytest.raises(terrace.InvalidArgument, match="gradients is torch.float32"):
        terrace.torch.offload(model, torch.optim.SGD(model.parameters(), lr=0.1), masters=FLOAT, gradients=FLOAT)


def test_an_optimizer_that_comes_later(restless):
    copies = Copies(SMALL, BFLOAT16)
    wanted = train(copies.model, None, SMALL, copies=copies)
    model, optimizer = narrow(SMALL, BFLOAT16)
    terrace.torch.offload(model, client=restless, tensor_bytes_min=1)
    terrace.torch.offload(model, optimizer, masters=FLOAT, tensor_bytes_min=1)
    assert train(model, optimizer, SMALL) == wanted
    assert_same(weights(model), weights(copies.model))


def stepped_before(model, optimizer):
    loss_of(model, 0).backward()
    optimizer.step()


def overlapping(model, optimizer):
    whole = torch.zeros(48, dtype=BFLOAT16)
    model.blocks[0].norm.weight.data, model.blocks[0].norm.bias.data = whole[:32], whole[16:]


@pytest.mark.parametrize("dtype, prepare, options, error, words", [
    (FLOAT, None, {}, terrace.InvalidArgument, "float32: leave masters out"),
    (BFLOAT16, stepped_before, {}, terrace.FailedPrecondition, "has states already, as 'exp_avg' of 'positions'"),
    (BFLOAT16, overlapping, {}, terrace.InvalidArgument, "'blocks.0.norm.weight' and 'blocks.0.norm.bias' show the same"),
    (BFLOAT16, None, {"masters": torch.float64}, terrace.InvalidArgument, "masters is torch.float64"),
    (BFLOAT16, None, {"masters": "float32"}, TypeError, "masters is 'float32'"),
    (BFLOAT16, None, {"gradients": BFLOAT16}, terrace.InvalidArgument, "gradients is torch.bfloat16"),
    (BFLOAT16, None, {"masters": None, "gradients": FLOAT}, terrace.InvalidArgument, "give masters=torch.float32 as well"),
], ids=str)
def test_what_cannot_be_had_is_refused_before_anything_moved(roomy, dtype, prepare, options, error, words):
    model, optimizer = narrow(SMALL, dtype)
    if prepare is not None:
        prepare(model, optimizer)
    before = weights(model)
    with pytest.raises(error, match=words):
        terrace.torch.offload(model, optimizer, client=roomy, **({"masters": FLOAT} | options))
    assert {type(one) for one in model.parameters()} == {nn.Parameter}
    assert not roomy.tensors()
    assert_same(weights(model), before)


def test_masters_without_an_optimizer(roomy):
    model, _ = narrow(SMALL, BFLOAT16)
    with pytest.raises(terrace.InvalidArgument, match="none is given"):
        terrace.torch.offload(model, client=roomy, masters=FLOAT)


def test_a_wrong_master_is_refused_before_anything_is_loaded(roomy):
    model, optimizer, copies = trained(roomy)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["terrace.master"] = torch.zeros(3)
    with pytest.raises(terrace.InvalidArgument, match="a master of shape \\(3,\\)"):
        optimizer.load_state_dict(saved)
    goes_on_as(copies, model, optimizer)


def test_room_that_is_missing_leaves_all_as_it_was():
    with terrace.serve("4MiB", metrics=False) as client:
        model, optimizer = narrow(replaced(width=160, kind=torch.optim.Adagrad), BFLOAT16)
        before, sums = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
        with pytest.raises(terrace.ResourceExhausted):
            terrace.torch.offload(model, optimizer, client=client, masters=FLOAT, gradients=FLOAT)
        assert_same(weights(model), before)
        assert not client.tensors()
        assert {one.grad_dtype for one in model.parameters()} == {BFLOAT16}
        assert all(torch.equal(state["sum"], sums[number]["sum"]) and state["sum"].dtype == BFLOAT16
                   for number, state in optimizer.state_dict()["state"].items())
        train(model, optimizer, SMALL, steps=1)


def test_another_optimizer_that_nobody_knows_is_tried_on_masters(roomy):
    """One that comes to a model which has masters already."""
    model, _, copies = trained(roomy)
    optimizer = Untold(model.parameters(), 1e-3)
    with pytest.raises(terrace.InvalidArgument, match="steps torch.float32, not torch.bfloat16"):
        other, _ = narrow(SMALL, BFLOAT16)
        terrace.torch.offload(other, Untold(other.parameters(), 1e-3), client=roomy)
    terrace.torch.offload(model, optimizer, client=roomy)
    copies.optimizer = Untold([master for _, master in copies.pairs], 1e-3)
    goes_on_as(copies, model, optimizer)


def has_states(parameters):
    """An optimizer that nobody knows, whose constructor makes states of the weights."""
    optimizer = Untold(parameters, 1e-3)
    for one in optimizer.param_groups[0]["params"]:
        optimizer.state[one]["row"] = torch.zeros_like(one)
    return optimizer


def test_one_that_has_states_is_refused_for_that(roomy):
    model, _ = narrow(SMALL, BFLOAT16)
    with pytest.raises(terrace.FailedPrecondition, match="the optimizer has states already, as 'row'"):
        terrace.torch.offload(model, has_states(model.parameters()), client=roomy, masters=FLOAT)


def test_another_that_is_refused_leaves_a_model_without_masters(roomy):
    plain, steps = narrow(SMALL, BFLOAT16)
    model, optimizer = narrow(SMALL, BFLOAT16)
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    with pytest.raises(terrace.FailedPrecondition, match="the optimizer has states already"):
        terrace.torch.offload(model, has_states(model.parameters()), masters=FLOAT)
    terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
    assert train(model, optimizer, SMALL, steps=3) == train(plain, steps, SMALL, steps=3)
    assert_same(weights(model), weights(plain))


def test_several_optimizers_have_masters(roomy):
    def halves(parameters):
        return torch.optim.AdamW(parameters[::2], lr=1e-3), Untold(parameters[1::2], 1e-3)

    copies = Copies(SMALL, BFLOAT16)
    model, _ = narrow(SMALL, BFLOAT16)
    masters = {id(weight): master for weight, master in copies.pairs}
    plain = halves([masters[id(one)] for one in copies.model.parameters()])
    ours = halves(list(model.parameters()))
    terrace.torch.offload(model, ours, client=roomy, masters=FLOAT, tensor_bytes_min=1)
    for number in range(4):
        for one in (copies.model, model):
            torch.manual_seed(number)
            loss_of(one, number).backward()
        copies.take()
        for one in (*plain, *ours):
            one.step()
        for one in ours:
            one.zero_grad()
        with torch.no_grad():
            for weight, master in copies.pairs:
                weight.copy_(master)
                master.grad = None
        assert_same(weights(model), weights(copies.model))


@pytest.mark.parametrize("write", [
    lambda weight: weight.data[3].zero_(), lambda weight: weight.detach().view(-1)[192:256].fill_(0),
    lambda weight: weight.data.view(torch.int16).numpy().__setitem__(3, 0),
    lambda weight: weight.data.untyped_storage().fill_(0)], ids=["a row", "a part of a view", "numpy", "the storage"])
def test_what_is_written_past_the_parameter_is_the_masters_too(restless, write):
    """To what was taken of its data, between two steps."""
    def run(offload):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        masters = [one.detach().float() for one in model.parameters()]
        if offload:
            terrace.torch.offload(model, optimizer, client=restless, masters=torch.float32, tensor_bytes_min=1)
        for step in range(3):
            model(torch.ones(8, 64, dtype=torch.bfloat16)).float().square().mean().backward()
            if offload:
                optimizer.step()
            for one, master in zip(model.parameters(), masters, strict=True) if not offload else ():
                master.copy_(torch.where(master.bfloat16() != one.data, one.data.float(), master))
                master -= 1e-2 * one.grad.float()
                one.data.copy_(master)
            optimizer.zero_grad()
            if step == 0:
                write(model[0].weight)
        return [one.detach().clone() for one in model.parameters()]

    for ours, plain in zip(run(True), run(False), strict=True):
        assert torch.equal(ours, plain)

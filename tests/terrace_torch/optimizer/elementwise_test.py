# SPDX-License-Identifier: Apache-2.0
"""Shows that an optimizer of the script's own, once it is declared to treat its parameters one by one, steps over leased
memory to the weights that it gives without Terrace, bit for bit; and that what cannot be declared is said by name."""

import copy

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    Recipe,
    assert_same,
    build,
    compare,
    loss_of,
    nothing_stays_leased,
    restless,
    roomy,
    same_for_both,
    weights,
)
from terrace.torch._optimizer.optimizer import managed_optimizer
from terrace.torch._optimizer.states import States

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms". with_last: keeps its last update, too."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, with_last=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "with_last": with_last})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(group, parameter, self.state[parameter])
        return loss

    def update(self, group, parameter, state):
        if not state:
            state["steps"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
        state["steps"] += 1
        slow, slower = group["betas"]
        update = (state["exp_avg"] * slow + parameter.grad * (1 - slow)).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
        state["exp_avg"].mul_(slower).add_(parameter.grad, alpha=1 - slower)
        if group["with_last"]:
            state["last"] = update


class Replacing(torch.optim.Optimizer):
    """Puts new tensors in the place of parameters, of groups that it asks for by number."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for index in range(len(self.param_groups)):
            group = self.param_groups[index]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data = parameter.data - group["lr"] * parameter.grad


@pytest.fixture(autouse=True)
def undeclared(monkeypatch):
    """What a test declares is forgotten after it."""
    from terrace.torch._optimizer import kinds

    monkeypatch.setattr(kinds, "_STATES", dict(kinds._STATES))


@pytest.mark.parametrize("options", [{}, {"step_in_backward": True}, {"what": "states"}], ids=str)
@pytest.mark.parametrize("states", [["exp_avg"], (), lambda group: ["exp_avg", *["last"] * group["with_last"]]],
                         ids=["named", "unnamed", "by-group"])
def test_the_same_bits(restless, states, options):
    assert terrace.torch.declare(Lion, states=states) is Lion
    in_backward = "step_in_backward" in options
    recipe = Recipe(kind=Lion, options=(("lr", 1e-3), ("with_last", True)), accumulation=1 if in_backward else 2,
                    clip=not in_backward)
    model, optimizer = compare(recipe, restless, **options)
    for parameter in model.parameters():
        for key in ("exp_avg", "last"):
            assert type(optimizer.state[parameter][key]).__name__ == "OffloadedTensor"


@pytest.mark.parametrize("options", [{}, {"step_in_backward": True}, {"what": "gradients"}], ids=str)
def test_parameters_that_a_step_replaces(restless, options):
    terrace.torch.declare(Replacing)
    in_backward = "step_in_backward" in options
    compare(Recipe(kind=Replacing, accumulation=1 if in_backward else 2, clip=not in_backward), restless, **options)


class Decaying(Lion):
    """Adds to its gradients unseen, as optimizers did before there was torch.no_grad()."""

    def update(self, group, parameter, state):
        gradient = parameter.grad.data
        gradient.add_(parameter.data, alpha=0.1)
        super().update(group, parameter, state)


def test_gradients_that_a_step_writes_to_unseen(restless):
    terrace.torch.declare(Decaying, states=["exp_avg"])

    def run(model, optimizer):
        said = []
        for seed in range(4):
            loss = loss_of(model, seed)
            loss.backward()  # added to what the step before has left
            optimizer.step()
            said.append(loss.item())
        return said

    same_for_both(restless, run, lambda _: build(Recipe(kind=Decaying)))


@pytest.mark.parametrize("states", [(), ["exp_avg"]], ids=["unnamed", "named"])
def test_states_that_are_loaded_again_and_again_take_no_more_room(roomy, states):
    terrace.torch.declare(Lion, states=states)
    model, optimizer = terrace.torch.offload(*build(Recipe(kind=Lion)), client=roomy, tensor_bytes_min=1)
    loss_of(model, 0).backward()
    optimizer.step()
    kept, names = copy.deepcopy(optimizer.state_dict()), None
    for _ in range(3):
        optimizer.load_state_dict(kept)
        found = roomy.tensors()
        assert names is None or sorted(found) == names
        names = sorted(found)
    loss_of(model, 1).backward()
    optimizer.step()


def test_room_is_made_for_the_states_that_are_named(roomy):
    for states, names in (((), 0), (["exp_avg"], 1)):
        model = torch.nn.Linear(64, 64)
        terrace.torch.declare(Lion, states=states)
        terrace.torch.offload(model, Lion(model.parameters()), client=roomy)
        assert sum("exp_avg" in name for name in roomy.tensors()) == names
        del model


def test_states_that_are_not_named_are_leased_too(roomy, monkeypatch):
    """The step of a class that was declared, or derived, counts what each parameter has; PyTorch's own have what is known
    of them."""
    class Averaging(torch.optim.AdamW):
        """Might keep more."""

    looked = []
    count = States._states_bytes
    monkeypatch.setattr(States, "_states_bytes", lambda *of: looked.append(count(*of) > 0) or count(*of))
    terrace.torch.declare(Lion)
    for kind, wanted in ((Lion, {False, True}), (torch.optim.AdamW, set()), (Averaging, {False, True})):
        looked.clear()
        compare(Recipe(kind=kind), roomy)
        assert set(looked) == wanted


def test_a_class_that_was_made_of_one(roomy):
    """It is known by what it is made of, until it has a step of its own."""
    class Hasty(Lion):
        pass

    class Other(Lion):
        def step(self, closure=None):
            raise AssertionError("is not run")

    terrace.torch.declare(Lion, states=["exp_avg"])
    compare(Recipe(kind=Hasty), roomy)
    model, _ = build(Recipe())
    with pytest.raises(terrace.InvalidArgument, match=r"Other is not known .*cannot be tried: .*is not run.*declare\(Other\)"):
        terrace.torch.offload(model, Other(model.parameters()), client=roomy)


def test_the_first_optimizer_of_a_class_that_was_made_of_one(roomy):
    """Before there is one of the class it is made of, PyTorch puts the step that it inherits into the derived class."""
    class Descent(torch.optim.Optimizer):
        def __init__(self, parameters, lr=0.1):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=group["lr"])

    class Named:
        """Has no step."""

    class Derived(Named, Descent):
        pass

    terrace.torch.declare(Descent)
    compare(Recipe(kind=Derived), roomy)
    compare(Recipe(kind=Descent), roomy)
    assert "step" in vars(Derived)


def test_a_closure_and_a_checkpoint(roomy):
    terrace.torch.declare(Lion, states=["exp_avg"])

    def run(model, optimizer):
        torch.manual_seed(7)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, 1)
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(3)]

    plain, ours = build(Recipe(kind=Lion)), build(Recipe(kind=Lion))
    terrace.torch.offload(*ours, client=roomy, tensor_bytes_min=1)
    assert run(*plain) == run(*ours)
    ours[1].load_state_dict(plain[1].state_dict())
    assert_same(weights(ours[0]), weights(plain[0]))
    wanted = plain[1].state_dict()["state"]
    for number, state in ours[1].state_dict()["state"].items():
        assert all(torch.equal(state[key].clone(), wanted[number][key]) for key in ("exp_avg", "steps"))


class PerStep(Lion):
    """Counts its steps on itself."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


def test_a_count_of_steps_where_parameters_are_stepped_one_by_one(restless):
    terrace.torch.declare(PerStep)
    compare(Recipe(kind=PerStep), restless)
    model, optimizer = build(Recipe(kind=PerStep))
    terrace.torch.offload(model, optimizer, client=restless, tensor_bytes_min=1, step_in_backward=True)
    with pytest.raises(terrace.FailedPrecondition, match="the step of PerStep changes its own 'count', and is run for a few"):
        loss_of(model, 1).backward()


@pytest.mark.parametrize("option", [[1e-3], {"inner": [1e-3]}], ids=str)
def test_an_option_that_changes_in_place_after_the_backward_pass_has_stepped(restless, option):
    terrace.torch.declare(Lion)
    model, optimizer = build(Recipe(kind=Lion))
    optimizer.param_groups[0]["rates"] = option
    terrace.torch.offload(model, optimizer, client=restless, tensor_bytes_min=1, step_in_backward=True)
    loss_of(model, 1).backward()
    (option if isinstance(option, list) else option["inner"])[0] = 2e-3
    with pytest.raises(terrace.FailedPrecondition, match="rates changed after the backward pass"):
        optimizer.step()


def test_a_step_takes_what_it_is_at_as_one_set(roomy, monkeypatch):
    model, optimizer = build(Recipe())
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    loss_of(model, 1).backward()
    optimizer.step()
    loss_of(model, 1).backward()
    asked = []
    acquire = roomy._acquire
    monkeypatch.setattr(roomy, "_acquire", lambda tensors, *how: asked.append(len(tensors)) or acquire(tensors, *how))
    managed_optimizer(optimizer).batch_bytes = 1  # a batch for each parameter
    optimizer.step()
    assert asked == [4] * sum(1 for _ in model.parameters())  # itself, its gradient and its two moments


class Stepless(torch.optim.Optimizer):
    pass


@pytest.mark.parametrize("kind, said", [
    (torch.optim.Muon, "PyTorch's Muon, which is known already"),
    (torch.optim.LBFGS, "PyTorch's LBFGS, which does not"),
    (torch.optim.AdamW, "PyTorch's AdamW, which is known already"), (Stepless, r"Stepless has no step\(\)")])
def test_what_cannot_be_declared(kind, said):
    with pytest.raises(terrace.InvalidArgument, match=f"terrace.torch.declare: .*{said}"):
        terrace.torch.declare(kind)


def test_what_is_no_class_and_no_names():
    with pytest.raises(TypeError, match="declare: <class 'torch.nn.modules.linear.Linear'> is no class of"):
        terrace.torch.declare(torch.nn.Linear)
    with pytest.raises(TypeError, match="declare: 3 is no class of"):
        terrace.torch.declare(3)
    with pytest.raises(TypeError, match="declare: this is an optimizer; give its class, Lion$"):
        terrace.torch.declare(Lion(torch.nn.Linear(1, 1).parameters()))
    for wrong in ("exp_avg", [3], 3):
        with pytest.raises(TypeError, match="states is .*; it is a list of names"):
            terrace.torch.declare(Lion, states=wrong)

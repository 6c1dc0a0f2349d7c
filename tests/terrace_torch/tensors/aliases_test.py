# SPDX-License-Identifier: Apache-2.0
"""Shows that tensors which share a parameter's memory give what they give without Terrace, keep it in memory, or are
refused by name."""

import copy
import ctypes
import functools
import warnings

import pytest
import terrace.torch
import torch
from model_fixtures import nothing_stays_leased, restless, roomy  # noqa: F401 (fixtures)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def offloaded(client, model=None, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) if model is None else model
    return terrace.torch.offload(model, client=client, tensor_bytes_min=1, **options)[0]


@pytest.mark.parametrize("take", [lambda one: one.data, lambda one: one.detach(), lambda one: one.data.view(-1)],
                         ids=["data", "detach", "view"])
def test_data_is_not_replaced_under_what_was_taken_from_it(roomy, take):
    weight = offloaded(roomy)[0].weight
    before, old = weight.detach().clone(), take(weight)
    with pytest.raises(terrace.FailedPrecondition, match=r"'0.weight' was given new data.*clone\(\)"):
        weight.data = torch.zeros(8, 8)
    assert torch.equal(weight, before)
    weight.data = weight.data if take(weight).dim() == 2 else weight
    del old
    weight.data = torch.zeros(8, 8)
    assert not weight.any()


def test_a_part_of_a_tensor_that_the_script_has_does_not_become_data(roomy):
    weight = offloaded(roomy)[0].weight
    before = weight.detach().clone()
    flat = torch.arange(100.0)
    with pytest.raises(terrace.FailedPrecondition, match=r"'0.weight' was given a view as its data.*clone\(\)"):
        weight.data = flat[:64].view(8, 8)
    assert torch.equal(weight, before)
    weight.data = flat[:64].view(8, 8).clone()
    assert torch.equal(weight.flatten(), flat[:64])
    weight.data = torch.ones(100)[:64].view(8, 8)  # of which nothing else is left
    assert weight.sum() == 64
    nn.utils.vector_to_parameters(torch.zeros(64), [weight])
    assert not weight.any()
    with terrace.torch.init(client=roomy, tensor_bytes_min=1):
        made = nn.Linear(8, 8)
        made.weight.data = flat[:64].view(8, 8)  # as who converts checkpoints does
    assert torch.equal(made.weight.flatten(), flat[:64])


def test_a_write_to_data_between_forward_and_backward_is_not_seen(roomy):
    gradients = []
    for model in (nn.Linear(8, 8), offloaded(roomy, nn.Linear(8, 8))):
        with torch.no_grad():
            model.weight.fill_(3.0)
        loss = model.weight.square().sum()
        model.weight.data.mul_(0.5)
        model.weight.data.detach().mul_(0.5)
        loss.backward()
        gradients.append(model.weight.grad.clone())
        loss = model.weight.square().sum()
        model.weight.detach().mul_(0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert torch.equal(*gradients)


def trials(client, take):
    """Twice from the same weights and the same state dict, as take() has it of the optimizer."""
    torch.manual_seed(1)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(4, 8)

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    step()
    weights, states = copy.deepcopy(model.state_dict()), optimizer.state_dict()
    if client is not None:
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
    states = take(states)
    found = []
    for _ in range(2):
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)
        step()
        step()
        found.append(copy.deepcopy(model.state_dict())["weight"])
    return found, states["state"][0]["step"].item()


def test_a_state_dict_that_is_loaded_twice_is_of_one_step(roomy):
    """Plain PyTorch goes on writing into what it was given. So it is here with the optimizer's own; what was not stays
    what it was. It is never a part of each."""
    (first, second), step = trials(roomy, copy.deepcopy)
    assert step == 1
    assert torch.equal(first, second)
    (plain, written), step = trials(None, lambda states: states)
    assert step == 5
    assert torch.equal(first, plain)
    (first, second), step = trials(roomy, lambda states: states)
    assert step == 5
    assert torch.equal(first, plain)
    assert torch.equal(second, written)


def test_what_is_written_to_a_storage_stays(restless):
    model, other = offloaded(restless, nn.Linear(8, 8)), offloaded(restless, nn.Linear(8, 8))
    model.weight.data.untyped_storage().fill_(0)
    for _ in range(3):  # whereupon the other one is sent down
        assert other.weight.any()
    assert not model.weight.any()
    shallow = copy.copy(model.weight.detach())
    shallow.add_(1)
    for _ in range(3):
        assert other.weight.any()
    assert model.weight.sum() == 64


def test_data_is_not_replaced_under_what_a_forward_took(roomy):
    model = offloaded(roomy)
    seen = []

    def swap(module, _inputs):
        old = module.weight.data
        with pytest.raises(terrace.FailedPrecondition, match="was given new data"):
            module.weight.data = torch.zeros(8, 8)
        seen.append(float(old.abs().sum()))

    model[0].register_forward_pre_hook(swap)
    model(torch.ones(1, 8))
    assert seen[0] > 0


def test_parameters_do_not_come_to_share_memory(roomy):
    model = offloaded(roomy)
    before = model[1].weight.detach().clone()
    for value in (model[0].weight.data, model[0].weight):
        with pytest.raises(terrace.FailedPrecondition, match="'1.weight' was given the memory of '0.weight'.*tie"):
            model[1].weight.data = value
    one, other = model[0].weight.data, model[1].weight.data
    with pytest.raises(terrace.FailedPrecondition, match="would share it"):
        model[0].weight.data, model[1].weight.data = other, one
    del one, other, value
    assert torch.equal(model[1].weight, before)
    model[1].weight.data = model[0].weight.data.clone()
    assert torch.equal(model[1].weight, model[0].weight)


def test_hooks_without_a_name(roomy):
    model = offloaded(roomy)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(functools.partial(lambda seen, one: seen.append(1) or one, seen),
                                                  lambda one: one):
        loss = model(torch.ones(2, 8)).sum()
    loss.backward()
    assert seen and model[0].weight.grad.shape == (8, 8)


def test_a_write_under_what_autograd_saved_of_a_detached_weight(roomy):
    weight = offloaded(roomy)[0].weight
    x = torch.ones(2, 8, requires_grad=True)
    loss = (x @ weight.detach()).sum()
    with torch.no_grad():
        weight.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_move_that_fails_half_way_leaves_a_model_that_trains(roomy, monkeypatch):
    def fails(*_):
        raise terrace.Unavailable("no more")

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(terrace.torch._optimizer.states.States, "adopt", fails)
    with pytest.raises(terrace.Unavailable, match="no more"):
        terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    model(torch.ones(2, 8)).sum().backward()
    assert all(type(one) is nn.Parameter and type(one.grad) is torch.Tensor for one in model.parameters())


@pytest.mark.parametrize("make", [lambda one: one.detach().requires_grad_(), lambda one: nn.Parameter(one.data)],
                         ids=["requires_grad_", "Parameter"])
def test_a_leaf_of_a_parameters_memory_is_refused(roomy, make):
    model = offloaded(roomy)
    with pytest.raises(terrace.FailedPrecondition, match=r"'0.weight'.*clone\(\) it first"):
        make(model[0].weight)
    leaf = make(model[0].weight.detach().clone())
    (leaf * 2).sum().backward()
    assert torch.equal(leaf.grad, torch.full((8, 8), 2.0))


def test_what_shares_its_memory_stays_where_it_is(roomy):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].register_buffer("same", model[0].weight.data)
    model[1].share_memory()
    offloaded(roomy, model)
    assert [type(one.weight) is nn.Parameter for one in model] == [True, True, False]
    with torch.no_grad():
        model[0].weight.fill_(3)
    assert torch.equal(model[0].same, model[0].weight) and model[1].weight.is_shared()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_and_traced_modules_are_refused(roomy):
    from torch.fx.experimental.proxy_tensor import make_fx

    with pytest.raises(terrace.InvalidArgument, match="the module '0' is a .*torch.jit"):
        offloaded(roomy, nn.Sequential(torch.jit.script(nn.Linear(8, 8))))
    model = offloaded(roomy)
    with pytest.raises(terrace.FailedPrecondition, match=r"scripted or traced.*after.*a copy\.deepcopy\(\)"):
        torch.jit.trace(model, torch.ones(1, 8))
    with pytest.raises(terrace.FailedPrecondition, match=r"scripted or traced.*after.*a copy\.deepcopy\(\)"):
        torch.jit.script(model)
    with pytest.raises(terrace.FailedPrecondition, match=r"scripted or traced.*after.*a copy\.deepcopy\(\)"):
        torch.jit.trace(lambda x: model(x), torch.ones(1, 8))
    with pytest.raises(terrace.FailedPrecondition, match=r"scripted or traced.*after.*a copy\.deepcopy\(\)"):
        make_fx(model)(torch.ones(1, 8))
    torch.jit.script(copy.deepcopy(model))


def trained(client, take):
    """What a model that has something of its weights from before makes of them, and what that is afterwards."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    taken = take(model)
    if client is not None:
        with pytest.warns(UserWarning, match=r"parameters stay in memory.*0\.weight.*[Ll]et go of it before offload"):
            terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        shown = [f"{number}.{one}" for number in (0, 2) for one in ("weight", "bias")]
        assert terrace.torch.summary(model).left_alone == [
            (name, "something else shows its memory") for name in (shown if isinstance(taken, dict) else shown[:1])]
    found = []
    shown = taken["0.weight"] if isinstance(taken, dict) else torch.as_tensor(taken)
    for step in range(3):
        hidden = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step)))
        (hidden @ shown.reshape(8, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(shown.detach().clone())
    return [*found, *(one.detach().clone() for one in model.parameters())]


def assigned(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return state


TAKEN = {"view": lambda model: model[0].weight.t(), "detached": lambda model: model[0].weight.detach(),
         "data": lambda model: model[0].weight.data.view(-1), "array": lambda model: model[0].weight.detach().numpy(),
         "state_dict": lambda model: model.state_dict(), "assigned": assigned}


@pytest.mark.parametrize("how", TAKEN)
def test_what_was_taken_of_a_weight_before_offload_shows_what_is_there(roomy, how):
    for one, other in zip(trained(None, TAKEN[how]), trained(roomy, TAKEN[how]), strict=True):
        assert torch.equal(one, other)


def test_a_graph_that_is_kept_shows_a_weight(roomy):
    model = nn.Linear(8, 8)
    loss = model(torch.ones(1, 8, requires_grad=True)).sum()
    with pytest.warns(UserWarning, match="an output whose graph is kept"):
        offloaded(roomy, model)
    loss.backward()
    assert type(model.weight) is nn.Parameter


def test_other_parts_go_to_terrace_whatever_shows_a_weight(roomy):
    model = nn.Linear(8, 8)
    taken = model.weight.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offloaded(roomy, model, what={"gradients"})
    model(torch.ones(1, 8)).sum().backward()
    assert type(model.weight.grad) is terrace.torch._tensors.offloaded.OffloadedTensor and taken is not None


def stepped(model):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.ones(2, 8, requires_grad=True)).sum()
        loss.backward()
        optimizer.step()
    return optimizer, loss


def in_a_cycle(model):
    cycle = [model[0].weight.detach()]
    cycle.append(cycle)


def run_compiled(model):
    model[0] = torch.compile(model[0], backend="eager")
    return stepped(model)


def parametrized(model):
    utilities = nn.utils
    utilities.parametrizations.weight_norm(model[0])
    utilities.parametrizations.spectral_norm(model[2])
    model.append(utilities.spectral_norm(nn.Linear(8, 8)))  # which leaves an attribute over its weight's memory
    model.append(utilities.parametrizations.orthogonal(nn.Linear(8, 8)))


WAYS = {"loaded": lambda model: [state := copy.deepcopy(model.state_dict()), model.load_state_dict(state)],
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), foreach=True), "stepped": stepped,
        "copied": copy.deepcopy, "averaged": torch.optim.swa_utils.AveragedModel, "compiled": run_compiled,
        "garbage": in_a_cycle, "parametrized": parametrized,
        "moved": lambda model: model.float().to("cpu"),
        "vector": lambda model: nn.utils.parameters_to_vector(model.parameters()),
        "lists": lambda model: [list(model.named_parameters()), dict(model.named_modules())]}  # of parameters themselves


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("way", WAYS)
def test_what_scripts_do_before_offload_shows_no_weight(roomy, way):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    kept = WAYS[way](model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offloaded(roomy, model)
    assert not terrace.torch.summary(model).left_alone
    model(torch.ones(2, 8)).sum().backward()
    del kept


def test_a_move_that_changes_nothing_leases_nothing(restless):
    """As libraries make them of a model, and of an optimizer's states, before they train and afterwards."""
    model = offloaded(restless)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    weight = model[0].weight
    tensors = (weight, weight.data, weight.grad, optimizer.state[weight]["momentum_buffer"])

    def leases():
        return [one.leases for one in terrace.torch.summary(model).modules]

    before = leases()
    assert model.cpu().float().to("cpu", torch.float32) is model and model.type(torch.float32) is model
    for tensor in tensors:
        assert all(one is tensor for one in (tensor.to("cpu"), tensor.to(torch.float32), tensor.float(), tensor.cpu()))
    assert leases() == before
    for tensor in tensors:
        for moved in (tensor.to("cpu", copy=True), tensor.double(), tensor.to(torch.zeros(0, dtype=torch.float64))):
            assert moved is not tensor and torch.equal(moved, tensor.detach().clone())
    assert leases() != before


@pytest.mark.parametrize(("how", "said"), [("set_", "was to be given other memory"), ("unseen", "was given other memory")])
def test_other_memory_while_a_module_runs(roomy, how, said):
    class Replaces(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 8))

        def forward(self, x):
            with torch.no_grad():
                if how == "set_":
                    self.weight.set_(self.weight * 2)
                else:
                    torch._C.TensorBase.data.__set__(self.weight, self.weight * 2)
            return x @ self.weight

    model = Replaces()
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    with pytest.raises(terrace.FailedPrecondition, match=rf"'weight' lives in Terrace, and {said}"):
        model(torch.ones(1, 8))
    assert torch.equal(model.weight, torch.ones(8, 8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_to_write_where_nobody_is_asked(roomy):
    @torch.jit.script
    def doubled(weight: torch.Tensor):
        return weight * 2

    weight = offloaded(roomy)[0].weight
    before = weight.detach().clone()
    assert torch.equal(doubled(weight.detach()), 2 * before)
    doubled(weight.clone()).sum().backward()
    assert torch.equal(weight.grad.clone(), torch.full((8, 8), 2.0))
    other = torch.empty(8, 8)
    for taken in (weight.detach(), weight.grad):
        other.data = taken.clone()
        assert torch.equal(other, taken) and torch.equal(torch.from_dlpack(taken), other)
        assert torch.equal(torch.from_dlpack(torch.utils.dlpack.to_dlpack(taken)), other)
        read = (ctypes.c_float * 64).from_address(taken.data_ptr())
        assert torch.equal(torch.tensor(list(read)).view(8, 8), other)

# SPDX-License-Identifier: Apache-2.0
"""Shows that weights give the same bits where PyTorch's C++ is handed them unasked: by torch.func, by forward-mode AD and
in the backward pass, within their modules and outside them; and what it is that cannot be had so."""

import copy
import gc

import pytest
import terrace
import terrace.torch
import torch
from model_fixtures import restless  # noqa: F401 (a fixture)
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

WIDTH = 64


def two_layers():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def inputs(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(7))


def found(client, make, run):
    """What a run gives with this model, in memory or offloaded; its error's type and text where it raises."""
    torch.manual_seed(0)
    model = make()
    if client is not None:
        terrace.torch.offload(model, client=client, tensor_bytes_min=1)
    try:
        given = run(model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    parts = given if isinstance(given, tuple | list) else [given]
    return [(part.requires_grad, part.detach().clone()) for part in parts]


def assert_same_bits(client, make, run):
    plain, ours = (found(one, make, run) for one in (None, client))
    assert not isinstance(plain, str), plain
    assert not isinstance(ours, str), ours
    for (tracked, expected), (tracked_too, number) in zip(plain, ours, strict=True):
        assert tracked == tracked_too and torch.equal(expected, number)
        assert not number.isnan().any()
    gc.collect()
    assert client.leased_bytes == 0 and client.held == 0


def trained(model, result):
    """A result, and what its backward pass brings the weights."""
    result.sum().backward()
    return [result.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]


def skeleton(model):
    bare = copy.deepcopy(model).to("meta")
    return list(grad(lambda given: functional_call(bare, given, (inputs(4, WIDTH),)).square().mean())(
        dict(model.named_parameters())).values())


def per_sample(model):
    def loss(given, x):
        return functional_call(model, given, (x,)).square().sum()

    return list(vmap(grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), inputs(5, WIDTH)).values())


def ensemble(model):
    bare = copy.deepcopy(model[0]).to("meta")
    given, _ = stack_module_state(list(model))
    return vmap(lambda given, x: functional_call(bare, given, (x,)), in_dims=(0, None))(given, inputs(3, WIDTH))


def pulled_back(model):
    value, back = vjp(torch.sin, model[0].weight)
    return trained(model, value + back(model[1].weight)[0])


def pulled_back_after_a_write(model):
    _, back = vjp(torch.sin, model[0].weight)
    with torch.no_grad():
        model[1].weight.mul_(2)
    return back(model[1].weight)[0]


def dual(model):
    with forward_ad.dual_level():
        return trained(model, forward_ad.unpack_dual(forward_ad.make_dual(model[0].weight, model[1].weight).sin())[1])


def written(transform):
    def run(model):
        with torch.no_grad():
            transform(lambda weight: weight.mul_(2))(model[0].weight)
        return model[0].weight.clone()

    return run


def of_a_gradient(model):
    model(inputs(4, WIDTH)).sum().backward()
    gradient = model[0].weight.grad
    x = torch.ones(WIDTH, WIDTH, requires_grad=True)
    (x * 2).backward(gradient)
    return vmap(torch.sum)(gradient), grad(lambda one: one.sin().sum())(gradient), x.grad


def rows_of_a_jacobian(model):
    total = (inputs(3, WIDTH) @ model[0].weight).sin().sum(0)
    return vmap(lambda row: torch.autograd.grad(total, model[0].weight, row, retain_graph=True)[0])(torch.eye(WIDTH)[:3])


TRANSFORMS = {
    "grad": lambda model: trained(model, grad(lambda weight: weight.sin().square().sum())(model[0].weight)),
    "grad beside it": lambda model: trained(model, grad(lambda x, weight: (x @ weight).sin().sum())(
        inputs(3, WIDTH), model[0].weight)),
    "grad around it": lambda model: trained(model, grad(lambda x: (x @ model[0].weight).sin().sum())(inputs(3, WIDTH))),
    "grad with more": lambda model: trained(model, grad(lambda weight: (weight.sin().sum(), weight), has_aux=True)(
        model[0].weight)[1].square()),
    "vmap": lambda model: trained(model, vmap(lambda row: row.square().sum())(model[0].weight)),
    "vmap around it": lambda model: trained(model, vmap(lambda x: (model[0].weight @ x).sin().sum())(inputs(3, WIDTH))),
    "vmap of grad": lambda model: trained(model, vmap(grad(lambda x: (model[0].weight @ x).sin().sum()))(
        inputs(3, WIDTH))),
    "jvp": lambda model: trained(model, jvp(torch.sin, (model[0].weight,), (model[1].weight,))[1]),
    "jacrev": lambda model: trained(model, jacrev(lambda weight: weight[0].sin())(model[0].weight)),
    "jacfwd": lambda model: trained(model, jacfwd(lambda weight: weight[0, :3].sin())(model[0].weight)),
    "hessian": lambda model: trained(model, hessian(lambda weight: weight[0, :2].sin().sum())(model[0].weight)),
    "functionalize": lambda model: trained(model, functionalize(lambda weight: weight.view(-1).mul(2))(model[0].weight)),
    "without a graph": torch.no_grad()(lambda model: grad(lambda weight: weight.sin().sum())(model[0].weight)),
    "linearize": lambda model: linearize(torch.sin, model[0].weight.detach())[1](torch.ones(WIDTH, WIDTH)),
    "vjp": pulled_back, "vjp after a write": pulled_back_after_a_write, "make_dual": dual, "skeleton": skeleton,
    "per sample": per_sample, "ensemble": ensemble, "written by vmap": written(vmap),
    "written by functionalize": written(functionalize), "of a gradient": of_a_gradient,
    "rows of a jacobian": rows_of_a_jacobian}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_weights(restless, name):  # noqa: F811
    assert_same_bits(restless, two_layers, TRANSFORMS[name])


class Gate(nn.Module):
    """Its weight itself is what autograd saves."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        return x * self.weight


def tied():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
    model[2].weight = model[0].weight
    return model


MODULES = {
    "gate": (Gate, (3, WIDTH, WIDTH)), "norm": (lambda: nn.LayerNorm(WIDTH), (3, WIDTH)), "tied": (tied, (3, WIDTH)),
    "convolution": (lambda: nn.Conv2d(4, 8, 3), (3, 4, 8, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout=0.0), (3, 5, WIDTH)),
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), (3, WIDTH))}


@pytest.mark.parametrize("name", MODULES)
def test_transforms_around_modules(restless, name):  # noqa: F811
    make, size = MODULES[name]
    x = inputs(*size)

    def loss(model):
        return lambda one: model(one).square().sum()

    assert_same_bits(restless, make, lambda model: grad(loss(model))(x))
    assert_same_bits(restless, make, lambda model: vjp(model, x)[1](torch.ones_like(model(x)))[0])
    assert_same_bits(restless, make, lambda model: trained(model, vmap(loss(model))(x)))
    if name != "attention":  # PyTorch has no other derivatives of it
        assert_same_bits(restless, make, lambda model: jvp(model, (x,), (x,))[1])
        assert_same_bits(restless, make, lambda model: trained(model, vmap(grad(loss(model)))(x).square()))


def test_a_recurrent_module_within_a_transform(restless):  # noqa: F811
    assert_same_bits(restless, lambda: nn.LSTM(WIDTH, WIDTH),
                     lambda model: grad(lambda x: model(x)[0].square().sum())(inputs(3, WIDTH)))


def test_a_graph_whose_saved_tensors_cannot_be_hooked(restless):  # noqa: F811
    def run(model):
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            result = model(inputs(WIDTH, WIDTH)) + inputs(WIDTH, WIDTH) * model.weight
        return trained(model, result.square())

    assert_same_bits(restless, Gate, run)


class GivesWeight(torch.autograd.Function):
    """Its gradient is the weight itself. saves: it is kept as autograd keeps it."""

    @staticmethod
    def forward(context, x, weight, saves):
        context.save_for_backward(*([weight] if saves else []))
        context.weight = None if saves else weight
        return (x * weight).sum()

    @staticmethod
    def backward(context, gradient):
        return context.weight if context.weight is not None else context.saved_tensors[0], None, None


def backward_of(make):
    def run(model):
        x = torch.ones(WIDTH, WIDTH, requires_grad=True)
        make(x, model[0].weight)
        return x.grad

    return run


BACKWARDS = {
    "backward": backward_of(lambda x, weight: (x * 2).backward(weight)),
    "several": backward_of(lambda x, weight: torch.autograd.backward([x * 2, x * 3], [weight, torch.ones_like(x)])),
    "grad": lambda model: torch.autograd.grad((x := torch.ones(WIDTH, WIDTH, requires_grad=True)) * 2, x, model[0].weight),
    "batched": lambda model: torch.autograd.grad((x := torch.ones(WIDTH, requires_grad=True)) * 2, x, model[0].weight,
                                                 is_grads_batched=True),
    "with a graph": lambda model: trained(model, torch.autograd.grad(
        (x := torch.ones(WIDTH, WIDTH, requires_grad=True)).sin(), x, model[0].weight, create_graph=True)[0].square()),
    "saved": backward_of(lambda x, weight: GivesWeight.apply(x, weight, True).backward()),
    "kept": backward_of(lambda x, weight: GivesWeight.apply(x, weight, False).backward()),
    "as another class": lambda model: trained(model, model[0].weight.as_subclass(torch.Tensor).square())}


@pytest.mark.parametrize("name", BACKWARDS)
def test_weights_as_gradients(restless, name):  # noqa: F811
    assert_same_bits(restless, two_layers, BACKWARDS[name])


def assigned(model):
    other = torch.zeros(WIDTH, WIDTH)
    other.data = model[0].weight.clone()
    return other


def hooked(model):
    x = torch.ones(WIDTH, WIDTH, requires_grad=True)
    result = x * 2
    result.register_hook(lambda gradient: model[0].weight.clone())
    result.sum().backward()
    return x.grad


COPIED = {
    "Tensor": lambda model: torch.Tensor(model[0].weight.clone()),
    "tensor": lambda model: torch.tensor(model[0].weight.detach()),
    "new": lambda model: torch.zeros(1).new(model[0].weight.clone()),
    "new_tensor": lambda model: torch.zeros(1).new_tensor(model[0].weight.detach()),
    "set_": lambda model: torch.empty(0).set_(model[0].weight.clone()),
    "nested_tensor": lambda model: torch.nested.nested_tensor([model[0].weight.clone()])[0],
    "sparse": lambda model: torch.sparse_coo_tensor(torch.arange(WIDTH)[None], model[0].weight.clone()).to_dense(),
    "data": assigned, "hook": hooked}


@pytest.mark.filterwarnings("ignore")  # PyTorch advises against some of these itself
@pytest.mark.parametrize("name", COPIED)
def test_what_is_to_be_written_where_nothing_asks(restless, name):  # noqa: F811
    assert_same_bits(restless, two_layers, COPIED[name])


@pytest.mark.parametrize("run,error", (
    (lambda model: linearize(torch.sin, model[0].weight), "'0.weight' lives in Terrace.*weight.detach()"),
    (lambda model: torch.autograd.functional.jvp(torch.sin, model[0].weight, model[0].weight), "0.weight.*clone()"),
    (lambda model: functionalize(lambda weight: weight.mul_(2))(model[0].weight), "leaf Variable that requires grad")))
def test_what_is_an_error(restless, run, error):  # noqa: F811
    torch.manual_seed(0)
    model, _ = terrace.torch.offload(two_layers(), client=restless)
    with pytest.raises((RuntimeError, terrace.FailedPrecondition), match=error):
        run(model)


def test_ordinary_tensors_are_as_ever(restless):  # noqa: F811
    """Also in code that is compiled, which looks into the functions that are ours now."""
    model, _ = terrace.torch.offload(two_layers(), client=restless)
    x = inputs(4, 4)
    for run in (lambda x: grad(lambda one: one.sin().sum())(x), lambda x: vmap(lambda one: one.sin().sum())(x),
                lambda x: jvp(torch.sin, (x,), (x,))[1]):
        assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(x), run(x))
    assert model is not None

# SPDX-License-Identifier: Apache-2.0
"""Shows that with step_in_backward a gradient that the backward pass cannot step with is stepped with in optimizer.step(),
as without it, and that a script which would have had another step is told so. And that passes in threads, with it and
without, add up."""

import contextlib
import threading

import pytest
import terrace.torch
import torch
from model_fixtures import nothing_stays_leased, restless  # noqa: F401 (fixtures)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def begin(model, kind=torch.optim.SGD, **options):
    return model, kind(model.parameters(), **options)


def linear(**options):
    torch.manual_seed(1)
    return begin(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), lr=0.5, momentum=0.9, **options)


def deep():
    torch.manual_seed(1)
    layers = [nn.Linear(16, 64), *[nn.Linear(64, 64) for _ in range(6)]]
    return begin(nn.Sequential(*layers), lr=0.5)


def loss_of(model, seed=0):
    return model(torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))).square().mean()


def sparse(_model=None):
    torch.manual_seed(1)
    return begin(nn.Embedding(16, 16, sparse=True), lr=0.5)


def by_hand(model):
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss_of(model), parameters), strict=True):
        parameter.grad = gradient


def there_before(model):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    loss_of(model).backward()


def with_a_graph(model):
    loss_of(model).backward(create_graph=True)


def of_one_layer(model):
    model[0](torch.ones(1, 16)).square().mean().backward()


def both(restless, make, script, *, step_in_backward=True, **options):
    """The same script without Terrace, and with it."""
    plain = make()
    script(*plain)
    ours = terrace.torch.offload(*make(), client=restless, tensor_bytes_min=1, step_in_backward=step_in_backward, **options)
    script(*ours)
    for one, other in zip(plain[0].parameters(), ours[0].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("give", [by_hand, there_before, with_a_graph])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_that_the_backward_pass_leaves(restless, give):
    def script(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            give(model)
            optimizer.step()
        optimizer.zero_grad()  # a gradient with a graph has what the graph has

    both(restless, linear, script)


def test_gradients_that_are_there_when_it_is_offloaded(restless):
    def make():
        model, optimizer = linear()
        loss_of(model).backward()
        return model, optimizer

    both(restless, make, lambda model, optimizer: optimizer.step())


def test_sparse_gradients(restless):
    def script(model, optimizer):
        for seed in range(3):
            model(torch.arange(seed, seed + 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    both(restless, sparse, script)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_what_a_pass_does_not_use_is_stepped_with_the_zeros_of_zero_grad(restless, kind):
    """Momentum and weight decay move it: an expert of a mixture that no token came to."""
    def make():
        torch.manual_seed(1)
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        return begin(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), kind, lr=0.1, **options)

    def script(model, optimizer):
        for number in range(6):
            loss_of(model, number).backward() if number % 3 == 0 else of_one_layer(model)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    both(restless, make, script)


def test_a_gradient_that_is_changed_between_the_pass_and_the_step_is_refused(restless):
    def drop(model):
        model[0].weight.grad = None

    def replace(model):
        model[0].weight.grad = torch.ones(16, 16)

    def empty(model):
        model[0].weight.grad.zero_()

    for change in (drop, replace, empty, nn.Module.zero_grad):
        model, optimizer = terrace.torch.offload(*linear(), client=restless, tensor_bytes_min=1, step_in_backward=True)
        loss_of(model).backward()
        change(model)
        with pytest.raises(terrace.FailedPrecondition, match="'0.weight': the backward pass has stepped it.*of no use"):
            optimizer.step()
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def test_a_second_step_with_the_same_gradients_is_refused(restless):
    model, optimizer = terrace.torch.offload(*linear(), client=restless, tensor_bytes_min=1, step_in_backward=True)
    loss_of(model).backward()
    optimizer.step()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(terrace.FailedPrecondition, match=r"'0.weight': optimizer.step\(\) would step it once more.*zero_grad"):
        optimizer.step()
    for one, other in zip(before, model.parameters(), strict=True):
        assert torch.equal(one, other)
    optimizer.zero_grad()
    optimizer.step()  # which does nothing
    loss_of(model).backward()
    optimizer.step()


LIMIT_SECONDS = 60


def test_passes_in_threads_add_up(restless):
    """Four at a time, as often as it takes for them to come to a weight at the same moment."""
    def script(model, optimizer):
        for _ in range(24):
            threads = [threading.Thread(target=loss.backward) for loss in [loss_of(model) for _ in range(4)]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_SECONDS)
            optimizer.step()
            optimizer.zero_grad()

    both(restless, deep, script, step_in_backward=False)


@contextlib.contextmanager
def within_an_accumulation(model, weight):
    """Another thread's pass waits meanwhile, about to accumulate to `weight`."""
    began, over = threading.Event(), threading.Event()

    def wait(_):
        if not began.is_set():
            began.set()
            over.wait(LIMIT_SECONDS)

    hook = weight.register_hook(wait)
    other = threading.Thread(target=loss_of(model).backward)
    other.start()
    began.wait(LIMIT_SECONDS)
    try:
        yield
    finally:
        over.set()
        other.join(LIMIT_SECONDS)
        hook.remove()


def test_a_pass_that_fails_beside_another_takes_nothing_from_it(restless):
    def fail(_):
        raise ZeroDivisionError

    def script(model, optimizer):
        for _ in range(2):
            with within_an_accumulation(model, model[1].weight):
                hook = model[1].weight.register_hook(fail)
                with pytest.raises(ZeroDivisionError):
                    loss_of(model).backward()
            hook.remove()
            optimizer.step()
            optimizer.zero_grad()

    both(restless, linear, script, step_in_backward=False)


def test_two_passes_at_once_are_refused(restless):
    """The one that came second; the first goes on."""
    def script(model, optimizer):
        with within_an_accumulation(model, model[1].weight):
            if hasattr(model[1].weight, "terrace"):
                with pytest.raises(terrace.FailedPrecondition, match="at once"):
                    loss_of(model).backward(inputs=[model[1].weight])
        optimizer.step()
        optimizer.zero_grad()

    both(restless, linear, script)

# SPDX-License-Identifier: Apache-2.0
"""Shows that what a declared optimizer's step comes to does not depend on how much memory there is: over tiers of several
sizes the numbers are plain PyTorch's, bit for bit; and that what depends on more than a few parameters is refused by name where it is run for a few at a time."""

import contextlib
import gc
import os
import re
import shutil
import tempfile

import pytest
import terrace.torch
import torch
from model_fixtures import Gpt, loss_of, weights
from odd_steps import IN_BACKWARD, RIGHT, CollectingAlone, SameMemory, Sharing

MEMORY = ("8MiB", "12MiB", "32MiB", "512MiB")  # the smallest one has room for a parameter or two at a time
STEPS = 4


@pytest.fixture(autouse=True)
def undeclared(monkeypatch):
    """What a test declares is forgotten after it."""
    from terrace.torch._optimizer import kinds

    monkeypatch.setattr(kinds, "_STATES", dict(kinds._STATES))


@pytest.fixture(scope="module")
def clients():
    """A client of a daemon for each size of memory."""
    folder = tempfile.mkdtemp(prefix="e2e-", dir=os.environ["TERRACE_BUILD"])
    with contextlib.ExitStack() as daemons:
        daemons.callback(shutil.rmtree, folder)
        yield [daemons.enter_context(terrace.serve(size, block=f"{folder}:128MiB", metrics=False)) for size in MEMORY]


def trained(kind, client=None, **options):
    """Losses and weights of a run; or the words with which it was refused."""
    torch.manual_seed(1)
    model = Gpt(width=128, blocks=3)
    matrices, vectors = ([one for one in model.parameters() if (one.dim() > 1) == wanted] for wanted in (True, False))
    optimizer = kind([{"params": matrices, "lr": 0.04}, {"params": vectors}])
    if client is not None:
        terrace.torch.declare(kind)
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, **options)
    torch.manual_seed(2)
    losses = []
    try:
        for number in range(STEPS):
            loss = loss_of(model, number)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    except terrace.FailedPrecondition as refusal:
        return str(refusal)
    return losses, {name: one.numpy().tobytes() for name, one in weights(model).items()}


def names(kind):
    return getattr(kind, "__name__", "")


@pytest.mark.parametrize("kind", RIGHT, ids=names)
def test_the_numbers_are_the_same_at_every_size(clients, kind):
    wanted = trained(kind)
    assert all(trained(kind, client) == wanted for client in clients)
    assert all(client.leased_bytes == 0 for client in clients)


def test_a_state_that_is_a_parameters_memory_is_refused_at_every_size(clients):
    said = {trained(SameMemory, client) for client in clients}
    gc.collect()
    assert len(said) == 1 and re.search("the state 'before' of .* is the memory of .* itself.*clone", said.pop())
    assert all(client.leased_bytes == 0 for client in clients)


@pytest.mark.parametrize("kind, said", IN_BACKWARD.items(), ids=names)
def test_what_is_run_for_a_few_parameters_at_a_time_is_refused_by_name(clients, kind, said):
    for client in clients:
        found = trained(kind, client, step_in_backward=True)
        if kind.__name__.endswith("OfFirst") and client is clients[-1]:
            assert found == trained(kind)  # where all are stepped at once
        else:
            assert re.search(said, found, re.DOTALL)


def test_a_step_that_keeps_nothing_is_right_in_backward(clients):
    wanted = trained(CollectingAlone)
    assert all(trained(CollectingAlone, client, step_in_backward=True) == wanted for client in clients)


def test_a_state_that_parameters_share_already_stays_one(clients):
    def run(client):
        torch.manual_seed(1)
        model = Gpt(width=64, blocks=2)
        optimizer = Sharing(model.parameters())
        for number in range(3):
            if number == 1 and client is not None:
                terrace.torch.declare(Sharing)
                terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
            torch.manual_seed(number)
            loss_of(model, number).backward()
            optimizer.step()
            optimizer.zero_grad()
        return {name: one.numpy().tobytes() for name, one in weights(model).items()}

    assert run(clients[0]) == run(None)

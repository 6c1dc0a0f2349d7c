# SPDX-License-Identifier: Apache-2.0
"""Shows that a cast of a weight is, in the backward pass, what it was when it was made: where the weight is as it was the
cast is made again, and where the weight changed meanwhile the cast itself is kept."""

import pytest
import torch
from model_fixtures import nothing_stays_leased, restless, same_for_both  # noqa: F401 (fixtures)
from terrace.torch._parameters import saved
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def network(_recipe=None):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def generator_and_discriminator(_recipe=None):
    """As one model, of which the discriminator is stepped."""
    model = nn.ModuleList([network()[0], network()[0]])
    return model, torch.optim.Adam(model[1].parameters(), lr=1e-2)


def noted(monkeypatch):
    """Of each saved cast of a weight, whether it is made again."""
    found, cast_of = [], saved._cast_of

    def looked_at(tensor):
        managed = cast_of(tensor)
        if tensor.dtype == torch.bfloat16 and tensor.shape == (48, 48):
            found.append(managed is not None)
        return managed

    monkeypatch.setattr(saved, "_cast_of", looked_at)
    return found


def test_turns_within_one_region_of_autocast(restless):
    """What autocast has cast of the discriminator's first layer is saved only after its step: its input has no gradient
    before that."""
    def run(model, optimizer):
        generator, discriminator = model
        said = []
        for number in range(3):
            torch.manual_seed(number)
            with torch.autocast("cpu", torch.bfloat16):
                made = generator(torch.randn(8, 48))
                loss = discriminator(made.detach()).float().mean() - discriminator(torch.randn(8, 48)).float().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                other = -discriminator(made).float().mean()
                other.backward()
                said += [loss.item(), other.item(), *(one.grad.tolist() for one in generator.parameters())]
                model.zero_grad()
        return said

    same_for_both(restless, run, generator_and_discriminator)


@pytest.mark.parametrize("write", [lambda weight: weight.mul_(2), lambda weight: weight.data.mul_(2),
                                   lambda weight: weight.copy_(weight * 2)], ids=["in-place", "data", "copy"])
def test_a_cast_that_is_older_than_a_write(restless, write):
    def run(model, optimizer):
        weight = model[0].weight
        cast = weight.to(torch.bfloat16)
        with torch.no_grad():
            write(weight)
        x = torch.ones(4, 48, dtype=torch.bfloat16, requires_grad=True)
        loss = model((x @ cast).float()).square().mean()
        loss.backward()
        optimizer.step()
        return [loss.item(), x.grad.tolist()]

    same_for_both(restless, run, network)


def test_two_casts_in_turns(restless):
    def run(model, optimizer):
        weight = model[0].weight
        x = torch.ones(4, 48, requires_grad=True)
        halves = [weight.to(torch.bfloat16), weight.to(torch.float64)]
        with torch.no_grad():
            weight.add_(1)
        halves += [weight.to(torch.bfloat16), weight.to(torch.float64)]
        loss = sum((x.to(half.dtype) @ half).float().square().mean() for half in (*halves, *halves))
        loss.backward()
        optimizer.step()
        return [loss.item(), x.grad.tolist()]

    same_for_both(restless, run, network)


def test_of_an_ordinary_step_no_cast_is_kept(restless, monkeypatch):
    found = noted(monkeypatch)

    def run(model, optimizer):
        for number in range(3):
            torch.manual_seed(number)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(8, 48, requires_grad=True)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.item()]

    same_for_both(restless, run, network)
    assert len(found) >= 6 and all(found)

# SPDX-License-Identifier: Apache-2.0
"""Shows that what autograd saves is right in Terrace where its bytes change and no version of the tensor tells of it."""

import contextlib

import pytest
import terrace.torch
import torch
from python_fixtures import disk  # noqa: F401 (a fixture)
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_fixtures import leaves_nothing, roomy  # noqa: F401 (a fixture)

activations = terrace.torch.activations


@pytest.mark.parametrize("order", ["train, eval", "eval, train"])
def test_statistics_that_a_kernel_changes_unseen(roomy, order):
    def run(saved):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 8192), nn.BatchNorm1d(8192), nn.Linear(8192, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(3):
            batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            with saved():
                loss = sum(model.train(mode == "train")(batch).square().mean() for mode in order.split(", "))
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    assert run(lambda: activations(roomy, keep_bytes=0)) == run(contextlib.nullcontext)


def test_what_data_shows_has_a_version_of_its_own(roomy):
    def run(saved):
        torch.manual_seed(0)
        fast, batch = torch.randn(256, 256), torch.randn(64, 256, requires_grad=True)
        with saved():
            nn.functional.linear(batch, fast.data).tanh().sum()  # of which nothing comes
            with torch.no_grad():
                fast.mul_(0.5)
            nn.functional.linear(batch, fast.data).tanh().sum().backward()
        return batch.grad

    assert torch.equal(run(lambda: activations(roomy, keep_bytes=0)), run(contextlib.nullcontext))


def test_in_place_operations_in_a_checkpointed_block(roomy):
    def gradients(context):
        torch.manual_seed(7)
        layer = torch.nn.Linear(100, 100)
        source = torch.randn(200, 100).requires_grad_()
        for reentrant in (False, True):
            with context:
                def block(value):
                    return torch.relu_(layer(value).mul_(2).add_(1))
                value = checkpoint(block, source * 1, use_reentrant=reentrant)
                checkpoint(block, value, use_reentrant=reentrant).square().sum().backward()
        return layer.weight.grad, source.grad

    context = activations(roomy, keep_bytes=0)
    assert all(map(torch.equal, gradients(context), gradients(contextlib.nullcontext())))
    assert context.moved > 0 and leaves_nothing(context)

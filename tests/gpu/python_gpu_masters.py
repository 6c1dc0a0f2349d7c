# SPDX-License-Identifier: Apache-2.0
"""Weights in bfloat16 on a real GPU, stepped by float32 masters, bit for bit as a plain loop that keeps copies: 25 MB of
weights and seven times as much with all that belongs to them, where HBM has 48 MiB for it and DRAM 96. For a machine with
a GPU, PyTorch for CUDA and pytest; skipped elsewhere. tests/gpu/run calls it.
"""

from collections.abc import Iterator

import pytest
import terrace.torch
import torch
from python_gpu_fixtures import serve_gpu
from python_gpu_training import Stack, batch_of, equal, weights
from torch import nn

STEPS = range(12)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[terrace.Client]:
    with serve_gpu("48MiB", "96MiB", tmp_path_factory.mktemp("block")) as served:
        yield served


def build(checkpoints: bool = False) -> Stack:
    torch.manual_seed(0)
    return Stack(checkpoints).to(torch.bfloat16).cuda()


def backward(model: nn.Module, number: int, parts: int) -> float:
    batch = batch_of(number).to(torch.bfloat16)
    loss = (model(batch) - batch.roll(1, 0)).square().mean() / parts
    loss.backward()
    return loss.item()


def plain(kind: type, parts: int, clip: bool, checkpoints: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = build(checkpoints)
    copies = [weight.detach().float().requires_grad_() for weight in model.parameters()]
    optimizer, losses = kind(copies, lr=1e-3), []
    for step in STEPS:
        losses += [backward(model, step * parts + part, parts) for part in range(parts)]
        if clip:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        for weight, master in zip(model.parameters(), copies, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(model.parameters(), copies, strict=True):
                weight.copy_(master)
    return losses, weights(model)


@pytest.mark.parametrize(("kind", "parts", "clip", "in_backward", "checkpoints"), [
    (torch.optim.AdamW, 1, False, False, False),
    (torch.optim.AdamW, 2, True, False, False),
    (torch.optim.AdamW, 1, False, True, False),
    (torch.optim.AdamW, 1, False, False, True),
    (torch.optim.SGD, 1, True, False, False),
], ids=["adamw", "accumulated-clipped", "in-backward", "checkpointed", "sgd-clipped"])
def test_masters_step_as_a_loop_with_copies(small: terrace.Client, kind: type, parts: int, clip: bool, in_backward: bool,
                                            checkpoints: bool) -> None:
    model = build(checkpoints)
    optimizer = kind(model.parameters(), lr=1e-3)
    terrace.torch.offload(model, optimizer, masters=torch.float32, step_in_backward=in_backward, client=small)
    losses: list[float] = []
    for step in STEPS:
        losses += [backward(model, step * parts + part, parts) for part in range(parts)]
        if clip:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
        optimizer.zero_grad()
    expected, left = plain(kind, parts, clip, checkpoints)
    assert losses == expected
    assert equal(weights(model), left)

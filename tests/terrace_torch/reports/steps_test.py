# SPDX-License-Identifier: Apache-2.0
"""Shows which steps are marked for the daemon, and as what, from nothing but what a script does with its model."""

import pytest
import terrace.torch
import torch
from model_fixtures import RECIPE, build, loss_of, roomy  # noqa: F401 (a fixture)


class Marked(terrace.Client):
    """Notes the steps that were marked."""

    def mark_step(self, kind="train"):
        self.marks = [*getattr(self, "marks", []), kind]
        super().mark_step(kind)

    def taken(self):
        marks, self.marks = self.marks, []
        return marks


@pytest.fixture
def job(roomy):
    with Marked(roomy.socket, guarantees={"host": 1 << 20}) as client:
        model, optimizer = terrace.torch.offload(*build(RECIPE), client=client, tensor_bytes_min=1)
        assert client.taken() == ["train"]
        yield client, model, optimizer


def step(model, optimizer, parts=1):
    for part in range(parts):
        (loss_of(model, part) / parts).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_plain_training(job):
    client, model, optimizer = job
    for _ in range(3):
        step(model, optimizer)
        assert client.taken() == ["train"], "one step began with the end of the one before"
    (loss_of(model, 0) + loss_of(model, 1)).backward()  # two passes, one step
    optimizer.step()
    assert client.taken() == ["train"]


def test_accumulation(job):
    client, model, optimizer = job
    step(model, optimizer, 3)
    assert client.taken() == ["train", "train", "accumulate"], "how many parts there are is known at its end"
    step(model, optimizer, 3)
    assert client.taken() == ["accumulate", "train", "accumulate"]
    step(model, optimizer, 1)
    step(model, optimizer, 1)
    assert client.taken() == ["train", "train"]


def test_optimizers_that_step_one_after_the_other(job):
    """End one step, also of an accumulation."""
    client, model, optimizer = job
    other = torch.optim.SGD(model.norm.parameters(), lr=0.1)
    terrace.torch.offload(model, other, tensor_bytes_min=1)
    for expected in (["train"], ["accumulate", "train"], ["accumulate", "train"]):
        for part in range(2):
            loss_of(model, part).backward()
        assert client.taken() == expected
        optimizer.step()
        other.step()
        model.zero_grad()


def test_evaluation(job):
    client, model, optimizer = job
    with torch.no_grad():
        loss_of(model, 0)
        loss_of(model, 1)
    assert client.taken() == ["eval", "eval"]
    step(model, optimizer)
    assert client.taken() == ["train", "train"]
    loss_of(model, 0).backward()
    model.eval()
    loss_of(model, 0)
    with torch.inference_mode():
        loss_of(model, 0)
    model.train()
    loss_of(model, 1).backward()  # the second part
    optimizer.step()
    assert client.taken() == ["eval", "eval", "train", "accumulate"]


def test_training_in_evaluation_mode(job):
    """As where normalization is frozen: noticed with the first gradient."""
    client, model, optimizer = job
    model.eval()
    for _ in range(2):
        step(model, optimizer)
    assert client.taken() == ["eval", "train", "train"]
    loss = loss_of(model, 0)
    with torch.no_grad():
        loss_of(model, 1)
    loss.backward()
    optimizer.step()
    assert client.taken() == ["eval", "train"]


def test_nothing_to_train(job):
    """In training mode, and with graphs recorded: as of a teacher, or of what prompts are tuned for."""
    client, _, _ = job
    model = build(RECIPE)[0].requires_grad_(False)
    terrace.torch.offload(model, client=client, tensor_bytes_min=1)
    client.taken()
    loss_of(model, 0)
    loss_of(model, 1)
    assert client.taken() == ["eval", "eval"]
    model.head.weight.requires_grad_(True)
    loss_of(model, 2).backward()
    loss_of(model, 3).backward()
    assert client.taken() == ["train", "train"]


def test_no_optimizer(job):
    client, _, _ = job
    model, _ = build(RECIPE)
    terrace.torch.offload(model, client=client, tensor_bytes_min=1)
    client.taken()
    for number in range(3):
        loss_of(model, number).backward()
    assert client.taken() == ["train", "train"]

# SPDX-License-Identifier: Apache-2.0
"""Shows what the line of progress says: of each step that has ended, one line; all leases hit where everything is in
memory, and those of what was sent down do not."""

import gc
import re
import weakref

import pytest
import terrace.torch
import torch
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)
from torch import nn

LAYERS, WIDTH = 4, 64
LINE = re.compile(r"step (\d+): [\d.]+ s, ([\d.]+)% hits, ([\d.]+)% waited, ([\d.]+) MiB leased")


@pytest.fixture
def served(disk):
    with terrace.serve("16MiB", block=f"{disk}:64MiB", metrics=False) as client:
        yield client


class Job:
    """A model that is trained, and the lines that were said of it."""

    def __init__(self, client):
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        terrace.torch.offload(self.model, self.optimizer, client=client, tensor_bytes_min=1)
        self.lines = []

    def backward(self):
        self.model(torch.randn(2, WIDTH, requires_grad=True)).square().mean().backward()

    def step(self, parts=1):
        for _ in range(parts):
            self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def said(self):
        """Of each line its numbers: the step, percent of hits, percent of waiting, MiB."""
        lines, self.lines[:] = list(self.lines), []
        return [tuple(float(number) for number in LINE.fullmatch(line).groups()) for line in lines]


def test_a_line_for_each_step(served):
    job = Job(served)
    terrace.torch.progress(job.model, show=job.lines.append)
    for number in range(1, 4):
        job.step()
        ((step, hits, waited, mib),) = job.said()
        assert (step, hits) == (number, 100.0) and 0 <= waited <= 100
        # forward, backward, and the optimizer's parameters and gradients; each gradient as it comes
        assert mib == pytest.approx(5 * LAYERS * WIDTH * WIDTH * 4 / MIB, abs=0.05)
    job.step(parts=2)
    job.said()
    job.step(parts=2)
    assert [step for step, *_ in job.said()] == [6], "the parts of an accumulation are one step"
    with torch.no_grad():
        for _ in range(3):
            job.model(torch.randn(2, WIDTH))
    assert len(job.said()) == 2, "the third has not ended"
    terrace.torch.progress(job.model, every=2, show=job.lines.append)
    for _ in range(4):
        job.step()
    assert [step for step, *_ in job.said()] == [2, 4]
    terrace.torch.progress(job.model, every=0)
    job.step()
    assert not job.lines


def test_what_was_not_there_is_no_hit(served):
    job = Job(served)
    job.step()
    terrace.torch.progress(job.model, show=job.lines.append)
    served.swap_out([parameter.terrace.slot.tensor for parameter in job.model.parameters()])
    job.step()
    ((_, hits, waited, _),) = job.said()
    assert hits < 100 and waited > 0
    job.step()
    assert job.said()[0][1] == 100.0


def test_it_keeps_nothing_and_says_what_is_wrong(served, capsys):
    with pytest.raises(terrace.FailedPrecondition, match="was not offloaded"):
        terrace.torch.progress(nn.Linear(2, 2))
    job = Job(served)
    with pytest.raises(terrace.InvalidArgument, match="progress: every is -1"):
        terrace.torch.progress(job.model, every=-1)
    terrace.torch.progress(job.model)
    job.step()
    assert LINE.fullmatch(capsys.readouterr().out.strip())
    gone = weakref.ref(job.model)
    del job
    gc.collect()
    assert gone() is None and not served.tensors()

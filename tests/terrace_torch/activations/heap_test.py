# SPDX-License-Identifier: Apache-2.0
"""Shows that memory of activations that went to Terrace leaves the process, too, or is used again where the process was
started as docs/guides/pytorch.md says, that whoever has set how the process allocates is left alone, and that the placeholders of a model that grows while it is built take little memory."""

import os
import platform
import re

import pytest
import terrace.torch._leased.placeholder as placeholders
import torch
from python_fixtures import ROOT, disk, run_program  # noqa: F401 (a fixture)

# Prints by how much the process has grown in a forward pass, and the bytes that went to Terrace.
GROWS = """
import pathlib, sys
import terrace.torch, torch

def own():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

torch.set_num_threads(1)
torch.manual_seed(1)
layers = [layer for _ in range(20) for layer in (torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))]
model = torch.nn.Sequential(*layers)
with terrace.serve("8MiB", block=f"{sys.argv[1]}:128MiB", metrics=False) as client:
    moving = terrace.torch.activations(client, keep_bytes=0)
    before = own()
    with moving:
        loss = model(torch.randn(1024, 64)).square().mean()
    print(own() - before, moving.moved_bytes)
"""

# Prints by how much the process has grown once a model of tensors of several sizes is built, and the model's bytes.
BUILDS = """
import pathlib, sys
import terrace.torch
from torch import nn

def own():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width),
                         nn.Linear(width, 4 * width), nn.Linear(4 * width, width))

with terrace.serve("16MiB", block=f"{sys.argv[1]}:256MiB", metrics=False) as client:
    with terrace.torch.init(client=client, tensor_bytes_min=1):
        model = nn.ModuleList(block(256) for _ in range(2))
        before = own()
        model.extend(block(256) for _ in range(32))
    print(own() - before, sum(parameter.nbytes for parameter in model.parameters()))
"""


def tunables():
    """What docs/guides/pytorch.md has a process start with."""
    page = ROOT / "docs/guides/pytorch.md"
    ((name, value),) = re.findall(r"^(GLIBC_TUNABLES)=(\S+) python ", page.read_text(), re.MULTILINE)
    return {name: value}


def grown(folder, program=None, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ended = run_program(program or GROWS, str(folder), env=kept | environment)
    assert ended.returncode == 0, ended.stderr
    return [int(word) for word in ended.stdout.split()]


def test_what_went_to_terrace_leaves_the_process(disk):
    here, there = grown(disk)
    assert there > 32 << 20
    assert here < there // 2


@pytest.mark.skipif(platform.libc_ver() != ("glibc", "2.36"), reason="said of this version alone")
def test_started_so_that_the_heap_finds_what_was_freed(disk):
    here, there = grown(disk, **tunables())
    assert there > 32 << 20
    assert here < there // 2


@pytest.mark.parametrize("environment", [{}, tunables()], ids=["as it comes", "with the page's tunables"])
def test_a_model_of_several_sizes_leaves_the_process_while_it_is_built(disk, environment):
    here, there = grown(disk, BUILDS, **environment)
    assert there > 64 << 20
    assert here < there // 4


@pytest.mark.parametrize("environment", [{"MALLOC_ARENA_MAX": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}])
def test_an_environment_that_says_how_to_allocate_is_left_alone(environment):
    program = "from terrace.torch._device import heap; print(heap.give_back_freed_memory())"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    assert run_program(program, env=kept | environment).stdout == "False\n"


SUMMARY = """
import terrace.torch, torch
with terrace.serve("64MiB", metrics=False) as client:
    with terrace.torch.activations(client):
        torch.nn.Linear(256, 256)(torch.ones(256, 256)).sum().backward()
    print(str(terrace.torch.summary()).splitlines()[-1])
"""


@pytest.mark.skipif(platform.libc_ver() != ("glibc", "2.36"), reason="said of this version alone")
def test_the_summary_says_how_freed_memory_is_used_again():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ((name, value),) = tunables().items()
    assert f"start Python with {name}={value} in its environment" in run_program(SUMMARY, env=kept).stdout
    assert name not in run_program(SUMMARY, env=kept | tunables()).stdout


def test_placeholders_come_from_few_regions(monkeypatch):
    made = []

    def region(count, device):
        made.append(count)
        return placeholder(count, device)

    placeholder = placeholders.Placeholder
    monkeypatch.setattr(placeholders, "Placeholder", region)
    space = placeholders.PlaceholderSpace(1, torch.device("cpu"))
    taken = [space.take((4 << 20,), (1,), torch.float32) for _ in range(256)]  # 4 GiB in all
    assert len({one.data_ptr() for one in taken}) == 256 and taken[-1].isnan().all()
    assert len(made) < 12

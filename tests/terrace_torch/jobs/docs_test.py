# SPDX-License-Identifier: Apache-2.0
"""Shows that every snippet of docs/guides/pytorch.md, and of those on masters and autocast, runs, in order, as one script, and
that the examples train to the losses that they have without Terrace."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import terrace.torch
import torch
from python_fixtures import LIMIT_SECONDS, ROOT, disk  # noqa: F401 (a fixture)

EXAMPLE = ROOT / "client/python/examples/train_offloaded.py"


def run(*command, folder, text=None):
    environment = {name: value for name, value in os.environ.items() if name != "TERRACE_WHAT"}  # a reader has not set it
    ended = subprocess.run([sys.executable, "-B", *command], input=text, capture_output=True, text=True, cwd=folder,
                           timeout=2 * LIMIT_SECONDS, check=False, env={**environment, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def test_every_snippet_runs(disk):
    page = (ROOT / "docs/guides/pytorch.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```") // 2 - 1 == 8  # one is a command: heap_test.py
    script = "\n".join(blocks).replace("/var/tmp:", f"{disk}:") + "\nprint(train(1))\nprint(client.leased_bytes)\n"
    ended = run("-W", "error", "-", folder=disk, text=script)
    lines = ended.stdout.splitlines()
    assert lines[-1] == "0" and "guaranteed 8 MiB" in ended.stdout and ended.stderr == ""
    plain, (line, rest) = blocks[0].split("daemon = ")[0], blocks[0].split("# the line\n")
    assert line.splitlines()[-1].startswith("model, optimizer = terrace.torch.offload(")
    assert run("-", folder=disk, text=plain + rest).stdout.splitlines()[0] == lines[0]
    assert {path.name for path in disk.iterdir()} >= {"model.safetensors", "model.optimizer.safetensors", "shapes.pt"}


def test_masters_are_those_of_the_loop_on_the_page(disk):
    page = (ROOT / "docs/guides/masters.md").read_text()
    script = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)).replace("/var/tmp:", f"{disk}:")
    loop = script.partition("plain = build()")[2].partition("print(losses")[0]
    assert len(loop.splitlines()) <= 20
    ended = run("-W", "error", "-", folder=disk, text=script + "\nprint(client.leased_bytes)\n")
    assert ended.stdout.splitlines() == ["True", "torch.float32", "0"] and ended.stderr == ""


def test_autocast_is_that_of_plain_pytorch(disk):
    page = (ROOT / "docs/guides/autocast.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    losses, casts = run("-W", "error", "-", folder=disk, text=block.replace("/var/tmp:", f"{disk}:")).stdout.splitlines()
    assert casts == str(["bfloat16"] * 12)
    plain, rest = block.split("daemon = ")[0], block.split("# the line\n")[1].split("print(sorted")[0]
    assert run("-", folder=disk, text=plain + rest).stdout == losses + "\n"


def test_the_optimizers_that_the_page_speaks_of_are_known():
    assert "All of PyTorch's optimizers but LBFGS work" in (ROOT / "docs/guides/pytorch.md").read_text()
    from terrace.torch._optimizer import kinds

    known = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type) and name not in ("Optimizer", "LBFGS")
             and issubclass(kind, torch.optim.Optimizer)}
    assert known == {kind.__name__ for kind in kinds._STATES}


def test_the_example(disk):
    options = ["--steps", "3", "--blocks", "2", "--width", "96", "--batch", "1"]
    plain = run(EXAMPLE, "--plain", *options, folder=disk).stdout
    offloaded = run(EXAMPLE, "--memory", "4MiB", "--block", f"{disk}:256MiB", "--save", disk / "gpt.safetensors",
                    *options, folder=disk).stdout
    losses = re.compile(r"loss ([\d.]+)")
    assert losses.findall(plain) == losses.findall(offloaded) and len(losses.findall(plain)) == 3
    assert (disk / "gpt.optimizer.safetensors").stat().st_size > (disk / "gpt.safetensors").stat().st_size
    assert "guaranteed 2 MiB" in offloaded


BIG = ROOT / "client/python/examples/train_big.py"
SMALL = ["--steps", "2", "--blocks", "3", "--width", "128", "--context", "32"]


def big_losses(said):
    found = re.findall(r"loss ([\d.]+)", said)
    assert len(found) == 2
    return found


def test_the_big_example_on_a_small_scale(disk):
    """Its losses are those without Terrace; and it says what it lacks where it cannot run."""
    options = [*SMALL, "--limit", "0", "--block", disk]
    plain = run(BIG, "--plain", *options, folder=disk).stdout
    assert big_losses(run(BIG, "--memory", "16", *options, folder=disk).stdout) == big_losses(plain)
    ended = subprocess.run([sys.executable, "-B", BIG, "--blocks", "10000000", "--block", disk], capture_output=True,
                           text=True, timeout=LIMIT_SECONDS, check=False)
    assert ended.returncode == 3 and "train_big: no room: the block tier takes" in ended.stdout


def test_the_big_example_under_a_limit(disk):
    """In a cgroup with its daemon, where one can be made: it ends well, and has left the cgroup and removed it."""
    options = [*SMALL, "--block", disk]
    with subprocess.Popen([sys.executable, "-B", BIG, "--memory", "16", "--limit", "768", *options], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as started:
        said, _ = started.communicate(timeout=2 * LIMIT_SECONDS)
    if started.returncode == 3:
        assert "train_big: no cgroup can be made here" in said
        pytest.skip(said.strip())
    assert started.returncode == 0, said
    (most,) = re.findall(r"^memory of everything, at most: (\d+) of 768 MiB$", said, re.MULTILINE)
    assert int(most) <= 768 and not list(pathlib.Path("/sys/fs/cgroup").glob(f"**/train_big-{started.pid}"))
    assert big_losses(said) == big_losses(run(BIG, "--plain", *options, "--limit", "0", folder=disk).stdout)

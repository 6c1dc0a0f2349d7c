#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training of a byte-level GPT on two ranks, whose parameters, gradients and optimizer states live in one
daemon. Started as it is, it starts a daemon and torchrun; within torchrun (TERRACE_SOCKET names the daemon) it is a
rank. It saves what torchrun's next attempt goes on from when a rank has died. `--fsdp` splits the model over the ranks
(fully_shard) instead of copying it to each. `--plain` leaves Terrace out; the losses are the same."""

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import torch
from gpt_model import Recipe, Shape, Text, loss_of, make_layer
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import terrace.torch


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="without Terrace")
    parser.add_argument("--fsdp", action="store_true", help="each rank has its part of the model")
    parser.add_argument("--steps", type=int, default=10, help="steps of training (%(default)s)")
    parser.add_argument("--blocks", type=int, default=4, help="the model's depth (%(default)s)")
    parser.add_argument("--width", type=int, default=192, help="the model's width (%(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step and rank (%(default)s)")
    parser.add_argument("--memory", default="32MiB", help="size of the memory tier (%(default)s)")
    parser.add_argument("--block", default="/var/tmp:2GiB", help="folder and size of the block tier (%(default)s)")
    parser.add_argument("--restarts", type=int, default=2, help="how often torchrun may start over (%(default)s)")
    parser.add_argument("--checkpoint", type=pathlib.Path, default="two_ranks", help="folder to save in; what it has of an earlier run goes (%(default)s)")
    return parser.parse_args()


def launch(arguments: argparse.Namespace) -> int:
    """Starts a daemon, and two ranks that find it by their environment."""
    (arguments.checkpoint / "latest").unlink(missing_ok=True)  # this training begins at its first step
    for older in arguments.checkpoint.glob("step-*"):
        shutil.rmtree(older)
    with contextlib.ExitStack() as daemon:
        # The last: each attempt gets a store of its own. In the one that they share otherwise gloo finds the addresses
        # of the ranks before (PyTorch 2.13), and cannot connect.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if not arguments.plain:
            client = daemon.enter_context(terrace.serve(memory=arguments.memory, block=arguments.block,
                                                        guarantees={"host": 0}))  # the ranks have all of it
            environment["TERRACE_SOCKET"] = client.socket
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                   f"--max-restarts={arguments.restarts}", *sys.argv]
        return subprocess.run(command, env=environment, check=False).returncode


def train(arguments: argparse.Namespace) -> None:
    """One rank of it."""
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    shape = Shape(blocks=arguments.blocks, width=arguments.width, batch=arguments.batch)
    recipe = Recipe()
    text = Text()
    model = nn.Sequential(*(make_layer(shape, index, recipe.seed) for index in range(shape.layers)))
    wrapped = split(model) if arguments.fsdp else nn.parallel.DistributedDataParallel(model)
    optimizer = recipe.optimizer(list(model.parameters()))
    if not arguments.plain:
        wrapped, optimizer = terrace.torch.offload(wrapped, optimizer, what="all")  # the line
    saved = Parts(model, optimizer) if arguments.fsdp else Whole(model, optimizer)
    begin = resume(arguments.checkpoint, saved)
    say(f"rank {rank} is process {os.getpid()} and begins with step {begin + 1}")
    for step in range(begin, arguments.steps):
        source, target = text.batch(shape, recipe.seed, step * ranks + rank)
        loss = loss_of(wrapped(source), target)
        loss.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        distributed.all_reduce(mean)
        saved.save(arguments.checkpoint / f"step-{step + 1}")
        if rank == 0:
            finish(arguments.checkpoint, step + 1)
            say(f"step {step + 1:3}  loss {mean.item() / ranks!r}")
        distributed.barrier()


def say(line: str) -> None:
    """Prints a line in one write. `print` takes two under torchrun, and another rank's line can come between them."""
    print(f"{line}\n", end="", flush=True)


def split(model: nn.Sequential) -> nn.Module:
    """Leaves of each layer its part to this rank."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Whole:
    """A checkpoint that the first rank writes, a tensor at a time, and each rank reads."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer = model, optimizer

    def save(self, path: pathlib.Path) -> None:
        if distributed.get_rank() == 0:
            path.mkdir(parents=True, exist_ok=True)
            terrace.torch.save(path / "model.safetensors", self.model, self.optimizer)

    def load(self, path: pathlib.Path) -> None:
        terrace.torch.load(path / "model.safetensors", self.model, self.optimizer)


class Parts(Whole):
    """One to which each rank writes its parts, a tensor at a time."""

    def _state(self) -> dict[str, Any]:
        return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True))

    def save(self, path: pathlib.Path) -> None:
        checkpoint.save(self._state(), checkpoint_id=path)

    def load(self, path: pathlib.Path) -> None:
        state = self._state()
        checkpoint.load(state, checkpoint_id=path)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])


def finish(folder: pathlib.Path, step: int) -> None:
    """Makes a checkpoint, which is whole now, the one that counts: `latest` names it."""
    (folder / "latest.partial").write_text(str(step))
    os.replace(folder / "latest.partial", folder / "latest")
    for older in folder.glob("step-*"):
        if older.name != f"step-{step}":
            shutil.rmtree(older)


def resume(folder: pathlib.Path, saved: Whole) -> int:
    """Reads the last checkpoint, if there is one; how many steps it has behind it."""
    if not (folder / "latest").exists():
        return 0
    step = int((folder / "latest").read_text())
    saved.load(folder / f"step-{step}")
    return step


def main() -> int:
    arguments = parse_arguments()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return launch(arguments)
    train(arguments)
    distributed.destroy_process_group()  # once the model is gone, which would wait for the group's threads at its own end
    return 0


if __name__ == "__main__":
    sys.exit(main())

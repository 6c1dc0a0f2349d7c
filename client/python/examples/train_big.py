#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT of 1.0 billion parameters with AdamW in fp32, 16 GB of state, in 2 GiB of memory: a cgroup
limits this process and its daemon together, file cache and all. The model is built straight into Terrace, stepped in
the backward pass, and its activations wait in Terrace as well. Where there is no room for it on the disk, or no cgroup
to be had, it says so and ends with status 3. `--width` and `--blocks` make it smaller."""

import argparse
import contextlib
import os
import pathlib
import shutil
import sys
import time

MIB = 1 << 20
NOT_HERE = 3
ROOT = pathlib.Path("/sys/fs/cgroup")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="without Terrace (killed, where the limit holds)")
    parser.add_argument("--steps", type=int, default=20, help="steps of training (%(default)s)")
    parser.add_argument("--blocks", type=int, default=20, help="the model's depth (%(default)s)")
    parser.add_argument("--width", type=int, default=2048, help="the model's width (%(default)s)")
    parser.add_argument("--context", type=int, default=128, help="bytes a sequence (%(default)s)")
    parser.add_argument("--batch", type=int, default=2, help="sequences a step (%(default)s)")
    parser.add_argument("--limit", type=int, default=2048, help="MiB for everything; 0: no cgroup (%(default)s)")
    parser.add_argument("--memory", type=int, default=768, help="MiB of it for the memory tier (%(default)s)")
    parser.add_argument("--block", default="/var/tmp", help="folder for the block tier, on a real disk (%(default)s)")
    return parser.parse_args()


def parameters_of(arguments: argparse.Namespace) -> int:
    """How many parameters the blocks have, which is nearly all."""
    return 12 * arguments.width * arguments.width * arguments.blocks


class Cgroup:
    """A new cgroup with so much memory, and none to swap to; version 2, or 1. This process is in it, and so is what it
    starts, until close()."""

    def __init__(self, limit_bytes: int):
        self.second = (ROOT / "cgroup.controllers").exists()
        root = ROOT if self.second else ROOT / "memory"
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == ("" if self.second else "memory"):
                self.before = root / path.lstrip("/")
                break
        else:
            raise OSError("no memory controller")
        # in version 2 a cgroup that has processes of its own cannot limit cgroups below it
        above = self.before.parent if self.second and self.before != root else self.before
        self.path = above / f"train_big-{os.getpid()}"
        self.path.mkdir()
        try:
            (self.path / ("memory.max" if self.second else "memory.limit_in_bytes")).write_text(str(limit_bytes))
            if self.second and (self.path / "memory.swap.max").exists():
                (self.path / "memory.swap.max").write_text("0")
            (self.path / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            self.path.rmdir()
            raise

    def peak_bytes(self) -> int:
        """The most that was used; 0 where this kernel does not say."""
        said = self.path / ("memory.peak" if self.second else "memory.max_usage_in_bytes")
        return int(said.read_text()) if said.exists() else 0

    def close(self) -> None:
        """Goes back to where this process was."""
        (self.before / "cgroup.procs").write_text(str(os.getpid()))
        self.path.rmdir()


def main() -> int:
    arguments = parse_arguments()
    needed = parameters_of(arguments) * 14 + (1 << 30)
    free = shutil.disk_usage(arguments.block).free
    if free < needed:
        print(f"train_big: no room: the block tier takes {needed // MIB} MiB in {arguments.block}, and "
              f"{free // MIB} MiB are free")
        return NOT_HERE
    if not arguments.limit:
        train(arguments, needed)
        return 0
    try:
        group = Cgroup(arguments.limit * MIB)
    except OSError as error:
        print(f"train_big: no cgroup can be made here ({error}): run it as root; or as systemd-run --user --scope "
              "-p MemoryMax=2G ... --limit 0")
        return NOT_HERE
    try:
        train(arguments, needed)
        print(f"memory of everything, at most: {group.peak_bytes() // MIB} of {arguments.limit} MiB")
    finally:
        group.close()
    return 0


def train(arguments: argparse.Namespace, block_bytes: int) -> None:
    import torch
    from gpt_model import Recipe, Shape, Text, loss_of, make_layer

    import terrace.torch

    shape = Shape(arguments.blocks, arguments.width, arguments.width // 64, arguments.context, arguments.batch)
    recipe, text = Recipe(), Text()
    with contextlib.ExitStack() as made:
        building = saving = contextlib.nullcontext()
        if not arguments.plain:
            client = made.enter_context(terrace.serve(
                memory=f"{arguments.memory}MiB", block=f"{arguments.block}:{block_bytes // MIB}MiB",
                guarantees={"host": arguments.memory * MIB * 7 // 8}))
            building, saving = terrace.torch.init(client=client), terrace.torch.activations(client)
        begin = time.perf_counter()
        with building:
            model = torch.nn.Sequential(*(make_layer(shape, index, recipe.seed) for index in range(shape.layers)))
        optimizer = recipe.optimizer(list(model.parameters()))
        if not arguments.plain:
            model, optimizer = terrace.torch.offload(model, optimizer, step_in_backward=True)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{count:,} parameters, {16 * count / 1e9:.1f} GB of state with gradients, built in "
              f"{time.perf_counter() - begin:.0f} s", flush=True)
        for step in range(arguments.steps):
            begin = time.perf_counter()
            source, target = text.batch(shape, recipe.seed, step)
            with saving:
                loss = loss_of(model(source), target)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step + 1:3}  loss {loss.item()!r}  {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())

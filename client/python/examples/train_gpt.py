#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT whose parameters and Adam moments live in Terrace, in tiers that are too small for them; then
trains it again with everything in memory, in a process of its own, and shows that the losses are equal bit for bit.

Both runs are one ordinary training loop; the first has one more line, with terrace.torch.offload(). With --gpu cuda:0 it
trains on that GPU, in whose memory the device tier is then. Where PyTorch computes on one and the tier's memory is
another's, layers are leased by hand instead (gpt_leased.py).

The text is the sources of Python's standard library. A private daemon is started and taken down again. The exit status
is 0 if the losses were equal, 1 if they were not.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import pathlib
import resource
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from gpt_leased import LeasedModel, train_leased
from gpt_model import Recipe, Shape, Step, Text, build, make_deterministic, train, train_in_memory
from gpt_report import Metrics, Occupancy, Progress, Traffic, draw, mebibytes, print_table

import terrace.torch

PLACE = "device:0"
PR_SET_PDEATHSIG = 1
CORRUPTED = ("/1.mlp_in.weight", "/mlp_in.weight/parameter")  # how a weight's name in Terrace ends, by either way


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="steps of training (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers to this file")
    parser.add_argument("--png", type=pathlib.Path, help="draw loss and tier occupancy into this file")
    parser.add_argument("--terraced", help="the daemon's binary (default: $TERRACED, the PATH, the source tree)")
    parser.add_argument("--keep", action="store_true", help="keep the daemon afterwards, until Ctrl-C")
    parser.add_argument("--block", type=pathlib.Path, help="folder for the block file, on a real disk (default: beside "
                        "--json, else the source tree's build folder, else /var/tmp)")
    parser.add_argument("--device", default="64MiB", help="size of the device tier (%(default)s)")
    parser.add_argument("--gpu", default="emulated", help='what the device tier is: "emulated", or "cuda:0" for a '
                        "GPU's own memory (%(default)s)")
    parser.add_argument("--way", choices=("offload", "leases"), help="one line with terrace.torch.offload(), or each "
                        "layer leased by hand (default: offload, where the device tier is where PyTorch computes)")
    parser.add_argument("--memory", default="128MiB", help="size of the memory tier (%(default)s)")
    parser.add_argument("--block-size", default="2GiB", help="size of the block tier (%(default)s)")
    parser.add_argument("--policy", choices=("lru", "s3-fifo", "next-use"), help="the daemon's (default: its own; "
                        "docs/concepts/planning.md)")
    parser.add_argument("--blocks", type=int, default=Shape.blocks, help="the model's depth (%(default)s)")
    parser.add_argument("--batch", type=int, default=Shape.batch, help="sequences a step (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="PyTorch's (%(default)s)")
    parser.add_argument("--in-memory-only", action="store_true", help="train in memory alone, without a daemon")
    parser.add_argument("--debug-corrupt", action="store_true",
                        help="flip bits of one byte of one released tensor after the first step: the losses differ")
    arguments = parser.parse_args()
    if min(arguments.steps, arguments.blocks, arguments.batch, arguments.threads) < 1:
        parser.error("--steps, --blocks, --batch and --threads are 1 or more")
    if arguments.way == "offload" and arguments.gpu.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--way offload trains where the memory is, and this PyTorch has no CUDA: leave out --gpu "
                     f"{arguments.gpu}, or use --way leases")
    return arguments


def block_folder(arguments: argparse.Namespace) -> pathlib.Path:
    """Where the block file goes: a folder on a disk, which temporary folders often are not."""
    if arguments.block is not None:
        arguments.block.mkdir(parents=True, exist_ok=True)
        return arguments.block.resolve()
    if arguments.json is not None:
        return arguments.json.resolve().parent
    built = pathlib.Path(__file__).resolve().parents[3] / "build"
    return built if built.is_dir() else pathlib.Path("/var/tmp")


def compute_device(arguments: argparse.Namespace) -> torch.device:
    """Where PyTorch computes: on the GPU that is named, else on one that there is, where layers are leased by hand."""
    named = arguments.gpu.startswith("cuda")
    return torch.device("cuda" if torch.cuda.is_available() and (named or arguments.way != "offload") else "cpu")


def way_of(arguments: argparse.Namespace, client: terrace.Client, device: torch.device) -> str:
    """How it trains: as told, else by what holds the device tier and what computes."""
    in_gpu = any(place.gpu for place in client.places())
    return arguments.way or ("offload" if in_gpu == (device.type == "cuda") else "leases")


def start(way: str, client: terrace.Client, shape: Shape, recipe: Recipe, text: Text, steps: int,
          device: torch.device) -> tuple[object, Iterator[Step]]:
    """Moves the model to Terrace; gives it, and the steps of its training."""
    if way == "leases":
        leased = LeasedModel(client, shape, recipe, PLACE, device)
        return leased, train_leased(leased, client, text, steps)
    model, optimizer = build(shape, recipe, device)
    model, optimizer = terrace.torch.offload(model, optimizer, client=client, place=PLACE, what="all", step_in_backward=True)
    return model, train(model, optimizer, shape, recipe, text, steps, device)


def corrupt(client: terrace.Client) -> None:
    """Debug hook: flips bits of one byte of one weight that nobody holds a lease on."""
    weight = next(tensor for name, tensor in client.tensors().items() if name.endswith(CORRUPTED))
    with weight.write() as lease:
        lease.numpy().view("uint8").reshape(-1)[3] ^= 3  # of the exponent: the weight grows or shrinks manifold


@dataclasses.dataclass
class LeasedRun:
    """What the run through Terrace came to."""

    model: object  # while it is there, so are its tensors: for who looks at a daemon that is kept
    way: str
    losses: list[float]
    step_seconds: float
    step_cpu_seconds: float
    step_wait_seconds: list[float]
    traffic: Traffic
    occupancy: Occupancy
    leased_bytes_max: int
    upper_bytes: int


def waited_seconds(client: terrace.ServedClient) -> float:
    """How long leases were waited for since the daemon started."""
    return Metrics(client.metrics_url).sum("terrace_acquire_wait_seconds_sum")


def run_leased(arguments: argparse.Namespace, client: terrace.ServedClient, shape: Shape, recipe: Recipe, text: Text,
               device: torch.device) -> LeasedRun:
    before = Metrics(client.metrics_url)
    way = way_of(arguments, client, device)
    with Occupancy(client.metrics_url) as occupancy:
        print("moving the first weights to Terrace (a few seconds)", flush=True)
        model, training = start(way, client, shape, recipe, text, arguments.steps, device)
        kept = sum(tensor.nbytes for tensor in client.tensors().values())
        print(f"{shape.parameters:,} parameters; what Terrace has of the training takes {mebibytes(kept)}, in tiers of "
              f"{arguments.device} (device) and {arguments.memory} (memory)", flush=True)
        progress = Progress("through Terrace", arguments.steps)
        steps = []
        waited = [waited_seconds(client)]
        for step in training:
            progress.show(step)
            steps.append(step)
            waited.append(waited_seconds(client))
            if arguments.debug_corrupt and len(steps) == 1:
                corrupt(client)
    upper = sum(size for tier, size in occupancy.capacity.items() if tier != "block")
    return LeasedRun(model, way, [step.loss for step in steps], *medians(steps),
                     [later - earlier for earlier, later in itertools.pairwise(waited)],
                     Traffic.between(before, Metrics(client.metrics_url)), occupancy, client.leased_bytes_max, int(upper))


def wait_for_disk(folder: pathlib.Path) -> None:
    """Until the disk has for good what the daemon wrote: with it in a cache of its own (or its host's), it would still be
    at work while the second run is timed. Syncing the folder flushes that cache."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system that syncs no folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def run_in_memory(arguments: argparse.Namespace, shape: Shape, recipe: Recipe, text: Text,
                  device: torch.device) -> int:
    """Trains with everything in memory, and writes what that gave."""
    progress = Progress("in memory      ", arguments.steps)
    steps = []
    for step in train_in_memory(shape, recipe, text, arguments.steps, device):
        progress.show(step)
        steps.append(step)
    seconds, cpu_seconds = medians(steps)
    if arguments.json is None:
        print(f"step in memory: {seconds:.2f} s")
    else:
        arguments.json.write_text(json.dumps({"losses": [step.loss for step in steps], "step_seconds": seconds,
                                              "step_cpu_seconds": cpu_seconds}) + "\n")
    return 0


def train_beside(arguments: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """The run in memory, by a process of its own, started as anybody starts Python: what Terrace does to a process (its
    freed memory goes back to the system), or asks to be started with, is not to slow it."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        file = pathlib.Path(temporary) / "in_memory.json"
        command = [sys.executable, "-B", __file__, "--in-memory-only", "--json", str(file)]
        for option in ("steps", "blocks", "batch", "threads", "gpu"):
            command += [f"--{option}", str(getattr(arguments, option))]
        if arguments.way is not None:
            command += ["--way", arguments.way]
        environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
        prctl = ctypes.CDLL(None).prctl
        subprocess.run(command, check=True, env=environment,
                       preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))  # it goes with this one
        said: dict[str, Any] = json.loads(file.read_text())
        return said


def medians(steps: list[Step]) -> tuple[float, float]:
    """Seconds and CPU seconds of a step. The first third is left out: in it kernels are chosen and pages are touched for
    the first time, which the second run in a process need not do again, and Terrace learns what a step uses."""
    settled = steps[len(steps) // 3 :]
    return (statistics.median(step.seconds for step in settled), statistics.median(step.cpu_seconds for step in settled))


def bits(losses: list[float]) -> bytes:
    return struct.pack(f"{len(losses)}d", *losses)


def result_of(arguments: argparse.Namespace, run: LeasedRun, in_memory: dict[str, Any],
              daemon: resource.struct_rusage, parameters: int) -> dict[str, object]:
    """The numbers of --json."""
    losses = in_memory["losses"]
    return {
        "steps": arguments.steps,
        "way": run.way,
        "losses_equal": bits(run.losses) == bits(losses),
        "losses": run.losses,
        "reference_losses": losses,
        **dataclasses.asdict(run.traffic),
        "hit_ratio": run.traffic.hit_ratio,
        "overhead": run.step_seconds / in_memory["step_seconds"],
        "step_seconds": run.step_seconds,
        "reference_step_seconds": in_memory["step_seconds"],
        "step_cpu_seconds": run.step_cpu_seconds,
        "reference_step_cpu_seconds": in_memory["step_cpu_seconds"],
        "step_wait_seconds": run.step_wait_seconds,
        "daemon_cpu_seconds": daemon.ru_utime + daemon.ru_stime,
        "leased_bytes_max": run.leased_bytes_max,
        "upper_tiers_bytes": run.upper_bytes,
        "parameters": parameters,
        "png": str(arguments.png) if arguments.png else None,
    }


def print_result(result: dict[str, object], run: LeasedRun) -> None:
    traffic = run.traffic
    print_table([
        ("host to device", mebibytes(traffic.h2d_bytes)),
        ("device to host", mebibytes(traffic.d2h_bytes)),
        ("read from block", mebibytes(traffic.block_read_bytes)),
        ("written to block", mebibytes(traffic.block_write_bytes)),
        ("checksum failures", str(traffic.checksum_failures)),
        ("leases granted without a wait", f"{traffic.hit_ratio:.1%} of {traffic.hits + traffic.waits:,}"),
        ("waited for tensors", f"{traffic.wait_seconds:.1f} s"),
        ("leased at once, at most", f"{mebibytes(run.leased_bytes_max)} of {mebibytes(run.upper_bytes)} above block"),
        ("step through Terrace", f"{run.step_seconds:.2f} s"),
        ("step in memory", f"{result['reference_step_seconds']:.2f} s"),
        ("overhead against in-memory", f"{result['overhead']:.2f} times"),
    ])
    if result["losses_equal"]:
        print(f"all {result['steps']} losses are equal, bit for bit")
    else:
        first = next(step for step, (a, b) in enumerate(zip(result["losses"], result["reference_losses"]), 1)
                     if bits([a]) != bits([b]))
        print(f"the losses DIFFER from step {first} on: {result['losses'][first - 1]!r} through Terrace, "
              f"{result['reference_losses'][first - 1]!r} in memory")


def wait_for_interrupt(client: terrace.ServedClient) -> None:
    """Until Ctrl-C or SIGTERM."""
    terracectl = pathlib.Path(__file__).resolve().parents[3] / "build" / "release" / "terracectl"
    command = terracectl if terracectl.exists() else "terracectl"
    print(f"\nThe daemon stays until Ctrl-C. Look at it from another terminal:\n"
          f"  {command} --socket {client.admin_socket} top\n  curl {client.metrics_url}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def main() -> int:
    arguments = parse_arguments()
    make_deterministic(arguments.threads)
    device = compute_device(arguments)
    shape, recipe, text = Shape(blocks=arguments.blocks, batch=arguments.batch), Recipe(), Text()
    if arguments.in_memory_only:
        return run_in_memory(arguments, shape, recipe, text, device)
    folder = block_folder(arguments)
    print(f"a GPT of {shape.blocks} blocks on {device}, {len(text.bytes):,} bytes of text, {arguments.threads} "
          f"threads; block file of {arguments.block_size} in {folder}", flush=True)
    with contextlib.ExitStack() as kept:
        client = kept.enter_context(terrace.serve(arguments.memory, device=arguments.device, gpu=arguments.gpu,
                                                  block=f"{folder}:{arguments.block_size}",
                                                  terraced=arguments.terraced, policy=arguments.policy,
                                                  label="train_gpt"))
        run = run_leased(arguments, client, shape, recipe, text, device)
        if not arguments.keep:
            kept.close()
        daemon = resource.getrusage(resource.RUSAGE_CHILDREN)  # once it has ended
        wait_for_disk(folder)
        in_memory = train_beside(arguments, folder)
        result = result_of(arguments, run, in_memory, daemon, shape.parameters)
        if arguments.png:
            draw(str(arguments.png), run.losses, in_memory["losses"], run.occupancy)
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        print_result(result, run)
        if arguments.keep:
            wait_for_interrupt(client)
    return 0 if result["losses_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())

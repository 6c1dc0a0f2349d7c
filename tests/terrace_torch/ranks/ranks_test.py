# SPDX-License-Identifier: Apache-2.0
"""Shows that two ranks of one daemon, under torchrun, train to the losses that they have without Terrace, bit for bit,
also when one of them is killed and torchrun starts over; and that what cannot be offloaded is refused by name."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import pytest
import terrace.torch
import torch
from model_fixtures import roomy  # noqa: F401 (a fixture)
from python_fixtures import LIMIT_SECONDS, ROOT, disk, under_torchrun  # noqa: F401 (a fixture)
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

EXAMPLE = ROOT / "client/python/examples/two_ranks.py"
BEGINS = re.compile(r"rank (\d) is process (\d+) and begins with step (\d+)")
RUN_SECONDS = 2 * LIMIT_SECONDS
STEPS = 16  # the kill comes after the second, long before the last
SAYS = re.compile(r"step +(\d+)  loss (\S+)")


def family(process):
    """It and all that it has started, and they; without those that are gone."""
    with contextlib.suppress(FileNotFoundError):
        children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [process, *(each for child in children for each in family(int(child)))]
    return []


class Run:
    """The example, as it runs: what it has said so far, and its end. One that takes longer than RUN_SECONDS is ended, and
    its Python processes say where they were."""

    def __init__(self, folder, name, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(EXAMPLE), "--steps", str(STEPS), "--blocks", "2", "--width", "96", "--batch", "1",
             "--memory", "12MiB", "--block", f"{folder}:512MiB", "--checkpoint", str(folder / name), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, start_new_session=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"})
        self.lines = []
        self.limit = threading.Timer(RUN_SECONDS, self.abort)
        self.limit.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.limit.cancel()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.communicate(timeout=LIMIT_SECONDS)

    def abort(self):
        self.lines.append(f"took longer than {RUN_SECONDS} s\n")
        for process in reversed(family(self.process.pid)):  # ranks before torchrun, which would start others
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGABRT)

    def until(self, pattern):
        """Reads on until a line matches; the match."""
        for line in self.process.stdout:
            self.lines.append(line)
            if (found := pattern.search(line)) is not None:
                return found
        raise AssertionError("".join(self.lines))

    def losses(self):
        """Those of each step, once it has ended well."""
        self.lines += self.process.stdout
        said = "".join(self.lines)
        assert self.process.wait(timeout=LIMIT_SECONDS) == 0, said
        return said, SAYS.findall(said)


@under_torchrun
@pytest.mark.parametrize("how", [(), ("--fsdp",)], ids=["copied to each", "split over both"])
def test_two_ranks_and_a_rank_that_is_killed(disk, how):
    with Run(disk, "plain", "--plain", *how) as run:
        _, plain = run.losses()
    assert [int(step) for step, _ in plain] == list(range(1, STEPS + 1)) and len({loss for _, loss in plain}) == STEPS
    with Run(disk, "killed", *how) as run:
        processes = dict(run.until(BEGINS).group(1, 2) for _ in range(2))
        while int(run.until(SAYS).group(1)) < 2:
            pass
        os.kill(int(processes["1"]), signal.SIGKILL)
        said, losses = run.losses()
    begins = [int(step) for _, _, step in BEGINS.findall(said)]
    assert len(begins) == 4 and begins[:2] == [1, 1] and begins[2] == begins[3] > 2, said
    assert dict(losses) == dict(plain), "what was computed twice is the same both times"
    assert len(losses) >= STEPS


def test_what_cannot_be_offloaded_is_refused_by_name(roomy, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        wrapped = nn.Module()
        wrapped.inner = nn.parallel.DistributedDataParallel(nn.Linear(64, 64), gradient_as_bucket_view=True)
        with pytest.raises(terrace.InvalidArgument, match="gradient_as_bucket_view=True"):
            terrace.torch.offload(wrapped, client=roomy)
        with pytest.raises(terrace.InvalidArgument, match="FullyShardedDataParallel.*use Distributed.*fully_shard"):
            whole = FullyShardedDataParallel(nn.Linear(64, 64), device_id=torch.device("cpu"))
            terrace.torch.offload(whole, client=roomy)
    finally:
        torch.distributed.destroy_process_group()

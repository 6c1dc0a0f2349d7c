# SPDX-License-Identifier: Apache-2.0
"""A contender's own process: worker.py ANSWERS SPEC. Reads commands from stdin, a JSON object a line, and answers each
on the descriptor ANSWERS, the first answer being that it is ready.

SPEC is a JSON object: `kind` names one of KINDS, `folder` is its own folder on the disk, `threads` is PyTorch's; the
rest is for the kind. What it prints goes to its log.
"""

import ctypes
import json
import os
import pathlib
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "client/python/examples"))

import torch
from gpt_model import make_deterministic


def job_of(spec):
    """The job that a SPEC describes. What a kind needs is imported only for it."""
    kind = spec["kind"]
    if kind in ("plain", "terrace"):
        import worker_training

        return worker_training.Plain(spec) if kind == "plain" else worker_training.Offloaded(spec)
    if kind == "activations":
        import worker_training

        return worker_training.WithActivations(spec)
    if kind == "deepspeed":
        import worker_deepspeed

        return worker_deepspeed.DeepSpeed(spec)
    if kind in ("forward_plain", "forward_terrace", "forward_accelerate"):
        import worker_forward

        return worker_forward.job_of(spec)
    if kind in ("host_step", "adapters"):
        import worker_precision

        return worker_precision.HostStep(spec) if kind == "host_step" else worker_precision.Adapters(spec)
    if kind == "matrix":
        import worker_matrix

        return worker_matrix.Matrix(spec)
    raise ValueError(f"no such kind: {kind}")


class Commands:
    """What a contender can be asked for."""

    def __init__(self, job):
        self._job = job
        self._step = 0

    def turn(self, steps):
        """Some steps in a row; then waits until nothing is under way any more."""
        seconds, losses = [], {}
        before = self._job.moved()
        for _ in range(steps):
            begin = time.perf_counter()
            loss = self._job.step(self._step)
            seconds.append(time.perf_counter() - begin)
            losses[self._step] = loss.hex()
            self._step += 1
        self._job.rest()
        after = self._job.moved()
        return {"seconds": seconds, "losses": losses, "read_bytes": after[0] - before[0],
                "written_bytes": after[1] - before[1]}

    def save(self, path):
        """Saves the model to a file; how long that took until it was on the disk."""
        begin = time.perf_counter()
        self._job.save(path)
        return {"seconds": time.perf_counter() - begin, "bytes": os.path.getsize(path)}

    def run(self, **options):
        """Whatever else a job can do."""
        return self._job.run(**options)


def main():
    """Answers until stdin ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # nobody would hear the answers
    answers, spec = int(sys.argv[1]), json.loads(sys.argv[2])

    def say(what):
        os.write(answers, json.dumps(what).encode() + b"\n")

    try:
        make_deterministic(spec["threads"])
        with job_of(spec) as job:
            commands = Commands(job)
            say(job.describe())
            for line in sys.stdin:
                wanted = json.loads(line)
                say(getattr(commands, wanted.pop("do"))(**wanted))
    except Exception as error:  # the log has the rest
        say({"failed": f"{type(error).__name__}: {error}"[:600]})
        raise


if __name__ == "__main__":
    main()

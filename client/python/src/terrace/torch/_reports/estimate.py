# SPDX-License-Identifier: Apache-2.0
"""`estimate`: what a job would take of a node, before a byte of it is there."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn, optim

from ... import _checks
from ..._errors import InvalidArgument, Unavailable
from ..._serve import find_terraced
from .._offload.needs import needs_of
from .._offload.precision import check_precision, wanted_precision
from .._offload.refusals import warn_of_another
from .._offload.steppers import steppers
from .._optimizer import trial
from .._pytorch.split import is_split
from .meta_forward import Forward
from .workload import workload_of

_CALL = "terrace.torch.estimate"
_GB = 1e9
_STEPS = 6  # that are rehearsed: the first ones learn
_FLOPS = 0.4 * 989e12  # of an H100 in bfloat16, as training reaches it


@dataclasses.dataclass(kw_only=True)
class StepEstimate:
    """A step that was rehearsed on a node: in virtual time, by the engine that the daemon runs."""

    node: str
    seconds: float
    compute_seconds: float
    bound_seconds: float  # that no schedule beats
    bound_by: str  # what makes it so long
    up_bytes: int  # to HBM
    down_bytes: int  # from HBM
    read_bytes: int  # from the block tier
    write_bytes: int  # to the block tier

    def __str__(self) -> str:
        return (f"a step on {self.node}: {self.seconds:.3g} s, of it {self.compute_seconds:.3g} s compute; no schedule takes "
                f"less than {self.bound_seconds:.3g} s, for its {self.bound_by}. It moves {self.up_bytes / _GB:.3g} GB to HBM, "
                f"{self.down_bytes / _GB:.3g} GB from it, {self.read_bytes / _GB:.3g} GB from the drives and "
                f"{self.write_bytes / _GB:.3g} GB to them")


@dataclasses.dataclass(kw_only=True)
class Estimate:
    """Bytes of a job by class. As a string it is a table."""

    parameters: int
    gradients: int
    masters: int
    states: int
    activations: int | None  # that autograd keeps of one batch; None: not known
    flops: int | None  # of the forward and the backward pass over one batch; None: not known
    why: str = ""  # they are not known
    step: StepEstimate | None = None

    @property
    def all(self) -> int:
        """All that is known."""
        return self.parameters + self.gradients + self.masters + self.states + (self.activations or 0)

    def __str__(self) -> str:
        rows = [(name, getattr(self, name)) for name in ("parameters", "gradients", "masters", "states", "activations")]
        lines = [f"{name:12} {size / _GB:10.3f} GB" for name, size in rows if size is not None]
        if self.activations is None:
            lines.append(f"{'activations':12} not known: {self.why}")
        lines.append(f"{'all':12} {self.all / _GB:10.3f} GB")
        return "\n".join([*lines, *([] if self.step is None else [str(self.step)])])


def estimate(model: nn.Module, optimizer: optim.Optimizer | Sequence[optim.Optimizer] | None = None, batch: Any = None, *,
             masters: torch.dtype | None = None, gradients: torch.dtype | None = None, node: str | os.PathLike[str] | None = None,
             flops: float = _FLOPS) -> Estimate:
    """What training a model would take, by class of bytes, and how long a step would be on a node. Nothing is allocated.

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
            optimizer = torch.optim.AdamW(model.parameters())
            print(terrace.torch.estimate(model, optimizer, {"input_ids": torch.zeros(1, 4096, dtype=torch.long)}, node="h200-1gpu"))

    model: anywhere; on the meta device it has no memory itself.
    optimizer: as for offload(). Of PyTorch's own, states are exact; of others, as a small copy keeps them.
    batch: what the model is called with: a tensor, a list or tuple of arguments, or a dictionary of named ones. Of integers, as
        masks are, the model may look at values. None: activations are not known.
    masters, gradients: as for offload().
    node: a daemon's configuration with link speeds, or a name that `terracectl plan --node` takes, as "dgx-h100": with it a
        step with everything in Terrace is rehearsed, activations too. It needs a batch, and terrace-sim beside terraced.
    flops: floating-point operations a second that the device reaches. The default is 0.4 of an H100's peak in bfloat16.

    InvalidArgument for an optimizer, or masters, that offload() would refuse, for a node without a batch, and for one that the job does not
    fit, or that nobody knows.
    Unavailable if there is no terrace-sim.
    """
    _checks.is_a(_CALL, "model", model, nn.Module, "a torch.nn.Module")
    precision = wanted_precision(_CALL, masters, gradients, optimizer)
    optimizers = steppers(_CALL, optimizer)
    for one in optimizers:
        warn_of_another(_CALL, model, one, 3)
        trial.try_unknown(one, precision.masters)
    check_precision(_CALL, precision, model, optimizers)
    if node is not None:
        _checks.is_a(_CALL, "node", node, (str, os.PathLike), "a name, or the path of a configuration")
    if not isinstance(flops, int | float) or not flops > 0:
        raise InvalidArgument(f"{_CALL}: flops is {flops!r}; it is a number of operations a second, above zero")
    needs = needs_of(model, optimizers, precision)
    forward, why = None, "give a batch"
    if batch is not None:
        why = _in_the_way(model)
    if not why:
        try:
            with torch.inference_mode(False), torch.enable_grad():
                forward = Forward(model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model, batch)
        except Exception as error:  # whatever a pass says that looks at values
            why = f"the model does not run without values ({type(error).__name__}: {error})"
    made = Estimate(parameters=needs.parameters, gradients=needs.gradients, masters=needs.masters, states=needs.states,
                    activations=None if forward is None else forward.saved_bytes,
                    flops=None if forward is None else forward.flops + forward.backward_flops, why="" if forward is not None else why)
    if node is not None:
        if forward is None:
            raise InvalidArgument(f"{_CALL}: a step on {node} is rehearsed from what a batch takes: {why}")
        made.step = _rehearse(workload_of(model, optimizers, precision, forward, flops), os.fspath(node))
    return made


def _in_the_way(model: nn.Module) -> str:
    """Why a model is not to be run; empty: nothing is in the way."""
    if any(map(is_split, model.parameters())):
        return "fully_shard() has split the model: give it as it was before"
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return "the meta device knows no autocast: call it outside, with the model in the type that it is to compute in"
    return ""


def _rehearse(workload: str, node: str) -> StepEstimate:
    """The last of some steps of a workload, on the engine in virtual time."""
    program = pathlib.Path(find_terraced()).with_name("terrace-sim")
    if not program.exists():
        raise Unavailable(f"{_CALL}: a step is rehearsed by terrace-sim, and {program} is not there: it is installed with terraced")
    with tempfile.TemporaryDirectory(prefix="terrace-") as folder:
        file = pathlib.Path(folder, "workload.jsonl")
        file.write_text(workload)
        ran = subprocess.run([program, "run", "--json", "--steps", str(_STEPS), "--workload", file, "--node", node],
                             capture_output=True, text=True, check=False)
    if ran.returncode:
        raise InvalidArgument(f"{_CALL}: the job cannot be rehearsed on {node}: {ran.stderr.strip()}")
    said = json.loads(ran.stdout.splitlines()[-1])
    moved = said["bytes"]
    block = moved.get("block", {"in": 0, "out": 0})
    return StepEstimate(node=node, seconds=said["makespan_us"] / 1e6, compute_seconds=said["compute_us"] / 1e6,
                        bound_seconds=said["lower_bound_us"] / 1e6, bound_by=said["bound_by"], up_bytes=int(moved["hbm"]["in"]),
                        down_bytes=int(moved["hbm"]["out"]), read_bytes=int(block["in"]), write_bytes=int(block["out"]))

# SPDX-License-Identifier: Apache-2.0
"""Where an optimizer's step runs, where the caller leaves that to Terrace: from numbers alone."""

from __future__ import annotations

from typing import NamedTuple

from .._device.link import Link

_GIB = 1 << 30


class Where(NamedTuple):
    """Where the step runs, and why, in words."""

    step: str  # "device" or "host"
    why: str


class StepCosts(NamedTuple):
    """What is known of the step of a model on a GPU, before anything moves."""

    place: str  # where it would be leased
    gradient_bytes: int  # that the CPU's step brings down
    weight_bytes: int  # that it brings up
    leased_bytes: int  # that the GPU's step is at, of what is in Terrace
    room_bytes: int  # of them, that may be on the GPU at once
    link: Link
    cpu_seconds: float  # that the CPU's kernels take
    threads: int  # with so many


def beyond_room(leased_bytes: int, room_bytes: int) -> int:
    """Of what a step is at, how much has to come each time, and to go again."""
    return max(0, leased_bytes - room_bytes)


def choose_on_gpu(costs: StepCosts) -> Where:
    """The CPU, where its step takes less time than the link takes for the GPU's. The GPU's arithmetic counts as nothing, and
    neither does it count that the CPU's step goes on beside the next forward pass."""
    beyond = beyond_room(costs.leased_bytes, costs.room_bytes)
    if not beyond:
        return Where("device", _fits(costs.leased_bytes, costs.room_bytes, costs.place))
    on_device = max(beyond / costs.link.up, beyond / costs.link.down)
    down, up = costs.gradient_bytes / costs.link.down, costs.weight_bytes / costs.link.up
    on_host = down + costs.cpu_seconds + up
    said = (f"on the CPU a step takes {on_host:.2g} s ({down:.2g} s for gradients to come down, {costs.cpu_seconds:.2g} s on "
            f"{costs.threads} threads, {up:.2g} s for weights to go up), and for a step on the GPU its link takes "
            f"{on_device:.2g} s ({beyond / _GIB:.3g} GiB each way, at {costs.link.up / _GIB:.2g} GiB/s)")
    return Where("host" if on_host < on_device else "device", said)


def choose_on_cpu(leased_bytes: int, room_bytes: int, place: str) -> Where:
    """A step that goes on behind `step()` waits beside the next forward pass, which computes. Where a step has nothing to wait
    for, it would only take turns with it."""
    beyond = beyond_room(leased_bytes, room_bytes)
    if not beyond:
        return Where("device", _fits(leased_bytes, room_bytes, place))
    return Where("host", f"{beyond / _GIB:.3g} GiB of the job are below {place} at any time, and a step that goes on beside the next "
                 "forward pass waits for them while that computes")


def _fits(leased_bytes: int, room_bytes: int, place: str) -> str:
    return (f"all that a step is at ({leased_bytes / _GIB:.3g} GiB) has room in {place} ({room_bytes / _GIB:.3g} GiB), so that it "
            "waits for nothing")

# SPDX-License-Identifier: Apache-2.0
"""Shows that what some of the CPU's suites show holds on the test device, too: their tests, with tensors that are made there."""

import contextlib
import functools
import importlib.util
import os
import pathlib
import time

import pytest
import terrace
import torch
from device_fixtures import DEVICE, mended, serve

SUITES = pathlib.Path(__file__).parents[2] / "terrace_torch"
NAMES = ("tensors/aliases", "optimizer/elementwise", "optimizer/tried")
LEFT_OUT = {
    "test_what_shares_its_memory_stays_where_it_is": "all of a GPU's memory can be in other processes",
    "test_what_was_taken_of_a_weight_before_offload_shows_what_is_there": "takes arrays of NumPy's",
    "test_what_scripts_do_before_offload_shows_no_weight": "moves a model to the CPU, where it is already",
    "test_a_move_that_changes_nothing_leases_nothing": "the same",
    "test_what_to_write_where_nobody_is_asked": "PyTorch's to_dlpack() does not know the device",
    "test_a_step_goes_on_that_a_trial_has_shown_to_be_sound": "has a daemon of its own, which has no tier of a GPU's",
    "test_a_step_that_asks_for_more_does_not_go_on": "the same",
    "test_a_group_that_is_added_has_its_states_in_terrace": "the same",
    "test_states_in_lists_are_saved": "the same",
    "test_what_a_script_has_said_of_a_parameter": "the same",
    "test_a_step_that_does_otherwise_than_in_its_trial": "the same",
    "test_the_same_bits": "torch_device.matrix shows it in less time",
    "test_the_same_bits_at_every_size": "the same",
}


def _tests_of(name: str) -> dict[str, object]:
    """A suite's tests, named after it as well, and its fixtures."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), SUITES / f"{name}_test.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {key: value for key, value in vars(module).items() if key not in LEFT_OUT}
    tests = {f"{key}_of_{name.split('/')[1]}": value for key, value in found.items() if key.startswith("test_")}
    return tests | {key: value for key, value in found.items() if isinstance(value, FIXTURE)}


FIXTURE = type(pytest.fixture(lambda: None))
for each in NAMES:
    globals().update(_tests_of(each))


class Settled(terrace.Client):
    """Leases end behind streams: says what is leased once there is nothing more to come."""

    @property
    def held(self):
        self._settle()
        return super().held

    def _settle(self):
        torch.accelerator.synchronize()
        end = time.monotonic() + 2
        while super().held and time.monotonic() < end:
            time.sleep(0.001)


_numpy = torch.Tensor.numpy


def _made_there(make, *given, **options):
    return make(*given, **({} if any(isinstance(one, torch.Tensor) for one in given) else {"device": DEVICE}) | options)


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch, request):
    """Tensors are made there, in backward passes' threads, too, and arrays by way of the CPU."""
    if "Compiled" in request.node.name:
        pytest.skip("PyTorch has no compiler for the device")
    monkeypatch.setattr(torch.Tensor, "numpy", lambda tensor, **options: _numpy(tensor.cpu(), **options))
    for name in ("zeros", "zeros_like", "ones", "full", "tensor", "randn"):
        monkeypatch.setattr(torch, name, functools.partial(_made_there, getattr(torch, name)))
    torch.set_default_device(DEVICE)
    try:
        with mended():
            yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def settled(hbm):
    nothing = {"host": 0, "device:0": 0}
    with (serve(hbm, "32MiB", f"{os.environ['TERRACE_BUILD']}:256MiB", guarantees=nothing) as served,
          Settled(served.socket) as client):
        yield client


@pytest.fixture(scope="module")
def roomy():
    with settled("64MiB") as client:
        yield client


@pytest.fixture(scope="module")
def restless():
    with settled("4MiB") as client:
        yield client


@pytest.fixture(scope="module")
def clients(roomy, restless):
    yield [roomy, restless]

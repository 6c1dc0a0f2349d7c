# SPDX-License-Identifier: Apache-2.0
"""A GPU for PyTorch where there is none: the backend "fakegpu" over the fake CUDA driver, and what terrace.torch asks.

$FAKE_CUDA names the driver, $TERRACE_BUILD the build, whose folder torch_device has the extension. Import it before
anything leases.
Its streams take turns (turns()): nothing runs before somebody waits for it, in an order drawn from a seed.
"""

import contextlib
import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Iterator

import torch
import torch.distributed
from extension import NAME, build
from terrace.torch._device import accelerators

KIND = "fakegpu"
PATIENCE_SECONDS = 0.005  # a program that waits for a daemon is let on
SEED = 1


def _load() -> types.ModuleType:
    folder = pathlib.Path(os.environ["TERRACE_BUILD"]) / "torch_device"
    built = build(pathlib.Path(os.environ["FAKE_CUDA"]), folder)
    spec = importlib.util.spec_from_file_location(NAME, built)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


native = _load()
native.take_turns(SEED, PATIENCE_SECONDS)
torch.utils.rename_privateuse1_backend(KIND)


def _index(device=None) -> int:
    if device is None:
        return native.current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return native.current_device() if index is None else index


class _Device:
    """The current device meanwhile."""

    def __init__(self, device):
        self._index = _index(device)

    def __enter__(self):
        self._before = native.exchange_device(self._index)

    def __exit__(self, *_):
        native.exchange_device(self._before)


def _seed_all(seed: int) -> None:
    for index in range(native.device_count()):
        native.default_generator(index).manual_seed(seed)


def _module() -> types.ModuleType:
    """What PyTorch asks of torch.fakegpu."""
    made = types.ModuleType(f"torch.{KIND}")
    vars(made).update(
        is_available=lambda: native.device_count() > 0,
        is_initialized=lambda: True,
        _initialized=True,
        _is_in_bad_fork=lambda: False,
        device_count=native.device_count,
        current_device=native.current_device,
        set_device=lambda device: native.exchange_device(_index(device)),
        device=_Device,
        Stream=torch.Stream,
        Event=torch.Event,
        current_stream=lambda device=None: torch.accelerator.current_stream(_index(device)),
        set_stream=torch.accelerator.set_stream,
        stream=lambda stream: contextlib.nullcontext() if stream is None else stream,
        synchronize=lambda device=None: torch.accelerator.synchronize(_index(device)),
        empty_cache=native.release_free,
        memory_allocated=lambda device=None: torch.accelerator.memory_allocated(_index(device)),
        max_memory_allocated=lambda device=None: torch.accelerator.max_memory_allocated(_index(device)),
        reset_peak_memory_stats=lambda device=None: torch.accelerator.reset_peak_memory_stats(_index(device)),
        mem_get_info=lambda device=None: native.memory_info(_index(device)),
        get_rng_state=lambda device=KIND: native.default_generator(_index(device)).get_state(),
        set_rng_state=lambda state, device=KIND: native.default_generator(_index(device)).set_state(state) and None,
        manual_seed=lambda seed: native.default_generator(native.current_device()).manual_seed(seed),
        manual_seed_all=_seed_all,
        initial_seed=lambda: native.default_generator(native.current_device()).initial_seed(),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        is_bf16_supported=lambda *_: True,
    )
    return made


torch._register_device_module(KIND, _module())
torch.utils.generate_methods_for_privateuse1_backend()


class FakeGpu(accelerators.Accelerator):
    """What terrace.torch asks of a kind of device, of this one."""

    kind = KIND

    def stream_number(self, index: int) -> int:
        return native.stream_number(index)

    def is_capturing(self, device: torch.device) -> bool:
        return native.is_capturing(device.index)

    def tensor_of(self, capsule) -> torch.Tensor:
        return native.from_capsule(capsule)

    def give_back_free(self, device: torch.device) -> None:
        native.release_free()

    def free_bytes(self, device: torch.device) -> int:
        return native.memory_info(device.index)[0]

    def generators(self) -> list[torch.Generator]:
        return [native.default_generator(index) for index in range(native.device_count())]


accelerators.use(FakeGpu())


@contextlib.contextmanager
def turns(seed: int, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Draws the order of what streams hold from a seed meanwhile. patience: seconds without a new task or wait, after
    which tasks run though nobody waits."""
    torch.accelerator.synchronize()
    native.start_over(seed, patience)
    try:
        yield
    finally:
        native.start_over(SEED, PATIENCE_SECONDS)


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """What is launched meanwhile goes into a graph that nobody launches."""
    stream = torch.Stream(KIND)
    with stream:
        native.begin_capture(stream.device.index)
        try:
            yield
        finally:
            native.end_capture(stream.device.index)


def register_collectives() -> str:
    """Makes the process group known; what to call it in init_process_group()."""
    distributed = torch.distributed

    def create(store, rank, size, timeout):
        return native.collectives_over(distributed.ProcessGroupGloo(store, rank, size, timeout), rank, size)

    distributed.Backend.register_backend("fakeccl", create, devices=[KIND])
    return f"cpu:gloo,{KIND}:fakeccl"

# SPDX-License-Identifier: Apache-2.0
"""What the tests of the test device share: one control of the fake driver for this process and its daemons, the device's
number of seeds, models on it, and daemons that own its memory."""

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import mmap
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator

import pytest
import terrace.torch
import torch
from python_fixtures import wait_until
from torch import nn

DEVICES = 4
SEED_FIRST = int(os.environ.get("TERRACE_SEED_FIRST", "1"))
SEEDS = range(SEED_FIRST, SEED_FIRST + 6)
ILLEGAL_ADDRESS, LOST = 700, 214  # the driver's codes


class Fault(ctypes.Structure):
    """A call that fails: tests/gpu/fake_cuda/control.h."""

    _fields_ = [("status", ctypes.c_int32), ("after", ctypes.c_int32), ("times", ctypes.c_int32)]


class Control(ctypes.Structure):
    """The fake's control block, shared with daemons: tests/gpu/fake_cuda/control.h, as far as it is used here."""

    CALLS = 20
    _fields_ = [("device_count", ctypes.c_uint32), ("absent", ctypes.c_uint32), ("device_bytes", ctypes.c_uint64),
                ("calls", ctypes.c_uint64 * CALLS), ("faults", Fault * CALLS), ("copies", Fault), ("hold", ctypes.c_uint32),
                ("lost", ctypes.c_int32 * 8), ("used_bytes", ctypes.c_uint64 * 8)]


def _make_control() -> Control:
    with tempfile.NamedTemporaryFile(delete=False, prefix="fake-cuda-") as file:
        file.write(bytes(4096))
    os.environ["TERRACE_FAKE_CUDA_CONTROL"] = file.name
    os.environ["TERRACE_CUDA_LIBRARY"] = os.environ["FAKE_CUDA"]
    with pathlib.Path(file.name).open("r+b") as opened:
        made = Control.from_buffer(mmap.mmap(opened.fileno(), 0))
    made.device_count = DEVICES
    return made


# Ranks have the control of whom they were started by.
control = None if "TERRACE_FAKE_CUDA_CONTROL" in os.environ else _make_control()
if control is not None:
    atexit.register(lambda path: pathlib.Path(path).unlink(missing_ok=True), os.environ["TERRACE_FAKE_CUDA_CONTROL"])

import fakegpu  # the driver reads the control's path at its first call

torch.set_num_threads(1)
DEVICE = torch.device(fakegpu.KIND, 0)


def serve(hbm: str, memory: str, block: str | None = None,
          gpu: str = "cuda:0", guarantees: dict[str, int] | None = None) -> contextlib.AbstractContextManager[terrace.Client]:
    """A private daemon that owns memory of the first device, or of those that are named. guarantees: of this process."""
    torch.zeros(1, device=DEVICE)  # so that memory is pinned as it comes
    return terrace.serve(memory, device=hbm, gpu=gpu, block=block, metrics=False, guarantees=guarantees)


def on_device(model: nn.Module) -> nn.Module:
    """Moves a model, whose parameters stay the same objects: PyTorch would make a tied one two for a backend outside of it."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(DEVICE)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def try_seeds(run: Callable[[], None], patience: float = 1.0, seeds: Iterable[int] = SEEDS) -> list[int]:
    """Runs something under the order of each seed; those with which it gave wrong numbers, or bytes whose checksum is wrong, as
    where something writes to what the daemon writes down."""
    failed = []
    for seed in seeds:
        with fakegpu.turns(seed, patience):
            try:
                run()
            except (AssertionError, terrace.DataLoss):
                failed.append(seed)
            finally:
                torch.accelerator.synchronize()
    return failed


@contextlib.contextmanager
def seeded(number: int, patience: float = fakegpu.PATIENCE_SECONDS) -> Iterator[None]:
    """Runs the `with` under the order of one seed, counted from the first, and names it where it fails."""
    seed = SEED_FIRST + number
    with fakegpu.turns(seed, patience):
        try:
            yield
        except BaseException as error:
            error.add_note(f"seed {seed}: run with TERRACE_SEED_FIRST={SEED_FIRST} to see it again")
            raise


def under_seeds(run: Callable[[], None], patience: float = fakegpu.PATIENCE_SECONDS) -> None:
    """Runs something under the order of each seed."""
    for number in range(len(SEEDS)):
        with seeded(number, patience):
            run()


class Block(nn.Module):
    """A transformer's block of operators that have one kernel on every device."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mixed(self.first(hidden)).chunk(3, -1)
        scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        hidden = hidden + self.out(scores.softmax(-1) @ value)
        return hidden + self.down(nn.functional.gelu(self.up(self.second(hidden))))


class Model(nn.Module):
    """Blocks after an embedding that is also the head; dropout: within."""

    VOCABULARY = 32

    def __init__(self, width: int = 32, blocks: int = 3, dropout: float = 0.0, checkpointing: bool | None = None):
        super().__init__()
        self.embedding = nn.Embedding(self.VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, self.VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))
        self.checkpointing = checkpointing

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(text) * self.scale
        for block in self.blocks:
            if self.checkpointing is None:
                hidden = block(hidden)
            else:
                hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=self.checkpointing)
            hidden = self.dropout(hidden)
        return self.head(hidden)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one run is trained; everything random comes from fixed seeds."""

    width: int = 32
    blocks: int = 3
    options: tuple = (("lr", 1e-2), ("foreach", True))
    kind: type = torch.optim.AdamW
    dtype: torch.dtype | None = None  # of autocast; with float16, a scaler
    checkpointing: bool | None = None
    dropout: float = 0.0
    clip: bool = False
    accumulation: int = 1
    steps: int = 3


def build(recipe: Recipe, device: torch.device = DEVICE) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on a device, and its optimizer: the same ones each time."""
    torch.manual_seed(1)
    model = Model(recipe.width, recipe.blocks, recipe.dropout, recipe.checkpointing)
    model = on_device(model) if device.type == fakegpu.KIND else model
    return model, recipe.kind(model.parameters(), **dict(recipe.options))


def loss_of(model: nn.Module, number: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    device = next(model.parameters()).device
    text = torch.randint(0, Model.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(number)).to(device)
    with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, begin: int = 0,
          saved: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext) -> list[float]:
    """The losses of a run, and the norms where it clips."""
    device = next(model.parameters()).device
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.dtype == torch.float16, growth_interval=2)
    torch.manual_seed(2 + begin)
    said = []
    for step in range(begin, begin + recipe.steps):
        for part in range(recipe.accumulation):
            with saved():
                loss = loss_of(model, step * recipe.accumulation + part, recipe.dtype) / recipe.accumulation
                scaler.scale(loss).backward()
            said.append(loss.item())
        if recipe.clip:
            scaler.unscale_(optimizer)
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return said


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all that the model has, by name, on the CPU."""
    return {name: tensor.cpu().clone() for name, tensor in model.state_dict().items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Tensors by name are equal bit for bit."""
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert torch.equal(tensor.flatten().view(torch.uint8), other[name].flatten().view(torch.uint8)), name


WIDE = {"width": 64, "blocks": 4}
PLAIN = Recipe(**WIDE)


@functools.cache
def plain_run(recipe: Recipe) -> tuple[list[float], dict[str, torch.Tensor]]:
    """What plain PyTorch says on the device, and the weights."""
    model, optimizer = build(recipe)
    return train(model, optimizer, recipe), weights(model)


def offloaded_pair(client: terrace.Client, recipe: Recipe = PLAIN, **options) -> tuple[nn.Module, torch.optim.Optimizer]:
    return terrace.torch.offload(*build(recipe), client=client, tensor_bytes_min=1, **options)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is split over ranks; another one itself."""
    return getattr(tensor, "_local_tensor", tensor)


class OnCpu(torch.optim.Optimizer):
    """The plain loop's: gradients are handed to an optimizer of PyTorch's on the CPU, which steps copies there of the type
    `dtype` or of the weights' own, and weights are copied from them."""

    def __init__(self, optimizer: torch.optim.Optimizer, dtype: torch.dtype | None = None):
        super().__init__(optimizer.param_groups, optimizer.defaults)
        groups = [{**group, "params": [self._copy(one, dtype) for one in group["params"]]} for group in self.param_groups]
        self.on_cpu = type(optimizer)(groups, lr=0.1)  # each group says its own

    def _copy(self, weight: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        wide = dtype is not None and weight.dtype in (torch.bfloat16, torch.float16)
        return own_part(weight).detach().cpu().to(dtype if wide else weight.dtype).requires_grad_(weight.requires_grad)

    @torch.no_grad()
    def step(self) -> None:
        for group, inner in zip(self.param_groups, self.on_cpu.param_groups, strict=True):
            inner.update({name: value for name, value in group.items() if name != "params"})
            for weight, copied in zip(group["params"], inner["params"], strict=True):
                copied.grad = None if weight.grad is None else own_part(weight.grad).cpu().to(copied.dtype)
        self.on_cpu.step()
        for group, inner in zip(self.param_groups, self.on_cpu.param_groups, strict=True):
            for weight, copied in zip(group["params"], inner["params"], strict=True):
                own_part(weight).copy_(copied)


@pytest.fixture(scope="module")
def small() -> Iterator[terrace.Client]:
    """HBM for a third of what belongs to a model, and not enough memory for the rest."""
    with serve("2MiB", "4MiB", f"{os.environ['TERRACE_BUILD']}:256MiB") as served:
        yield served


def assert_ended(client: terrace.Client) -> None:
    """Nothing is leased any more once the device is idle."""
    torch.accelerator.synchronize()
    assert terrace.torch.activations(client).slots_in_use >= 0  # looks at answers, which are held until then
    wait_until(lambda: client.held == 0, "the leases to end")
    assert client.leased_bytes == 0


def expect(tensor: torch.Tensor, number: float) -> None:
    """Every element is that number. Here, since pytest shows what it asserts, and showing a tensor runs many kernels."""
    if not bool((tensor.cpu() == number).all()):
        raise AssertionError(f"not {number}")


@contextlib.contextmanager
def mended() -> Iterator[None]:
    """The driver gets nothing wrong any more afterwards, and contexts that ended are forgotten."""
    try:
        yield
    finally:
        with contextlib.suppress(torch.AcceleratorError):  # what was launched does not run any more
            torch.accelerator.synchronize()
        control.device_bytes = 0
        for number in range(DEVICES):
            control.lost[number] = 0
        fakegpu.native.mend()

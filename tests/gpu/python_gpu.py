# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a real GPU whose memory Terrace owns a part of: what kernels write is what others read, leases end behind
streams, host memory is pinned, a killed trainer's memory comes back, and models that do not fit train there, bit for bit
as they do without Terrace. For a machine with a GPU, PyTorch for CUDA and pytest; skipped elsewhere. $TERRACED: the
daemon. tests/gpu/run calls it.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import terrace.torch
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if not torch.cuda.is_available():
    pytest.skip("no GPU, or PyTorch has no CUDA", allow_module_level=True)

LIMIT_SECONDS = 60
COUNT = (8 << 20) + 5  # of float32
HALF_A_SECOND_CYCLES = 1_000_000_000
HBM_MIB = 256


def wait_until(holds: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < limit, f"waited {LIMIT_SECONDS} s for {what}"
        time.sleep(0.001)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[terrace.Client]:
    warm = torch.zeros(8, device="cuda")  # so that segments are pinned as they come
    warm.add_(1).mul_(2)  # the first call of a kernel loads it, and waits for the GPU
    folder = os.environ.get("TERRACE_TEST_FOLDER") or tmp_path_factory.mktemp("block")
    with terrace.serve("1GiB", device=f"{HBM_MIB}MiB", gpu="cuda:0", block=f"{folder}:2GiB", metrics=False) as served:
        yield served


@pytest.fixture
def tensor(client: terrace.Client) -> Iterator[terrace.Tensor]:
    made = client.create("a", (COUNT,), "float32")
    yield made
    torch.cuda.synchronize()
    client.delete([made])


def numbers() -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.float32)


def written(client: terrace.Client, tensor: terrace.Tensor) -> None:
    """The numbers, written by a kernel in HBM."""
    with tensor.overwrite(place="device:0") as lease:
        torch.from_dlpack(lease).copy_(torch.arange(COUNT, dtype=torch.float32, device="cuda"))
    wait_until(lambda: client.held == 0, "the lease to end")


def test_a_lease_of_hbm_is_a_cuda_tensor(client, tensor):
    with tensor.overwrite(place="device:0") as lease:
        shown = torch.from_dlpack(lease)
        assert shown.device == torch.device("cuda", 0) and shown.shape == (COUNT,) and shown.dtype == torch.float32
        assert shown.data_ptr() == lease.address
        with pytest.raises(BufferError, match="torch.from_dlpack"):
            lease.numpy()
        del shown


def test_what_a_kernel_writes_is_read_on_the_host(client, tensor):
    written(client, tensor)
    with tensor.read() as lease:
        assert torch.equal(torch.from_dlpack(lease), numbers())


def test_what_went_to_the_disk_comes_back_to_hbm(client, tensor):
    written(client, tensor)
    client.swap_out([tensor], place="block")
    with tensor.read(place="device:0") as lease:
        assert torch.equal(torch.from_dlpack(lease).cpu(), numbers())


def test_a_release_waits_for_its_stream(client, tensor):
    written(client, tensor)
    stream = torch.cuda.Stream()
    lease = tensor.write(place="device:0")
    with torch.cuda.stream(stream):
        shown = torch.from_dlpack(lease)
        torch.cuda._sleep(HALF_A_SECOND_CYCLES)
        shown.add_(1)
        del shown
    lease.release(stream)
    assert lease.released and client.held == 1 and not stream.query()
    wait_until(lambda: client.held == 0, "the lease to end")
    assert stream.query()
    with tensor.read() as lease:
        assert torch.equal(torch.from_dlpack(lease), numbers() + 1)


def test_a_tensor_keeps_its_lease_until_its_stream_has_passed(client, tensor):
    written(client, tensor)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with tensor.write(place="device:0") as lease:
            shown = torch.from_dlpack(lease)
        torch.cuda._sleep(HALF_A_SECOND_CYCLES)
        shown.mul_(2)
        del shown
    assert client.held == 1 and not stream.query()
    wait_until(lambda: client.held == 0, "the lease to end")
    with tensor.read() as lease:
        assert torch.equal(torch.from_dlpack(lease), numbers() * 2)


def test_host_memory_is_pinned_and_its_copies_run_behind_a_stream(client, tensor):
    with tensor.overwrite() as lease:
        torch.from_dlpack(lease).copy_(numbers())
    wait_until(lambda: client.pinned_bytes > 0, "segments to be pinned")
    stream = torch.cuda.Stream()
    lease = tensor.read(writable_view=True)
    leased = torch.from_dlpack(lease)
    assert leased.is_pinned()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(HALF_A_SECOND_CYCLES)
        copied = leased.to("cuda", non_blocking=True)
        assert not stream.query()
    del leased
    lease.release(stream)
    assert client.held == 1
    wait_until(lambda: client.held == 0, "the lease to end")
    assert torch.equal(copied.cpu(), numbers())


def test_a_graph_writes_what_is_leased(client, tensor):
    written(client, tensor)
    other = client.create("other", (COUNT,), "float32")
    written(client, other)
    with tensor.write(place="device:0") as lease:
        shown = torch.from_dlpack(lease)
        shown.add_(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            other.read(place="device:0").release()  # the library's own calls do not break the capture
            shown.add_(1)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        del shown, graph
    wait_until(lambda: client.held == 0, "the lease to end")
    client.delete([other])
    with tensor.read() as lease:
        assert torch.equal(torch.from_dlpack(lease), numbers() + 3)


def test_a_stream_that_is_captured_ends_no_lease(client, tensor):
    written(client, tensor)
    lease = tensor.read(place="device:0")
    graph = torch.cuda.CUDAGraph()
    scratch = torch.zeros(8, device="cuda")
    with torch.cuda.graph(graph):
        scratch.add_(1)
        with pytest.raises(terrace.FailedPrecondition):
            lease.release(torch.cuda.current_stream())
    lease.release()
    wait_until(lambda: client.held == 0, "the lease to end")


def mlp(layers: int, width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh()))).cuda()


def test_activations_of_a_model_on_the_gpu_are_the_same_bits_and_take_less_hbm(client):
    def run(saved) -> tuple[list[float], int]:
        model = mlp(24, 256)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batch = torch.randn(4096, 256, generator=torch.Generator().manual_seed(1)).cuda()
        losses, most = [], 0
        for _ in range(4):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with saved():
                loss = model(batch).square().mean()
                loss.backward()
            most = torch.cuda.max_memory_allocated() - before
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, most

    plain, of_plain = run(lambda: torch.enable_grad())
    ours, of_ours = run(lambda: terrace.torch.activations(client))
    assert ours == plain
    assert of_ours < of_plain / 2, f"{of_ours} of {of_plain} bytes"


def test_staged_batches_are_pinned(client):
    batches = [torch.full((1 << 18,), float(number)) for number in range(6)]
    for number, batch in enumerate(terrace.torch.stage(batches, depth=2, client=client)):
        assert batch.is_pinned()
        assert (batch.to("cuda", non_blocking=True) == number).all()
        torch.cuda.synchronize()


_KILLED = """
import sys, time, terrace, torch
client = terrace.Client(sys.argv[1])
tensor = client.create("held", (int(sys.argv[2]),), "uint8")
shown = torch.from_dlpack(tensor.overwrite(place="device:0"))
shown.fill_(1)
torch.cuda.synchronize()
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_trainers_hbm_comes_back(client):
    folder = str(pathlib.Path(terrace.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": folder + os.pathsep + os.environ.get("PYTHONPATH", "")}
    for _ in range(3):
        trainer = subprocess.Popen([sys.executable, "-c", _KILLED, str(client.socket), str(100 << 20)],
                                   stdout=subprocess.PIPE, text=True, env=environment)
        assert trainer.stdout is not None and trainer.stdout.readline() == "held\n"
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()
        # more than there would be beside what it held
        many = client.create("many", (200 << 20,), "uint8")
        with many.overwrite(place="device:0", timeout=LIMIT_SECONDS) as lease:
            torch.from_dlpack(lease).fill_(1)
        wait_until(lambda: client.held == 0, "the lease to end")
        client.delete([many])


# Training: 50 MB of weights and four times as much with all that belongs to them, where HBM has 48 MiB and DRAM 96.


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[terrace.Client]:
    folder = os.environ.get("TERRACE_TEST_FOLDER") or tmp_path_factory.mktemp("block")
    with terrace.serve("96MiB", device="48MiB", gpu="cuda:0", block=f"{folder}:2GiB", metrics=False) as served:
        yield served


class Block(nn.Module):
    def __init__(self, width: int = 512):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


class Stack(nn.Module):
    def __init__(self, checkpoints: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.checkpoints = checkpoints

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpoints else block(hidden)
        return hidden


def build(**options) -> Stack:
    torch.manual_seed(0)
    return Stack(**options).cuda()


Run = tuple[list[float], dict[str, torch.Tensor]]
Offload = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, torch.optim.Optimizer]]


def batch_of(number: int) -> torch.Tensor:
    return torch.randn(128, 512, generator=torch.Generator().manual_seed(number)).cuda()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, *, dtype: torch.dtype | None = None,
          clip: bool = False, accumulate: int = 1, saved=contextlib.nullcontext) -> list[float]:
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    losses = []
    for step in steps:
        for part in range(accumulate):
            batch = batch_of(step * accumulate + part)
            with saved():
                with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = (model(batch) - batch.roll(1, 0)).square().mean() / accumulate
                scaler.scale(loss).backward()
            losses.append(loss.item())
        if clip:
            scaler.unscale_(optimizer)
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in model.state_dict().items()}


def equal(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == plain.keys() and all(torch.equal(ours[name], plain[name]) for name in plain)


ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD


@pytest.mark.parametrize(("optimizer", "options", "offloaded", "training"), [
    (ADAMW, {}, {}, {}),
    (ADAMW, {"fused": True}, {}, {}),
    (ADAMW, {"capturable": True}, {}, {}),
    (ADAMW, {"amsgrad": True, "foreach": False}, {}, {}),
    (SGD, {"momentum": 0.9, "nesterov": True}, {}, {}),
    (ADAMW, {}, {"step_in_backward": True}, {}),
    (ADAMW, {"fused": True}, {"step_in_backward": True}, {"dtype": torch.bfloat16}),
    (ADAMW, {}, {}, {"dtype": torch.bfloat16, "clip": True}),
    (ADAMW, {}, {}, {"dtype": torch.float16, "clip": True, "accumulate": 3}),
    (ADAMW, {"fused": True}, {}, {"dtype": torch.float16, "accumulate": 2}),
    (ADAMW, {}, {"what": "states"}, {"clip": True}),
    (ADAMW, {}, {"what": ("parameters", "states")}, {}),
], ids=["adamw", "fused", "capturable", "amsgrad", "sgd", "in_backward", "fused_in_backward", "bf16_clip",
        "fp16_clip_accumulate", "fused_fp16", "states", "parameters_states"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpoints"])
def test_a_model_that_does_not_fit_trains_on_the_gpu(small, optimizer, options, offloaded, training, checkpoints):
    model = build(checkpoints=checkpoints)
    plain = train(model, optimizer(model.parameters(), 1e-3, **options), range(4), **training)
    plain_weights = weights(model)
    model = build(checkpoints=checkpoints)
    model, stepped = terrace.torch.offload(model, optimizer(model.parameters(), 1e-3, **options), client=small, **offloaded)
    assert sum(one.nbytes for one in small.tensors().values()) > 40 << 20
    assert train(model, stepped, range(4), **training) == plain
    assert equal(weights(model), plain_weights)
    torch.cuda.synchronize()
    wait_until(lambda: small.held == 0, "the leases to end")
    assert model.blocks[0].up.weight.device == torch.device("cuda", 0)


def test_it_takes_no_hbm_beside_the_tier(small):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = build()
    model, optimizer = terrace.torch.offload(model, SGD(model.parameters(), 0.1), client=small)
    train(model, optimizer, range(2))
    held = torch.cuda.memory_allocated() - before
    assert held < 4 << 20, f"{held} bytes"


def test_activations_of_an_offloaded_model(small):
    model = build()
    plain = train(model, ADAMW(model.parameters(), 1e-3), range(4))
    model = build()
    model, optimizer = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3), client=small)
    assert train(model, optimizer, range(4), saved=lambda: terrace.torch.activations(small)) == plain


def test_it_is_built_in_hbm(small):
    def made(within) -> Stack:
        torch.manual_seed(0)
        with torch.device("cuda"), within:
            return Stack()

    model = made(contextlib.nullcontext())
    plain = train(model, ADAMW(model.parameters(), 1e-3), range(3))
    del model
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = made(terrace.torch.init(client=small))
    assert torch.cuda.max_memory_allocated() - before < 40 << 20  # of 50 MB
    model, optimizer = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3))
    assert train(model, optimizer, range(3)) == plain


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_saved_goes_on_with_and_without_terrace(small, tmp_path, fused):
    def made(client=None) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = build()
        optimizer = ADAMW(model.parameters(), 1e-3, fused=fused)
        return (model, optimizer) if client is None else terrace.torch.offload(model, optimizer, client=client)

    model, optimizer = made()
    plain = train(model, optimizer, range(6))
    plain_weights = weights(model)
    model, optimizer = made(small)
    assert train(model, optimizer, range(3)) == plain[:3]
    terrace.torch.save(tmp_path / "model.safetensors", model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
    for client in (None, small):
        model, optimizer = made(client)
        terrace.torch.load(tmp_path / "model.safetensors", model, optimizer)
        assert train(model, optimizer, range(3, 6)) == plain[3:] and equal(weights(model), plain_weights)
        saved = torch.load(tmp_path / "both.pt")
        assert saved["model"]["blocks.0.up.weight"].device == torch.device("cuda", 0)
        model, optimizer = made(client)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert train(model, optimizer, range(3, 6)) == plain[3:] and equal(weights(model), plain_weights)


def test_an_exception_in_a_pass_leaves_the_next_step_right(small):
    model = build()
    plain = train(model, ADAMW(model.parameters(), 1e-3), range(3))
    model = build()
    model, optimizer = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3), client=small)
    losses = train(model, optimizer, range(1))
    handle = model.blocks[3].up.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(batch_of(7))
    handle.remove()
    assert losses + train(model, optimizer, range(1, 3)) == plain


def test_a_pass_is_not_captured_into_a_graph(small):
    model = build()
    model, _ = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3), client=small)
    batch = batch_of(0)
    with torch.no_grad():
        expected = model(batch)
        with pytest.raises(terrace.FailedPrecondition, match="a CUDA graph was being captured"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                model(batch)
        assert torch.equal(model(batch), expected)


def test_what_is_on_another_device_is_refused_by_name(small):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64).cuda())  # of 16 KiB each
    with pytest.raises(terrace.InvalidArgument, match="'0.weight' is on cpu, and '1.weight' on cuda:0"):
        terrace.torch.offload(model, client=small)
    with pytest.raises(terrace.InvalidArgument, match="place is 'host', which is memory of cpu, and the model is on cuda:0"):
        terrace.torch.offload(nn.Linear(64, 64).cuda(), client=small, place="host")
    with pytest.raises(terrace.InvalidArgument, match="which is memory of cuda:0, and the model is on cpu"):
        terrace.torch.offload(nn.Linear(64, 64), client=small, place="device:0")
    with terrace.serve("64MiB", metrics=False) as other:
        with pytest.raises(terrace.InvalidArgument, match=r"on cuda:0, and none of this session's places \(host\)"):
            terrace.torch.offload(nn.Linear(64, 64).cuda(), client=other)
    model = terrace.torch.offload(nn.Linear(64, 64), client=small)[0]  # beside a GPU the CPU trains as ever
    model(torch.zeros(64)).sum().backward()
    assert model.weight.grad.device.type == "cpu"

# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a real GPU whose memory Terrace owns a part of: what kernels write is what others read, leases end behind
streams, host memory is pinned, activations and batches wait there, and a killed trainer's memory comes back. For a machine
with a GPU, PyTorch for CUDA and pytest; skipped elsewhere. $TERRACED: the daemon. tests/gpu/run calls it.
"""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import terrace.torch
import torch
from python_gpu_fixtures import LIMIT_SECONDS, serve_gpu, wait_until
from torch import nn

COUNT = (8 << 20) + 5  # of float32
HALF_A_SECOND_CYCLES = 1_000_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[terrace.Client]:
    with serve_gpu("256MiB", "1GiB", tmp_path_factory.mktemp("block")) as served:
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


def test_pages_that_lie_apart_are_one_pinned_tensor(tmp_path):
    with serve_gpu("64MiB", "16MiB", tmp_path) as client:
        small = client.create_many([(f"small{at}", (1 << 17,), "float32") for at in range(32)])
        leases = sorted((one.overwrite() for one in small), key=lambda lease: lease.numpy().ctypes.data)
        for lease in leases[::2]:
            lease.numpy()[:] = 1
            lease.release()  # all of memory was leased, and what is free now lies in halves of a MiB
        numbers_apart = torch.arange(3 << 19, dtype=torch.float32)
        large = client.create("large", tuple(numbers_apart.shape), "float32")
        with large.overwrite() as lease:
            shown = torch.from_dlpack(lease)
            assert shown.is_pinned()
            shown.copy_(numbers_apart)
            assert torch.equal(shown.to("cuda", non_blocking=True).cpu(), numbers_apart)
            del shown
        with large.read(place="device:0") as lease:
            assert torch.equal(torch.from_dlpack(lease).cpu(), numbers_apart)
        for lease in leases[1::2]:
            lease.release()


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
    for _ in range(2):
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

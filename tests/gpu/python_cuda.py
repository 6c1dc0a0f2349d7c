# SPDX-License-Identifier: Apache-2.0
"""Shows HBM from Python on the fake driver: leases of it are DLPack CUDA tensors of the right device, numpy refuses
them, what is written there comes back in host memory, a release waits for its stream, a model on the CPU is not trained
there, and what stands for tensors there reads as NaN."""

import ctypes
import mmap
import os
import pathlib
import tempfile

import pytest
import terrace.torch
import torch
from python_fixtures import wait_until
from terrace._terrace import Placeholder

BYTES = 3 * (1 << 20) + 500
FAKE = os.environ["FAKE_CUDA"]


class Control:
    """The fake's control block, shared with the daemon: its layout is tests/gpu/fake_cuda/control.h."""

    CALLS_OFFSET = 16
    CALLS = 20
    EVENT_RECORD = 17
    EVENT_QUERY = 19

    def __init__(self, memory: mmap.mmap):
        self.memory = memory
        self.device_count = ctypes.c_uint32.from_buffer(memory, 0)
        self.calls = (ctypes.c_uint64 * self.CALLS).from_buffer(memory, self.CALLS_OFFSET)
        faults_bytes = 12 * self.CALLS + 12
        self.hold = ctypes.c_uint32.from_buffer(memory, self.CALLS_OFFSET + 8 * self.CALLS + faults_bytes)


@pytest.fixture(scope="module")
def control():
    """One control for this process and the daemons it starts, before any of them loads the driver."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "control"
        path.write_bytes(bytes(4096))
        os.environ["TERRACE_FAKE_CUDA_CONTROL"] = str(path)
        os.environ["TERRACE_CUDA_LIBRARY"] = FAKE
        with path.open("r+b") as file:
            yield Control(mmap.mmap(file.fileno(), 0))


@pytest.fixture
def client(control):
    before = sum(control.calls)
    with terrace.serve("32MiB", device="16MiB", gpu="cuda:0", metrics=False) as served:
        yield served
    assert sum(control.calls) > before, "the fake driver was not called"


@pytest.fixture(scope="module")
def driver(control):
    """The fake, as the trainer's own CUDA code has it, with a current context."""
    library = ctypes.CDLL(FAKE)
    context = ctypes.c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxPushCurrent_v2(context) == 0
    return library


def copy_up(driver, lease, content: bytes, stream=None) -> None:
    source = (ctypes.c_char * len(content)).from_buffer_copy(content)
    assert driver.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(lease.address), source, ctypes.c_size_t(len(content)), stream) == 0
    if stream is None:
        assert driver.cuStreamSynchronize(None) == 0


def test_a_lease_of_hbm_is_a_cuda_tensor_of_dlpack(client, driver):
    tensor = client.create("a", (BYTES,), "uint8")
    with tensor.overwrite(place="device:0") as lease:
        assert lease.cuda_device == 0
        assert lease.__dlpack_device__() == (2, 0)
        capsule = lease.__dlpack__(stream=1, max_version=(1, 0))
        assert '"dltensor_versioned"' in repr(capsule)
        for refused in (lease.numpy, lambda: memoryview(lease.__array__())):
            with pytest.raises(BufferError, match="torch.from_dlpack"):
                refused()
        with pytest.raises(BufferError):
            lease.__dlpack__(dl_device=(1, 0))
        del capsule
    wait_until(lambda: client.held == 0, "the lease to end")


def test_what_is_no_stream_is_refused_and_the_lease_held(client, driver):
    lease = client.create("a", (BYTES,), "uint8").overwrite(place="device:0")
    for wrong in ("0", -1, 1.5, 1 << 70, object()):
        with pytest.raises(TypeError, match=r"Lease.release: stream is .*; it is a torch.cuda.Stream, or the number"):
            lease.release(wrong)
    for wrong in ("0", 1.5, 1 << 70):
        with pytest.raises(TypeError, match=r"Lease.__dlpack__: stream is .*; it is a number of DLPack's, or None"):
            lease.__dlpack__(stream=wrong)
    assert not lease.released and client.held == 1
    lease.release(0)
    wait_until(lambda: client.held == 0, "the lease to end")


def test_what_is_written_in_hbm_is_read_on_the_host(client, driver):
    tensor = client.create("a", (BYTES,), "uint8")
    content = bytes(range(256)) * (BYTES // 256) + bytes(BYTES % 256)
    with tensor.overwrite(place="device:0") as lease:
        copy_up(driver, lease, content)
    with tensor.read() as lease:
        assert lease.cuda_device is None
        assert lease.__dlpack_device__() == (1, 0)
        assert lease.numpy().tobytes() == content
    assert client.pinned_bytes > 0


def test_a_release_waits_for_its_stream(client, driver, control):
    tensor = client.create("a", (BYTES,), "uint8")
    lease = tensor.overwrite(place="device:0")
    stream = ctypes.c_void_p()
    assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    control.hold.value = 1
    try:
        copy_up(driver, lease, bytes(BYTES), stream)
        recorded = control.calls[control.EVENT_RECORD]
        lease.release(stream.value)
        assert lease.released
        assert control.calls[control.EVENT_RECORD] > recorded
        assert client.held == 1
    finally:
        control.hold.value = 0
    wait_until(lambda: client.held == 0, "the lease to end")


def test_an_export_keeps_the_lease_until_its_stream_has_passed(client, driver, control):
    tensor = client.create("a", (BYTES,), "uint8")
    lease = tensor.overwrite(place="device:0")
    stream = ctypes.c_void_p()
    assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    capsule = lease.__dlpack__(stream=stream.value)
    lease.release()
    assert client.held == 1
    control.hold.value = 1
    try:
        recorded = control.calls[control.EVENT_RECORD]
        del capsule
        wait_until(lambda: control.calls[control.EVENT_RECORD] > recorded, "the stream to be marked")
        assert client.held == 1
    finally:
        control.hold.value = 0
    wait_until(lambda: client.held == 0, "the lease to end")


def test_a_release_waits_for_every_stream_of_an_export(client, driver, control):
    control.device_count.value = 2
    tensor = client.create("a", (BYTES,), "uint8")
    lease = tensor.overwrite(place="device:0")
    stream, other, second = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(second), 1) == 0
    assert driver.cuCtxPushCurrent_v2(second) == 0
    assert driver.cuStreamCreateWithPriority(ctypes.byref(other), 1, 0) == 0
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(second)) == 0
    control.hold.value = 1  # the first device's streams, and not the other's
    try:
        capsule = lease.__dlpack__(stream=stream.value)
        copy_up(driver, lease, bytes(BYTES), stream)
        del capsule
        lease.release(other.value)
        asked = control.calls[control.EVENT_QUERY]
        wait_until(lambda: control.calls[control.EVENT_QUERY] >= asked + 4, "the streams to be looked after")
        assert client.held == 1
    finally:
        control.hold.value = 0
        control.device_count.value = 0
    wait_until(lambda: client.held == 0, "the lease to end")


@pytest.mark.parametrize("exported_first", [False, True])
def test_what_a_lease_carries_ends_behind_its_streams(client, driver, control, exported_first):
    tensor = client.create("a", (BYTES,), "uint8")
    tensor.overwrite(place="device:0").release()
    lease, stream = tensor.read(place="device:0"), ctypes.c_void_p()
    assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    capsule = lease.__dlpack__(stream=stream.value) if exported_first else None
    lease.carry(tensor.write(place="device:0"))
    capsule = capsule or lease.__dlpack__(stream=stream.value)
    lease.release()
    assert client.held == 2
    control.hold.value = 1
    try:
        recorded = control.calls[control.EVENT_RECORD]
        del capsule
        wait_until(lambda: control.calls[control.EVENT_RECORD] >= recorded + 2, "both to be marked")
        assert client.held == 2
    finally:
        control.hold.value = 0
    wait_until(lambda: client.held == 0, "the leases to end")


def test_a_host_lease_ends_behind_its_stream_whatever_is_exported(client, driver, control):
    tensor, carried = client.create("a", (BYTES,), "uint8"), client.create("b", (BYTES,), "uint8")
    stream, device = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(BYTES)) == 0
    assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    for export_is_last in (False, True):
        lease = tensor.overwrite()
        lease.carry(carried.overwrite())
        array = lease.numpy()
        control.hold.value = 1
        try:
            source = ctypes.c_void_p(lease.address)
            assert driver.cuMemcpyHtoDAsync_v2(device, source, ctypes.c_size_t(BYTES), stream) == 0
            lease.release(stream.value)
            assert lease.released
            if not export_is_last:
                del array
                asked = control.calls[control.EVENT_QUERY]
                wait_until(lambda asked=asked: control.calls[control.EVENT_QUERY] >= asked + 3, "the stream to be asked")
            assert client.held == 2
        finally:
            control.hold.value = 0
        if export_is_last:
            assert driver.cuStreamSynchronize(stream) == 0
            array[0] = 1
            assert client.held == 2
            del array
        wait_until(lambda: client.held == 0, "the leases to end")
    assert driver.cuStreamDestroy_v2(stream) == 0
    assert driver.cuMemFree_v2(device) == 0


def test_a_model_on_the_cpu_is_not_trained_in_a_gpus_memory(client):
    assert {place.name: place.gpu for place in client.places()} == {"host": False, "device:0": True}
    model = torch.nn.Linear(64, 64)
    with pytest.raises(terrace.InvalidArgument, match="'device:0', which is memory of cuda:0, and the model is on cpu"):
        terrace.torch.offload(model, client=client, place="device:0")
    with terrace.torch.init(client=client, place="device:0"):
        model = torch.nn.Linear(64, 64)
    assert type(model.weight) is torch.nn.Parameter and not client.tensors()
    terrace.torch.offload(model, client=client)
    assert terrace.torch.summary() and client.tensors()


def test_a_placeholder_of_a_gpu_reads_as_nan_and_cannot_be_written(driver):
    size = (5 << 20) + 12
    placeholder = Placeholder(size, 0)
    capsule = placeholder.part(0, size)
    address_of = ctypes.pythonapi.PyCapsule_GetPointer
    address_of.restype, address_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = ctypes.c_uint64(ctypes.c_uint64.from_address(address_of(capsule, b"dltensor")).value)
    read = (ctypes.c_char * size)()
    assert driver.cuMemcpyDtoHAsync_v2(read, address, ctypes.c_size_t(size), None) == 0
    assert driver.cuStreamSynchronize(None) == 0
    assert bytes(read) == b"\xff" * size
    assert driver.cuMemcpyHtoDAsync_v2(address, read, ctypes.c_size_t(size), None) != 0
    del placeholder
    assert driver.cuMemcpyDtoHAsync_v2(read, address, ctypes.c_size_t(size), None) == 0  # what was exported keeps it
    assert driver.cuStreamSynchronize(None) == 0
    del capsule
    assert driver.cuMemcpyDtoHAsync_v2(read, address, ctypes.c_size_t(size), None) != 0
    with pytest.raises(terrace.Error, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        Placeholder(size, 7)

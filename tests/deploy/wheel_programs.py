# SPDX-License-Identifier: Apache-2.0
"""What tests/deploy/wheel runs by the Python of an environment that a wheel was installed into: each program of PROGRAMS
alone, with a folder on a disk as its argument."""

import pathlib
import re

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs/guides/install.md"

SERVE = """
import pathlib, sys, urllib.request
import numpy, terrace
from terrace._serve import find_terraced
assert pathlib.Path(find_terraced()) == pathlib.Path(sys.prefix, "bin/terraced"), find_terraced()
with terrace.serve("32MiB", block=sys.argv[1] + ":128MiB") as client:
    for i in range(12):  # 48 MiB through 32 MiB
        client.from_array(f"layer{i}", numpy.full((1024, 1024), i, numpy.float32))
    with client.tensors()["layer3"].write() as lease:
        lease.numpy()[:] *= 2
    with client.tensors()["layer3"].read() as lease:
        assert lease.numpy().mean() == 6.0
    assert b"terrace_up 1" in urllib.request.urlopen(client.metrics_url).read()
"""

# The driver, which daemon and client look for when they start, is the tests'.
DEVICE = """
import ctypes, os
import numpy, terrace
with terrace.serve("32MiB", device="16MiB", gpu="cuda:0", metrics=False) as client:
    tensor = client.from_array("t", numpy.arange(256, dtype="uint8"))
    with tensor.read(place="device:0") as lease:
        assert lease.__dlpack_device__() == (2, 0)
        driver, read = ctypes.CDLL(os.environ["TERRACE_CUDA_LIBRARY"]), (ctypes.c_char * 256)()
        context = ctypes.c_void_p()
        assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert driver.cuCtxPushCurrent_v2(context) == 0
        assert driver.cuMemcpyDtoHAsync_v2(read, ctypes.c_uint64(lease.address), ctypes.c_size_t(256), None) == 0
        assert driver.cuStreamSynchronize(None) == 0
        assert read.raw == bytes(range(256))
"""

# Ours with theirs in one process: both are called, in the order that the imports stand in.
BESIDE = """
import sys
from google.protobuf import struct_pb2
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == "upb"
with terrace.serve("16MiB", metrics=False) as client:
    with grpc.insecure_channel("unix:" + client.grpc_socket) as channel:
        grpc.channel_ready_future(channel).result(60)
        tensor = client.from_array("t", [1.0, 2.0])
        with tensor.read() as lease:
            assert list(lease.numpy()) == [1.0, 2.0]
    said = struct_pb2.Struct()
    said["key"] = 5
    assert struct_pb2.Struct.FromString(said.SerializeToString()) == said
"""

TRAIN = """
import sys
import torch, terrace, terrace.torch
from torch import nn

def trained(offload):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = offload(model, optimizer)
    losses = []
    for _ in range(2):  # the second loss is of what the first step made
        loss = nn.functional.cross_entropy(model(torch.randn(16, 64)), torch.randint(8, (16,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

plain = trained(lambda *both: both)
with terrace.serve("16MiB", block=sys.argv[1] + ":128MiB", metrics=False) as client:
    assert trained(lambda *both: terrace.torch.offload(*both, client=client, what="all")) == plain
"""



def of_the_guide():
    """The guide's own program, with its block file in the folder."""
    text = re.search(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[1]
    return "import sys\n" + text.replace('"/var/tmp:', 'sys.argv[1] + ":').replace("print(", "assert 523776.0 == (")


# Each with what must be there to import, beside the package.
PROGRAMS = {
    "the guide's program": ([], of_the_guide()),
    "serve": ([], SERVE),
    "device": ([], DEVICE),
    "beside grpcio and protobuf, which come first": (["grpc", "google.protobuf"], "import grpc, terrace" + BESIDE),
    "beside grpcio and protobuf, which come last": (["grpc", "google.protobuf"], "import terrace, grpc" + BESIDE),
    "train": (["torch"], TRAIN),
}

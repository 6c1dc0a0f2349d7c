# SPDX-License-Identifier: Apache-2.0
"""Shows tensors that several processes have in common, from Python: found by name, held once, read side by side, written
by one alone, and torn when their writer is killed."""

import re
import signal
import subprocess
import sys
import types

import numpy
import pytest
import torch
from python_fixtures import LIMIT_SECONDS, MIB, ROOT, client, disk, run_program  # noqa: F401 (fixtures)

import terrace

READER = """
import sys, numpy, terrace
with terrace.Client(sys.argv[1], local_world_size=8) as client:
    share = client.open_share("weights")
    [tensor] = share.find(["layer"])
    assert tensor.shape == (256, 1024) and str(tensor.dtype) == "float32", (tensor.shape, tensor.dtype)
    with tensor.read() as lease:
        print(int(lease.numpy().sum()))
    try:
        tensor.write()
    except terrace.PermissionDenied as error:
        print(error)
    share.close()
"""

WRITER = """
import sys, time, terrace
share = terrace.Client(sys.argv[1], share="weights", share_use="write")
lease = share.find(["layer"])[0].write()
lease.numpy()[:] = 7
print("writes", flush=True)
time.sleep(600)
"""


OTHER_RANK = """
import os, sys, types, torch as real
os.environ["TERRACE_SOCKET"] = sys.argv[1]
torch = types.SimpleNamespace(distributed=types.SimpleNamespace(barrier=lambda: print("met")),
                              from_dlpack=lambda lease: print(real.from_dlpack(lease).tolist()))
"""


@pytest.fixture
def share(client):  # noqa: F811
    with client.create_share("weights", guarantees={"host": 4 * MIB, "device:0": 2 * MIB}) as made:
        yield made


def test_the_pages_snippets_run(client, monkeypatch):  # noqa: F811
    """Rank 0's, and at its barrier, which stands for those of both, the other rank's."""
    page = (ROOT / "docs/reference/python.md").read_text()
    first, other = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    said = []

    def barrier():
        said.append(run_program("import terrace\n" + OTHER_RANK + other, client.socket))

    monkeypatch.setenv("TERRACE_SOCKET", client.socket)
    exec(first.replace("1 << 30", "4 << 20"), {
        "terrace": terrace, "embedding": torch.arange(4.0),
        "torch": types.SimpleNamespace(distributed=types.SimpleNamespace(barrier=barrier))})
    assert [(one.returncode, one.stdout) for one in said] == [(0, "met\n[0.0, 1.0, 2.0, 3.0]\n")], said[0].stderr


def test_is_read_by_another_process(share):
    layer = torch.ones(256, 1024)
    share.from_array("layer", layer)
    read = run_program(READER, share.socket)
    assert read.returncode == 0, read.stderr
    total, refusal = read.stdout.splitlines()
    assert int(total) == layer.sum()
    assert "'weights' for reading" in refusal
    with share.open_share("weights") as other, other.find(["layer"])[0].read() as lease:
        assert torch.equal(torch.from_dlpack(lease), layer)


def test_is_written_by_one_alone(share):
    tensor = share.from_array("layer", numpy.zeros(1000, "float32"))
    with share.open_share("weights", write=True) as other:
        [same] = other.find(["layer"])
        with tensor.read():
            with pytest.raises(terrace.DeadlineExceeded, match="share 'weights' still held leases: 'layer'"):
                same.write(timeout=0.05)
            with same.read(), pytest.raises(terrace.FailedPrecondition, match="leased"):
                same.write()
        with same.write() as lease:
            lease.numpy()[:] = 5
        with tensor.read() as lease:
            assert (lease.numpy() == 5).all()


def test_says_what_is_wrong(client, share):  # noqa: F811
    with pytest.raises(terrace.NotFound, match="no tensor 'layer'"):
        share.find(["layer"])
    with pytest.raises(terrace.AlreadyExists, match="share 'weights'"):
        client.create_share("weights")
    with pytest.raises(terrace.NotFound, match="no share 'gradients'"):
        client.open_share("gradients")
    with pytest.raises(terrace.InvalidArgument, match="1 to 63"):
        client.create_share("n" * 64)
    with pytest.raises(terrace.InvalidArgument, match="read, write and create"):
        terrace.Client(client.socket, share="weights", share_use="own")
    assert client.find([]) == []


def test_tells_of_a_tensor_whose_writer_was_killed(share):
    tensor = share.from_array("layer", numpy.zeros(1000, "float32"))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, share.socket], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "writes\n"
        writer.send_signal(signal.SIGKILL)
        with pytest.raises(terrace.FailedPrecondition, match="torn"):
            tensor.read(timeout=LIMIT_SECONDS)
        with tensor.overwrite() as lease:
            lease.numpy()[:] = 1
        with tensor.read() as lease:
            assert (lease.numpy() == 1).all()
    finally:
        writer.kill()
        writer.wait(LIMIT_SECONDS)
        writer.stdout.close()

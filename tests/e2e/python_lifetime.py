# SPDX-License-Identifier: Apache-2.0
"""Shows that an array or tensor made from a lease owns it: none can dangle, whatever ends first; and what an in-place
operation of PyTorch on a read lease does."""

import signal
import threading

import numpy
import pytest
import torch
from python_fixtures import MIB, client, disk, run_program  # noqa: F401 (fixtures)

CHILD = """
import resource, sys, numpy, terrace, torch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
client = terrace.Client(sys.argv[1])
tensor = client.from_array("t", numpy.ones(1000, numpy.float32))
"""


def test_a_tensor_outlives_the_with(client):
    tensor = client.create("t", 1000)
    with tensor.write() as lease:
        alias = torch.from_dlpack(lease)
    assert lease.released and client.held == 1 and client.leased_bytes == 4000
    alias.fill_(3)
    view = alias.view(10, 100)[3]
    del alias
    assert client.held == 1 and view.sum() == 300
    del view
    assert client.held == 0 and client.leased_bytes == 0
    with tensor.read() as lease:
        assert (lease.numpy() == 3).all()


def test_an_array_outlives_the_with(client):
    with client.from_array("t", numpy.arange(1000)).read() as lease:
        array = lease.numpy()
    tail = array[990:]
    del array, lease
    assert client.held == 1 and tail.tolist() == list(range(990, 1000))
    del tail
    assert client.held == 0


def test_a_lease_that_is_dropped_is_released(client):
    tensor = client.create("t", 1000)
    lease = tensor.write()
    assert client.held == 1
    del lease
    assert client.held == 0
    capsule = tensor.write().__dlpack__()
    assert client.held == 1
    del capsule
    assert client.held == 0
    capsule = tensor.write().__dlpack__(max_version=(1, 0))
    assert client.held == 1
    del capsule
    assert client.held == 0


def test_an_export_stays_where_it_is_under_pressure(client):
    kept = client.from_array("kept", numpy.full(2 * MIB, 5, numpy.uint8))
    with kept.read() as lease:
        alias = torch.from_dlpack(lease)
    for i in range(40):
        client.from_array(f"t{i}", numpy.full(2 * MIB, i, numpy.uint8))
    assert bool((alias == 5).all())


def test_an_export_outlives_the_client(client):
    with client.from_array("t", numpy.ones(1000)).write() as lease:
        alias = lease.numpy()
    client.close()
    alias += 1
    assert alias.sum() == 2000


def test_the_last_reference_may_go_on_another_thread(client):
    with client.create("t", 1000).write() as lease:
        aliases = [torch.from_dlpack(lease)]
    thread = threading.Thread(target=aliases.clear)
    thread.start()
    thread.join()
    assert client.held == 0


def test_exports_at_the_interpreters_end(client):
    ended = run_program(CHILD + "lease = tensor.write(); alias = torch.from_dlpack(lease); array = lease.numpy()",
                        client.socket)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_in_place_operation_on_a_read_lease_is_a_segfault(client):
    write = "torch.from_dlpack(tensor.read({})).add_(1)\nprint('alive')"
    ended = run_program(CHILD + write.format(""), client.socket)
    assert (ended.returncode, ended.stdout) == (-signal.SIGSEGV, "")
    ended = run_program(CHILD + write.format("writable_view=True"), client.socket)
    assert (ended.returncode, ended.stdout) == (0, "alive\n")


def test_what_dlpack_cannot_do_is_refused(client):
    with client.create("t", 10).write() as lease:
        assert lease.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError):
            lease.__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError):
            lease.__dlpack__(copy=True)

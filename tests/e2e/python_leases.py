# SPDX-License-Identifier: Apache-2.0
"""Shows that numpy and PyTorch get back what they wrote, through every tier, for every element type and every kind of
lease, and that what is wrong raises the exception that says what to do."""

import os
import random
import re
import signal
import sys
import threading
import time
import urllib.request

import numpy
import pytest
import torch
from python_fixtures import LIMIT_SECONDS, MIB, client, disk, wait_until  # noqa: F401 (fixtures)

import terrace
from terrace import _terrace

SEED = int(os.environ.get("TERRACE_TEST_SEED", random.randrange(1 << 30)))


def metric(client, name, **labels):
    """The sum of a series of the daemon, over what has these labels."""
    text = urllib.request.urlopen(client.metrics_url, timeout=LIMIT_SECONDS).read().decode()
    wanted = [f'{key}="{value}' for key, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted))


def test_bytes_survive_every_tier(disk):
    """96 MiB through 16 of device and 32 of memory, leased in both places, with writes on the way."""
    print(f"seed {SEED}")
    with terrace.serve("32MiB", device="16MiB", block=f"{disk}:256MiB") as client:
        sweep_through_the_tiers(client)
        for link in ("block_read", "block_write", "host_to_device", "device_to_host"):
            assert metric(client, "terrace_transfer_bytes_total", link=link) > 0, link
        assert metric(client, "terrace_checksum_failures_total") == 0


def sweep_through_the_tiers(client):
    chance = numpy.random.default_rng(SEED)
    content = [chance.integers(0, 1 << 31, size=MIB // 2, dtype=numpy.int32) for _ in range(48)]
    tensors = [client.from_array(f"t{i}", array) for i, array in enumerate(content)]
    for sweep in range(3):
        for i in chance.permutation(len(tensors)).tolist():
            place = "device:0" if (i + sweep) % 2 else "host"
            with tensors[i].read(place=place) as lease:
                assert numpy.array_equal(lease.numpy(), content[i]), f"tensor {i} in sweep {sweep}"
            if i % 3 == sweep:
                content[i] += i
                with tensors[i].write(place=place) as lease:
                    torch.from_dlpack(lease).add_(i)
    assert client.held == 0 and client.leased_bytes == 0
    assert 2 * MIB <= client.leased_bytes_max <= 4 * MIB


def test_whether_a_tensor_is_at_hand(client):
    tensor = client.from_array("t", numpy.arange(1024))
    assert client._resident(tensor, "host") and not client._resident(tensor, "device:0")
    client.swap_out([tensor])
    assert not client._resident(tensor, "host") and client.held == 0
    client.swap_in([tensor], place="device:0")
    assert client._resident(tensor, "device:0") and not client._resident(tensor, "host") and client.held == 0
    with pytest.raises(terrace.NotFound, match="device:3"):
        client._resident(tensor, "device:3")
    client.delete([tensor])
    with pytest.raises(terrace.Aborted, match="was destroyed"):
        client._resident(tensor, "host")


def test_what_was_waited_for(client):
    here, below = client.from_array("here", numpy.arange(1024)), client.from_array("below", numpy.arange(1024))
    client.swap_out([below])
    with client.acquire([here, below]) as leases:
        assert [lease.waited for lease in leases] == [True, True]
        assert [lease.fetched for lease in leases] == [False, True]
    with client.acquire([here, below], mode="write") as leases:
        assert not any(lease.waited or lease.fetched for lease in leases)
    client.swap_out([below])
    with below.overwrite() as lease:
        assert lease.waited and not lease.fetched, "there was room to be had, and nothing to bring"


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
                                  "float64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"])
def test_every_element_type(client, name):
    dtype = getattr(torch, name)
    source = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).to(dtype)
    tensor = client.from_array("source", source)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (name, (2, 3, 4), source.nbytes)
    client.swap_out([tensor])
    with tensor.read() as lease:
        back = torch.from_dlpack(lease)
        assert back.dtype == dtype and back.data_ptr() == lease.address
        assert torch.equal(back.view(torch.uint8), source.view(torch.uint8))
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            with pytest.raises(TypeError, match="torch.from_dlpack"):
                lease.numpy()
        else:
            assert numpy.array_equal(lease.numpy(), source.numpy()) and not lease.numpy().flags.writeable


def test_from_array_takes_what_numpy_takes(client):
    strided = numpy.arange(100.0).reshape(10, 10).T[::2]
    with client.from_array("strided", strided).read() as lease:
        assert numpy.array_equal(lease.numpy(), strided)
    with client.from_array("parameter", torch.nn.Parameter(torch.ones(3))).read() as lease:
        assert torch.from_dlpack(lease).tolist() == [1, 1, 1]
    with client.from_array("list", [1, 2, 3]).read() as lease:
        assert numpy.asarray(lease).tolist() == [1, 2, 3]
    assert sorted(client.tensors()) == ["list", "parameter", "strided"]


def test_read_only_and_zeros(client):
    tensor = client.create("t", 1000, "float32")
    with pytest.raises(terrace.FailedPrecondition):
        tensor.read()
    with tensor.write() as lease:  # never written: zeros
        assert not lease.numpy().any() and lease.mode == "write" and lease.place == "host"
        lease.numpy()[:] = 7
    with tensor.read() as lease:
        with pytest.raises(ValueError, match="read-only"):
            lease.numpy()[0] = 1
        assert lease.numpy().sum() == 7000
    assert lease.released
    lease.release()  # once more is nothing
    lease.abandon()
    with pytest.raises(terrace.FailedPrecondition, match="released"):
        lease.numpy()
    tensor.read().release()  # what was released is not torn by an abandon


@pytest.mark.parametrize("kept", [False, True], ids=["nothing kept", "an array kept"])
def test_an_overwrite_that_an_exception_leaves_is_torn(client, kept):
    """The memory it was given holds what another tensor left there: none of it may pass for content."""
    tensor, other = client.from_array("t", numpy.arange(MIB)), client.from_array("other", numpy.arange(10))
    client.swap_out([tensor, other])
    stale = [client.from_array(f"stale{i}", numpy.full(MIB // 2, -99)) for i in range(7)]
    client.delete(stale)
    arrays = []
    with pytest.raises(KeyError, match="half way"):
        with tensor.overwrite() as lease:
            lease.numpy()[:10] = 1
            arrays += [lease.numpy()] if kept else []
            raise KeyError("half way")
    assert client.held == len(arrays) and lease.released
    for call in (tensor.read, tensor.write, lambda: client.acquire([other, tensor]),
                 lambda: client.swap_out([tensor]) if not kept else tensor.read()):
        with pytest.raises(terrace.FailedPrecondition, match="'t' is torn"):
            call()
    arrays.clear()
    with pytest.raises(terrace.FailedPrecondition, match="'t' is torn"):
        tensor.read()
    with tensor.overwrite() as lease:
        lease.numpy()[:] = 5
    with tensor.read() as lease:
        assert (lease.numpy() == 5).all()


@pytest.mark.parametrize("name", ["f4", "<f4", "single", "float32", numpy.float32, numpy.dtype("f4"), torch.float32])
def test_element_types_by_other_names(client, name):
    assert client.create("t", 3, name).dtype == "float32"
    for foreign in (">f4", "U3", "O", "f16", "m8[s]", "", "three"):
        with pytest.raises(terrace.InvalidArgument, match="no such element type"):
            client.create("foreign", 3, foreign)


def test_moving_by_hand(client):
    tensors = [client.from_array(f"t{i}", numpy.full(MIB // 8, i)) for i in range(4)]
    client.mark_step()
    client.swap_in(tensors, place="device:0")
    client.swap_out(tensors, place="host")
    client.evict(tensors)
    client.pin(tensors[:2], place="host")
    client.unpin(tensors[:2])
    client.declare_step([(tensors[:2], "read", "device:0", 0.01), (tensors[2:], "write", "host", 0.0)], "eval")
    client.mark_step("eval")
    with client.acquire(tensors, place="device:0") as leases:
        assert [int(lease.numpy()[-1]) for lease in leases] == [0, 1, 2, 3]
    client.dont_need(tensors[:1])
    with pytest.raises(terrace.FailedPrecondition):
        tensors[0].read()
    with tensors[0].overwrite() as lease:
        lease.numpy()[:] = 9
    with tensors[0].read() as lease:
        assert lease.numpy()[0] == 9


def test_errors_say_what_to_do(client):
    taken = client.create("taken", 10)
    with pytest.raises(terrace.AlreadyExists, match="taken") as caught:
        client.create("taken", 10)
    assert caught.value.code == "ALREADY_EXISTS" and isinstance(caught.value, terrace.Error)
    for said, call in ((r"create: timeout is None; .*seconds", lambda: client.create("x", 1, timeout=None)),
                       ("create: name is 7; it is a str", lambda: client.create(7, 1)),
                       ("acquire: element 1 of the set is 'b'", lambda: client.acquire([taken, "b"])),
                       ("delete: element 0 of the set is 3", lambda: client.delete([3])),
                       ("delete: timeout is 'x'", lambda: client.delete([taken], timeout="x")),
                       ("Client: local_world_size is 1.5", lambda: terrace.Client(local_world_size=1.5)),
                       ("Client: timeout is True", lambda: terrace.Client(timeout=True)),
                       ("Client: label is 3", lambda: terrace.Client(label=3))):
        with pytest.raises(TypeError, match=said) as wrong:
            call()
        assert "incompatible" not in str(wrong.value)
    for said, call in ((r"Client: guarantees\['host'\] is -1; it is from 0",
                        lambda: terrace.Client(client.socket, guarantees={"host": -1})),
                       ("Client: local_world_size is -2", lambda: terrace.Client(client.socket, local_world_size=-2)),
                       ("label of 64 bytes: it has at most 63", lambda: terrace.Client(client.socket, label="x" * 64)),
                       ("create: name is .*UTF-8 cannot encode", lambda: client.create("a\udc80", 1)),
                       ("create: timeout is -1", lambda: client.create("x", 1, timeout=-1)),
                       ("acquire: timeout is nan", lambda: client.acquire([taken], timeout=float("nan")))):
        with pytest.raises(terrace.InvalidArgument, match=said):
            call()
    for call in (lambda: client.create("x", 10, "float33"), lambda: client.create("x", 0),
                 lambda: client.create("x", (1 << 40, 1 << 40)), lambda: client.create("", 10),
                 lambda: taken.write(place="attic"), lambda: client.acquire([taken], mode="peek"),
                 lambda: taken.write(timeout=-1), lambda: client.mark_step("walk")):
        with pytest.raises(terrace.InvalidArgument):
            call()
    with pytest.raises(ValueError):
        client.create("x", 10, "float33")
    with pytest.raises(terrace.ResourceExhausted):
        client.create("larger than every tier", 1 << 33, "uint8")
    client.delete([taken])
    for call in (taken.write, lambda: client.swap_out([taken]), lambda: client.delete([taken])):
        with pytest.raises(terrace.Aborted, match='"taken" was destroyed: create it again'):
            call()
    client.create("taken", 10)
    client.close()
    with pytest.raises(terrace.FailedPrecondition):
        client.create("after the end", 10)


def test_no_daemon_shows_how_to_start_one(monkeypatch, tmp_path):
    monkeypatch.setenv("TERRACE_SOCKET", str(tmp_path / "nobody.sock"))
    with pytest.raises(terrace.Unavailable, match="terraced"):
        terrace.Client()


def test_a_daemon_that_does_not_come_back(client):
    """What is leased stays; calls say since when the daemon is away, or, for who has waited long enough, that it is."""
    few = {"host": 4 * MIB, "device:0": 0}
    with (terrace.Client(client.socket, guarantees=few) as waits,
          terrace.Client(client.socket, guarantees=few, reconnect_timeout=0.1) as gives_up):
        array = waits.from_array("t", numpy.arange(1000)).read().numpy()
        absent = waits.create("absent", 10)
        os.kill(client.daemon_pid, signal.SIGKILL)
        with pytest.raises(terrace.Unavailable, match="has not come back within reconnect_timeout"):
            gives_up.create("late", 10)
        with pytest.raises(terrace.DeadlineExceeded, match="away since"):
            absent.overwrite(timeout=0.1)
        assert array.sum() == 499500
        assert waits.reconnects == 0


def test_an_answer_that_comes_late_is_taken(client):
    """The lease is granted while the waiting thread, done with a slice of its wait, has not the interpreter back."""
    tensor = client.from_array("t", numpy.arange(1000))
    client.swap_out([tensor])
    os.kill(client.daemon_pid, signal.SIGSTOP)

    def hog():
        while client.held < 1:  # until the call is under way
            time.sleep(0.001)
        spin(0.3)
        os.kill(client.daemon_pid, signal.SIGCONT)
        spin(0.5)

    def spin(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(10 * LIMIT_SECONDS)
    try:
        thread = threading.Thread(target=hog)
        thread.start()
        with tensor.read(timeout=LIMIT_SECONDS) as lease:
            assert lease.numpy()[999] == 999
        thread.join(LIMIT_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert client.held == 0


def test_a_stopped_daemon_ends_no_wait_but_their_limit(client):
    tensor = client.from_array("t", numpy.arange(1000))
    os.kill(client.daemon_pid, signal.SIGSTOP)
    try:
        for call in (lambda: client.swap_out([tensor], timeout=0.1), lambda: client.create("n", 1, timeout=0.1),
                     lambda: client.pin([tensor], timeout=0.1), lambda: client.delete([tensor], timeout=0.1),
                     lambda: terrace.Client(client.socket, timeout=0.1)):
            with pytest.raises(terrace.DeadlineExceeded, match="in time"):
                call()
    finally:
        os.kill(client.daemon_pid, signal.SIGCONT)


def test_every_wait_ends_by_ctrl_c(client):
    tensor = client.from_array("t", numpy.arange(1000))
    os.kill(client.daemon_pid, signal.SIGSTOP)
    try:
        for call in (lambda: client.swap_out([tensor]), lambda: client.create("n", 1), lambda: client.pin([tensor]),
                     lambda: client.delete([tensor]), lambda: terrace.Client(client.socket)):
            interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            interrupt.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            interrupt.join()
    finally:
        os.kill(client.daemon_pid, signal.SIGCONT)


def test_close_ends_the_waits_of_other_threads(client):
    tensor = client.from_array("t", numpy.arange(1000))
    client.swap_out([tensor])
    said = []

    def wait():
        try:
            tensor.read()
        except terrace.Error as error:
            said.append(error)

    os.kill(client.daemon_pid, signal.SIGSTOP)
    try:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: client.held == 1, "the other thread's call")
        client.close()
        thread.join(LIMIT_SECONDS / 2)
        assert not thread.is_alive()
        assert isinstance(said[0], terrace.FailedPrecondition) and "closed" in str(said[0])
    finally:
        os.kill(client.daemon_pid, signal.SIGCONT)


def test_from_array_leaves_nothing_behind_that_it_could_not_fill(client):
    with client.create("all", 24 * MIB, "uint8").overwrite():
        with pytest.raises(terrace.Error):
            client.from_array("t", numpy.zeros(16 * MIB, "uint8"), timeout=0.1)
        assert "t" not in client.tensors()
    client.from_array("t", numpy.zeros(10))


def test_numbers_may_be_numpys(client):
    assert client.create("a", numpy.int64(5)).shape == (5,)
    assert client.create("b", (numpy.int32(2), 3)).shape == (2, 3)
    with pytest.raises(terrace.InvalidArgument, match="guarantee for block"):
        terrace.Client(client.socket, guarantees={"block": MIB})


def test_waiting_lets_other_threads_run(client):
    """A second session waits for its guarantee until this thread gives leases back. Threads are switched only where one
    lets go of the interpreter, so that this thread comes to run again because the wait did."""
    tensors = client.create_many([(f"t{i}", 8 * MIB, "uint8") for i in range(4)])
    leases = client.acquire(tensors[:3], mode="overwrite")
    about_to_wait = threading.Event()
    opened = []

    def open_another():
        about_to_wait.set()
        with terrace.Client(client.socket, guarantees={"host": 16 * MIB}, timeout=LIMIT_SECONDS / 2) as other:
            opened.append({place.name: place.guarantee_bytes for place in other.places()})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(10 * LIMIT_SECONDS)
    try:
        thread = threading.Thread(target=open_another)
        thread.start()
        about_to_wait.wait()
        assert not opened
        leases.release()
        thread.join(LIMIT_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert opened and opened[0]["host"] == 16 * MIB


def test_a_lease_is_resumed_from_what_shows_it(client):
    tensor = client.from_array("t", numpy.arange(1000))
    lease = tensor.read()
    assert lease.shown and not lease.released
    array = lease.numpy()
    lease.release()
    assert lease.shown and lease.released and lease.resume() and not lease.released
    again = lease.numpy()
    lease.release()
    del array
    assert lease.shown and client.held == 1 and again[999] == 999
    del again
    assert not lease.shown and not lease.resume() and client.held == 0


def test_a_lease_carries_another_one(client):
    """What was written through a read lease's writable view is kept, by a lease to write that ends with it."""
    tensor = client.from_array("t", numpy.arange(1000, dtype="float32"))
    client.swap_out([tensor])
    lease = tensor.read(writable_view=True)
    view = torch.from_dlpack(lease.__dlpack__())
    view[3] = 7
    write = tensor.write()
    lease.carry(write)
    assert write.released and client.held == 2
    with pytest.raises(terrace.FailedPrecondition, match="released"):
        lease.carry(write)
    with pytest.raises(terrace.InvalidArgument, match="itself"):
        lease.carry(lease)
    lease.release()
    assert client.held == 2
    del view
    assert client.held == 0 and client.leased_bytes == 0
    client.swap_out([tensor])
    with tensor.read() as lease:
        assert lease.numpy()[3] == 7


def test_bytes_are_copied_into_what_is_leased_to_be_written(client):
    """From any address, any number of them; and nothing beside them is written."""
    tensor = client.create("t", (1000,), "uint8")
    source = torch.arange(2000, dtype=torch.int64).to(torch.uint8)
    for offset, size in ((0, 1000), (1, 999), (7, 64), (3, 63), (5, 130), (0, 1), (0, 0)):
        with tensor.overwrite() as lease:
            torch.from_dlpack(lease).zero_()
            lease._copy_in(source.data_ptr() + offset, size)
        with tensor.read() as lease:
            found = torch.from_dlpack(lease)
            assert torch.equal(found[:size], source[offset:offset + size]) and not found[size:].any(), (offset, size)
    with tensor.write() as lease, pytest.raises(terrace.InvalidArgument, match="as large"):
        lease._copy_in(source.data_ptr(), 1001)
    for writable_view in (False, True):
        with tensor.read(writable_view=writable_view) as lease, pytest.raises(terrace.InvalidArgument, match="written"):
            lease._copy_in(source.data_ptr(), 1)


def test_a_placeholder_reads_as_no_number(client):
    placeholder = _terrace.Placeholder(5 * MIB)
    part = torch.from_dlpack(placeholder.part(MIB, 4 * MIB))
    assert placeholder.nbytes == 5 * MIB and part.numel() == 4 * MIB
    other = torch.from_dlpack(placeholder.part(0, MIB))
    assert part.data_ptr() - other.data_ptr() == MIB
    del placeholder, other
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert part.view(dtype).isnan().all()
    for wrong in (lambda: _terrace.Placeholder(0), lambda: _terrace.Placeholder(1 << 60),
                  lambda: _terrace.Placeholder(10).part(5, 6)):
        with pytest.raises(terrace.InvalidArgument):
            wrong()


@pytest.mark.parametrize("made, refused", [([], [("a", 20 << 20), ("b", 13 << 20)]), ([("a", 9 << 20), ("b", 3 << 20)], [("c", (7 << 20) + 5)]),
                                           ([], [("a", (32 << 20) + 1)])], ids=["at once", "beside others", "one alone"])
@pytest.mark.parametrize("below", [False, True])
def test_a_refused_home_says_what_would_do(disk, below, made, refused):
    """And what it says does, of memory and of the block tier."""
    def create(mib):
        options = {"block": f"{disk}:{mib}MiB"} if below else {}
        with terrace.serve("48MiB" if below else f"{mib}MiB", metrics=False, **options) as client:
            kept = client.create_many([(name, (size,), "uint8") for name, size in made])
            try:
                kept += client.create_many([(name, (size,), "uint8") for name, size in refused])
            except terrace.ResourceExhausted as error:
                return str(error)
            return ""

    said = create(16)
    enough = re.search(r": give it at least (\d+) MiB", said)
    assert enough, said
    assert create(int(enough[1])) == "" and create(int(enough[1]) - 2) != ""

# SPDX-License-Identifier: Apache-2.0
"""Shows that a forked child can use nothing of its parent's session and change nothing of it, by hand and as a
DataLoader with forked workers."""

import ctypes
import faulthandler
import os
import pathlib
import resource
import signal

import numpy
import torch
from python_fixtures import client, disk  # noqa: F401 (fixtures)

import terrace


def in_a_fork(work) -> int:
    """Runs work() in a forked child, without pytest's own ending; its wait status."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # pytest's; a child that ends by SIGSEGV says enough by that
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        status = 99
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def refusals(client, tensor, lease) -> list[str]:
    """What every kind of call says here."""
    calls = (lambda: client.create("child's", 10), lambda: tensor.read(), lambda: tensor.write(),
             lambda: client.acquire([tensor]), lambda: client.prefetch([tensor]), lambda: client.swap_out([tensor]),
             lambda: client.mark_step(), lambda: client.delete([tensor]), lambda: client.places(),
             lambda: client.tensors(), lambda: client.session, lambda: client.reconnects, lambda: client.held,
             lambda: client.pinned_bytes, lambda: client.leased_bytes, lambda: client.leased_bytes_max)
    said = []
    for call in calls:
        try:
            call()
            said.append("done")
        except terrace.Error as error:
            said.append(f"{error.code}: {error}")
    assert client.socket  # a path, which a child may well connect to
    lease.abandon()  # these do nothing, and say nothing
    lease.release()
    client.close()
    return said


def test_calls_in_a_child_name_the_fork(client):
    tensor = client.from_array("t", numpy.arange(1000))
    lease = tensor.read()
    array = lease.numpy()

    def work():
        said = refusals(client, tensor, lease)
        wrong = [text for text in said if not text.startswith("FAILED_PRECONDITION") or "fork" not in text]
        print(wrong)
        return len(wrong)

    assert in_a_fork(work) == 0
    assert client.held == 1 and array.sum() == 499500
    del array
    lease.release()
    assert client.held == 0 and len(client.places()) == 2 and list(client.tensors()) == ["t"]
    client.swap_out([tensor])
    with tensor.read() as lease:
        assert lease.numpy().sum() == 499500


def test_a_leased_array_is_not_mapped_in_a_child(client):
    with client.from_array("t", numpy.arange(1000)).read() as lease:
        array = lease.numpy()
        assert os.WTERMSIG(in_a_fork(lambda: int(array[0]))) == signal.SIGSEGV
        assert array.sum() == 499500 and client.held == 1
    del array
    assert client.held == 0


def test_a_child_may_exit_with_a_log_of_leases(client):
    tensor = client.from_array("t", numpy.arange(1000))
    tensor.read().release()  # on this thread, which the child's is a copy of
    assert in_a_fork(lambda: ctypes.CDLL(None).exit(5)) == 5 << 8
    with tensor.read() as lease:
        assert lease.numpy().sum() == 499500


def test_a_child_that_leaves_the_with_leaves_the_daemon(disk):  # noqa: F811
    child = None
    try:
        with terrace.serve("32MiB", block=f"{disk}:64MiB", metrics=False) as client:  # noqa: F811
            made = [client.log, pathlib.Path(client.socket), *disk.iterdir()]
            child = os.fork()
            if child != 0:
                assert os.waitpid(child, 0)[1] == 0
                assert len(made) == 3 and all(path.exists() for path in made)
                terrace.Client(client.socket).close()
                client.swap_out([client.from_array("t", numpy.arange(1000))])
    finally:
        if child == 0:
            os._exit(0)
    assert not any(path.exists() for path in made)


class Numbers(torch.utils.data.Dataset):
    """A dataset that also tries, in whichever process it runs, to use the client."""

    def __init__(self, client, tensor):
        self.client, self.tensor = client, tensor

    def __len__(self):
        return 32

    def __getitem__(self, index):
        try:
            self.tensor.read()
            return index, "leased"
        except terrace.FailedPrecondition as error:
            return index, "fork" if "fork" in str(error) else str(error)


def test_a_data_loader_with_forked_workers(client):
    tensor = client.from_array("t", torch.arange(1000))
    with tensor.write() as lease:
        leased = torch.from_dlpack(lease)
        loader = torch.utils.data.DataLoader(Numbers(client, tensor), batch_size=4, num_workers=2,
                                             multiprocessing_context="fork")
        for epoch in range(2):
            indices = []
            for numbers, said in loader:
                assert set(said) == {"fork"}
                indices += numbers.tolist()
                leased += 1
            assert indices == list(range(32)) and client.held == 1
        del leased
    assert client.held == 0
    client.swap_out([tensor])
    with tensor.read() as lease:
        assert torch.equal(torch.from_dlpack(lease), torch.arange(1000) + 16)

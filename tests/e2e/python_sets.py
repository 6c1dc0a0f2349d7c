# SPDX-License-Identifier: Apache-2.0
"""Shows sets of tensors leased from Python: all or nothing, in order, each tensor in its own mode where that is asked for,
and what an exception leaves of them."""

import numpy
import pytest
from python_fixtures import MIB, client, disk  # noqa: F401 (fixtures)

import terrace


def test_sets_come_together_and_in_order(client):
    tensors = client.create_many([(f"t{i}", (100, i + 1), "int64") for i in range(50)])
    with client.acquire(tensors, mode="overwrite", place="device:0") as leases:
        assert [lease.name for lease in leases] == [tensor.name for tensor in tensors] and client.held == 50
        for i, lease in enumerate(leases):
            lease.numpy()[:] = i
    assert client.held == 0
    client.swap_out(tensors)
    client.prefetch(tensors[:25], place="host")
    with client.acquire(reversed(tensors)) as leases:
        assert [int(lease.numpy()[0, 0]) for lease in leases] == list(reversed(range(50)))
    missing = client.create("missing", 10)
    with pytest.raises(terrace.FailedPrecondition):
        client.acquire([tensors[0], missing])
    assert client.held == 0


def test_each_tensor_in_its_own_mode(client):
    """Read, written and overwritten as one set: what is overwritten is not fetched, and nothing of it was lost before."""
    read, written, overwritten = tensors = [client.from_array(f"t{i}", numpy.full(MIB // 8, i)) for i in range(3)]
    client.swap_out(tensors)
    with client.acquire(tensors, mode=["read", "write", "overwrite"]) as leases:
        assert [lease.mode for lease in leases] == ["read", "write", "overwrite"]
        assert [lease.fetched for lease in leases] == [True, True, False]
        assert not leases[0].numpy().flags.writeable
        leases[2].numpy()[:] = leases[0].numpy() + leases[1].numpy() + 10
        leases[1].numpy()[:] += 5
    assert client.held == 0
    client.swap_out(tensors)
    assert [int(tensor.read().numpy()[-1]) for tensor in tensors] == [0, 6, 11]
    with pytest.raises(ZeroDivisionError):
        with client.acquire(tensors, mode=("read", "read", "overwrite")):
            raise ZeroDivisionError
    with pytest.raises(terrace.FailedPrecondition, match="'t2' is torn"):
        client.acquire(tensors, mode=iter(["overwrite", "overwrite", "write"]))
    assert client.held == 0 and int(read.read().numpy()[0]) == 0, "nothing was overwritten"
    with client.acquire([written, overwritten], mode=["read", "overwrite"]) as leases:  # in place by now, both
        assert int(leases[0].numpy()[0]) == 6
        leases[1].numpy()[:] = 1


def test_modes_that_are_none(client):
    tensors = [client.from_array(f"t{i}", numpy.full(10, i)) for i in range(2)]
    for mode, error, said in ((["read"], terrace.InvalidArgument, "acquire: mode has 1 entries for 2 tensors"),
                              ([], terrace.InvalidArgument, "acquire: mode has 0 entries for 2 tensors"),
                              (["read", "peek"], terrace.InvalidArgument, "no such mode: 'peek'"),
                              (["read", 1], TypeError, "acquire: mode is 1; it is a str"),
                              (None, TypeError, "acquire: mode is None; it is \"read\"")):
        with pytest.raises(error, match=said):
            client.acquire(tensors, mode=mode)
    assert client.held == 0


def test_too_much_at_once_is_refused(client):
    """More than the place holds, in one set; what is there stays usable."""
    tensors = client.create_many([(f"t{i}", 8 * MIB, "uint8") for i in range(8)])
    with pytest.raises((terrace.ResourceExhausted, terrace.DeadlineExceeded)):
        client.acquire(tensors, mode="overwrite", place="host", timeout=1)
    with client.acquire(tensors[:2], mode="overwrite") as leases:
        assert len(leases) == 2


def test_a_set_that_an_exception_leaves_is_torn_where_it_was_overwritten(client):
    tensors = [client.from_array(f"t{i}", numpy.full(100, i)) for i in range(3)]
    with pytest.raises(ZeroDivisionError):
        with client.acquire(tensors[:2], mode="overwrite") as leases:
            leases[0].release()  # this one was finished
            raise ZeroDivisionError
    with tensors[0].read() as lease:
        assert not lease.numpy().any()
    with pytest.raises(terrace.FailedPrecondition, match="'t1' is torn"):
        tensors[1].read()
    for mode in ("read", "write"):
        with pytest.raises(ZeroDivisionError):
            with client.acquire(tensors[2:], mode=mode) as leases:
                if mode == "write":
                    leases[0].numpy()[0] = 7
                raise ZeroDivisionError
    with tensors[2].read() as lease:
        assert lease.numpy().tolist() == [7] + [2] * 99
    client.acquire(tensors[2:], mode="overwrite").abandon()
    with pytest.raises(terrace.FailedPrecondition, match="'t2' is torn"):
        tensors[2].read()

# SPDX-License-Identifier: Apache-2.0
"""Shows that room for activations that is asked for ahead is nobody else's until its lease ended, whatever is interrupted
and however many threads there are; and that nothing on its way holds a session that was closed."""

import contextlib
import signal
import threading

import pytest
import terrace
import terrace.torch
import torch
from python_fixtures import LIMIT_SECONDS, MIB, disk  # noqa: F401 (a fixture)
from training_fixtures import leaves_nothing, roomy  # noqa: F401 (a fixture)

activations = terrace.torch.activations


def test_room_is_asked_for_ahead(disk):
    """As the steps before went: several at a time, and none is left where a step goes otherwise."""
    with terrace.serve("8MiB", block=f"{disk}:128MiB") as client:
        context = activations(client, keep_bytes=0)
        asked = []
        acquire_later = client._acquire_later
        client._acquire_later = lambda tensors, *how: asked.append(len(tensors)) or acquire_later(tensors, *how)

        def step(kib, count=24, backward=True):
            asked.clear()
            weights = [torch.randn(256 * kib).requires_grad_() for _ in range(count)]
            with context:
                loss = sum((weight * 1).square().sum() for weight in weights)
                if backward:
                    loss.backward()
            assert not backward or all(torch.equal(weight.grad, 2 * weight) for weight in weights)
            return sum(asked)

        assert step(256) == 0
        step(256)
        assert step(256) == 23 > 2 * len(asked), "all but the first"
        for other in ({"count": 12}, {"backward": False}, {"kib": 384, "count": 16}, {"count": 30}):
            step(**({"kib": 256} | other))
            assert context.refused == 0
            assert leaves_nothing(context)
        with terrace.Client(client.socket, guarantees={"host": 4 * MIB}):  # which takes its part
            assert step(256) > 0 and leaves_nothing(context)
        client.create("other", MIB, "uint8")
        assert step(256) == 0, "somebody else leases in this session"


@pytest.fixture
def crowded(disk):
    """A client that is guaranteed 4 MiB of 8, for steps that save 12."""
    with terrace.serve("8MiB", block=f"{disk}:128MiB") as served:
        yield served


def crowded_step(context, count=48):
    """Saves and uses pieces of 256 KiB."""
    weights = [torch.randn(MIB // 16).requires_grad_() for _ in range(count)]
    with context:
        sum((weight * 1).square().sum() for weight in weights).backward()
    assert all(torch.equal(weight.grad, 2 * weight) for weight in weights)


class Interruption(BaseException):
    """As Ctrl-C is, of no kind that anything handles."""


class Coming:
    """Leases that were asked for ahead: calls something before they are waited for."""

    def __init__(self, leases, before):
        self._leases = leases
        self._before = before

    def take(self):
        self._before()
        return self._leases.take()


def watch_asked(client, asked, before=lambda tensors: None):
    """Notes what is asked for ahead, and calls something before it is waited for."""
    acquire_later = client._acquire_later

    def noted(tensors, *how):
        asked.extend(tensors)
        return Coming(acquire_later(tensors, *how), lambda: before(tensors))

    client._acquire_later = noted


def test_what_is_given_up_is_used_again_once_its_leases_ended(crowded):
    """Also where the wait for them is interrupted."""
    context, asked, waited, interrupts = activations(crowded, keep_bytes=0), [], [], []
    shelf = context._keeper.shelf

    def before(tensors):
        free = {slot.tensor.name for slots in shelf._free.values() for slot in slots}
        free |= {slot.tensor.name for slot in shelf._returned}
        assert not free & {tensor.name for tensor in tensors}, "somebody may lay something there"
        assert not shelf._lock.locked(), "others wait, too"
        waited.extend(tensors)
        if interrupts:
            interrupts.pop()
            raise Interruption

    watch_asked(crowded, asked, before)
    for _ in range(3):
        crowded_step(context)
    for count in (12, 13, 14, 15):
        asked.clear()
        waited.clear()
        interrupts[:] = [count] * (count > 12)
        with contextlib.suppress(Interruption):
            crowded_step(context, count)
        assert asked and not interrupts
        crowded_step(context)
        assert {tensor.name for tensor in asked} == {tensor.name for tensor in waited}
        assert leaves_nothing(context) and context.refused == 0 and len(context._keeper.shelf._given_up) == 0
    assert context.slots == len(crowded.tensors()) == 48


def test_threads_that_ask_and_give_up(crowded):
    """What one of them asked for is given up by the others, and none gets what is not its own."""
    context, wrong = activations(crowded, keep_bytes=0), []

    def run(count):
        try:
            for number in range(12):
                crowded_step(context, count + number % 3)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(count,)) for count in (24, 31)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    assert not wrong and context.refused == 0 and leaves_nothing(context)


def test_what_is_asked_for_ahead_waits_for_nothing_of_this_session(crowded):
    """It is asked for once what is needed now was leased, and only what the guarantee has left beside that."""
    context, asked, leased = activations(crowded, keep_bytes=0), [], []
    acquire_later = crowded._acquire_later
    crowded._acquire_later = lambda tensors, *how: (
        leased.append(crowded.leased_bytes), asked.append(tensors)) and acquire_later(tensors, *how)
    for _ in range(3):
        crowded_step(context)
    assert asked and all(leased), "first what is needed now"
    with context:
        kept = [(torch.randn(MIB // 16).requires_grad_() * 1).square() for _ in range(48)]
    shown = [result.grad_fn._saved_self for result in kept[:15]]
    assert crowded.leased_bytes == 15 * MIB // 4
    asked.clear()
    with context:
        more = (torch.randn(MIB // 16).requires_grad_() * 1).square()
    assert not asked and context.refused == 0
    del shown, kept, more
    crowded_step(context)
    assert asked and leaves_nothing(context)


def test_a_session_ends_while_its_context_is_kept(crowded):
    """Nothing that was said to the daemon, or asked of it ahead, holds a session that was closed."""
    kept = []
    for in_forward in (False, True):
        client = terrace.Client(crowded.socket, guarantees={"host": 4 * MIB})
        context, asked = activations(client, keep_bytes=0), []
        watch_asked(client, asked)
        for _ in range(3):
            crowded_step(context)
        asked.clear()
        with context:
            graph = [(torch.randn(MIB // 16).requires_grad_() * 1).square() for _ in range(12)]
            if in_forward:
                assert asked and context._keeper.shelf._ahead
                client.close()
        if not in_forward:
            sum(result.sum() for result in graph).backward()
            assert context._keeper.shelf._said
            client.close()
        kept.append((context, graph))
        terrace.Client(crowded.socket, guarantees={"host": 4 * MIB}, timeout=LIMIT_SECONDS / 4).close()


def test_a_wait_for_what_was_asked_for_can_be_interrupted(roomy):
    """And begun again."""
    def interrupt(number, frame):
        raise Interruption

    tensor, other = roomy.create_many([(name, 40 * MIB, "uint8") for name in ("tensor", "other")])  # of 64 MiB
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        lease = other.overwrite()
        coming = roomy._acquire_later([tensor], "overwrite", "host", float(LIMIT_SECONDS))
        with pytest.raises(Interruption):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            coming.take()
        lease.release()
        (taken,) = coming.take()
        taken.release()
        assert roomy.held == 0
        with pytest.raises(terrace.FailedPrecondition, match="taken already"):
            coming.take()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_overwrites_that_came_and_nobody_took_are_given_up(roomy):
    tensor = roomy.from_array("tensor", torch.ones(1000))
    coming = roomy._acquire_later([tensor], "overwrite", "host", float(LIMIT_SECONDS))
    roomy.prefetch([tensor])  # answered after it
    del coming
    assert roomy.held == 0
    with pytest.raises(terrace.FailedPrecondition, match="torn"):
        tensor.read()

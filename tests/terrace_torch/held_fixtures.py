# SPDX-License-Identifier: Apache-2.0
"""What the tests of a step that goes on behind step() share: a client at which that step can be held, until something waits
for it."""

import contextlib
import threading

import pytest
import terrace.torch
import torch
from model_fixtures import Recipe, build, loss_of
from python_fixtures import LIMIT_SECONDS
from terrace.torch._leased import updates
from terrace.torch._optimizer.later_batch import LaterBatch

THREAD = "terrace step"


class Gate:
    """Where the step's thread stands while this is closed: before it leases, and as it has stepped what it has leased."""

    def __init__(self):
        self._changed = threading.Condition()
        self._let = None  # how often it may pass yet; None: as often as it comes
        self.came = 0  # how often it came here
        self.waits = 0  # that something has begun for it

    def pass_through(self):
        with self._changed:
            self.came += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._let is None or self._let > 0, LIMIT_SECONDS)
            if self._let is not None:
                self._let -= 1

    def open(self):
        with self._changed:
            self._let = None
            self._changed.notify_all()

    def waited_for(self):
        """Something waits: opens it."""
        self.waits += 1
        self.open()

    @contextlib.contextmanager
    def closed(self, after=0):
        """Lets the thread pass so often yet; then it stands until something waits for it, or the end of the `with`."""
        with self._changed:
            self._let, self.came, self.waits = after, 0, 0
        try:
            yield self
        finally:
            self.open()

    def await_arrival(self, count=1):
        """Waits until the thread has come so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.came >= count, LIMIT_SECONDS)


class HeldClient(terrace.Client):
    """A client whose leases the step's thread is given once the gate lets it."""

    gate = Gate()

    def _acquire(self, tensors, *options):
        if threading.current_thread().name == THREAD:
            self.gate.pass_through()
        return super()._acquire(tensors, *options)


@pytest.fixture
def gate(monkeypatch):
    """The gate of all such clients, which opens when something waits for the step."""
    gate = HeldClient.gate = Gate()
    def write_back(batch, theirs=LaterBatch.write_back):
        gate.pass_through()
        theirs(batch)

    monkeypatch.setattr(LaterBatch, "write_back", write_back)
    for kind in (updates.Update, updates.Work):
        def wait(one, theirs=kind.wait):
            if threading.current_thread().name != THREAD:
                gate.waited_for()
            theirs(one)

        monkeypatch.setattr(kind, "wait", wait)
    yield gate
    gate.open()


@pytest.fixture(scope="module")
def held():
    """A client of a daemon in which all fits, at which the step can be held. Its step takes several batches."""
    with terrace.serve("64MiB", metrics=False) as served, HeldClient(
            served.socket, guarantees={"host": 4 << 20}) as client:
        yield client


def offloaded(client, recipe=Recipe(), **options):
    return terrace.torch.offload(*build(recipe), client=client, step="host", tensor_bytes_min=1, **options)


def begun(client, recipe=Recipe(), **options):
    """A model and its optimizer that have stepped once, so that their states are made; and the same in PyTorch alone. Both
    have gradients."""
    pairs = build(recipe), offloaded(client, recipe, **options)
    for model, optimizer in pairs:
        torch.manual_seed(3)
        for step in range(2):
            loss_of(model, step).backward()
            if not step:
                optimizer.step()
                optimizer.zero_grad()
    return pairs


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        same(list(one.values()), list(other.values()))
    elif isinstance(one, list):
        for pair in zip(one, other, strict=True):
            same(*pair)
    else:
        assert one == other

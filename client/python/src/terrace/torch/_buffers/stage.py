# SPDX-License-Identifier: Apache-2.0
"""Batches in Terrace: a thread reads them from a loader, and lays them into buffers that stay leased until the script
has let go of them."""

import copy
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import torch

from ... import _checks
from ..._client import TIMEOUT_SECONDS, Client
from ..._errors import DeadlineExceeded, Error, ResourceExhausted
from ..._terrace import Lease, Tensor
from .._leased.default_client import client_for
from .._pytorch.storages import StorageReference, over
from .scratch import leased_storage

ALIGNMENT_BYTES = 64
DEPTH_MAX = 1024
JOIN_SECONDS = 10.0
LOOK_SECONDS = 0.1  # how often it is looked whether room may come yet
_CALL = "terrace.torch.stage"
_END = object()
_TAKEN = object()  # the first batch, once it was handed out
T = TypeVar("T")


class _Line:
    """The batches that wait, between the thread that reads them and the script that takes them."""

    def __init__(self, depth: int):
        self._depth = depth
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()
        self._takers = 0
        self.closed = False

    def put(self, batch: Any) -> bool:
        """Adds a batch when there is room. False: nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or len(self._waiting) < self._depth)
            if not self.closed:
                self._waiting.append(batch)
                self._changed.notify_all()
            return not self.closed

    def take(self) -> Any:
        """The next batch; _END once it is closed."""
        with self._changed:
            self._takers += 1
            try:
                self._changed.wait_for(lambda: self.closed or self._waiting)
            finally:
                self._takers -= 1
            batch = self._waiting.popleft() if self._waiting else _END
            self._changed.notify_all()
            return batch

    def awaited(self) -> bool:
        """Whether the script waits for the batch that is read now, and so drops none meanwhile; or wants none any more."""
        with self._changed:
            return self.closed or (self._takers > 0 and not self._waiting)

    def close(self) -> None:
        """No batch is wanted any more; those that wait are dropped."""
        with self._changed:
            self.closed = True
            self._waiting.clear()
            self._changed.notify_all()


class _Failed:
    """What the loader raised."""

    def __init__(self, error: BaseException):
        self.error = error


class _Stager:
    """Lays the tensors of batches into leased buffers."""

    def __init__(self, client: Client, line: _Line):
        self._client = client
        self._line = line
        self._warned = False
        self._leased: list[StorageReference] = []  # what batches are in that the script has, or that wait for it
        self._patient = True  # else no room was to be had, and nothing was given back since

    def staged(self, batch: Any, first: bool = False) -> Any:
        """The batch with its tensors in Terrace; as it was, where Terrace does not take it. first: the script waits."""
        found: dict[int, torch.Tensor] = {}
        _mapped(batch, lambda tensor: found.setdefault(id(tensor), tensor))
        offsets, size = {}, 0
        for key, tensor in found.items():
            offsets[key] = size
            size += -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if size == 0:
            return batch
        self._note_given_back()
        try:
            storage = leased_storage(self._client, _CALL, size, lambda tensor: self._lease(tensor, first))
        except Error as error:
            self._patient = False
            return self._refused(batch, size, error)
        self._leased.append(StorageReference(storage))
        copies = {key: _copy(tensor, storage, offsets[key]) for key, tensor in found.items()}
        return _mapped(batch, lambda tensor: copies[id(tensor)])

    def _note_given_back(self) -> None:
        there = [storage for storage in self._leased if not storage.expired()]
        self._patient = self._patient or len(there) < len(self._leased)
        self._leased = there

    def _lease(self, tensor: Tensor, first: bool) -> Lease:
        """Waits for room that is being made, and for other leases to end as long as the script may end some: not where it
        waits for this batch, nor where no room came before and the script has kept every batch since."""
        end = time.monotonic() + TIMEOUT_SECONDS
        wait = LOOK_SECONDS if self._patient else 0.0
        while True:
            began = time.monotonic()
            hopeless = not self._patient or first or self._line.awaited()
            try:
                return tensor.overwrite(timeout=wait)
            except (DeadlineExceeded, ResourceExhausted) as error:
                now = time.monotonic()
                at_once = now - began < wait / 2  # it was not worth waiting for
                if now > end or at_once or (hopeless and isinstance(error, ResourceExhausted)):
                    raise
            wait = LOOK_SECONDS

    def _refused(self, batch: Any, size: int, error: Error) -> Any:
        if not self._warned and not self._line.closed:
            self._warned = True
            warnings.warn(
                f"{_CALL}: Terrace did not take a batch of {size} bytes ({error.code}: {error}); it stays in this "
                "process's memory, and so will others. All batches that wait, and those that the script holds, are "
                f'leased at once: open the session with terrace.Client(guarantees={{"host": {4 * size}}}) or more',
                RuntimeWarning, stacklevel=2)
        return batch


def _read(batches: Iterator[Any], stager: _Stager, line: _Line) -> None:
    """The thread. It knows nothing of the iterator that the script holds, which can so be collected."""
    try:
        for batch in batches:
            if not line.put(stager.staged(batch)):
                return
        line.put(_END)
    except BaseException as error:
        line.put(_Failed(error))


def _shut(line: _Line, thread: threading.Thread) -> None:
    line.close()
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(JOIN_SECONDS)


class StagedBatches(Iterator[T]):
    """One pass over the loader. close(), its end, or that of the last reference stops the thread that reads ahead."""

    def __init__(self, batches: Iterator[T], client: Client, depth: int):
        self._line = _Line(depth)
        stager = _Stager(client, self._line)
        self._first: Any = next(batches, _END)
        # The first batch is read here, so that a sampler draws its seed where it would without us.
        if self._first is not _END:
            self._first = stager.staged(self._first, first=True)
        thread = threading.Thread(target=_read, args=(batches, stager, self._line), name=_CALL, daemon=True)
        self.close: Callable[[], None] = weakref.finalize(self, _shut, self._line, thread)
        """Stops reading ahead; later, the pass is at its end."""
        if self._first is _END:
            self.close()
        else:
            thread.start()

    def __next__(self) -> T:
        batch, self._first = self._first, _TAKEN
        if batch is _TAKEN:
            batch = self._line.take()
        if batch is _END or isinstance(batch, _Failed):
            self.close()
            self._first = _END
        if isinstance(batch, _Failed):
            raise batch.error
        if batch is _END:
            raise StopIteration
        return batch  # type: ignore[no-any-return]


class Stage(Generic[T]):
    """What stage() gives: each iteration is a pass over the loader, whose attributes (`sampler`, `dataset`, ...) it has."""

    def __init__(self, loader: Iterable[T], depth: int, client: Client):
        self.loader = loader
        self.depth = depth
        self.client = client

    def __iter__(self) -> StagedBatches[T]:
        return StagedBatches(iter(self.loader), client_for(_CALL, self.client), self.depth)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.loader, name)


def stage(loader: Iterable[T], depth: int = 2, *, client: Client | None = None) -> Stage[T]:
    """The loader's batches, read ahead by a thread into memory of Terrace that stays leased until they are dropped.

        for batch, labels in terrace.torch.stage(loader):
            ...

    loader: a DataLoader, or any iterable. Batches are tensors, or lists, tuples and mappings of them, nested; sizes may
        vary. What is no dense CPU tensor passes as it is.
    depth: how many batches wait, besides the one at hand.
    client: None: one of the process, opened when first needed.

    Values, types and structure are equal, and strides as clone() has them: the same, but where a tensor has gaps (`a[::2]`)
    or was expanded, which are laid out densely. A batch for which there is no room stays in the process's memory, with a
    warning once; room is waited for only while the script may give some back, so that it may keep its batches. An exception
    of the loader is raised where its batch would have come. Leaving an iteration early stops the thread. A dataset that
    draws from PyTorch's global generator in this process (num_workers=0) does so ahead of time; samplers do not.
    """
    count = _checks.count(_CALL, "depth", depth, DEPTH_MAX, least=1)
    if isinstance(loader, str | bytes) or not (isinstance(loader, Iterable) or hasattr(loader, "__getitem__")):
        raise TypeError(f"{_CALL}: loader is {loader!r}; it is a DataLoader, or another iterable of batches")
    return Stage(loader, count, client_for(_CALL, client))


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with its dense CPU tensors changed."""
    if isinstance(value, torch.Tensor):
        plain = type(value) is torch.Tensor and value.layout is torch.strided and value.device.type == "cpu"
        return change(value) if plain and not value.is_conj() and not value.is_neg() else value
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)
        changed.update({key: _mapped(part, change) for key, part in value.items()})
        return changed
    if isinstance(value, Mapping):
        return type(value)({key: _mapped(part, change) for key, part in value.items()})  # type: ignore[call-arg]
    if isinstance(value, tuple):
        parts = [_mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        changed_list = copy.copy(value)
        changed_list[:] = [_mapped(part, change) for part in value]
        return changed_list
    return value


def _copy(tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int) -> torch.Tensor:
    with torch.no_grad():
        strides = torch.empty_like(tensor, device="meta").stride()
        made = over(storage, tensor.dtype, offset // tensor.element_size(), tensor.shape, strides)
        made.copy_(tensor)
    return made.requires_grad_(tensor.requires_grad)

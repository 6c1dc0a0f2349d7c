# SPDX-License-Identifier: Apache-2.0
"""The client: one session with the daemon, and the tensors in it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, SupportsIndex, overload

import numpy

from . import _checks, _dtypes
from ._errors import Error
from ._terrace import Lease, Session, Tensor

TIMEOUT_SECONDS = 60.0
RECONNECT_TIMEOUT_SECONDS = 60.0
LOCAL_WORLD_SIZE_MAX = (1 << 32) - 1
BYTES_MAX = _checks.BYTES_MAX


class Place(NamedTuple):
    """A place that this session can lease in, as the daemon offers it."""

    name: str  # "host", or "device:N"
    capacity_bytes: int  # of the tier
    guarantee_bytes: int  # that this session may always hold leased there at once
    gpu: bool  # the memory is a GPU's, and leases are for CUDA; False: the CPU addresses it (an emulated device's too)


class LeaseSet(Sequence[Lease]):
    """Leases that were granted together, in the order of the tensors; as a context manager it releases them all, or
    abandons them all where an exception leaves it."""

    def __init__(self, leases: list[Lease]):
        self._leases = leases

    def __len__(self) -> int:
        return len(self._leases)

    @overload
    def __getitem__(self, index: int) -> Lease: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Lease]: ...
    def __getitem__(self, index: int | slice) -> Lease | Sequence[Lease]:
        return self._leases[index]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None:
            self.release()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Gives every lease back, and overwrites up: see Lease.abandon."""
        for lease in self._leases:
            lease.abandon()

    def release(self, stream: Any = None) -> None:
        """Gives every lease back; what was exported from one keeps that one until it is gone. stream: as Lease.release."""
        for lease in self._leases:
            lease.release(stream)


class Client(Session):
    """A session with the node's daemon. Its tensors live until they are deleted, or the session ends.

    socket: path of the daemon's data socket; None: $TERRACE_SOCKET, else $XDG_RUNTIME_DIR/terrace/data.sock if it is
        there, else /run/terrace/data.sock. Unavailable if no daemon is there: the message shows what starts one.
    guarantees: bytes by place ("host", "device:0") that the session may always hold leased at once. Places not named
        get half of the place's capacity divided by local_world_size.
    local_world_size: ranks on this node; None: $LOCAL_WORLD_SIZE, else 1.
    timeout: seconds to wait for the memory behind the guarantees; then ResourceExhausted, naming who holds what.
    label: for people, in the operator's listings; the program's name where it is empty.
    reconnect_timeout: seconds that a daemon which has ended may stay away before the session counts as lost; 0: not at
        all. Until then leases stay as they are, and calls wait, each until its own timeout.
    share, share_use: the name of a share, and "read", "write" or "create": see Client.create_share.

    Every call raises a subclass of terrace.Error. Timeouts are in seconds. It is a context manager that closes.
    """

    def __init__(self, socket: str | None = None, *, guarantees: Mapping[str, int] | None = None,
                 local_world_size: int | None = None, timeout: float = TIMEOUT_SECONDS, label: str = "",
                 reconnect_timeout: float = RECONNECT_TIMEOUT_SECONDS, share: str | None = None,
                 share_use: str = "read"):
        call = "terrace.Client"
        floors = _checks.guarantees(call, guarantees)
        ranks = _checks.count(call, "local_world_size", local_world_size or 0, LOCAL_WORLD_SIZE_MAX)
        super().__init__(_checks.text(call, "socket", socket or ""), floors, ranks,
                         _checks.seconds(call, "timeout", timeout), _checks.text(call, "label", label),
                         _checks.seconds(call, "reconnect_timeout", reconnect_timeout),
                         _checks.text(call, "share", share or ""),
                         "" if share is None else _checks.text(call, "share_use", share_use))
        self._tensors: dict[str, Tensor] = {}
        self._before_close: set[Callable[[], None]] = set()  # waits for what goes on in the session
        self._at_close: list[Callable[[], None]] = []  # what is on its way would hold the session

    def close(self) -> None:
        """Ends the session: its tensors are gone. With leases still held it ends at the last one's release."""
        try:
            for wait in list(self._before_close):
                wait()
        finally:
            super().close()
            for let_go in self._at_close:
                let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def create_share(self, name: str, *, guarantees: Mapping[str, int] | None = None, label: str = "",
                     timeout: float = TIMEOUT_SECONDS) -> "Client":
        """Creates a share, and returns a client of it, for reading and writing, to be closed on its own.

        A share is tensors that several sessions of a tenant have in common, held once: other processes open it by its
        name. Any number read a tensor at a time, or one writes it; whoever waits for the others' leases holds none in
        the share. It ends with its last client. A tensor whose writer died is torn: reading it is FailedPrecondition
        until it is overwritten.

        guarantees: the share's, beside this session's own. AlreadyExists if there is one of that name.
        """
        return Client(self.socket, guarantees=guarantees, label=label, timeout=timeout, share=name, share_use="create")

    def open_share(self, name: str, *, write: bool = False, label: str = "",
                   timeout: float = TIMEOUT_SECONDS) -> "Client":
        """A client of a share that is there. Without `write` its memory is mapped read-only, and write leases are
        PermissionDenied. NotFound if it is not there, or another tenant's."""
        return Client(self.socket, label=label, timeout=timeout, share=name, share_use="write" if write else "read")

    def find(self, names: Iterable[str], *, timeout: float = TIMEOUT_SECONDS) -> list[Tensor]:
        """Tensors that are there, by name; of a share, those that other clients created. NotFound names the first that
        is not."""
        found = self._find([_checks.text("find", "a name", name) for name in names],
                           _checks.seconds("find", "timeout", timeout))
        self._tensors.update((tensor.name, tensor) for tensor in found)
        return found

    def create(self, name: str, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32", *,
               timeout: float = TIMEOUT_SECONDS) -> Tensor:
        """Creates a tensor without content: C-contiguous, of an element type as numpy or PyTorch name it.

        AlreadyExists for a name in use; ResourceExhausted if it can never fit.
        """
        return self.create_many([(name, shape, dtype)], timeout=timeout)[0]

    def create_many(self, specs: Iterable[tuple[str, SupportsIndex | Sequence[SupportsIndex], Any]], *,
                    timeout: float = TIMEOUT_SECONDS) -> list[Tensor]:
        """Creates many, given as (name, shape, dtype): all of them, or none."""
        numbered = [(_checks.text("create", "name", name), _checks.extents("create", shape), _dtypes.number_of(dtype))
                    for name, shape, dtype in specs]
        made = self._create(numbered, _checks.seconds("create", "timeout", timeout))
        self._tensors.update((tensor.name, tensor) for tensor in made)
        return made

    def from_array(self, name: str, array: Any, *, timeout: float = TIMEOUT_SECONDS) -> Tensor:
        """Creates a tensor with the content of a numpy array, a PyTorch tensor, or what numpy.asarray makes one of.

        If the content cannot be written there is no tensor.
        """
        torch_tensor = type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "detach")
        source: Any = array.detach() if torch_tensor else numpy.asarray(array)
        tensor = self.create(name, tuple(source.shape), source.dtype, timeout=timeout)
        try:
            with tensor.overwrite(timeout=timeout) as lease:
                if torch_tensor:
                    import torch.utils.dlpack

                    torch.utils.dlpack.from_dlpack(lease).copy_(source)
                else:
                    lease.numpy()[...] = source
        except BaseException:
            with contextlib.suppress(Error):  # the first failure says more
                self.delete([tensor])
            raise
        return tensor

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that this client created and has not deleted, by name."""
        self._check_process()
        return dict(self._tensors)

    def _tensor_bytes(self) -> int:
        """Of all of them."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def delete(self, tensors: Iterable[Tensor], *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Deletes tensors: the names are free at once, the bytes at the last release of each."""
        gone = _checks.tensors("delete", tensors)
        self._delete(gone, _checks.seconds("delete", "timeout", timeout))
        for tensor in gone:
            self._tensors.pop(tensor.name, None)

    def acquire(self, tensors: Iterable[Tensor], *, mode: str | Sequence[str] = "read", place: str = "host",
                timeout: float = TIMEOUT_SECONDS, writable_view: bool = False) -> LeaseSet:
        """Leases a set, all or nothing. Take what is used together in one set, each tensor in its own mode if need be: to
        wait for one lease while holding another can pass the session's guarantee, and what is held may lie in the way of
        the rest.

        mode: "read", "write", or "overwrite" (the old bytes are not needed and not fetched); of all tensors, or one for
            each, in their order.
        place: "host", or "device:N". A tensor is leased in one place at a time.
        timeout: 0 means at once or not at all.
        writable_view: of a read lease, the address that write leases have; writing there remains an error.
        """
        wanted = _checks.tensors("acquire", tensors)
        return LeaseSet(self._acquire(wanted, _checks.modes("acquire", mode, len(wanted)),
                                      _checks.text("acquire", "place", place),
                                      _checks.seconds("acquire", "timeout", timeout), bool(writable_view)))

    def places(self) -> list[Place]:
        """The places that this session can lease in."""
        return [Place(*place) for place in self._places]

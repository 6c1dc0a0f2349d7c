# SPDX-License-Identifier: Apache-2.0
"""The extension module (client/python/native): typed and documented here, for editors and type checkers."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

SOURCE_TREE: str
"""Where the package was built: terrace.serve() looks for the daemon there last. Empty in a wheel, which has its own."""

class Lease:
    """The right to a tensor's bytes, until it is released.

    While it is held the bytes stay where they are. Leaving the `with`, release() or the object's end gives it back
    (leaving the `with` by an exception abandons it);
    arrays and tensors made from it own a part of it, and it ends with the last of them.
    """

    def numpy(self) -> NDArray[Any]:
        """The leased memory as a numpy array, read-only under a read lease.

        TypeError for types numpy lacks; BufferError for a GPU's memory, which torch.from_dlpack takes.
        """
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """The leased memory for torch.from_dlpack and others: no copy, and the consumer owns a part of the lease."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def release(self, stream: Any = None) -> None:
        """Gives the lease back; it ends when nothing made from it is left. Once released, nothing more is made.

        stream: a torch.cuda.Stream, or the number of one (0: the default stream of the lease's GPU). The lease ends
        once the GPU has passed what was put into it before, and nothing made from it is left; the call does not wait.
        Without one, it ends now; but memory of a GPU that was exported ends, in any case, once the GPU has passed every
        stream that it was exported to. Released already: nothing happens.
        """
    def abandon(self) -> None:
        """Gives the lease back, and an overwrite up: as leaving the `with` by an exception does.

        The tensor has no content then, whatever still holds a part of the lease: FailedPrecondition "torn" to whoever
        reads it, until it is overwritten. A read ends as by release(), and so does a write, which leaves the old bytes
        with the new ones among them.
        """
    def _copy_in(self, address: int, size: int) -> None:
        """Copies bytes of this process's memory to the begin of the leased ones, past the processor's caches: for what is
        not looked at soon. The caller answers for what lies there.

        InvalidArgument for a read lease, a GPU's memory, or more than the tensor's bytes.
        """
    def resume(self) -> bool:
        """Takes a part of the lease again, if something that was made from it is left. Whether it did."""
    def carry(self, other: Lease) -> None:
        """Lets another lease go on for as long as this one, whatever still holds a part of it; `other` is released. It ends
        behind the same streams."""
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...
    @property
    def shown(self) -> bool:
        """Whether the lease goes on: by this object, or by what was made from it."""
    @property
    def released(self) -> bool: ...
    @property
    def waited(self) -> bool:
        """Whether the daemon was waited for when it was taken: the tensor, or another of the set, was not there."""
    @property
    def fetched(self) -> bool:
        """Whether this tensor's bytes were needed, and not there when it was asked for: they came from below, or were
        on their way. What was waited for otherwise is room for them, or the end of other leases."""
    @property
    def address(self) -> int:
        """Where the bytes are in this process: of a GPU's memory, the GPU's address."""
    @property
    def cuda_device(self) -> int | None:
        """The number that this process knows the GPU by whose memory it is; None for host memory."""
    @property
    def mode(self) -> str:
        """"read", "write" or "overwrite"."""
    @property
    def place(self) -> str:
        """"host", or "device:N"."""
    @property
    def name(self) -> str:
        """The tensor's name."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...

class Tensor:
    """A named run of bytes with element type and shape, kept by the daemon. It is of one client."""

    def read(self, *, place: str = "host", timeout: float = 60.0, writable_view: bool = False) -> Lease:
        """Leases it to read. FailedPrecondition if it was never written; DataLoss if its bytes are gone.

        writable_view: the address that write leases have, for consumers that cannot keep read-only memory apart. It
        is still a read lease: what is written through it may be lost.
        """
    def write(self, *, place: str = "host", timeout: float = 60.0) -> Lease:
        """Leases it to read and write. A tensor that was never written holds zeros."""
    def overwrite(self, *, place: str = "host", timeout: float = 60.0) -> Lease:
        """Leases it to write all of it: the old bytes are not fetched, and what is not written is undefined."""
    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> str:
        """Its element type's name, as numpy and PyTorch spell it ("float32", "bfloat16")."""
    @property
    def handle(self) -> int:
        """The session's number for it, as the daemon prints it."""

class ComingLeases:
    """Leases that are on their way. Dropped, they are given back as they come, and overwrites that came already are given
    up. One thread at a time."""

    def take(self) -> list[Lease]:
        """Waits for them; interrupted, they can be waited for again. FailedPrecondition once they were taken."""

class Said:
    """What was said to the daemon, which may not have answered yet. One thread at a time."""

    def wait(self) -> None:
        """Until it has."""

class Session:
    """One connection to the daemon; terrace.Client builds on it."""

    def __init__(self, socket: str, guarantees: Sequence[tuple[str, int]], local_world_size: int, timeout: float,
                 label: str, reconnect_timeout: float, share: str, share_use: str) -> None: ...
    def close(self) -> None:
        """Ends the session: its tensors are gone. With leases still held it ends at the last one's release."""
    def swap_in(self, tensors: Sequence[Tensor], *, place: str = "host", timeout: float = 60.0) -> None:
        """Brings the set to a place, and leases nothing."""
    def swap_out(self, tensors: Sequence[Tensor], *, place: str = "block", timeout: float = 60.0) -> None:
        """Moves the set down to a place, and frees what it held above."""
    def prefetch(self, tensors: Sequence[Tensor], *, place: str = "host") -> None:
        """A hint: the set is needed there soon. Answered before anything has moved."""
    def evict(self, tensors: Sequence[Tensor]) -> None:
        """A hint: the set is not needed above for a while. Answered before anything has moved."""
    def dont_need(self, tensors: Sequence[Tensor]) -> None:
        """The content is not needed any more, and is not written back; it must be written before it is read again."""
    def pin(self, tensors: Sequence[Tensor], *, place: str = "host", timeout: float = 60.0) -> None:
        """Brings the set to a place and keeps it there until unpin; counts as leased."""
    def unpin(self, tensors: Sequence[Tensor]) -> None:
        """Ends pin."""
    def mark_step(self, kind: str = "train") -> None:
        """A step begins: "train", "accumulate" or "eval"."""
    def declare_step(self, sets: Sequence[tuple[Sequence[Tensor], str, str, float]], kind: str = "train") -> None:
        """What the steps of a kind are going to lease, in order: tensors that are leased at once, the mode ("read",
        "write" or "overwrite"), the place, and seconds that they will be computed with, of which a guess is enough. A
        daemon that plans has a plan of the first one then, and learns over it what steps do lease."""
    @property
    def session(self) -> int:
        """The daemon's number for the session; 0 once closed."""
    @property
    def socket(self) -> str:
        """Path of the daemon's data socket."""
    @property
    def reconnects(self) -> int:
        """How often the session went on with a restarted daemon; 0 once closed."""
    @property
    def held(self) -> int:
        """Leases not yet given back, those of exports included, and calls not yet answered."""
    @property
    def pinned_bytes(self) -> int:
        """Host memory of the session that is pinned for this process's own copies to and from its GPU."""
    @property
    def leased_bytes(self) -> int:
        """Bytes that are leased now, exports included."""
    @property
    def leased_bytes_max(self) -> int:
        """The most bytes that were ever leased at once."""
    def _check_process(self) -> None: ...
    def _await_passed(self) -> None: ...
    @property
    def _places(self) -> list[tuple[str, int, int, bool]]: ...
    def _cuda_device(self, place: str) -> int | None: ...
    def _find(self, names: Sequence[str], timeout: float) -> list[Tensor]: ...
    def _create(self, specs: Sequence[tuple[str, Sequence[int], int]], timeout: float) -> list[Tensor]: ...
    def _resident(self, tensor: Tensor, place: str) -> bool: ...
    def _delete(self, tensors: Sequence[Tensor], timeout: float) -> None: ...
    def _acquire(self, tensors: Sequence[Tensor], mode: str | Sequence[str], place: str, timeout: float,
                 writable_view: bool, passing: bool = False) -> list[Lease]:
        """passing: to read, and no use that the daemon is to learn from, or to keep what else would go for."""
    def _acquire_later(self, tensors: Sequence[Tensor], mode: str, place: str, timeout: float) -> ComingLeases: ...
    def _prefetch_later(self, tensors: Sequence[Tensor], place: str) -> None:
        """As prefetch(), without an answer, an error's among them."""
    def _dont_need_later(self, tensors: Sequence[Tensor]) -> Said:
        """As dont_need(); until it is answered they must not be written."""

class Placeholder:
    """Address space, the CPU's or a GPU's, that stands for tensors whose bytes are elsewhere: it cannot be written, and
    reads as NaN."""

    def __init__(self, bytes: int, cuda_device: int | None = None) -> None: ...
    def part(self, offset: int, bytes: int) -> Any:
        """A DLPack capsule of a part of it, as bytes; it stays mapped as long as anything made from it."""
    @property
    def nbytes(self) -> int: ...

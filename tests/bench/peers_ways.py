# SPDX-License-Identifier: Apache-2.0
"""What users have today to put tensors on a disk and to get them back, each behind the same few calls.

A way writes a set of tensors out and brings it back in. The bytes are out when sync() has returned after `out`, which is
the same call for all of them. `bring` ends when they lie in memory that can be computed on, and finds nothing of them
in the page cache.
"""

import ctypes
import os
import pathlib
import resource
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

PAGE = 4096
MIB = 1 << 20
POISON = 0xEE


class Content:
    """A set of tensors in memory: what they must be, and where they come back to. Of `count` tensors of `size` bytes."""

    def __init__(self, count: int, size: int, seed: int):
        self.count, self.size = count, size
        self.source = _memory(count, size)
        self.target = _memory(count, size)
        generator = numpy.random.default_rng(seed)
        for tensor in self.source:
            tensor.numpy()[...] = numpy.frombuffer(generator.bytes(size), dtype=numpy.uint8)

    def stamp(self, number: int) -> None:
        """Makes every 4 KiB of it differ from all that was written before: `number` is never used twice."""
        for index, tensor in enumerate(self.source):
            words = tensor.numpy().view(numpy.uint64)[::PAGE // 8]
            words[...] = (number << 40) + (index << 20) + numpy.arange(len(words), dtype=numpy.uint64)

    def poison(self) -> None:
        """So that what is not brought in cannot look as if it had been."""
        for tensor in self.target:
            tensor.fill_(POISON)

    @property
    def bytes(self) -> int:
        return self.count * self.size


def _memory(count: int, size: int) -> list[torch.Tensor]:
    """Page-aligned, as O_DIRECT needs it, and touched; each tensor with a storage of its own."""
    whole = numpy.full(count * size + PAGE, POISON, dtype=numpy.uint8)
    begin = -whole.ctypes.data % PAGE
    return [torch.from_numpy(whole[begin + index * size:begin + (index + 1) * size]) for index in range(count)]


class Way:
    """One library. The order in `bring` is of indexes into the set."""

    name = ""

    def __init__(self, folder: pathlib.Path, content: Content):
        self.folder, self.content = folder, content
        folder.mkdir()

    def prepare(self) -> None:
        """Untimed, before `out`: takes the content of this round over."""

    def out(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        """The disk has for good what `out` wrote: all of the file system, by one call, since a call a file would be a
        commit of its journal for each."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), f"syncfs of {self.folder}: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(descriptor)

    def cool(self) -> None:
        """Untimed, before `bring`: the page cache forgets the files."""
        for path in self.folder.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def bring(self, order: Sequence[int]) -> None:
        raise NotImplementedError

    def wrong_bytes(self) -> int:
        """How many of the bytes that came back are not those that went out."""
        return sum(int(numpy.count_nonzero(have.numpy() != want.numpy()))
                   for have, want in zip(self.content.target, self.content.source, strict=True)
                   if not torch.equal(have, want))

    def cpu_seconds(self) -> float:
        """Used so far by every process that works for it, the kernel on their behalf included."""
        return own_cpu_seconds()

    def disk_read_bytes(self) -> int:
        """Read so far from the disk itself, by the same processes."""
        return disk_read_bytes_of("self")

    def close(self) -> None:
        """Gives up what it holds; files are removed with the folder."""


def disk_read_bytes_of(process: int | str) -> int:
    counts = dict(line.split(": ") for line in pathlib.Path(f"/proc/{process}/io").read_text().splitlines())
    return int(counts["read_bytes"])


def own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_seconds_of(process: int) -> float:
    """Of another process, to the nanosecond where the kernel counts them."""
    tasks = pathlib.Path(f"/proc/{process}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


class Terrace(Way):
    """Terrace's Python client, and a daemon of its own with its block file in the folder."""

    name = "terrace"

    def __init__(self, folder: pathlib.Path, content: Content):
        super().__init__(folder, content)
        import terrace

        room = content.bytes * 9 // 8 + 64 * MIB
        self._serving = terrace.serve(memory=room, block=f"{folder}:{room}", guarantees={"host": 0})
        self._client = self._serving.__enter__()
        specs = [(f"{index}", content.size, "uint8") for index in range(content.count)]
        self._tensors = self._client.create_many(specs)

    def prepare(self) -> None:
        for tensor, source in zip(self._tensors, self.content.source, strict=True):
            with tensor.overwrite() as lease:
                lease.numpy()[...] = source.numpy()

    def out(self) -> None:
        self._client.swap_out(self._tensors)

    def cool(self) -> None:
        """Its I/O is direct, and what was swapped out is in memory no more."""

    def bring(self, order: Sequence[int]) -> None:
        self._client.swap_in([self._tensors[index] for index in order])

    def wrong_bytes(self) -> int:
        for tensor, target in zip(self._tensors, self.content.target, strict=True):
            with tensor.read() as lease:
                target.numpy()[...] = lease.numpy()
        return super().wrong_bytes()

    def cpu_seconds(self) -> float:
        return own_cpu_seconds() + cpu_seconds_of(self._client.daemon_pid)

    def disk_read_bytes(self) -> int:
        return disk_read_bytes_of(self._client.daemon_pid)

    def close(self) -> None:
        self._serving.__exit__(None, None, None)


class DeepSpeed(Way):
    """DeepSpeed's async_io handle: everything begun, then one wait, as its swapper does; memory pinned by DeepSpeed."""

    name = "deepspeed"

    def __init__(self, folder: pathlib.Path, content: Content, *, block: int = MIB, depth: int = 8,
                 single_submit: bool = False, overlap: bool = True, threads: int = 1):  # the JSON's defaults
        super().__init__(folder, content)
        self._handle = deepspeed_handle(block, depth, single_submit, overlap, threads)
        self._pinned: list[torch.Tensor] = []
        self._source = self._pin(content.source)
        self._target = self._pin(content.target)

    def _pin(self, like: list[torch.Tensor]) -> list[torch.Tensor]:
        whole = self._handle.new_cpu_locked_tensor(self.content.bytes, torch.empty(0, dtype=torch.uint8))
        self._pinned.append(whole)
        return list(whole.split(self.content.size))

    def prepare(self) -> None:
        for pinned, source in zip(self._source, self.content.source, strict=True):
            pinned.copy_(source)
        for pinned in self._target:
            pinned.fill_(POISON)

    def out(self) -> None:
        for index, tensor in enumerate(self._source):
            self._handle.async_pwrite(tensor, str(self.folder / str(index)))
        self._finish(self.content.count)

    def bring(self, order: Sequence[int]) -> None:
        for index in order:
            self._handle.async_pread(self._target[index], str(self.folder / str(index)))
        self._finish(len(order))

    def _finish(self, begun: int) -> None:
        ended = self._handle.wait()
        if ended != begun:
            raise OSError(f"DeepSpeed ended {ended} of {begun} operations")

    def wrong_bytes(self) -> int:
        for target, pinned in zip(self.content.target, self._target, strict=True):
            target.copy_(pinned)
        return super().wrong_bytes()

    def close(self) -> None:
        self._source, self._target = [], []
        for whole in self._pinned:
            self._handle.free_cpu_locked_tensor(whole)
        self._pinned.clear()


def deepspeed_handle(block: int, depth: int, single_submit: bool, overlap: bool, threads: int) -> Any:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return AsyncIOBuilder().load(verbose=False).aio_handle(block, depth, single_submit, overlap, threads)


class Files(Way):
    """A file a tensor, through the page cache."""

    suffix = ""

    def path(self, index: int) -> pathlib.Path:
        return self.folder / f"{index}{self.suffix}"

    def write(self, index: int, tensor: torch.Tensor) -> None:
        raise NotImplementedError

    def read(self, index: int) -> torch.Tensor:
        raise NotImplementedError

    def out(self) -> None:
        for index, tensor in enumerate(self.content.source):
            self.write(index, tensor)

    def bring(self, order: Sequence[int]) -> None:
        for index in order:
            self.content.target[index].copy_(self.read(index))


class Accelerate(Files):
    """What Accelerate's disk offload does with a weight, and its hooks do to have it again."""

    name = "accelerate"
    suffix = ".dat"

    def __init__(self, folder: pathlib.Path, content: Content):
        super().__init__(folder, content)
        self._index: dict[str, Any] = {}

    def write(self, index: int, tensor: torch.Tensor) -> None:
        from accelerate.utils import offload_weight

        offload_weight(tensor, str(index), str(self.folder), index=self._index)

    def read(self, index: int) -> torch.Tensor:
        from accelerate.utils import load_offloaded_weight

        return load_offloaded_weight(str(self.path(index)), self._index[str(index)])


class Memmap(Files):
    """numpy.memmap."""

    name = "numpy memmap"

    def write(self, index: int, tensor: torch.Tensor) -> None:
        path = self.path(index)
        mapped = numpy.memmap(path, dtype=numpy.uint8, mode="r+" if path.exists() else "w+", shape=tensor.numel())
        mapped[...] = tensor.numpy()

    def read(self, index: int) -> torch.Tensor:
        return torch.from_numpy(numpy.memmap(self.path(index), dtype=numpy.uint8, mode="c"))


class TorchFiles(Files):
    """torch.save and torch.load."""

    name = "torch.save"

    def write(self, index: int, tensor: torch.Tensor) -> None:
        torch.save(tensor, self.path(index))

    def read(self, index: int) -> torch.Tensor:
        return torch.load(self.path(index), weights_only=True)


class Safetensors(Files):
    """safetensors.torch."""

    name = "safetensors"

    def write(self, index: int, tensor: torch.Tensor) -> None:
        from safetensors.torch import save_file

        save_file({"it": tensor}, self.path(index))

    def read(self, index: int) -> torch.Tensor:
        from safetensors.torch import load_file

        return load_file(self.path(index))["it"]


PAGE_CACHE_WAYS: tuple[Callable[[pathlib.Path, Content], Way], ...] = (Accelerate, Memmap, TorchFiles, Safetensors)

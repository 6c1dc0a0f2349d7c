# SPDX-License-Identifier: Apache-2.0
"""Files of the safetensors format, written and read a tensor at a time.

The format (https://huggingface.co/docs/safetensors): the length of the header as 8 bytes, little-endian; the header, a
JSON object of each tensor's element type, shape and offset in what follows, and under "__metadata__" of strings by name,
padded with spaces; the tensors' bytes, without gaps.
"""

import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from ..._errors import InvalidArgument

# In the order in which the package `safetensors` writes them: those that need the most alignment first.
_DTYPES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}
_RANKS = {dtype: rank for rank, dtype in enumerate(_DTYPES)}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}
METADATA = "__metadata__"  # where the header has the strings: no tensor's name
_HEADER_BYTES_MAX = 100 << 20
_ALIGNMENT = 8


class Entry(NamedTuple):
    """One tensor of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # in the file
    nbytes: int


def _nothing() -> None:
    return None


class Item(NamedTuple):
    """One tensor to be written; `get` is called when it is its turn, `expect` while the one before it is written, and
    `leave` when all are."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    get: Callable[[], torch.Tensor]
    expect: Callable[[], None] = _nothing
    leave: Callable[[], None] = _nothing

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def can_name(dtype: torch.dtype) -> bool:
    """Whether the format, as it is written here, has a name for an element type."""
    return dtype in _DTYPES


def name_of(dtype: torch.dtype, what: str) -> str:
    """The format's name for an element type. InvalidArgument for one that it has none for. what: is of that type, in words."""
    if not can_name(dtype):
        raise InvalidArgument(f"{what} is of {dtype}, which safetensors has no name for")
    return _DTYPES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """The element type of a name. KeyError for another one."""
    return _NAMES[name]


def in_file_order(items: Iterable[Item]) -> list[Item]:
    """As the package `safetensors` orders them."""
    return sorted(items, key=lambda item: (_RANKS[item.dtype], item.name))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    content: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(content)


def write(path: str | os.PathLike[str], items: Iterable[Item], metadata: Mapping[str, str] | None) -> None:
    """Writes a file; it appears under its name once it is whole and on the disk."""
    header: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    listed = list(items)
    offset = 0
    for item in listed:
        header[item.name] = {"dtype": _DTYPES[item.dtype], "shape": list(item.shape),
                             "data_offsets": [offset, offset + item.nbytes]}
        offset += item.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    target = pathlib.Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb", buffering=0) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for item, after in itertools.zip_longest(listed, listed[1:]):
                content = _bytes_of(item.get())
                if after is not None:
                    after.expect()
                _write_all(file, content)
                del content
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        for item in listed:
            item.leave()


def _write_all(file: Any, content: memoryview) -> None:
    while content:
        content = content[file.write(content):]


def read_header(file: Any, path: str | os.PathLike[str]) -> tuple[dict[str, Entry], dict[str, str]]:
    """A file's tensors and metadata. InvalidArgument for what is no whole file of this format."""
    def wrong(what: str) -> InvalidArgument:
        return InvalidArgument(f"{os.fspath(path)} is no safetensors file: {what}")

    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _HEADER_BYTES_MAX):
        raise wrong("its header does not fit it")
    try:
        header = json.loads(file.read(length))
        metadata = dict(header.pop(METADATA, {}))
        entries = {}
        for name, said in header.items():
            begin, end = said["data_offsets"]
            entry = Entry(_NAMES[said["dtype"]], tuple(said["shape"]), 8 + length + begin, end - begin)
            if not 0 <= begin <= end <= size - 8 - length:
                raise wrong(f"'{name}' lies outside it: it was cut off")
            if entry.nbytes != math.prod(entry.shape) * entry.dtype.itemsize:
                raise wrong(f"'{name}' has other bytes than its shape needs")
            entries[name] = entry
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise wrong(f"its header cannot be read ({error!r})") from None
    return entries, metadata


def read_into(file: Any, entry: Entry, tensor: torch.Tensor) -> None:
    """Reads a tensor's bytes into one of the same geometry, or converts them."""
    direct = tensor.dtype == entry.dtype and tensor.is_contiguous() and tensor.device.type == "cpu"
    target = tensor if direct else torch.empty(entry.shape, dtype=entry.dtype)
    file.seek(entry.begin)
    content = _bytes_of(target)
    while content:
        count = file.readinto(content)
        if not count:
            raise InvalidArgument("the file was cut off while it was read")
        content = content[count:]
    if not direct:
        tensor.copy_(target)

# SPDX-License-Identifier: Apache-2.0
"""Arguments looked at before the extension module has them, so that an error names the public call and the argument."""

import numbers
import operator
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from ._errors import InvalidArgument
from ._terrace import Tensor

BYTES_MAX = (1 << 64) - 1
TOML_INTEGER_MAX = (1 << 63) - 1


def _given(value: Any) -> str:
    """A value as an error shows it: of what may be large its type."""
    return repr(value) if isinstance(value, bool | int | float | str | bytes | None) else type(value).__name__


def is_a(call: str, name: str, value: Any, kind: Any, right: str) -> None:
    """Raises TypeError for what is not of a class, or of one of several. right: what the argument is, for the error."""
    if not isinstance(value, kind):
        raise TypeError(f"{call}: {name} is {_given(value)}; it is {right}")


def modes(call: str, value: Any, tensors: int) -> str | list[str]:
    """How a set of tensors is leased: one mode, or one for each. TypeError for what is neither, InvalidArgument for another
    number of them than of tensors."""
    if isinstance(value, str):
        return text(call, "mode", value)
    is_a(call, "mode", value, Iterable, '"read", "write" or "overwrite", or one of them for each tensor')
    each = [text(call, "mode", mode) for mode in value]
    if len(each) != tensors:
        raise InvalidArgument(f"{call}: mode has {len(each)} entries for {tensors} tensors; one for all of them, or one for "
                              "each")
    return each


def file_path(call: str, name: str, value: Any) -> pathlib.Path:
    """A path that ends in a file's name. TypeError for what is no path, InvalidArgument for one without a name."""
    is_a(call, name, value, str | os.PathLike, "a str or an os.PathLike")
    path = pathlib.Path(value)
    if not path.name or "\0" in str(path):
        raise InvalidArgument(f"{call}: {name} is {os.fspath(value)!r}; it is a file's path, and without null characters")
    return path


def seconds(call: str, name: str, value: Any) -> float:
    """A time to wait. TypeError for what is no number, InvalidArgument below 0."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{call}: {name} is {value!r}; it is a number of seconds, 0 or more")
    if not value >= 0:
        raise InvalidArgument(f"{call}: {name} is {value!r}; it is in seconds, and 0 or more")
    return float(value)


def flag(call: str, name: str, value: Any) -> bool:
    """True or False, or 1 or 0. TypeError for anything else."""
    if not isinstance(value, int) or value not in (0, 1):
        raise TypeError(f"{call}: {name} is {_given(value)}; it is True or False")
    return bool(value)


def count(call: str, name: str, value: Any, most: int, least: int = 0) -> int:
    """A number from `least` to `most`. TypeError for what is no integer, InvalidArgument beyond the bounds."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"{call}: {name} is {value!r}; it is an integer")
    number: int = value.__index__()
    if not least <= number <= most:
        raise InvalidArgument(f"{call}: {name} is {number}; it is from {least} to {most}")
    return number


def extents(call: str, value: Any) -> list[int]:
    """A shape as numpy takes it: one integer, or several. TypeError for what is none."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return [operator.index(value)] if hasattr(value, "__index__") else [operator.index(extent) for extent in value]
    except TypeError:
        raise TypeError(f"{call}: shape is {value!r}; it is an integer, or several") from None


def capacity(call: str, name: str, value: Any) -> str | int:
    """A tier's size: bytes, or text that the daemon reads. TypeError for what is neither, InvalidArgument below 0."""
    if isinstance(value, str):
        return text(call, name, value)
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f'{call}: {name} is {_given(value)}; it is a size such as "4GiB" or "25%", or a number of bytes')
    return count(call, name, value, TOML_INTEGER_MAX)


def guarantees(call: str, value: Any) -> list[tuple[str, int]]:
    """Bytes by place; None: none. TypeError for what is no such mapping, InvalidArgument for sizes beyond the bounds."""
    if value is None:
        return []
    is_a(call, "guarantees", value, Mapping, 'bytes by place, such as {"host": 1 << 30}')
    return [(text(call, "a place of guarantees", place), count(call, f"guarantees[{place!r}]", size, BYTES_MAX))
            for place, size in value.items()]


def text(call: str, name: str, value: Any) -> str:
    """A string that is UTF-8. TypeError for what is no string, InvalidArgument for what has no encoding."""
    if not isinstance(value, str):
        raise TypeError(f"{call}: {name} is {value!r}; it is a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{call}: {name} is {value!r}, which UTF-8 cannot encode: {error.reason}") from None
    return value


def tensors(call: str, values: Iterable[Any]) -> list[Tensor]:
    """A set of tensors. TypeError for anything else in it."""
    listed = list(values)
    for at, value in enumerate(listed):
        if not isinstance(value, Tensor):
            raise TypeError(f"{call}: element {at} of the set is {value!r}; a set is of terrace.Tensor")
    return listed

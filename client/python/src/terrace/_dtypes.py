# SPDX-License-Identifier: Apache-2.0
"""Element types: Terrace's numbers, and the names that numpy and PyTorch have for them."""

import contextlib

import numpy

from ._errors import InvalidArgument

# The numbers of terrace::DType (proto/include/terrace/dtype.h). They travel in shared memory and never change.
_NUMBERS = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "bfloat16": 7,
    "float32": 8,
    "float64": 9,
    "bool": 10,
    "complex64": 11,
    "complex128": 12,
    "float8_e4m3fn": 13,
    "float8_e5m2": 14,
    "uint16": 15,
    "uint32": 16,
    "uint64": 17,
}


def number_of(dtype: object) -> int:
    """Terrace's number for a name ("bfloat16", "f4"), a numpy dtype or type, or a torch.dtype. Raises InvalidArgument."""
    name = dtype if isinstance(dtype, str) else str(getattr(dtype, "name", getattr(dtype, "__name__", dtype)))
    name = {"float": "float64", "int": "int64", "bool_": "bool"}.get(name, name.removeprefix("torch."))
    if name not in _NUMBERS and isinstance(dtype, str):
        with contextlib.suppress(TypeError, ValueError, SyntaxError):
            known = numpy.dtype(dtype)  # by numpy's other names: "f4", "<i8", "half"
            name = known.name if known.isnative else name
    if name not in _NUMBERS:
        raise InvalidArgument(f"no such element type: {dtype!r}; types are {', '.join(_NUMBERS)}")
    return _NUMBERS[name]

# SPDX-License-Identifier: Apache-2.0
"""What cheap operations element by element (GELU, SiLU, ...) made of a tensor that autograd saves as well: made again
of it in backward, it need not be moved."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from .._pytorch.storages import StorageReference

if TYPE_CHECKING:
    from .._tensors.packed import Here, View
    from .backward_order import BackwardOrder, Saved

Operation = Callable[[torch.Tensor], torch.Tensor]

# By the node of what they made: each saves what it was made of, and has it until what it made was used.
_OPERATIONS: dict[str, Callable[[Any], Operation]] = {
    "GeluBackward0": lambda node: functools.partial(functional.gelu, approximate=node._saved_approximate),
    "HardswishBackward0": lambda node: functional.hardswish,
    "LeakyReluBackward0": lambda node: functools.partial(functional.leaky_relu,
                                                         negative_slope=node._saved_negative_slope),
    "MishBackward0": lambda node: functional.mish,
    "SiluBackward0": lambda node: functional.silu,
}
_KEPT = "terrace"  # under which a node's metadata has what was saved of its outputs


class _Kept:
    """How a tensor was saved."""

    __slots__ = ("dtype", "packed", "size", "version")

    def __init__(self, packed: View | Here, tensor: torch.Tensor):
        self.packed: weakref.ref[View | Here] | None = weakref.ref(packed)
        self.version = tensor._version
        self.dtype = tensor.dtype
        self.size = tensor.size()


def note_kept(packed: View | Here, tensor: torch.Tensor) -> None:
    """Notes how a tensor was saved: what is made of it may be made again of that."""
    node = tensor.grad_fn
    if node is None:
        return
    kept: dict[int, _Kept] = node.metadata.setdefault(_KEPT, {})
    known = kept.get(tensor.output_nr)
    if known is None:
        kept[tensor.output_nr] = _Kept(packed, tensor)
    elif known.version != tensor._version:
        known.packed = None  # an operation has used the one or the other
    elif known.packed is not None:
        known.packed = weakref.ref(packed)


class Recipe:
    """An operation, and what it is to be done to."""

    __slots__ = ("input", "operation", "threads")

    def __init__(self, operation: Operation, source: View | Here):
        self.operation = operation
        self.input = source
        self.threads = torch.get_num_threads()  # each has its part, whose last elements are computed another way

    def make(self) -> tuple[torch.Tensor, float]:
        """The same bits again, and the seconds that it took, once the input was there."""
        source = self.input.unpack().detach()
        begin = time.perf_counter()
        with torch.no_grad(), torch.autocast(source.device.type, enabled=False), _threads(self.threads):
            made = self.operation(source)
        return made, time.perf_counter() - begin


@contextlib.contextmanager
def _threads(wanted: int) -> Iterator[None]:
    here = torch.get_num_threads()
    if here == wanted:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(here)


def recipe_of(tensor: torch.Tensor) -> Recipe | None:
    """How a tensor, or what it is a view of, is made again; None where that cannot be, or costs too much."""
    whole = tensor._base if tensor._base is not None else tensor
    node = whole.grad_fn
    if node is None or whole._version != 0 or whole.storage_offset() != 0:
        return None
    operation = _OPERATIONS.get(node.name())
    if operation is None or whole.untyped_storage().nbytes() != whole.numel() * whole.element_size():
        return None
    above, number = node.next_functions[0]
    kept = None if above is None else above.metadata.get(_KEPT, {}).get(number)
    if kept is None or kept.packed is None or kept.dtype != whole.dtype or kept.size != whole.size():
        return None
    source = kept.packed()
    return None if source is None else Recipe(operation(node), source)


class MadeAgain:
    """A storage that is made again when it is used: all views that were saved of it share it."""

    __slots__ = ("__weakref__", "_order", "_original", "_recipe", "_saved", "_shown", "_stride")

    def __init__(self, tensor: torch.Tensor, recipe: Recipe, saved: Saved, order: BackwardOrder):
        whole = tensor._base if tensor._base is not None else tensor
        self._recipe = recipe
        self._stride = whole.stride()
        self._original = StorageReference(whole.untyped_storage())
        self._saved = saved
        self._order = order
        self._shown: StorageReference | None = None

    def storage(self) -> torch.UntypedStorage:
        """The bytes, for as long as the storage is there."""
        storage = None if self._shown is None else self._shown.storage()
        if storage is None:
            if self._saved.used_at is None:
                self._saved.outlived = not self._original.expired()
                self._order.use(self._saved, 0)
            made, seconds = self._recipe.make()
            assert made.stride() == self._stride  # it follows from the input's
            self._saved.make_seconds += seconds
            storage = made.untyped_storage()
            self._shown = StorageReference(storage)
        return storage

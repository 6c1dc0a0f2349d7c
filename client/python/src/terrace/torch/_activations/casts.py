# SPDX-License-Identifier: Apache-2.0
"""Casts of parameters, which autocast makes and autograd saves: cheaper to make again than to move."""

import torch

from .._pytorch.storages import StorageReference

_CAST_TYPES = (torch.bfloat16, torch.float16)
_COPY_NODE = "ToCopyBackward0"


class Cast:
    """A parameter's cast, to be made again: all views that were saved of one share it."""

    __slots__ = ("__weakref__", "_dtype", "_parameter", "_shown", "_version")

    def __init__(self, parameter: torch.Tensor, dtype: torch.dtype):
        self._parameter = parameter
        self._dtype = dtype
        self._version = parameter._version
        self._shown: StorageReference | None = None

    def storage(self) -> torch.UntypedStorage:
        """The cast's bytes. RuntimeError if the parameter has changed: the old ones cannot be had again."""
        if self._parameter._version != self._version:
            raise RuntimeError(
                f"terrace.torch.activations: a parameter of shape {tuple(self._parameter.shape)} was changed in place "
                "between the forward pass that cast it and the backward pass that needs the cast; with "
                "recompute_casts=False casts are moved instead of being made again")
        shown = None if self._shown is None else self._shown.storage()
        if shown is None:
            with torch.no_grad():
                shown = self._parameter.detach().to(self._dtype).untyped_storage()
            self._shown = StorageReference(shown)
        return shown


def cast_parameter(tensor: torch.Tensor) -> torch.Tensor | None:
    """The parameter that a tensor is a cast of, or a view of such a cast; None where it is neither."""
    if tensor.dtype not in _CAST_TYPES:
        return None
    whole = tensor._base if tensor._base is not None else tensor
    node = whole.grad_fn
    if node is None or node.name() != _COPY_NODE or whole._version != 0:
        return None
    parameter = getattr(node.next_functions[0][0], "variable", None)
    if type(parameter) is not torch.nn.Parameter or parameter.device != whole.device:
        return None
    # Made again it must be the same to the last byte of its layout.
    if parameter.shape != whole.shape or parameter.stride() != whole.stride() or not parameter.is_contiguous():
        return None
    return parameter

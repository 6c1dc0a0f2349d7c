# SPDX-License-Identifier: Apache-2.0
"""What a forward pass computes and what autograd saves in it, without a byte of either: on the meta device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from .._pytorch.private import fused_attention
from .._pytorch.storages import StorageReference


@dataclasses.dataclass
class Call:
    """One call of a module that has parameters of its own, with what is computed and saved from its begin to the next's."""

    parameters: list[nn.Parameter]
    flops: int = 0
    saved_bytes: int = 0


class Forward:
    """A forward pass of a model over a batch: calls in their order."""

    def __init__(self, model: nn.Module, batch: Any):
        """Raises whatever the model raises where its forward pass needs to look at values."""
        self.calls: list[Call] = []
        self._counter = FlopCounterMode(display=False)
        self._seen: list[StorageReference] = []
        self._numbers: set[int] = set()
        self._counted = 0
        named: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        named |= dict(model.named_buffers(remove_duplicate=False))
        made: dict[int, torch.Tensor] = {}  # what is tied is one here too
        for one in named.values():
            made.setdefault(id(one), torch.empty_like(one, device="meta").requires_grad_(one.requires_grad))
        for one in made.values():
            self._is_new(one)  # a weight that is saved is none of the activations
        hooks = [module.register_forward_pre_hook(self._begins(list(module.parameters(recurse=False))))
                 for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
        try:
            with self._counter, _OnGpu(), saved_tensors_hooks(self._saved, lambda kept: kept):
                self._result = functional_call(model, {name: made[id(one)] for name, one in named.items()},
                                               *_arguments(on_meta(batch)))
            self._end_call()
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def flops(self) -> int:
        """Of all."""
        return sum(call.flops for call in self.calls)

    @property
    def saved_bytes(self) -> int:
        """What autograd keeps for the backward pass: activations."""
        return sum(call.saved_bytes for call in self.calls)

    def _begins(self, parameters: list[nn.Parameter]) -> Callable[..., None]:
        def begins(_module: nn.Module, _arguments: Any) -> None:
            self._end_call()
            self.calls.append(Call(parameters))

        return begins

    def _end_call(self) -> None:
        counted = self._counter.get_total_flops()
        self._last().flops += counted - self._counted
        self._counted = counted

    def _last(self) -> Call:
        if not self.calls:
            self.calls.append(Call([]))
        return self.calls[-1]

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._is_new(tensor):
            self._last().saved_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether its memory was not seen before. What was seen stays, so that no other memory has its number."""
        reference = StorageReference(tensor.untyped_storage())
        if reference.number in self._numbers:
            return False
        self._numbers.add(reference.number)
        self._seen.append(reference)
        return True


class _OnGpu(TorchFunctionMode):
    """Has attention be what it is on a GPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.scaled_dot_product_attention and args and args[0].dim() == 4:
            return fused_attention(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def on_meta(batch: Any) -> Any:
    """A batch whose tensors have no memory."""
    if isinstance(batch, torch.Tensor):
        return batch.to("meta")
    if isinstance(batch, Mapping):
        return {name: on_meta(one) for name, one in batch.items()}
    return type(batch)(map(on_meta, batch)) if isinstance(batch, list | tuple) else batch


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with a batch."""
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch) if isinstance(batch, list | tuple) else (batch,)), {}

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
from torch.utils.flop_counter import FlopCounterMode

from .._pytorch.private import COUNTED, run_backward
from .._pytorch.split import is_made_of_others
from .._pytorch.storages import StorageReference
from .meta_functions import AsOnGpu


@dataclasses.dataclass
class Call:
    """One call of a module that has parameters of its own, with what is computed and saved from its begin to the next's."""

    parameters: list[nn.Parameter]
    flops: int = 0
    saved_bytes: int = 0


class Forward:
    """A forward pass of a model over a batch: calls in their order, and what the backward pass computes."""

    def __init__(self, model: nn.Module, batch: Any):
        """Raises whatever the model raises where its forward pass needs to look at values."""
        self.calls: list[Call] = []
        self._counter = FlopCounterMode(display=False, custom_mapping=COUNTED)
        self._seen: list[StorageReference] = []
        self._numbers: set[int] = set()
        self._counted = 0
        named: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        named |= dict(model.named_buffers(remove_duplicate=False))
        made: dict[int, torch.Tensor] = {}  # what is tied is one here too
        for one in named.values():
            made.setdefault(id(one), _laid_out(one))
        for one in filter(lambda one: not is_made_of_others(one), made.values()):
            self._is_new(one)  # a weight that is saved is none of the activations
        hooks = [module.register_forward_pre_hook(self._begins(list(module.parameters(recurse=False))))
                 for module in model.modules() if next(module.parameters(recurse=False), None) is not None]

        def run(given: Any) -> None:
            args, kwargs = _arguments(given)
            try:
                with saved_tensors_hooks(self._saved, lambda kept: kept):
                    result = model(*args, **kwargs)
                self._end_call()
            finally:
                for hook in hooks:
                    hook.remove()
            outputs = tuple(_outputs(result))
            if outputs:  # what is checkpointed runs once more
                run_backward(outputs, tuple(map(torch.empty_like, outputs)), False, False, (), allow_unreachable=True,
                             accumulate_grad=True)

        with self._counter, AsOnGpu() as functions:
            functional_call(_Run(model, run), {f"model.{name}": made[id(one)] for name, one in named.items()},
                            (_on_meta(batch, functions),))
        self.backward_flops = self._counter.get_total_flops() - self._counted

    @property
    def flops(self) -> int:
        """Of the forward pass."""
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


class _Run(nn.Module):
    """A model with what is done with it while its parameters are others."""

    def __init__(self, model: nn.Module, run: Callable[[Any], None]):
        super().__init__()
        self.model = model
        self._run = run

    def forward(self, batch: Any) -> None:
        """Does it."""
        self._run(batch)


def _laid_out(one: torch.Tensor) -> torch.Tensor:
    """A weight that has no memory."""
    made = one.detach().to("meta") if is_made_of_others(one) else torch.empty_like(one, device="meta")
    return made.requires_grad_(one.requires_grad)


def _on_meta(batch: Any, values: AsOnGpu) -> Any:
    """A batch whose tensors have no memory. Integers' values are known, as masks are."""
    if isinstance(batch, torch.Tensor):
        made = torch.empty_like(batch, device="meta").requires_grad_(batch.requires_grad)
        if not batch.is_floating_point() and not batch.is_complex():
            values.know(made, batch.detach().cpu().clone() if not batch.is_meta else batch)
        return made
    if isinstance(batch, Mapping):
        return {name: _on_meta(one, values) for name, one in batch.items()}
    if isinstance(batch, list | tuple):
        them = [_on_meta(one, values) for one in batch]
        return type(batch)(*them) if hasattr(batch, "_fields") else type(batch)(them)
    return batch


def _outputs(made: Any) -> list[torch.Tensor]:
    """What of a result a backward pass can begin with."""
    if isinstance(made, torch.Tensor):
        return [made] if made.requires_grad else []
    them = made.values() if isinstance(made, Mapping) else made if isinstance(made, list | tuple) else ()
    return [one for each in them for one in _outputs(each)]


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with a batch."""
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch) if isinstance(batch, list | tuple) else (batch,)), {}

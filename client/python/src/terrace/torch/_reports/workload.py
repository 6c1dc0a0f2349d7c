# SPDX-License-Identifier: Apache-2.0
"""A training step as a workload (docs/reference/workloads.md): what each piece of compute leases, and for how long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import nn, optim

from .._offload.needs import needs_of_each
from .._offload.precision import Precision
from .meta_forward import Call, Forward


def workload_of(model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, forward: Forward,
                flops: float) -> str:
    """The file's lines: forward calls, the same backwards in the time of a backward pass, and a step for each call's parameters, whose own
    arithmetic takes no time. flops: a second, that the device reaches."""
    return _Workload(model, optimizers, precision, forward, flops).text


class _Workload:
    def __init__(self, model: nn.Module, optimizers: Sequence[optim.Optimizer], precision: Precision, forward: Forward,
                 flops: float):
        self._records: list[dict[str, Any]] = [{"workload": type(model).__name__, "version": 1, "source": "terrace.torch.estimate"}]
        self._tensors = 0
        self._weights: dict[int, int] = {}
        self._gradients: dict[int, int] = {}
        self._states: dict[int, int] = {}
        for one, needs in needs_of_each(model, optimizers, precision):
            self._weights[id(one)] = self._tensor(needs.parameters, "param", True)
            if needs.gradients:
                self._gradients[id(one)] = self._tensor(needs.gradients, "grad", False)
            if needs.masters + needs.states:
                self._states[id(one)] = self._tensor(needs.masters + needs.states, "optim", True)
        backward = forward.backward_flops / forward.flops if forward.flops else 0
        calls = self._with_all(model, forward.calls)
        saved = [self._tensor(call.saved_bytes, "act", False) if call.saved_bytes else None for call in calls]
        for number, (call, made) in enumerate(zip(calls, saved, strict=True)):
            before = [saved[number - 1]] if number and saved[number - 1] is not None else []
            self._run(f"forward{number}", call.flops / flops, [*self._of(self._weights, call), *before], [made])
        for number, (call, made) in reversed(list(enumerate(zip(calls, saved, strict=True)))):
            self._run(f"backward{number}", backward * call.flops / flops, [*self._of(self._weights, call), made],
                      self._of(self._gradients, call), [made])
        stepped: set[int] = set()
        for number, call in enumerate(calls):
            gradients = [one for one in self._of(self._gradients, call) if one not in stepped]
            stepped.update(gradients)
            if gradients:
                mine = Call([one for one in call.parameters if self._gradients.get(id(one)) in gradients])
                self._run(f"step{number}", 0, gradients, [*self._of(self._weights, mine), *self._of(self._states, mine)], gradients)
        self._records.append({"step": True, "kind": "train"})

    @property
    def text(self) -> str:
        """JSON Lines."""
        return "".join(json.dumps(record) + "\n" for record in self._records)

    def _tensor(self, size: int, kind: str, home: bool) -> int:
        self._records.append({"tensor": self._tensors, "bytes": size, "class": kind, "home": home})
        self._tensors += 1
        return self._tensors - 1

    def _with_all(self, model: nn.Module, calls: list[Call]) -> list[Call]:
        """The calls, of which the first one has what belongs to no module that was called."""
        known = {id(one) for call in calls for one in call.parameters}
        others = [one for one in model.parameters() if id(one) not in known]
        first = calls[0]
        return [Call([*first.parameters, *others], first.flops, first.saved_bytes), *calls[1:]]

    def _of(self, numbers: dict[int, int], call: Call) -> list[int]:
        return list(dict.fromkeys(numbers[id(one)] for one in call.parameters if id(one) in numbers))

    def _run(self, name: str, seconds: float, read: list[int | None], write: list[int | None],
             free: Sequence[int | None] = ()) -> None:
        self._records.append({"run": name, "us": round(1e6 * seconds, 3), "place": "hbm",
                              "read": [one for one in read if one is not None], "write": [one for one in write if one is not None],
                              "free": [one for one in free if one is not None]})

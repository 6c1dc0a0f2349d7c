# SPDX-License-Identifier: Apache-2.0
"""Tells where steps begin, and of what kind each is: training, accumulating gradients, or evaluating.

A step of training ends with the optimizer's step. A forward pass of the whole model after a backward pass, without the
optimizer's step between them, begins another part of an accumulation: which of its parts is the last one is known from
the one before it. A forward pass that records no graph, or of a model in evaluation mode, is a step of evaluation; so
is one of a model of which nothing is trained, whatever mode it is in.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..._client import Client
from .order import Order


class Steps:
    """Marks the steps of one job."""

    def __init__(self, client: Client, orders: Iterable[Order]):
        """orders: those of the job, which are told where steps begin."""
        self._client = client
        self._orders = list(orders)
        self._kind = ""  # of the step that goes on
        self._forwards = 0  # of it
        self._recorded = False  # the last of them recorded a graph
        self._gradients = False  # some came since this part began
        self._part = 0  # of the accumulation: which one this is
        self._parts = 1  # that the last one had
        self._trains_in_evaluation_mode = False
        self.ended: Callable[[], None] | None = None  # is told of each step that ends, with all parts of it

    def begin(self) -> None:
        """The job begins."""
        self._mark(self._kind_of_part())

    def follow(self, order: Order) -> None:
        """Tells another order, too, where steps begin."""
        self._orders.append(order)

    def forward(self, model: nn.Module) -> None:
        """The whole model is about to run."""
        self._recorded = torch.is_grad_enabled() and any(one.requires_grad for one in model.parameters())
        if not self._recorded or not (model.training or self._trains_in_evaluation_mode):
            if self._kind != "eval" or self._forwards:
                self._mark("eval")
        elif self._gradients:
            self._part += 1
            self._gradients = False
            self._mark(self._kind_of_part())
        elif self._kind == "eval":
            self._mark(self._kind_of_part())
        self._forwards += 1

    def gradient(self) -> None:
        """A gradient has come."""
        if self._kind == "eval" and self._recorded:
            self._trains_in_evaluation_mode = True
        self._gradients = True

    def stepped(self) -> None:
        """An optimizer has stepped."""
        if not self._forwards and not self._gradients:
            return  # another one has, before: they step one after the other, and end one step
        self._parts = self._part + 1
        self._part = 0
        self._gradients = False
        self._mark(self._kind_of_part(), True)

    def _kind_of_part(self) -> str:
        return "accumulate" if self._part + 1 < self._parts else "train"

    def _mark(self, kind: str, ends: bool = False) -> None:
        if self.ended is not None and (ends or self._kind != "accumulate"):
            self.ended()
        self._client.mark_step(kind)
        for order in self._orders:
            order.begin(kind)
        self._kind = kind
        self._forwards = 0

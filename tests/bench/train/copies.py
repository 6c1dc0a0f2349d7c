# SPDX-License-Identifier: Apache-2.0
"""The plain loop that masters are compared with."""

import pathlib

import torch


def _mapped(like, file):
    """Zeros of a shape, in a file that is mapped: where memory does not hold them, the kernel has them on the disk."""
    return torch.from_file(str(file), shared=True, size=like.numel(), dtype=torch.float32).view(like.shape)


class Copies:
    """An optimizer of copies in float32, and weights that are copied from them.

    make: AdamW of parameters. folder: copies and moments are in mapped files there; None: in memory.
    """

    def __init__(self, weights, make, folder=None):
        self._weights = weights
        self._masters = [one.detach().float().requires_grad_() for one in weights]
        if folder is not None:
            for number, one in enumerate(self._masters):
                one.data = _mapped(one, pathlib.Path(folder, f"master{id(self)}-{number}")).copy_(one.detach())
        self._optimizer = make(self._masters)
        for number, one in enumerate(self._masters if folder is not None else ()):
            names = ("exp_avg", "exp_avg_sq")
            self._optimizer.state[one] = {"step": torch.tensor(0.0)} | {
                name: _mapped(one, pathlib.Path(folder, f"{name}{id(self)}-{number}")) for name in names}

    def step(self):
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        self._optimizer.step()
        with torch.no_grad():
            for weight, master in zip(self._weights, self._masters, strict=True):
                weight.copy_(master)
                master.grad = None

    def zero_grad(self):
        """Its gradients are gone already."""

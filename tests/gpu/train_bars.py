# SPDX-License-Identifier: Apache-2.0
"""What training takes on a GPU with Terrace over what it takes with everything in HBM, step by step in turns: rows of
tests/gpu/run's table.

  train_bars.py --terraced PROGRAM --folder DISK [--device cuda:0] [--small] [WAY...]

A transformer of 7.2 GB with its gradients and AdamW's states, of which HBM has 3 GiB. Losses are compared, bit for bit.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable

import terrace.torch
import torch
from torch import nn

WARM, MEASURED = 3, 5
VOCABULARY = 256


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model, a batch, and the tiers."""

    width: int = 2048
    blocks: int = 9
    batch: int = 8
    length: int = 1024
    hbm: str = "3GiB"
    memory: str = "10GiB"


SMALL = Size(width=64, blocks=2, batch=2, length=8, hbm="4MiB", memory="64MiB")


@dataclasses.dataclass(frozen=True)
class Way:
    """How a job is offloaded, and what its step time is to be over that with everything in HBM."""

    what: str
    bar: float
    masters: bool = False
    options: dict = dataclasses.field(default_factory=dict)
    exact: bool = True  # a GPU's arithmetic and the CPU's differ in last bits


WAYS = {
    "fp32": Way("float32, HBM for three of 7.2 GB", 1.10),
    "backward": Way("the same with step_in_backward", 1.02, options={"step_in_backward": True}),
    "masters": Way("bfloat16 with float32 masters, the same HBM", 1.10, True),
    "host": Way('the same with step="host"', 1.10, True, {"step": "host"}, exact=False),
}


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mixed(self.first(hidden)).chunk(3, -1)
        scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        hidden = hidden + self.out(scores.softmax(-1) @ value)
        return hidden + self.down(nn.functional.gelu(self.up(self.second(hidden))))


def build(size: Size, device: torch.device, narrow: bool) -> nn.Module:
    """The same model each time."""
    torch.manual_seed(1)
    with torch.device(device):
        model = nn.Sequential(nn.Embedding(VOCABULARY, size.width), *[Block(size.width) for _ in range(size.blocks)],
                              nn.Linear(size.width, VOCABULARY))
    return model.to(torch.bfloat16) if narrow else model


def loss_of(model: nn.Module, size: Size, device: torch.device, step: int) -> torch.Tensor:
    text = torch.randint(0, VOCABULARY, (size.batch, size.length + 1), generator=torch.Generator().manual_seed(step)).to(device)
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())


class Plain:
    """With everything in HBM; of narrow weights, a loop with copies."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.weights = list(model.parameters())
        narrow = self.weights[0].dtype != torch.float32
        self.copies = [one.detach().float().requires_grad_() for one in self.weights] if narrow else self.weights
        self.optimizer = torch.optim.AdamW(self.copies, lr=1e-3)

    def step(self) -> None:
        """Steps, and drops the gradients."""
        if self.copies is not self.weights:
            for weight, copy in zip(self.weights, self.copies, strict=True):
                copy.grad, weight.grad = weight.grad.float(), None
        self.optimizer.step()
        if self.copies is not self.weights:
            with torch.no_grad():
                for weight, copy in zip(self.weights, self.copies, strict=True):
                    weight.copy_(copy)
        self.optimizer.zero_grad()


class Offloaded:
    """In Terrace."""

    def __init__(self, model: nn.Module, client: terrace.Client, way: Way):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        masters = {"masters": torch.float32} if way.masters else {}
        terrace.torch.offload(model, self.optimizer, client=client, what="all", **masters, **way.options)

    def step(self) -> None:
        """Steps, and drops the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(way: Way, size: Size, device: torch.device, serve: Callable[[], terrace.Client]) -> tuple[list[float], list[float], bool]:
    """Seconds of each step: with everything in HBM, and in Terrace; and whether the losses are the same."""
    seconds: list[list[float]] = [[], []]
    losses: list[list[float]] = [[], []]
    torch.zeros(1, device=device)  # so that memory is pinned as it comes
    with serve() as client:
        jobs = [Plain(build(size, device, way.masters)), Offloaded(build(size, device, way.masters), client, way)]
        for step in range(WARM + MEASURED):
            for number, job in enumerate(jobs):
                torch.accelerator.synchronize(device)
                begin = time.monotonic()
                loss = loss_of(job.model, size, device, step)
                loss.backward()
                job.step()
                torch.accelerator.synchronize(device)
                seconds[number].append(time.monotonic() - begin)
                losses[number].append(loss.item())
    return seconds[0][WARM:], seconds[1][WARM:], losses[0] == losses[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terraced", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)} (all)")
    given = parser.parse_args()
    if unknown := set(given.ways) - set(WAYS):
        parser.error(f"there is no way {', '.join(unknown)}; there are {', '.join(WAYS)}")
    if given.device.startswith("fakegpu"):
        import fakegpu  # noqa: F401 (the device)
    size, device = SMALL if given.small else Size(), torch.device(given.device)

    def serve() -> terrace.Client:
        return terrace.serve(size.memory, device=size.hbm, gpu="cuda:0", block=f"{given.folder}:16GiB", metrics=False,
                             terraced=given.terraced)

    differ = []
    for name in given.ways or WAYS:
        way = WAYS[name]
        plain, offloaded, same = measure(way, size, device, serve)
        ratio = statistics.median(offloaded) / statistics.median(plain)
        held = "ratio" if ratio <= way.bar else "**missed**"
        middle = statistics.median(plain)
        print(f"| `hbm.train.{name}` | <= {way.bar:.2f} | {ratio:.3f} | {statistics.median(offloaded):.4f} s: {way.what} | "
              f"{middle:.4f} s, all in HBM | {min(plain) / middle:.3f} to {max(plain) / middle:.3f} | "
              f"losses {'equal' if same else 'differ'} | {held} |", flush=True)
        if way.exact and not same:
            differ.append(name)
    if differ:
        raise SystemExit(f"losses differ: {', '.join(differ)}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A byte-level GPT in plain PyTorch, the text it learns, and its ordinary training loop.

Nothing here knows of Terrace: this is what train_gpt.py trains through Terrace, and the run it compares with.
The model is a list of layers (embedding, blocks, head), each made from a seed of its own, so that a layer can be made
without the others.
"""

import dataclasses
import os
import pathlib
import sysconfig
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256  # bytes


@dataclasses.dataclass(frozen=True)
class Shape:
    """How large the model and its batches are. The default has 21.5 million parameters."""

    blocks: int = 12
    width: int = 384
    heads: int = 6
    context: int = 128
    batch: int = 8

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % self.heads:
            raise SystemExit(f"width {self.width}: the model has {self.heads} heads, and its width is a multiple of that")

    @property
    def layers(self) -> int:
        return self.blocks + 2

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        with torch.device("meta"):
            return sum(parameter.numel() for index in range(self.layers)
                       for parameter in layer_class(self, index)(self).parameters())


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How it is trained: AdamW's settings, and the seed that everything random comes from."""

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    seed: int = 1

    def optimizer(self, parameters: list[torch.Tensor]) -> torch.optim.AdamW:
        """PyTorch's own AdamW over the parameters."""
        return torch.optim.AdamW(parameters, lr=self.learning_rate, betas=self.betas, eps=self.epsilon,
                                 weight_decay=self.weight_decay, fused=True)


class Embedding(nn.Module):
    """Bytes and their positions, to vectors."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.bytes(text) + self.positions.weight


class Block(nn.Module):
    """One pre-norm transformer block: causal attention, then an MLP."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp_in = nn.Linear(shape.width, 4 * shape.width)
        self.mlp_out = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        # Written out rather than scaled_dot_product_attention, whose kernels on a GPU are not all deterministic.
        score = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        future = torch.ones(context, context, dtype=torch.bool, device=x.device).triu(1)
        mixed = score.masked_fill(future, float("-inf")).softmax(-1) @ value
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))


class Head(nn.Module):
    """Vectors to the next byte's logits."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(x))


def layer_class(shape: Shape, index: int) -> type[nn.Module]:
    """What layer `index` is: 0 the embedding, the last one the head, blocks between them."""
    return Embedding if index == 0 else Head if index == shape.layers - 1 else Block


def make_layer(shape: Shape, index: int, seed: int) -> nn.Module:
    """Layer `index` with its first weights, which depend on the seed and the index alone."""
    torch.manual_seed(seed * 1000 + index)
    layer = layer_class(shape, index)(shape)
    for parameter in layer.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    return layer


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats a byte."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class Text:
    """The sources of Python's standard library, one after the other, as bytes."""

    def __init__(self, bytes_max: int = 16 << 20):
        root = pathlib.Path(sysconfig.get_path("stdlib"))
        self.bytes = bytearray()
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in ("site-packages", "dist-packages", "test"))
            for name in sorted(files):
                if name.endswith(".py") and len(self.bytes) < bytes_max:
                    self.bytes += pathlib.Path(folder, name).read_bytes()
        if len(self.bytes) < 100_000:
            raise SystemExit(f"only {len(self.bytes)} bytes of Python sources under {root}; install Python's library")
        self._tensor = torch.frombuffer(self.bytes, dtype=torch.uint8)

    def batch(self, shape: Shape, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of one step, which depends on seed and step alone: bytes, and each one's next byte."""
        chance = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self._tensor) - shape.context - 1, (shape.batch,), generator=chance)
        rows = torch.stack([self._tensor[start : start + shape.context + 1] for start in starts.tolist()]).long()
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def make_deterministic(threads: int) -> None:
    """Same inputs, same bits, on every run: a fixed number of threads, and deterministic kernels only."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)


@dataclasses.dataclass
class Step:
    """What one step of training came to."""

    number: int
    loss: float
    seconds: float
    cpu_seconds: float  # of this process


def build(shape: Shape, recipe: Recipe, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model with its first weights, and what is to train it."""
    model = nn.Sequential(*(make_layer(shape, index, recipe.seed) for index in range(shape.layers))).to(device)
    return model, recipe.optimizer(list(model.parameters()))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, shape: Shape, recipe: Recipe, text: Text, steps: int,
          device: torch.device) -> Iterator[Step]:
    """The ordinary way: autograd over the whole model, and PyTorch's AdamW."""
    for number in range(steps):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        source, target = (part.to(device) for part in text.batch(shape, recipe.seed, number))
        loss = loss_of(model(source), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield Step(number, loss.item(), time.perf_counter() - begin, time.process_time() - cpu_begin)


def train_in_memory(shape: Shape, recipe: Recipe, text: Text, steps: int, device: torch.device) -> Iterator[Step]:
    """The ordinary way, with every tensor in memory."""
    return train(*build(shape, recipe, device), shape, recipe, text, steps, device)

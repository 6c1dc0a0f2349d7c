# SPDX-License-Identifier: Apache-2.0
"""Frozen quantized layers of every kind, each with an adapter over it, and a small model of them."""

import functools

import bitsandbytes as bnb
import torch
from model_fixtures import VOCABULARY, batch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4

WIDTH = 128
BLOCK = 32
_VALUES = torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))


def four_bits(**how):
    """bitsandbytes: nf4 or fp4 in bytes or in another storage, with scales that may be quantized, too."""
    layer = bnb.nn.Linear4bit(WIDTH, WIDTH, bias=False, compute_dtype=torch.float32, **how)
    return layer.to("cpu")


def eight_bits():
    """bitsandbytes: integers, once as the weight and once as a part of its state, with a scale for each row."""
    return bnb.nn.Linear8bitLt(WIDTH, WIDTH, bias=False, has_fp16_weights=False).to("cpu")


def torchao(config):
    """A tensor of torchao's that is made of others."""
    layer = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False))
    quantize_(layer, config)
    return layer[0]


class Nf4(nn.Module):
    """torchao's four bits, which torchtune trains over."""

    def __init__(self):
        super().__init__()
        made = to_nf4(torch.randn(WIDTH, WIDTH) / WIDTH ** 0.5, block_size=64, scaler_block_size=64)
        self.weight = nn.Parameter(made, requires_grad=False)

    def forward(self, given):
        return linear_nf4(given, self.weight)


def _unpacked(packed):
    return torch.stack([packed >> shift & 15 for shift in range(0, 32, 4)], -1).flatten(1)


class _ByColumn(torch.autograd.Function):
    """A product with a packed weight that is unpacked once more for the backward pass, as AWQ's kernels do it."""

    @staticmethod
    def forward(ctx, given, packed, scales, kept_by):
        if kept_by == "hooks":
            ctx.save_for_backward(packed, scales)
        else:
            ctx.parts = packed.view(torch.int32), [scales.t()]
        return given @ (_unpacked(packed).float() - 8).mul_(scales)

    @staticmethod
    def backward(ctx, gradient):
        if hasattr(ctx, "parts"):
            packed, (turned,) = ctx.parts
            scales = turned.t()
        else:
            packed, scales = ctx.saved_tensors
        return gradient @ (_unpacked(packed).float() - 8).mul_(scales).t(), None, None, None


class InBuffers(nn.Module):
    """GPTQ's and AWQ's layers of Transformers: a weight in buffers. kept_by: what has it for the backward pass."""

    def __init__(self, kept_by):
        super().__init__()
        self.kept_by = kept_by
        self.register_buffer("qweight", torch.randint(-2 ** 31, 2 ** 31 - 1, (WIDTH, WIDTH // 8), dtype=torch.int32))
        self.register_buffer("scales", torch.rand(WIDTH, WIDTH) / WIDTH)
        self.register_buffer("g_idx", torch.arange(WIDTH) // 32)

    def forward(self, given):
        if self.kept_by == "autograd":
            return given @ ((_unpacked(self.qweight).float() - 8) * self.scales)
        return _ByColumn.apply(given, self.qweight, self.scales, self.kept_by)


class Microscaled(nn.Module):
    """Four bits each, and an exponent for 32 of them, as parameters or as buffers."""

    def __init__(self, as_buffers):
        super().__init__()
        elements = torch.randint(256, (WIDTH, WIDTH // 2), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        scales = torch.randint(118, 124, (WIDTH, WIDTH // BLOCK), dtype=torch.uint8).view(torch.float8_e8m0fnu)
        for name, one in (("elements", elements), ("scales", scales)):
            if as_buffers:
                self.register_buffer(name, one)
            else:
                setattr(self, name, nn.Parameter(one, requires_grad=False))

    def forward(self, given):
        codes = self.elements.view(torch.uint8)
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1).int()
        values = _VALUES[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
        weight = (values.unflatten(1, (-1, BLOCK)) * self.scales.float()[..., None]).flatten(1)
        return functional.linear(given, weight / WIDTH ** 0.5)


class OfShellType(nn.Module):
    """A weight of a type for which PyTorch has no kernel, that of a copy included."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randint(16, (WIDTH, WIDTH), dtype=torch.uint8).view(torch.uint4), requires_grad=False)

    def forward(self, given):
        return functional.linear(given, (self.weight.view(torch.uint8).float() - 7.5) / WIDTH)


class InAttributes(nn.Module):
    """HQQ's layers: the weight is a parameter, and its scales are in a dictionary beside it."""

    def __init__(self):
        super().__init__()
        self.W_q = nn.Parameter(torch.randint(256, (WIDTH, WIDTH), dtype=torch.uint8), requires_grad=False)
        self.meta = {"scale": torch.rand(WIDTH, WIDTH) / WIDTH, "zero": torch.full((WIDTH, WIDTH), 127.0), "nbits": 8}

    def forward(self, given):
        return functional.linear(given, (self.W_q.float() - self.meta["zero"]) * self.meta["scale"] / 127)


KINDS = {
    "nf4": functools.partial(four_bits, quant_type="nf4", compress_statistics=False),
    "nf4 twice": functools.partial(four_bits, quant_type="nf4", compress_statistics=True),
    "fp4 in bfloat16": functools.partial(four_bits, quant_type="fp4", quant_storage=torch.bfloat16),
    "llm.int8": eight_bits,
    "torchao int8": functools.partial(torchao, Int8WeightOnlyConfig()),
    "torchao int4": functools.partial(torchao, IntxWeightOnlyConfig(weight_dtype=torch.int4)),
    "torchao float8": functools.partial(torchao, Float8WeightOnlyConfig()),
    "torchao nf4": Nf4,
    "buffers": functools.partial(InBuffers, "autograd"),
    "buffers, a function's": functools.partial(InBuffers, "hooks"),
    "buffers, a context's": functools.partial(InBuffers, "context"),
    "microscaled": functools.partial(Microscaled, False),
    "microscaled buffers": functools.partial(Microscaled, True),
    "shell type": OfShellType,
    "attributes": InAttributes,
}


class Adapted(nn.Module):
    """A frozen layer, and what is trained over it."""

    def __init__(self, base, rank=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, rank, bias=False), nn.Linear(rank, WIDTH, bias=False)
        self.adapts = True

    def forward(self, given):
        made = self.base(given)
        return made + self.up(self.down(given)) if self.adapts else made


class Model(nn.Module):
    def __init__(self, kind, checkpointed=None):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Adapted(KINDS[kind]()) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.checkpointed = checkpointed

    def forward(self, text):
        hidden = self.embedding(text)
        for block in self.blocks:
            made = block(hidden) if self.checkpointed is None else checkpoint(block, hidden, use_reentrant=self.checkpointed)
            hidden = hidden + functional.gelu(made)
        return self.head(hidden)


def build(kind, checkpointed=None, seed=3):
    """The model, and the optimizer of what is trained in it."""
    torch.manual_seed(seed)
    model = Model(kind, checkpointed)
    return model, torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)


def loss_of(model, number, reference=False):
    """reference: of the difference to what the model says without its adapters."""
    source, target = batch(number)
    made = model(source)
    loss = functional.cross_entropy(made.flatten(0, 1), target.flatten())
    if reference:
        for block in model.blocks:
            block.adapts = False
        with torch.no_grad():
            before = model(source)
        for block in model.blocks:
            block.adapts = True
        loss = loss + functional.mse_loss(made, before)
    return loss


def train(model, optimizer, steps=3, parts=1, clip=None, reference=False):
    """The losses of a run."""
    losses = []
    for step in range(steps):
        for part in range(parts):
            loss = loss_of(model, step * parts + part, reference) / parts
            loss.backward()
            losses.append(loss.item())
        if clip is not None:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def bits(value):
    """What of a tensor can be compared: itself as bytes, or of one that is made of others these."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if hasattr(value, "__tensor_flatten__") and type(value) is not torch.Tensor:
        return type(value).__name__, {name: bits(getattr(value, name)) for name in value.__tensor_flatten__()[0]}
    if value.dtype in (torch.uint4,):
        value = value.view(torch.uint8)
    return str(value.dtype), tuple(value.shape), value.clone().contiguous().flatten().view(torch.uint8).tolist()


def state_bits(model):
    """All that a model would save, by name."""
    return {name: bits(value) for name, value in model.state_dict().items()}

# SPDX-License-Identifier: Apache-2.0
"""What the tests of terrace.torch share: a small GPT with everything that makes offloading hard (a tied embedding, a
parameter of the root module, frozen weights, checkpointed blocks), a loop that trains it, and the daemon's counters."""

import dataclasses
import os
import shutil
import tempfile
import urllib.request

import pytest
import terrace.torch
import torch
import torch.utils.checkpoint
from python_fixtures import LIMIT_SECONDS
from torch import nn
from torch.nn import functional

VOCABULARY = 64
CONTEXT = 16

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        query, key, value = self.query_key_value(self.norm(x)).chunk(3, -1)
        x = x + self.out(functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        return x + self.dropout(self.narrow(functional.gelu(self.wide(x))))


class Gpt(nn.Module):
    """checkpointing: of every other block; None: not, True: the reentrant kind, False: the other one."""

    def __init__(self, width=32, blocks=4, checkpointing=None):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))
        self.checkpointing = checkpointing

    def forward(self, text):
        x = self.embedding(text) + self.positions * self.scale
        for number, block in enumerate(self.blocks):
            if self.checkpointing is not None and number % 2:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpointing)
            else:
                x = block(x)
        return self.head(self.norm(x))


class FailsInBackward(torch.autograd.Function):
    """The identity, whose backward pass does not go well."""

    @staticmethod
    def forward(_context, tensor):
        return tensor.clone()

    @staticmethod
    def backward(_context, _gradient):
        raise ZeroDivisionError("in backward")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one run is trained; everything random comes from fixed seeds."""

    width: int = 32
    blocks: int = 4
    checkpointing: bool | None = None
    autocast: bool = False
    accumulation: int = 1
    clip: bool = False
    frozen: bool = False
    set_to_none: bool = True
    steps: int = 3
    kind: type = torch.optim.AdamW
    options: tuple = (("lr", 1e-3),)


def build(recipe):
    """The model and its optimizer, the same ones each time."""
    torch.manual_seed(1)
    model = Gpt(recipe.width, recipe.blocks, recipe.checkpointing)
    if recipe.frozen:
        model.blocks[1].wide.weight.requires_grad_(False)
        model.blocks[0].out.weight.requires_grad_(False)
        model.blocks[1].norm.weight.requires_grad_(False)  # of which autograd saves the parameter itself
        model.positions.requires_grad_(False)
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others}]
    return model, recipe.kind(groups, **dict(recipe.options))


def batch(number):
    text = torch.randint(0, VOCABULARY, (2, CONTEXT + 1), generator=torch.Generator().manual_seed(number))
    return text[:, :-1], text[:, 1:]


def loss_of(model, number, autocast=False):
    source, target = batch(number)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return functional.cross_entropy(model(source).flatten(0, 1), target.flatten())


def train(model, optimizer, recipe, begin=0):
    """The losses of a run, and the norms where it clips."""
    said = []
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    torch.manual_seed(2 + begin)
    for step in range(begin, begin + recipe.steps):
        for part in range(recipe.accumulation):
            loss = loss_of(model, step * recipe.accumulation + part, recipe.autocast)
            (loss / recipe.accumulation).backward()
            said.append(loss.item())
        if recipe.clip:
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=recipe.set_to_none)
    return said


def weights(model):
    """Copies of all that the model has, by name."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def in_terrace(tensor):
    """Whether a parameter, a gradient or a state is there, and not in memory."""
    return type(tensor).__name__ in ("OffloadedTensor", "OffloadedParameter")


def assert_same(one, other):
    """Tensors by name are equal bit for bit."""
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor.flatten().view(torch.uint8), other[name].flatten().view(torch.uint8)), name


def compare(recipe, client, **options):
    """Trains with Terrace and without: losses and weights are equal bit for bit, and nothing stays leased."""
    plain, plain_optimizer = build(recipe)
    wanted = train(plain, plain_optimizer, recipe)
    model, optimizer = build(recipe)
    model, optimizer = terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, **options)
    assert train(model, optimizer, recipe) == wanted
    assert client.leased_bytes == 0 and client.held == 0
    assert_same(weights(model), weights(plain))
    assert client.leased_bytes == 0 and client.held == 0
    return model, optimizer


RECIPE = Recipe()


@pytest.fixture(scope="module")
def roomy():
    """A client of a daemon in which everything fits the memory tier."""
    with terrace.serve("64MiB", metrics=False) as served:
        yield served


class Restless(terrace.Client):
    """Sends down whatever is not leased any more, at every turn: bytes that nobody knew to be written are lost."""

    def _acquire(self, tensors, *options):
        waiting, self._released = getattr(self, "_released", {}), {}
        for tensor in waiting.values():
            try:
                self.swap_out([tensor])
            except terrace.Aborted:  # deleted
                pass
            except terrace.FailedPrecondition:  # leased, or without content
                self._released[tensor.handle] = tensor
        self._released.update((tensor.handle, tensor) for tensor in tensors)
        return super()._acquire(tensors, *options)


@pytest.fixture(scope="module")
def restless():
    """A client in whose memory nothing stays that is not leased."""
    folder = tempfile.mkdtemp(prefix="e2e-", dir=os.environ["TERRACE_BUILD"])
    try:
        with (terrace.serve("32MiB", block=f"{folder}:128MiB", metrics=False) as served,
              Restless(served.socket) as client):
            yield client
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def nothing_stays_leased(request):
    """At the end of a test its client holds nothing."""
    clients = [request.getfixturevalue(name) for name in ("restless", "roomy") if name in request.fixturenames]
    yield
    assert all(client.leased_bytes == 0 and client.held == 0 for client in clients)


def both(client, make=build, recipe=RECIPE):
    """The same model and optimizer without Terrace and with it."""
    plain = make(recipe)
    return plain, terrace.torch.offload(*make(recipe), client=client, tensor_bytes_min=1)


def same_for_both(client, run, make=build):
    """Runs a script's lines with both; what they return is equal, as are the weights. Gives the offloaded pair."""
    plain, offloaded = both(client, make)
    torch.manual_seed(7)
    wanted = run(*plain)
    torch.manual_seed(7)
    got = run(*offloaded)
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(wanted, got) and type(got) is torch.Tensor
    else:
        assert wanted == got
    del wanted, got
    assert_same(weights(offloaded[0]), weights(plain[0]))
    return offloaded


def steps(model, optimizer, count=2):
    for number in range(count):
        loss_of(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()


def metric(client, name, **labels):
    """The sum of a series of the daemon, over what has these labels."""
    text = urllib.request.urlopen(client.metrics_url, timeout=LIMIT_SECONDS).read().decode()
    wanted = [f'{key}="{value}' for key, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted))

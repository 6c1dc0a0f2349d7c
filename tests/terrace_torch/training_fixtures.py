# SPDX-License-Identifier: Apache-2.0
"""What the tests of terrace.torch share: a small model, training it, the daemon's counters, what activations
leave behind, and how much memory PyTorch's own storages take."""

import gc
import urllib.request

import pytest
import terrace
import torch
from python_fixtures import LIMIT_SECONDS, disk  # noqa: F401 (a fixture)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

torch.set_num_threads(1)
WIDTH = 32


@pytest.fixture
def roomy(disk):
    """A client of a daemon that holds all of a test in memory."""
    with terrace.serve("64MiB", block=f"{disk}:256MiB") as served:
        yield served


def metric(client, name, **labels):
    """The sum of a series of the daemon, over what has these labels."""
    text = urllib.request.urlopen(client.metrics_url, timeout=LIMIT_SECONDS).read().decode()
    wanted = [f'{key}="{value}' for key, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted))


def _costly_matrices_saved(context, operation, *arguments, **options):
    saved = operation in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


class Block(torch.nn.Module):
    """A transformer's block; its queries, keys and values are views of one storage."""

    def __init__(self, width, dropout):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.mixed, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, hidden):
        batch, length, width = hidden.shape
        heads = [part.view(batch, length, 2, width // 2).transpose(1, 2)
                 for part in self.mixed(self.first(hidden)).chunk(3, -1)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return hidden + self.down(torch.nn.functional.gelu(self.up(self.second(hidden))))


class Model(torch.nn.Module):
    """Blocks in a row, after a table of positions that is a buffer; checkpointing: None, "reentrant", "plain",
    "selective"."""

    def __init__(self, blocks, width=WIDTH, checkpointing=None, dropout=0.1, length=128):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.register_buffer("positions", torch.randn(length, width))
        self.checkpointing = checkpointing

    def forward(self, hidden):
        hidden = hidden * self.positions
        for block in self.blocks:
            hidden = self._through(block, hidden)
        return hidden

    def _through(self, block, hidden):
        if self.checkpointing is None:
            return block(hidden)
        options = {"use_reentrant": self.checkpointing == "reentrant"}
        if self.checkpointing == "selective":
            options["context_fn"] = lambda: create_selective_checkpoint_contexts(_costly_matrices_saved)
        return checkpoint(block, hidden, **options)


def model_of(blocks, **options):
    """A model with the same weights every time."""
    torch.manual_seed(1)
    return Model(blocks, **options)


def train(model, context, steps, *, batch=8, bfloat16=False):
    """Trains it with what autograd saves under a context; losses, last gradients and weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for number in range(steps):
        torch.manual_seed(100 + number)
        source = torch.randn(batch, 128, model.positions.shape[1])
        optimizer.zero_grad()
        with context:
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = (model(source.requires_grad_()) - source).square().mean()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.grad for parameter in model.parameters()], list(model.state_dict().values())


def same(ours, theirs):
    """Whether two results of train() are the same bits."""
    return ours[0] == theirs[0] and all(
        torch.equal(here, there) for mine, plain in zip(ours[1:], theirs[1:], strict=True)
        for here, there in zip(mine, plain, strict=True))


def leaves_nothing(context):
    """Whether nothing is leased or in use any more; saved tensors that wait for the collector are its."""
    gc.collect()
    return context.slots_in_use == 0 and context.client.leased_bytes == 0 and context.client.held == 0


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that operations made on PyTorch's own heap and that are still there."""

    def __init__(self):
        super().__init__()
        self.most = 0
        self._live = {}

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        made = operation(*arguments, **(options or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta and tensor.untyped_storage().resizable():
                storage = tensor.untyped_storage()
                self._live.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.most = max(self.most, self.now())
        return made

    def now(self):
        """Of those that are there now."""
        self._live = {at: live for at, live in self._live.items() if not live[0].expired()}
        return sum(size for _, size in self._live.values())

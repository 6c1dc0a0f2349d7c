# SPDX-License-Identifier: Apache-2.0
"""Shows that blocks which torch.compile made of modules are leased as a whole, whatever is in them, and give what they
give without Terrace; and that compiling afterwards is refused by name."""

import copy

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    RECIPE,
    Recipe,
    build,
    loss_of,
    nothing_stays_leased,
    restless,
    same_for_both,
    train,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_compiled_blocks(restless, autocast):
    """Compiled before; inner blocks, each leased as a whole; they are compiled once."""
    torch._dynamo.reset()
    recipe = Recipe(autocast=autocast, checkpointing=False)

    def make(recipe):
        model, _ = build(recipe)
        model.blocks[0] = torch.compile(model.blocks[0], backend="aot_eager")
        model.blocks[2] = torch.compile(model.blocks[2], backend="aot_eager")
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(model, optimizer):
        return train(model, optimizer, recipe)

    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    same_for_both(restless, run, make)
    assert graphs["unique_graphs"] == 1, "the code for the plain model serves the other"


@pytest.mark.parametrize("make_block", [
    lambda: nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True),
    lambda: nn.Sequential(nn.Linear(32, 32), nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)),
    lambda: nn.TransformerDecoderLayer(32, 2, 64, 0.0, batch_first=True),
    lambda: nn.Sequential(torch.compile(nn.Linear(32, 32), backend="eager"), nn.GELU())],
    ids=["encoder layer", "inner encoder layer", "attention", "compiled in compiled"])
def test_compiled_blocks_with_modules_that_are_leased_as_a_whole(restless, make_block):
    """A compiled block is leased as a whole itself, and nothing in it once more."""
    torch._dynamo.reset()

    def make(recipe):
        torch.manual_seed(4)
        model = nn.ModuleList([nn.Linear(32, 32), torch.compile(make_block(), backend="eager")])
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(model, optimizer):
        said = []
        for number in range(4):
            model.train(number != 2)
            x = model[0](torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(number)))
            decodes = isinstance(model[1]._orig_mod, nn.TransformerDecoderLayer)
            loss = (model[1](x, x) if decodes else model[1](x)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        return said

    same_for_both(restless, run, make)


def test_a_block_compiled_by_inductor(restless, tmp_path, monkeypatch):
    """PyTorch's default: code in C++ of this machine's own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()

    def make(recipe):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(48, 96), torch.compile(nn.Sequential(nn.GELU(), nn.Linear(96, 48))))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run(model, optimizer):
        said = []
        for number in range(3):
            torch.manual_seed(number)
            loss = model(torch.randn(4, 48)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        return said

    with torch._inductor.config.patch(compile_threads=1):
        same_for_both(restless, run, make)


def test_what_is_compiled_afterwards_is_refused(restless):
    model, _ = terrace.torch.offload(*build(RECIPE), client=restless, tensor_bytes_min=1)
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    with pytest.raises(terrace.FailedPrecondition, match=r"compiled after.*Use torch.compile\(module\) in the place"):
        loss_of(model, 0)
    model.blocks[0] = model.blocks[0]._orig_mod
    loss_of(model, 0).backward()


def test_what_is_exported_is_a_copy(restless):
    model, _ = terrace.torch.offload(nn.Sequential(nn.Linear(64, 64), nn.GELU()), client=restless)
    batch = torch.ones(2, 64)
    with pytest.raises(terrace.FailedPrecondition, match=r"export a copy.*torch\.export\.export\(copy\.deepcopy\(model\)"):
        torch.export.export(model, (batch,))
    exported = torch.export.export(copy.deepcopy(model), (batch,))
    assert torch.equal(exported.module()(batch), model(batch))


def test_a_compiled_step_is_refused(restless):
    model, optimizer = terrace.torch.offload(*build(RECIPE), client=restless, tensor_bytes_min=1)
    loss_of(model, 0).backward()
    with pytest.raises(terrace.FailedPrecondition, match=r"step of an offloaded optimizer was compiled.*optimizer\.step"):
        torch.compile(optimizer.step, backend="eager")()
    optimizer.step()


@pytest.mark.parametrize("compiled", [lambda model: model, lambda model: model[0], lambda model: model[1],
                                      lambda model: model[1][0], lambda model: model[2]],
                         ids=["model", "linear", "sequential", "inner", "layer"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "in its place"])
def test_what_is_compiled_afterwards(compiled, in_place):
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64)),
                          nn.TransformerEncoderLayer(64, 2, 64, batch_first=True))
    torch._dynamo.reset()
    with terrace.serve("64MiB", metrics=False) as client:
        terrace.torch.offload(model, client=client)
        runs = compiled(model)
        if in_place:
            runs.compile(backend="eager")
        else:
            runs = torch.compile(runs, backend="eager")
        with pytest.raises(terrace.FailedPrecondition, match=r"would lease in compiled code.*torch\.compile\(module\)"):
            runs(torch.ones(2, 3, 64))
        del runs

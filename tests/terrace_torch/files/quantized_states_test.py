# SPDX-License-Identifier: Apache-2.0
"""Shows that terrace.torch.save() and load() keep quantized states, that a job goes on from them to the same bits, and that
what a file cannot hold of quantized weights, or nothing can be read into, is refused by name."""

import bitsandbytes as bnb
import pytest
import terrace.torch
import torch
from model_fixtures import nothing_stays_leased, roomy  # noqa: F401 (fixtures)
from quantized_fixtures import WIDTH, Int8WeightOnlyConfig, torchao
from torch import nn
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """torchao compiles its step, which takes minutes, and gives other last bits than a step that is not."""
    monkeypatch.setattr(torch, "compile", lambda function=None, **_: function)


def build(kind, client=None):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = kind(model.parameters(), 1e-3)
    if client is not None:
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
    return model, optimizer


def train(model, optimizer, begin, steps):
    losses = []
    for step in range(begin, begin + steps):
        torch.manual_seed(100 + step)
        loss = model(torch.randn(8, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [AdamW8bit, AdamW4bit, AdamWFp8])
@pytest.mark.parametrize("loads", ["plain", "offloaded"])
def test_a_job_goes_on_from_a_file(roomy, tmp_path, kind, loads):  # noqa: F811
    plain, ours = build(kind), build(kind, roomy)
    assert train(*plain, 0, 3) == train(*ours, 0, 3)
    terrace.torch.save(tmp_path / "model.safetensors", *ours)
    again = build(kind, roomy if loads == "offloaded" else None)
    train(*again, 5, 1)  # other states are replaced
    terrace.torch.load(tmp_path / "model.safetensors", *again)
    assert train(*again, 3, 3) == train(*plain, 3, 3)


def test_a_class_that_a_file_names_is_to_be_safe(tmp_path, monkeypatch):
    """As of torch.load(weights_only=True): neither is one written that could not be read, nor is what any file names made."""
    job, path = build(AdamW8bit), tmp_path / "model.safetensors"
    train(*job, 0, 1)
    terrace.torch.save(path, *job)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    monkeypatch.setattr(torch.serialization, "get_safe_globals", list)
    with pytest.raises(terrace.InvalidArgument, match=r"save: 'exp_avg' of its state of parameter 0 is of a class.*OptimState8bit: "
                                                      r"call torch.serialization.add_safe_globals\(\)"):
        terrace.torch.save(path, *job)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
    with pytest.raises(terrace.InvalidArgument, match=r"load: a state is of a class.*OptimState8bit"):
        terrace.torch.load(path, *job)


@pytest.mark.parametrize("offloads", [False, True], ids=["plain", "offloaded"])
def test_quantized_weights_that_no_file_holds_are_refused(roomy, tmp_path, offloads):  # noqa: F811
    model = nn.Sequential(torchao(Int8WeightOnlyConfig()))
    if offloads:
        terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    with pytest.raises(terrace.InvalidArgument, match="'0.weight' of the model's state is a tensor of the class Int8Tensor"):
        terrace.torch.save(tmp_path / "model.safetensors", model)
    assert not list(tmp_path.iterdir())


def four_bits(seed, doubly):
    torch.manual_seed(seed)
    layer = bnb.nn.Linear4bit(WIDTH, WIDTH, bias=False, compute_dtype=torch.float32, compress_statistics=doubly, quant_type="nf4")
    return nn.Sequential(layer.to("cpu"))


@pytest.mark.parametrize("doubly", [False, True], ids=["once", "doubly"])
@pytest.mark.parametrize("offloads", [False, True], ids=["plain", "offloaded"])
def test_what_nothing_can_be_read_into_is_refused_unless_it_is_the_same(roomy, tmp_path, offloads, doubly):  # noqa: F811
    """Four bits that are quantized doubly have a mean, which is no tensor of the model's; it would be lost."""
    saved, other, same = four_bits(1, doubly), four_bits(2, doubly), four_bits(1, doubly)
    for one in (saved, other, same) if offloads else ():
        terrace.torch.offload(one, client=roomy, tensor_bytes_min=1)
    path, given = tmp_path / "model.safetensors", torch.randn(4, WIDTH)
    terrace.torch.save(path, saved)
    before = other(given)
    if doubly:
        with pytest.raises(terrace.InvalidArgument, match="'0.weight.quant_state.bitsandbytes__nf4' has another value than the model's"):
            terrace.torch.load(path, other)
        assert torch.equal(other(given), before)
    else:
        terrace.torch.load(path, other)
        assert torch.equal(other(given), saved(given))
    terrace.torch.load(path, same)
    assert torch.equal(same(given), saved(given))

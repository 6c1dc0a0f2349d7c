# SPDX-License-Identifier: Apache-2.0
"""Shows that a model which init() builds has, bit for bit, the weights that it has without it, is never whole in
memory, and is what offload() takes as it is; that what is cast, copied, tied, replaced or shown by something else while
it is built is right as well."""

import gc
import json
import threading

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    RECIPE,
    Gpt,
    Recipe,
    assert_same,
    build,
    nothing_stays_leased,
    restless,
    roomy,
    train,
    weights,
)
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)
from terrace.torch._tensors.offloaded import OffloadedParameter
from torch import nn
from training_fixtures import LiveBytes

LARGE = Recipe(width=96, blocks=20, steps=1)
LARGEST = 4 * 4 * LARGE.width**2  # bytes


@pytest.fixture
def small(disk):
    """A client whose session is guaranteed 2 MiB."""
    with terrace.serve("4MiB", block=f"{disk}:256MiB", metrics=False) as served:
        yield served


def offloaded(module):
    return [name for name, parameter in module.named_parameters() if isinstance(parameter, OffloadedParameter)]


def test_a_model_of_several_times_the_memory(small):
    """8.6 MiB of parameters, of which never are more than 0.7 in the process; 34 MiB of state in the end, through 4."""
    plain, plain_optimizer = build(LARGE)
    size = sum(parameter.nbytes for parameter in plain.parameters())
    assert size > 4 * small.places()[0].guarantee_bytes == 4 * 2 * MIB
    with LiveBytes() as live:
        with terrace.torch.init(client=small, tensor_bytes_min=1):
            model, optimizer = build(LARGE)
        assert live.most <= MIB // 2 + LARGEST and live.now() < 4096
        assert offloaded(model) == [name for name, _ in model.named_parameters()]
        made = set(small.tensors())
        terrace.torch.offload(model, optimizer)
        assert live.most <= MIB // 2 + LARGEST
    assert made < set(small.tensors()) and {one.terrace.slot.tensor.name for one in model.parameters()} == made
    assert_same(weights(model), weights(plain))
    assert train(model, optimizer, LARGE) == train(plain, plain_optimizer, LARGE)
    assert_same(weights(model), weights(plain))
    assert {one.name for one in terrace.torch.summary(model).modules} >= {"blocks.7.wide", "embedding", "norm"}
    assert small.leased_bytes == 0 and small.leased_bytes_max <= 2 * MIB
    del model, optimizer
    gc.collect()
    assert not small.tensors()


def test_what_modules_do_while_they_are_built(restless):
    """Copies (nn.TransformerEncoder), ties, padding, parametrizations, casts of parts, initialisation afterwards; and
    the generator is where it would be."""
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            drawn = torch.randn(64, 64)
            self.first = nn.Parameter(drawn)
            self.second = nn.Parameter(torch.randn(64, 64).t(), requires_grad=False)
            self.listed = nn.ParameterList(torch.randn(32) for _ in range(3))

    def make():
        torch.manual_seed(5)
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        model = nn.ModuleDict({
            "embedding": nn.Embedding(128, 64, padding_idx=3), "encoder": nn.TransformerEncoder(layer, 4),
            "recurrent": nn.LSTM(64, 64), "normed": nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)),
            "halved": nn.Linear(64, 64).to(torch.bfloat16), "scaled": Scaled(), "head": nn.Linear(64, 128, bias=False)})
        model["head"].weight = model["embedding"].weight
        model["scaled"].double()
        for part in model["encoder"].modules():
            if isinstance(part, nn.Linear):
                nn.init.orthogonal_(part.weight)
                nn.init.trunc_normal_(part.weight, std=0.02)
        return model, torch.rand(3)

    plain, following = make()
    limit = terrace.torch._offload.init.WAITING_BYTES_MAX
    for waiting in (20 << 10, limit):
        terrace.torch._offload.init.WAITING_BYTES_MAX = waiting
        try:
            with terrace.torch.init(client=restless, tensor_bytes_min=1):
                model, ours = make()
        finally:
            terrace.torch._offload.init.WAITING_BYTES_MAX = limit
        assert torch.equal(ours, following)
        assert_same(weights(model), weights(plain))
        assert [one.stride() for one in model.parameters()] == [one.stride() for one in plain.parameters()]
        assert model["head"].weight is model["embedding"].weight
        assert len(restless.tensors()) == len(offloaded(model)) == len(list(model.parameters()))
        terrace.torch.offload(model, client=restless)
        assert_same(weights(model), weights(plain))
        del model
        gc.collect()
        assert not restless.tensors()
    assert restless.leased_bytes == 0 and restless.held == 0


def test_memory_that_something_else_shows_stays_where_it_is(roomy):
    flat = torch.randn(2 * 1024)
    with terrace.torch.init(client=roomy, tensor_bytes_min=1):
        model = nn.Module()
        model.first, model.second = nn.Parameter(flat[:1024]), nn.Parameter(flat[1024:])
        model.other = nn.Parameter(torch.randn(1024))
    flat.zero_()
    assert not model.first.any() and not model.second.any()
    assert offloaded(model) == ["other"]
    terrace.torch.offload(model, tensor_bytes_min=1)
    assert [name for name, _ in terrace.torch.summary(model).left_alone] == ["first", "second"]


def test_a_cast_after_it_is_refused(roomy):
    with terrace.torch.init(client=roomy):
        model = nn.Linear(64, 64, bias=False).to(torch.float64)
        assert model.weight.dtype == torch.float64
    with pytest.raises(terrace.FailedPrecondition, match=r"'\w+.weight' lives in Terrace"):
        model.to(torch.float32)
    assert model.weight.dtype == torch.float64


def test_a_memory_format_while_it_is_built(small):
    def build():
        torch.manual_seed(1)
        return nn.Sequential(*(nn.Conv2d(128, 128, 3) for _ in range(4))).to(memory_format=torch.channels_last)

    with terrace.torch.init(client=small, tensor_bytes_min=1):
        model = build()
    assert len(offloaded(model)) == 8
    terrace.torch.offload(model)
    assert [one.stride() for one in model.parameters()] == [one.stride() for one in build().parameters()]
    assert_same(weights(model), weights(build()))


def test_other_threads_and_what_follows_are_left_alone(roomy):
    made = []
    with terrace.torch.init(client=roomy):
        thread = threading.Thread(target=lambda: made.append(nn.Linear(64, 64)))
        thread.start()
        thread.join()
        with terrace.torch.init(client=roomy, tensor_bytes_min=1 << 20):
            made.append(nn.Linear(64, 64))  # the innermost counts
        made.append(nn.Linear(64, 64, device="meta"))
    made.append(nn.Linear(64, 64))
    assert not any(offloaded(model) for model in made) and not roomy.tensors()
    assert "_copied" not in nn.Parameter.__deepcopy__.__name__


def test_what_is_gone_is_given_back(roomy):
    with terrace.torch.init(client=roomy):
        kept = [nn.Linear(64, 64, bias=False)]
        for _ in range(20):
            nn.Linear(64, 64)
        kept[0].weight = nn.Parameter(torch.ones(64, 64))
    assert len(roomy.tensors()) == 1
    with pytest.raises(ZeroDivisionError), terrace.torch.init(client=roomy):
        kept.append(nn.Linear(64, 64))
        kept.append(1 / 0)
    assert kept.pop()(torch.ones(64)).shape == (64,)  # as a model of any other kind
    del kept
    gc.collect()
    assert not roomy.tensors()


def test_parts_and_several_models(roomy, restless):
    """Two models of one init() are offloaded each by itself; one model may be of two init()s, of one client."""
    with terrace.torch.init(client=restless, tensor_bytes_min=1):
        one, other = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64))
    for model in (one, other):
        terrace.torch.offload(model, torch.optim.SGD(model.parameters(), momentum=0.9), client=restless)
        model(torch.ones(64)).sum().backward()
    assert [part.name for part in terrace.torch.summary(other).modules] == ["0"]
    with terrace.torch.init(client=restless, tensor_bytes_min=1):
        first = nn.Linear(64, 64)
    with terrace.torch.init(client=restless, tensor_bytes_min=1):
        both = nn.Sequential(first, nn.Linear(64, 64))
    both.append(nn.Linear(64, 64))
    with pytest.raises(terrace.InvalidArgument, match="'0.weight' was built within terrace.torch.init.. of another"):
        terrace.torch.offload(both, client=roomy)
    terrace.torch.offload(both)
    assert len(offloaded(both)) == 5
    both(torch.ones(64)).sum().backward()
    with pytest.raises(terrace.FailedPrecondition, match="is offloaded already, with another model"):
        terrace.torch.offload(first)


def test_an_offload_that_fails_leaves_it_built(disk):
    """There is room for the parameters, and none for the optimizer's states."""
    with terrace.serve("4MiB", metrics=False) as client:
        with terrace.torch.init(client=client, tensor_bytes_min=1):
            model, optimizer = build(Recipe(width=64, blocks=8))
        before = weights(model)
        made = set(client.tensors())
        with pytest.raises(terrace.ResourceExhausted):
            terrace.torch.offload(model, optimizer, tensor_bytes_min=1)
        assert set(client.tensors()) == made and client.leased_bytes == 0
        assert_same(weights(model), before)
        terrace.torch.offload(model, tensor_bytes_min=1)
        assert_same(weights(model), before)
        assert client.leased_bytes == 0


def test_weights_from_a_file(small, disk):
    """Read a tensor at a time, also where tied weights have one name in it, and where an index names several files."""
    plain, _ = build(LARGE)
    terrace.torch.save(disk / "whole.safetensors", plain)
    halves = nn.ModuleDict({"embedding": plain.embedding, "blocks": plain.blocks}), nn.ModuleDict({"norm": plain.norm})
    halves[1].register_parameter("positions", plain.positions)
    halves[1].register_buffer("scale", plain.scale)
    index = {}
    for number, half in enumerate(halves):
        terrace.torch.save(disk / f"{number}.safetensors", half)
        index |= dict.fromkeys(half.state_dict(), f"{number}.safetensors")
    (disk / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for path in ("whole.safetensors", "model.safetensors.index.json"):
        torch.manual_seed(9)
        with LiveBytes() as live:
            with terrace.torch.init(client=small, tensor_bytes_min=1):
                model = Gpt(LARGE.width, LARGE.blocks)
            terrace.torch.load(disk / path, model)
            assert live.most <= MIB // 2 + LARGEST
        assert_same(weights(model), weights(plain))
    (disk / "0.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        terrace.torch.load(disk / "model.safetensors.index.json", model)
    index["other.weight"] = index.pop("norm.bias")
    (disk / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    terrace.torch.save(disk / "0.safetensors", halves[0])
    with pytest.raises(terrace.InvalidArgument, match="no index of safetensors files: .*other.weight"):
        terrace.torch.load(disk / "model.safetensors.index.json", model)


def test_bad_arguments(roomy, monkeypatch, tmp_path):
    monkeypatch.setenv("TERRACE_SOCKET", str(tmp_path / "nobody.sock"))
    for wrong, error, said in (({"place": "attic"}, terrace.InvalidArgument, "init: place is 'attic'; this session can lease in host"),
                               ({"client": 3}, TypeError, "client is 3"),
                               ({"tensor_bytes_min": -1}, terrace.InvalidArgument, "tensor_bytes_min is -1"),
                               ({}, terrace.Unavailable, "terrace.torch.init: no client was given")):
        with pytest.raises(error, match=said), terrace.torch.init(**{"client": roomy} | wrong if wrong else {}):
            pass
    assert nn.Parameter.__deepcopy__.__name__ == "__deepcopy__"

# SPDX-License-Identifier: Apache-2.0
"""Shows that terrace.torch on the test device has the bits of plain PyTorch there: losses, norms and weights, in the
combinations of what is offloaded with how it is trained, each under the order of a seed of its own, where HBM holds a
part of it. Under autocast weights are leased as what it casts them to."""

import contextlib
import dataclasses
import functools

import pytest
import terrace.torch
import torch
from device_fixtures import (  # noqa: F401 (a fixture)
    PLAIN,
    assert_ended,
    assert_same,
    build,
    offloaded_pair,
    plain_run,
    seeded,
    small,
    train,
    weights,
)
from terrace.torch._parameters import casts

PATIENCE_SECONDS = 0.002
SGD = torch.optim.SGD

WAYS = {
    "fp32": PLAIN,
    "bf16, checkpointing": dataclasses.replace(PLAIN, dtype=torch.bfloat16, checkpointing=False),
    "fp16, scaler, clipping, accumulation": dataclasses.replace(PLAIN, dtype=torch.float16, clip=True, accumulation=2),
    "dropout, reentrant checkpointing": dataclasses.replace(PLAIN, dropout=0.1, checkpointing=True),
}
OFFLOADED = {
    "parameters": {"what": "parameters"}, "gradients": {"what": "gradients"}, "states": {"what": "states"},
    "parameters and states": {"what": ("parameters", "states")}, "the model": None,
    "model and optimizer": {}, "stepping in backward": {"step_in_backward": True},
    "activations": None, "all": {}, "all, stepping in backward": {"step_in_backward": True},
}


@pytest.fixture(autouse=True)
def pays(monkeypatch):
    """Casts pay however small a weight is."""
    monkeypatch.setattr(casts, "BYTES_MIN", 1)


def run_with(client, recipe, offloaded, saved=contextlib.nullcontext):
    """What it says with Terrace, and the weights."""
    model, optimizer = build(recipe)
    if offloaded is not None:
        model, optimizer = terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1, **offloaded)
    return train(model, optimizer, recipe, saved=saved), weights(model)


def combinations():
    """(what is offloaded, how it is trained) of each, and those that are refused left out."""
    return [(what, way) for what in OFFLOADED for way in WAYS
            if not ("backward" in what and ("scaler" in way or "accumulation" in way))]


@pytest.mark.parametrize(("number", "what", "way"), [(number, *each) for number, each in enumerate(combinations())],
                         ids=lambda each: str(each))
def test_the_same_bits(small, number, what, way):
    said, there = plain_run(WAYS[way])
    saved = contextlib.nullcontext
    if what.startswith("a"):  # activations, all
        saved = functools.partial(terrace.torch.activations, small, min_bytes=1024, keep_bytes=0)
    with seeded(number, PATIENCE_SECONDS):
        if what == "the model":
            model, optimizer = build(WAYS[way])
            model, _ = terrace.torch.offload(model, client=small, tensor_bytes_min=1)
            found = train(model, optimizer, WAYS[way]), weights(model)
        else:
            found = run_with(small, WAYS[way], OFFLOADED[what], saved)
        assert found[0] == said
        assert_same(found[1], there)
    assert_ended(small)


@pytest.mark.parametrize("recipe", [
    dataclasses.replace(PLAIN, options=(("lr", 1e-2), ("fused", True))),
    dataclasses.replace(PLAIN, options=(("lr", 1e-2), ("foreach", False), ("amsgrad", True))),
    dataclasses.replace(PLAIN, options=(("lr", 1e-2), ("capturable", True), ("foreach", True))),
    dataclasses.replace(PLAIN, kind=SGD, options=(("lr", 0.1), ("momentum", 0.9), ("nesterov", True))),
    dataclasses.replace(PLAIN, kind=torch.optim.RMSprop, options=(("lr", 1e-3),))], ids=lambda each: str(each.options))
@pytest.mark.parametrize("offloaded", [{}, {"step_in_backward": True}], ids=["", "in backward"])
def test_the_same_bits_of_optimizers(small, recipe, offloaded):
    said, there = plain_run(recipe)
    with seeded(len(combinations()), PATIENCE_SECONDS):
        found = run_with(small, recipe, offloaded)
    assert found[0] == said
    assert_same(found[1], there)
    assert_ended(small)


def test_weights_are_leased_as_what_autocast_casts_them_to(small):
    recipe = WAYS["bf16, checkpointing"]
    model, optimizer = offloaded_pair(small, recipe)
    train(model, optimizer, recipe)
    cast = {name.rsplit("/", 2)[-2] for name in small.tensors() if name.endswith("/bfloat16")}
    assert cast == {name for name, one in model.named_parameters() if one.dim() == 2}
    assert_ended(small)

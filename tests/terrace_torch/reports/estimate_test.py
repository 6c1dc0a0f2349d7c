# SPDX-License-Identifier: Apache-2.0
"""Shows that an estimate's bytes are those that a job then has, of models that have no memory yet; that its step is rehearsed
on a node; and that what cannot be estimated is said."""

import re

import pytest
import terrace.torch
import torch
import torchao
from model_fixtures import Gpt, loss_of
from python_fixtures import ROOT
from torch import nn


def kept(optimizer, parameters):
    """Bytes of the states that grow with their parameters."""
    return sum(value.nbytes for one in parameters for value in optimizer.state.get(one, {}).values()
               if isinstance(value, torch.Tensor) and value.numel() > 1)


@pytest.mark.parametrize("make", [
    torch.optim.AdamW, lambda them: torch.optim.SGD(them, lr=0.1), lambda them: torch.optim.SGD(them, lr=0.1, momentum=0.9),
    lambda them: torch.optim.Adam(them, amsgrad=True), lambda them: torch.optim.RMSprop(them, centered=True)],
    ids=["adamw", "sgd", "momentum", "amsgrad", "rmsprop"])
def test_bytes_are_those_that_the_job_has(make):
    with torch.device("meta"):
        estimated = terrace.torch.estimate(model := Gpt(), make(model.parameters()))
    model = Gpt()
    optimizer = make(model.parameters())
    loss_of(model, 0).backward()
    optimizer.step()
    parameters = list(model.parameters())
    assert estimated.parameters == estimated.gradients == sum(one.nbytes for one in parameters)
    assert (estimated.states, estimated.masters) == (kept(optimizer, parameters), 0)
    assert estimated.all == 2 * estimated.parameters + estimated.states
    assert str(estimated).splitlines()[-1].split() == ["all", f"{estimated.all / 1e9:.3f}", "GB"]


def test_masters_and_what_is_frozen():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)).to(torch.bfloat16)
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters())
        made = terrace.torch.estimate(model, optimizer, masters=torch.float32)
        wide = terrace.torch.estimate(model, optimizer, masters=torch.float32, gradients=torch.float32)
    assert (made.parameters, made.gradients, made.masters, made.states) == (2 * 8192, 8192, 2 * 8192, 4 * 8192)
    assert wide.gradients == 2 * 8192


def test_states_of_optimizers_that_nobody_knows_are_as_a_copy_keeps_them():
    sizes = {}
    for name, kind in (("8 bits", torchao.optim.AdamW8bit), ("rows", torch.optim.Adafactor)):
        model = nn.Linear(256, 256, bias=False)
        sizes[name] = terrace.torch.estimate(model, kind(model.parameters())).states
    assert 2 * 256 * 256 <= sizes["8 bits"] <= 2.2 * 256 * 256
    assert sizes["rows"] < 4096


def test_activations_and_operations_of_a_batch():
    width = 64
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(width, width, bias=False), nn.GELU(), nn.Linear(width, width, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = terrace.torch.estimate(model, optimizer, torch.zeros(8, width))
    assert made.flops == 3 * 2 * (2 * 8 * width * width)
    assert made.activations == 3 * 8 * width * 4  # both linears' inputs, and what comes into GELU
    assert all(one.is_meta for one in model.parameters())


def test_attention_is_as_gpus_run_it():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8))

        def forward(self, query):
            return nn.functional.scaled_dot_product_attention(query * self.weight, query, query, is_causal=True)

    length = 4096
    made = terrace.torch.estimate(Attends(), None, torch.zeros(1, 2, length, 8))
    assert made.activations < 2 * length * 8 * 4 * 6 < 2 * length * length  # no weight of each pair


def test_a_forward_pass_that_looks_at_values():
    class Looks(nn.Linear):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    made = terrace.torch.estimate(Looks(8, 8), None, torch.ones(2, 8))
    assert made.activations is None and "does not run without values" in str(made)
    with pytest.raises(terrace.InvalidArgument, match="is rehearsed from what a batch takes: the forward pass"):
        terrace.torch.estimate(Looks(8, 8), None, torch.ones(2, 8), node="dgx-h100")


def deep():
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(16)])
        return model, torch.optim.AdamW(model.parameters())


def test_a_step_is_rehearsed():
    model, optimizer = deep()
    made = terrace.torch.estimate(model, optimizer, torch.zeros(4096, 4096), node="h200-1gpu")
    step = made.step
    assert step.compute_seconds == pytest.approx(made.flops / (0.4 * 989e12), rel=0.01)
    assert step.compute_seconds <= step.bound_seconds * 1.001 and step.bound_seconds <= step.seconds * 1.001
    assert "a step on h200-1gpu: " in str(made)
    slow = terrace.torch.estimate(model, optimizer, torch.zeros(4096, 4096), node="h200-1gpu", flops=1e12).step
    assert slow.compute_seconds == pytest.approx(made.flops / 1e12, rel=0.01)


def test_the_guides_example(capsys):
    page = (ROOT / "docs/guides/size-a-node.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(block, "size-a-node.md", "exec"), {})
    *classes, step = capsys.readouterr().out.splitlines()
    assert "\n".join(classes) in page and step.startswith("a step on h200-1gpu: ")


def test_a_node_that_is_too_small_or_unknown_is_named():
    model, optimizer = deep()
    for node in ("no-such-node", "/no/such/file.toml"):
        with pytest.raises(terrace.InvalidArgument, match=f"cannot be rehearsed on {node}: "):
            terrace.torch.estimate(model, optimizer, torch.zeros(8, 4096), node=node)
    with pytest.raises(terrace.InvalidArgument, match="rehearsed from what a batch takes: give a batch"):
        terrace.torch.estimate(model, optimizer, node="dgx-h100")


@pytest.mark.parametrize(("options", "kind", "said"), [
    ({"masters": "float32"}, TypeError, "masters is 'float32'"), ({"flops": 0}, terrace.InvalidArgument, "flops is 0"),
    ({"gradients": torch.float32}, terrace.InvalidArgument, "gradients=")])
def test_bad_input(options, kind, said):
    model = nn.Linear(8, 8)
    with pytest.raises(kind, match=said):
        terrace.torch.estimate(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    with pytest.raises(TypeError, match="model is "):
        terrace.torch.estimate("model")

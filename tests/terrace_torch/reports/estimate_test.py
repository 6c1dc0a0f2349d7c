# SPDX-License-Identifier: Apache-2.0
"""Shows that an estimate's bytes are those that a job then has, of models that have no memory yet; that its step is rehearsed
on a node; and that what cannot be estimated is said."""

import re

import accelerate
import pytest
import pytorch_optimizer
import terrace.torch
import torch
import torchao
import transformers
from model_fixtures import Gpt, loss_of
from python_fixtures import ROOT
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchao.quantization import Int8WeightOnlyConfig, quantize_


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
    assert made.flops == 5 * (2 * 8 * width * width)  # two forward, and of each product's two gradients that of the batch is none
    assert made.activations == 3 * 8 * width * 4  # both linears' inputs, and what comes into GELU
    assert all(one.is_meta for one in model.parameters())


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, query):
        return nn.functional.scaled_dot_product_attention(query=query * self.weight, key=query, value=query, is_causal=True)


@pytest.mark.parametrize(("model", "shape"), [
    (Attends(), (1, 2, 2048, 8)), (nn.TransformerEncoderLayer(16, 2, 16, 0.0, batch_first=True), (1, 2048, 16))],
    ids=["own", "pytorch's"])
def test_attention_is_as_gpus_run_it(model, shape):
    batch = torch.zeros(shape)
    made = terrace.torch.estimate(model, None, batch)
    assert made.activations < 16 * batch.nbytes < 2 * 2048 * 2048 * 4  # no weight of each pair


def test_dropout_keeps_a_byte_for_each_element():
    made = [terrace.torch.estimate(nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate)), None, torch.zeros(64, 8)).activations
            for rate in (0.0, 0.5)]
    assert made[1] - made[0] == 64 * 8


def saved(model, batch):
    """Bytes that autograd keeps in a real pass."""
    known = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(**batch)
    assert result.logits.requires_grad
    return sum(one.nbytes() for address, one in kept.items() if address not in known)


@pytest.mark.parametrize("last", [1, 0], ids=["whole", "padded"])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_activations_are_those_of_a_real_pass_of_transformers(checkpointed, heads, last):
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=heads, vocab_size=100)
    model = transformers.LlamaForCausalLM(config).train()
    if checkpointed:
        model.gradient_checkpointing_enable()
    mask = torch.ones(2, 64, dtype=torch.long)
    mask[:, -1] = last
    batch = {"input_ids": torch.zeros(2, 64, dtype=torch.long), "attention_mask": mask, "use_cache": False}
    made = terrace.torch.estimate(model, None, batch)
    assert saved(model, batch) <= made.activations <= saved(model, batch) + 64  # a seed of each layer's attention


def test_what_is_checkpointed_is_computed_twice_and_what_is_frozen_has_no_gradient():
    def model():
        return nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(3)])

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    frozen = model()
    frozen[0].requires_grad_(False)
    product = 2 * 8 * 64 * 64
    flops = [terrace.torch.estimate(one, None, torch.zeros(8, 64)).flops for one in (model(), Checkpointed(), frozen)]
    assert flops == [8 * product, 10 * product, 6 * product]  # but for the last one, whose result nothing needs


def test_what_is_around_the_call_changes_nothing():
    model, batch = nn.Linear(8, 8), torch.ones(2, 8)
    whole = terrace.torch.estimate(model, None, batch)
    for around in (torch.no_grad(), torch.inference_mode()):
        with around:
            assert terrace.torch.estimate(model, None, batch) == whole
    with torch.autocast("cpu", torch.bfloat16):
        assert "knows no autocast" in str(terrace.torch.estimate(model, None, batch))


def test_experts_are_counted():
    class Experts(nn.Linear):
        def forward(self, x):
            return nn.functional.grouped_mm(x, self.weight.view(4, 32, 32), offs=torch.full((4,), 16, dtype=torch.int32).cumsum(
                0, dtype=torch.int32).to(x.device))

    made = terrace.torch.estimate(Experts(32, 128, bias=False, dtype=torch.bfloat16), None,
                                  torch.zeros(64, 32, dtype=torch.bfloat16))
    assert made.flops == 2 * (2 * 64 * 32 * 32)


def test_what_fully_shard_has_split_is_not_run(tmp_path):
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0,
                                         world_size=1)
    try:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        made = terrace.torch.estimate(model, torch.optim.AdamW(model.parameters()), torch.ones(2, 8))
        assert "fully_shard() has split the model" in str(made) and made.parameters == 2 * (8 * 8 + 8) * 4
        model(torch.ones(2, 8)).sum().backward()
    finally:
        torch.distributed.destroy_process_group()


def test_optimizers_are_tried_on_the_meta_device_and_taken_out_of_wrappers():
    with torch.device("meta"):
        model = nn.Linear(256, 256, bias=False)
        assert terrace.torch.estimate(model, pytorch_optimizer.Lion(model.parameters())).states == 256 * 256 * 4
    wrapped = accelerate.Accelerator(cpu=True).prepare(torch.optim.AdamW(nn.Linear(256, 256, bias=False).parameters()))
    with pytest.warns(UserWarning, match="estimate: the optimizer has none of this model's parameters"):
        assert terrace.torch.estimate(model, wrapped).states == 0
    model = nn.Linear(256, 256, bias=False)
    wrapped = accelerate.Accelerator(cpu=True).prepare(torch.optim.AdamW(model.parameters()))
    assert terrace.torch.estimate(model, wrapped).states == 2 * 256 * 256 * 4


def test_quantized_weights_take_what_they_are_made_of():
    model = nn.Sequential(nn.Linear(256, 256, bias=False))
    quantize_(model, Int8WeightOnlyConfig())
    model.requires_grad_(False)
    assert 256 * 256 <= terrace.torch.estimate(model).parameters <= 256 * 256 + 256 * 8


@pytest.mark.parametrize(("make", "said"), [
    (lambda them: torch.optim.LBFGS(them), "LBFGS does not treat its parameters one by one"), (lambda them: [], "list of optimizers"),
    (lambda them: [torch.optim.SGD(them), torch.optim.AdamW(them)], "both step a parameter")], ids=["lbfgs", "empty", "twice"])
def test_optimizers_that_offload_would_refuse(make, said):
    model = nn.Linear(8, 8)
    with pytest.raises(terrace.InvalidArgument, match=said):
        terrace.torch.estimate(model, make(list(model.parameters())))


def test_a_forward_pass_that_looks_at_values():
    class Looks(nn.Linear):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    made = terrace.torch.estimate(Looks(8, 8), None, torch.ones(2, 8))
    assert made.activations is None and "does not run without values" in str(made)
    with pytest.raises(terrace.InvalidArgument, match="is rehearsed from what a batch takes: the model does"):
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
    ({"gradients": torch.float32}, terrace.InvalidArgument, "gradients="), ({"node": 5}, TypeError, "node is 5"),
    ({"masters": torch.float32}, terrace.InvalidArgument, "what the optimizer steps is torch.float32")])
def test_bad_input(options, kind, said):
    model = nn.Linear(8, 8)
    with pytest.raises(kind, match=said):
        terrace.torch.estimate(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    with pytest.raises(TypeError, match="model is "):
        terrace.torch.estimate("model")

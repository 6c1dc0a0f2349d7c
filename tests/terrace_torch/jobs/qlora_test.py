# SPDX-License-Identifier: Apache-2.0
"""Shows QLoRA as people run it (Transformers, bitsandbytes, PEFT, a Trainer), and that every snippet of docs/guides/qlora.md
runs, as one script, with the numbers of the same script without Terrace."""

import os
import re
import tempfile

import pytest
import terrace
import terrace.torch
import torch
from model_fixtures import nothing_stays_leased, restless, roomy  # noqa: F401 (fixtures)
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from python_fixtures import ROOT
from quantized_fixtures import bits, state_bits
from terrace.torch._offload.job import job_if_any
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils import logging

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")
logging.disable_progress_bar()

FOUR = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
HOWS = {"four": FOUR, "four twice": {**FOUR, "bnb_4bit_use_double_quant": True}, "eight": {"load_in_8bit": True}}
WIDTH = 128


def adapted(how, checkpointing=False):
    """A Llama with a quantized base and adapters over it, the same one each time."""
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(
            vocab_size=256, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4,
            bos_token_id=None, eos_token_id=None)).save_pretrained(folder)
        base = LlamaForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(**HOWS[how]), device_map="cpu",
                                                dtype=torch.float32)
    base = prepare_model_for_kbit_training(base, use_gradient_checkpointing=checkpointing)
    return get_peft_model(base, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))


def text(number):
    return torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(number))


def optimizer_of(model):
    return torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)


def preferring(model, optimizer, steps=3):
    """As DPO does: two passes a step, of which the adapters are switched off in the second one."""
    said = []
    for step in range(steps):
        for part in range(2):
            logits = model(input_ids=text(2 * step + part)).logits
            with torch.no_grad(), model.disable_adapter():
                reference = model(input_ids=text(2 * step + part)).logits
            loss = torch.nn.functional.mse_loss(logits, reference.flip(0))
            loss.backward()
            said.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return said


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("options", [{}, {"what": {"states"}}, {"checkpointing": True}, {"trains": False}], ids=str)
def test_with_a_reference_pass(restless, how, options):
    """trains: else the reference pass packs weights anew between a forward pass and its backward pass."""
    checkpointing = options.get("checkpointing", False)

    def run(offload):
        model = adapted(how, checkpointing).train(options.get("trains", True))
        optimizer = optimizer_of(model)
        offload(model, optimizer)
        return preferring(model, optimizer), state_bits(model)

    what = options.get("what")
    assert run(lambda *both: terrace.torch.offload(*both, client=restless, what=what)) == run(lambda *both: None)


@pytest.mark.parametrize("how", HOWS)
def test_an_adapter_that_is_added_later(restless, how):
    """Under autocast; the second one is the larger."""
    def run(offload):
        model = adapted(how).train()
        with torch.autocast("cpu", torch.bfloat16):
            said = preferring(*offload(model, optimizer_of(model)), steps=1)
            with torch.no_grad():  # in evaluation layers in four bits pack weights anew, and have other scales
                said += [model.eval()(input_ids=text(number)).logits.sum().item() for number in range(3)]
            model.train()
            torch.manual_seed(5)
            model.add_adapter("second", LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
            model.set_adapter("second")
            said += preferring(*offload(model, optimizer_of(model)))
        job = job_if_any(model)
        assert job is None or job.store.bytes == sum(slot.nbytes for slot in job.store.slots)
        return said, state_bits(model)

    assert run(lambda *both: terrace.torch.offload(*both, client=restless, tensor_bytes_min=1)) == run(lambda *both: both)


@pytest.mark.parametrize("how", HOWS)
def test_a_trainer_that_evaluates_and_saves(restless, tmp_path, how):
    data = [{"input_ids": text(number)[0], "labels": text(number)[0]} for number in range(8)]

    def run(folder, callbacks):
        arguments = TrainingArguments(output_dir=str(tmp_path / folder), max_steps=4, eval_strategy="steps", eval_steps=2,
                                      save_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                                      learning_rate=1e-2, report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1)
        trainer = Trainer(adapted(how), arguments, train_dataset=data, eval_dataset=data[:2], callbacks=callbacks)
        trainer.train()
        history = [{key: value for key, value in one.items() if key.endswith("loss")} for one in trainer.state.log_history]
        return history, state_bits(trainer.model)

    history, weights = run("ours", [terrace.torch.TerraceCallback(client=restless)])
    assert (history, weights) == run("plain", [])
    assert len(history) > 5
    for name in ("checkpoint-2", "checkpoint-4"):
        ours, plain = (tmp_path / folder / name / "adapter_model.safetensors" for folder in ("ours", "plain"))
        assert ours.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("how", HOWS)
def test_the_whole_model_is_saved_as_without(restless, tmp_path, how):
    plain, model = adapted(how), adapted(how)
    terrace.torch.offload(model, optimizer_of(model), client=restless)
    plain.get_base_model().save_pretrained(tmp_path / "plain")
    model.get_base_model().save_pretrained(tmp_path / "ours")
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "ours").iterdir())
    for file in files:
        assert (tmp_path / "plain" / file).read_bytes() == (tmp_path / "ours" / file).read_bytes(), file
    terrace.torch.save(tmp_path / "all.safetensors", model)
    again = adapted(how)
    terrace.torch.offload(again, optimizer_of(again), client=restless)
    assert state_bits(again) == state_bits(plain)


@pytest.mark.parametrize("how", HOWS)
def test_adapters_are_merged_as_without(restless, how):
    def merged(model):
        return {name: bits(value) for name, value in model.merge_and_unload().state_dict().items()}

    model = adapted(how)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.fill_(0.01)
    plain = adapted(how)
    plain.load_state_dict(model.state_dict(), strict=False)
    terrace.torch.offload(model, optimizer_of(model), client=restless)
    assert isinstance(model, PeftModel)
    assert merged(model) == merged(plain)


@pytest.mark.parametrize("how", ["four", "four twice"])
def test_a_quantized_model_is_read_straight_into_terrace(restless, how):
    plain = adapted(how)
    with terrace.torch.init(client=restless):
        model = adapted(how)
    weights = [one for name, one in model.named_parameters() if name.endswith("base_layer.weight")]
    assert len(weights) == 14 and all(type(one).__name__ == "Params4bit" for one in weights)
    assert all(hasattr(one, "terrace") for one in weights)
    terrace.torch.offload(model, optimizer_of(model))
    assert state_bits(model) == state_bits(plain)
    assert preferring(model, optimizer_of(model)) == preferring(plain, optimizer_of(plain))


def test_every_snippet_of_the_page_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs/guides/qlora.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```") // 2 == 3
    monkeypatch.chdir(tmp_path)
    plain = {}
    exec(blocks[0].replace('model, optimizer = terrace.torch.offload(model, optimizer, what="all")', "pass"), plain)
    exec(blocks[1], plain)
    names = {}
    with terrace.serve("16MiB", metrics=False) as served:
        monkeypatch.setenv("TERRACE_SOCKET", served.socket)
        try:
            exec("\n".join(blocks), names)
            assert names["losses"] == plain["losses"]
            assert torch.equal(names["reference"], plain["reference"])
            assert state_bits(names["model"]) == state_bits(plain["model"])
            bases = [one for one in terrace.torch.summary(names["model"]).modules if one.name.endswith("base_layer")]
            assert len(bases) == 14 and all(one.leased_bytes for one in bases)
            assert os.path.exists("adapters/adapter_model.safetensors") and os.path.exists("all.safetensors")
        finally:
            names.clear()
            if (opened := terrace.torch._leased.default_client._opened) is not None:
                opened[1].close()

# SPDX-License-Identifier: Apache-2.0
"""Shows that TRL's trainers, and a Trainer with PEFT, come with TerraceCallback to what they log and train without it, bit for
bit, with what their users add: evaluation, checkpoints, references, generation, masters, adapters of other kinds."""

import gc

import llama_fixtures  # noqa: F401 (before Transformers and TRL: it has them ask no network)
import peft
import pytest
import terrace.torch
import torch
import transformers
from datasets import Dataset
from llama_fixtures import llama, text, tokenizer, tokens
from masters_fixtures import ByCopies
from model_fixtures import assert_same, nothing_stays_leased, restless, weights  # noqa: F401 (fixtures)
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

pytestmark = [pytest.mark.usefixtures("nothing_stays_leased"), pytest.mark.filterwarnings("ignore")]
OPTIONS = {"tensor_bytes_min": 1}
LORA = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
EXPERTS = peft.LoraConfig(r=4, target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"],
                          task_type="CAUSAL_LM")
EVALUATES = {"eval_strategy": "steps", "eval_steps": 2}
NARROW = {"bf16": True, "activation_checkpointing": True, "gradient_accumulation_steps": 2}
DATA = {SFTTrainer: [{"text": text(number)} for number in range(12)],
        DPOTrainer: [{"prompt": text(number), "chosen": " " + text(100 + number), "rejected": " " + text(200 + number)}
                     for number in range(12)],
        GRPOTrainer: [{"prompt": text(number)} for number in range(12)],
        transformers.Trainer: [{"input_ids": row, "labels": row} for row in tokens(1, 16, 12)]}
CONFIGS = {SFTTrainer: SFTConfig, DPOTrainer: DPOConfig, GRPOTrainer: GRPOConfig,
           transformers.Trainer: transformers.TrainingArguments}


def mixture():
    torch.manual_seed(1)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, eos_token_id=1, pad_token_id=0))


def judge():
    """A reward model."""
    torch.manual_seed(1)
    return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_labels=1,
        pad_token_id=0))


def different_words(completions, **_):
    return [len(set(one.split())) + sum(map(ord, one)) % 7 / 10 for one in completions]


class Logged(transformers.TrainerCallback):
    """What a trainer logs, but for times."""

    def __init__(self):
        self.said = []

    def on_log(self, args, state, control, logs=None, **_):
        self.said.append({key: value for key, value in logs.items()
                          if not any(word in key for word in ("runtime", "per_second", "time", "flos", "mfu"))})


def trainer_of(kind, model, folder, client, callback=None, config=None, **options):
    """Any of them, with its callbacks; said: what it logs."""
    logged = Logged()
    config = CONFIGS[kind](str(folder), **{
        "max_steps": 4, "per_device_train_batch_size": 2, "logging_steps": 1, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "learning_rate": 1e-2, "dataloader_pin_memory": False, "save_strategy": "no", "bf16": False,
        "activation_checkpointing": False,
        **({"num_generations": 2, "max_completion_length": 6} if kind is GRPOTrainer else {}), **(config or {})})
    if kind is GRPOTrainer:
        options.setdefault("reward_funcs", different_words)
    if kind is not transformers.Trainer:
        options.setdefault("processing_class", tokenizer())
    rows = DATA[kind] if kind is transformers.Trainer else Dataset.from_list(DATA[kind])
    made = kind(model=model, args=config, train_dataset=rows, eval_dataset=Dataset.from_list(DATA[kind][:4]), **options)
    made.remove_callback(transformers.PrinterCallback)
    made.add_callback(logged)
    if client is not None:
        made.add_callback(terrace.torch.TerraceCallback(client=client, **OPTIONS, **(callback or {})))
    made.said = logged.said
    return made


def compare(client, train):
    """Trains without Terrace and with it. train: is given the client, or None; what is to be the same, and the model."""
    wanted, plain = train(None)
    found, ours = train(client)
    assert found == wanted and wanted
    assert_same(weights(ours), weights(plain))


def trained(made, *more):
    made.train()
    return [made.said, *more], made.model


@pytest.mark.parametrize(("options", "adapter"), [
    (EVALUATES | {"optim": "adamw_torch_fused"}, None), (NARROW | EVALUATES, LORA),
    ({"loss_type": "nll", "packing": True, "max_length": 32, "neftune_noise_alpha": 5.0}, None)],
    ids=["evaluating", "narrow", "packed"])
def test_sft(restless, tmp_path, options, adapter):
    compare(restless, lambda client: trained(trainer_of(SFTTrainer, llama(), tmp_path, client, config=options,
                                                        peft_config=adapter)))


@pytest.mark.parametrize(("options", "stays"), [
    (NARROW | EVALUATES, False), ({"sync_ref_model": True, "ref_model_sync_steps": 1}, False),
    ({"precompute_ref_log_probs": True}, False), (EVALUATES, True)], ids=["narrow", "moving", "asked before", "in memory"])
def test_dpo_with_a_reference(restless, tmp_path, options, stays):
    """stays: the reference, in memory."""
    def train(client):
        made = trainer_of(DPOTrainer, llama(), tmp_path, client, config=options, ref_model=llama(seed=2))
        if client is not None and not stays:
            terrace.torch.offload(made.ref_model, client=client, **OPTIONS)
        said, model = trained(made)
        return [*said, {name: value.tolist() for name, value in weights(made.ref_model).items()}], model

    compare(restless, train)


@pytest.mark.parametrize("kind", [DPOTrainer, GRPOTrainer])
def test_adapters_with_a_reference(restless, tmp_path, kind):
    """The reference is a second adapter, a copy of the first; or the model without adapters."""
    beta = {"beta": 0.1}

    def over_a_copy(client):
        torch.manual_seed(4)
        return trained(trainer_of(kind, peft.get_peft_model(llama(), LORA), tmp_path, client, config=beta))

    compare(restless, over_a_copy)
    compare(restless, lambda client: trained(trainer_of(kind, llama(), tmp_path, client, peft_config=LORA,
                                                        config=beta | NARROW | {"max_steps": 2})))


def test_three_models(restless, tmp_path):
    """GRPO that reads its model and the reference itself, within init(), and a reward model."""
    llama().save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")

    def train(client):
        rewards = judge()
        with torch.device("cpu") if client is None else terrace.torch.init(client=client, **OPTIONS):
            made = trainer_of(GRPOTrainer, str(tmp_path / "base"), tmp_path, client, config={"beta": 0.1, "num_iterations": 2},
                              reward_funcs=rewards, reward_processing_classes=tokenizer(), processing_class=None)
        for model in (rewards, made.ref_model) if client is not None else ():
            terrace.torch.offload(model.requires_grad_(False), client=client, **OPTIONS)
        return trained(made)

    compare(restless, train)


def test_a_mixtures_experts_are_adapted(restless, tmp_path):
    """PEFT parametrizes them in each forward pass; checkpointed, it does so once more."""
    def train(client):
        made = trainer_of(SFTTrainer, mixture(), tmp_path, client, peft_config=EXPERTS, config={"activation_checkpointing": True})
        said, model = trained(made)
        merged = model.merge_and_unload()
        return [*said, merged.generate(tokens(5, 1, 4), max_new_tokens=4, do_sample=False).tolist()], merged

    compare(restless, train)


@pytest.mark.parametrize("adapter", [None, LORA], ids=["all", "adapters"])
def test_a_run_goes_on_from_its_best(restless, tmp_path, adapter):
    """What is loaded at the end is not what was trained last; and a run resumed from the middle comes to the same."""
    options = {**EVALUATES, "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True,
               "metric_for_best_model": "eval_loss", "greater_is_better": True}

    def train(client):
        found = []
        for begin in (None, 2):
            torch.manual_seed(4)
            model = llama() if adapter is None else peft.get_peft_model(llama(), adapter)
            folder = tmp_path / ("plain" if client is None else "ours")
            made = trainer_of(transformers.Trainer, model, folder, client, config=options)
            made.train(resume_from_checkpoint=None if begin is None else str(folder / f"checkpoint-{begin}"))
            found += [made.said, made.state.best_global_step]
        return found, made.model

    compare(restless, train)


def quantized(folder):
    llama(hidden_size=64, intermediate_size=128).save_pretrained(folder)
    return transformers.LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map="cpu", quantization_config=transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16))


@pytest.mark.parametrize(("adapter", "step"), [(None, "host"), (LORA, "device")], ids=["all", "adapters"])
def test_masters(restless, tmp_path, adapter, step):
    """Of a model in bfloat16; and of adapters, which TRL makes so over a quantized model."""
    def train(client):
        model = llama().bfloat16() if adapter is None else quantized(tmp_path / "base")
        made = trainer_of(SFTTrainer, model, tmp_path, client, {"masters": torch.float32, "step": step}, NARROW,
                          peft_config=adapter)
        steps = [one for one in made.model.parameters() if one.requires_grad]
        assert {one.dtype for one in steps} == {torch.bfloat16}
        made.optimizer = (ByCopies if client is None else torch.optim.AdamW)(steps, lr=1e-2)
        return trained(made)

    compare(restless, train)


def test_an_8_bit_optimizer(restless, tmp_path):
    """Of which a Trainer has the states of embeddings in 32 bits."""
    def train(client):
        model = llama(hidden_size=64, intermediate_size=128)
        made = trainer_of(transformers.Trainer, model, tmp_path, client, config={"optim": "paged_adamw_8bit"})
        said, _ = trained(made)
        types = {str(value.dtype) for state in made.optimizer.state.values() for value in state.values()
                 if isinstance(value, torch.Tensor)}
        assert {"torch.uint8", "torch.float32"} <= types
        return [*said, types], model

    compare(restless, train)


KINDS = {"dora": lambda **of: peft.LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "up_proj"], **of),
         "ia3": lambda **of: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], **of),
         "loha": lambda **of: peft.LoHaConfig(r=4, target_modules=["q_proj"], **of),
         "prefix": lambda **of: peft.PrefixTuningConfig(num_virtual_tokens=3, **of),
         "prompt": lambda **of: peft.PromptTuningConfig(num_virtual_tokens=3, **of),
         "modules": lambda **of: peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"], **of)}


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_adapters(restless, kind):
    def train(client):
        base = llama(tie_word_embeddings=False)
        torch.manual_seed(4)
        model = peft.get_peft_model(base, KINDS[kind](task_type="CAUSAL_LM"))
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
        if client is not None:
            terrace.torch.offload(model, optimizer, client=client, **OPTIONS)
        said = []
        for number in range(3):
            loss = model(input_ids=tokens(number, 2, 8), labels=tokens(number, 2, 8)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        return said, model

    compare(restless, train)


def test_adapters_come_and_go_after_training(restless, tmp_path):
    def train(client):
        torch.manual_seed(4)
        said, model = trained(trainer_of(transformers.Trainer, peft.get_peft_model(llama(), LORA), tmp_path, client))
        given = tokens(6, 1, 8)

        def look(model):
            said.append(model.eval()(input_ids=given).logits.sum().item())

        model.save_pretrained(tmp_path / "adapter")
        model.load_adapter(tmp_path / "adapter", "second")
        model.add_weighted_adapter(["default", "second"], [0.5, 0.7], "mixed", combination_type="linear")
        for name in ("second", "mixed", "default"):
            model.set_adapter(name)
            look(model)
        model.delete_adapter("second")
        model.merge_adapter()
        look(model)
        model.unmerge_adapter()
        base = model.unload()
        look(base)
        merged = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
        look(merged)
        merged.save_pretrained(tmp_path / "merged")
        return [*said, (tmp_path / "merged/model.safetensors").read_bytes()], merged

    compare(restless, train)


def test_a_model_for_each_training(restless, tmp_path):
    """As a search over hyperparameters makes them: what the models before had in Terrace is deleted."""
    def train(client):
        made = trainer_of(transformers.Trainer, None, tmp_path, client, model_init=lambda: llama())
        counts = []
        for _ in range(2):
            made.train()
            gc.collect()
            counts.append(0 if client is None else len(client.tensors()))
        assert len(set(counts)) == 1
        return [made.said], made.model

    compare(restless, train)

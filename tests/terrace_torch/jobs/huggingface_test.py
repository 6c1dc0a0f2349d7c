# SPDX-License-Identifier: Apache-2.0
"""Shows that Hugging Face's Trainer with TerraceCallback, and loops of Accelerate, train small models of real
architectures, made from configurations, to the losses and weights that they have without Terrace, bit for bit."""

import copy
import os
import re
import runpy

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_TELEMETRY": "1",
               "DISABLE_SAFETENSORS_CONVERSION": "1"}

import accelerate
import pytest
import terrace.torch
import torch
import transformers
from masters_fixtures import ByCopies
from model_fixtures import assert_same, nothing_stays_leased, restless, roomy, weights  # noqa: F401 (fixtures)
from python_fixtures import MIB, ROOT, disk  # noqa: F401 (a fixture)
from training_fixtures import LiveBytes

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")
VOCABULARY = 96
OPTIONS = {"tensor_bytes_min": 1}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, attention_dropout=0.1))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1))


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, output_router_logits=True))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        num_labels=5))


MODELS = {make.__name__: make for make in (llama, gpt2, mixtral, vit)}


def made(name):
    torch.manual_seed(1)
    return MODELS[name]()


def data(name, count=24):
    chance = torch.Generator().manual_seed(2)
    if name == "vit":
        return [{"pixel_values": torch.randn(3, 16, 16, generator=chance), "labels": number % 5}
                for number in range(count)]
    rows = torch.randint(0, VOCABULARY, (count, 16), generator=chance)
    return [{"input_ids": row, "labels": row} for row in rows]


class Losses(transformers.TrainerCallback):
    """What the Trainer logged."""

    def __init__(self):
        self.said = []

    def on_log(self, args, state, control, logs=None, **_):
        self.said.append({key: value for key, value in logs.items() if key in ("loss", "grad_norm", "eval_loss")})


def trainer(name, folder, callback=None, model=None, **options):
    losses = Losses()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, logging_steps=1,
        report_to=[], use_cpu=True, disable_tqdm=True, seed=5, learning_rate=1e-3, dataloader_pin_memory=False,
        **{"save_strategy": "no"} | options)
    made_trainer = transformers.Trainer(made(name) if model is None else model, arguments, train_dataset=data(name),
                                        eval_dataset=data(name, 4),
                                        callbacks=[losses, *([] if callback is None else [callback])])
    made_trainer.said = losses.said
    return made_trainer


def compare(ours, plain):
    assert ours.said == plain.said and len(plain.said) >= 4
    assert_same(weights(ours.model), weights(plain.model))


@pytest.mark.parametrize("name", MODELS)
def test_trainer(request, tmp_path, name):
    """Accumulation, clipping (Trainer's default), a schedule, evaluation between steps; then bf16 and checkpointing."""
    client = request.getfixturevalue("restless" if name in ("llama", "mixtral") else "roomy")
    for options in ({"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
                    {"bf16": True, "activation_checkpointing": True}):
        plain = trainer(name, tmp_path, **options)
        plain.train()
        ours = trainer(name, tmp_path, terrace.torch.TerraceCallback(client=client, **OPTIONS), **options)
        ours.train()
        compare(ours, plain)
        assert len(terrace.torch.summary(ours.model).modules) > 4


def test_a_trainer_whose_step_goes_on_behind_it(restless, tmp_path):
    """And what it saves is of the finished step."""
    found = []
    for name, callback in (("plain", None), ("ours", terrace.torch.TerraceCallback(client=restless, step="host", **OPTIONS))):
        found.append(trainer("llama", tmp_path / name, callback, gradient_accumulation_steps=2, save_strategy="steps",
                             save_steps=2))
        found[-1].train()
    compare(found[1], found[0])
    saved = [torch.load(tmp_path / name / "checkpoint-2/optimizer.pt") for name in ("plain", "ours")]
    for number, state in saved[0]["state"].items():
        assert_same(saved[1]["state"][number], state)


@pytest.mark.parametrize("gives", [False, True])
def test_a_trainer_with_masters(restless, tmp_path, gives):
    """Clipping and a schedule; and resumed, by what the Trainer wrote, it goes on with the masters that there were."""
    def of(folder, callback=None, kind=torch.optim.AdamW, **options):
        model = made("llama").to(torch.bfloat16)
        found = trainer("llama", tmp_path / folder, callback, model, **options)
        found.optimizer = kind(model.parameters(), lr=1e-3)
        return found

    def masters():
        return terrace.torch.TerraceCallback(client=restless, masters=torch.float32, **OPTIONS)

    plain = of("plain", kind=ByCopies)
    plain.train()
    ours = of("ours", masters(), save_strategy="steps", save_steps=2)
    ours.train()
    compare(ours, plain)
    folder = tmp_path / "ours/checkpoint-2"
    resumed = of("ours", masters(), **({"resume_from_checkpoint": str(folder)} if gives else {}))
    resumed.train(resume_from_checkpoint=str(folder))
    assert_same(weights(resumed.model), weights(plain.model))
    (tmp_path / "ours").rename(tmp_path / "elsewhere")
    with pytest.raises(terrace.FailedPrecondition, match="has states already"):
        of("ours", masters()).train(resume_from_checkpoint=str(tmp_path / "elsewhere/checkpoint-2"))


def test_a_trainer_in_an_emulated_devices_tier(tmp_path):
    plain = trainer("llama", tmp_path)
    plain.train()
    with terrace.serve("16MiB", device="8MiB", metrics=False) as client:
        ours = trainer("llama", tmp_path, terrace.torch.TerraceCallback(client=client, place="device:0", **OPTIONS))
        ours.train()
        compare(ours, plain)
        assert sum(client._resident(tensor, "device:0") for tensor in client.tensors().values()) > 4


def test_a_second_trainer_goes_on_with_the_model(roomy, tmp_path):
    """With an optimizer of its own, and what was frozen is trained."""
    def twice(callback=None):
        model = made("llama")
        model.model.layers.requires_grad_(False)
        first = trainer("llama", tmp_path, callback, model=model)
        first.train()
        model.model.layers.requires_grad_(True)
        second = trainer("llama", tmp_path, callback, model=model)
        second.train()
        return second

    compare(twice(terrace.torch.TerraceCallback(client=roomy, **OPTIONS)), twice())


def test_frozen_parameters_are_shared(roomy, tmp_path):
    """And saved as they are without it."""
    def partly_frozen():
        model = made("llama")
        for layer in model.model.layers:
            layer.mlp.requires_grad_(False)
        return model

    plain = trainer("llama", tmp_path, model=partly_frozen())
    plain.train()
    ours = trainer("llama", tmp_path, terrace.torch.TerraceCallback(client=roomy, share_frozen=True, **OPTIONS),
                   model=partly_frozen())
    ours.train()
    compare(ours, plain)
    frozen = [parameter for parameter in ours.model.parameters() if not parameter.requires_grad]
    assert terrace.torch.summary(ours.model).shared_bytes == sum(one.nbytes for one in frozen) > 0
    for name, one in (("ours", ours), ("plain", plain)):
        one.save_model(str(tmp_path / name))
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in ("ours", "plain")}) == 1


def test_what_it_logs(roomy, tmp_path):
    """In a list of its own, for each loss; all hit where everything is in memory. The Trainer's history is as without it."""
    callback = terrace.torch.TerraceCallback(client=roomy, **OPTIONS)
    ours, plain = trainer("llama", tmp_path, callback), trainer("llama", tmp_path)
    ours.train()
    plain.train()
    logged = [entry for entry in ours.state.log_history if "loss" in entry]
    assert [entry.keys() for entry in ours.state.log_history] == [entry.keys() for entry in plain.state.log_history]
    assert [entry["step"] for entry in callback.log_history] == [entry["step"] for entry in logged]
    assert len(logged) == 4
    for entry in callback.log_history:
        assert entry["hit_ratio"] == 1.0 and 0 <= entry["wait_share"] <= 1


def test_built_by_init_and_trained_on(restless, tmp_path):
    def run(callback, model=None):
        made_trainer = trainer("llama", tmp_path, callback, model)
        made_trainer.train()
        made_trainer.evaluate()
        made_trainer.args.max_steps = 6
        made_trainer.train()
        return made_trainer

    plain = run(None)
    torch.manual_seed(1)
    with terrace.torch.init(client=restless, **OPTIONS):
        model = MODELS["llama"]()
    compare(run(terrace.torch.TerraceCallback(**OPTIONS), model), plain)


def test_saving_and_resuming(restless, tmp_path):
    """What is saved with Terrace is what is saved without it; either goes on from either."""
    options = {"save_strategy": "steps", "save_steps": 2}
    callback = terrace.torch.TerraceCallback(client=restless, **OPTIONS)

    def run(folder, callback=None, begin=None):
        made_trainer = trainer("llama", folder, callback, **options)
        made_trainer.train(resume_from_checkpoint=begin)
        return made_trainer

    plain = run(tmp_path / "plain")
    ours = run(tmp_path / "ours", callback)
    compare(ours, plain)
    first = {which: tmp_path / which / "checkpoint-2" for which in ("plain", "ours")}
    assert (first["plain"] / "model.safetensors").read_bytes() == (first["ours"] / "model.safetensors").read_bytes()
    states = [torch.load(folder / "optimizer.pt")["state"] for folder in first.values()]
    assert states[0].keys() == states[1].keys()
    for number in states[0]:
        assert_same(states[1][number], states[0][number])
    crossed = run(tmp_path / "crossed", callback, str(first["plain"]))
    back = run(tmp_path / "back", None, str(first["ours"]))
    for resumed in (crossed, back):
        assert resumed.said == plain.said[2:]
        assert_same(weights(resumed.model), weights(plain.model))


def large_llama():
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True))


def test_a_model_above_the_guarantee_is_saved_a_tensor_at_a_time(disk, monkeypatch):
    """A Trainer's default checkpoint, one file, of 5 MiB through 2; then save_pretrained() with room for two tensors,
    the tied one among them: the same files."""
    options = {"save_strategy": "steps", "save_steps": 4}
    plain = trainer("llama", disk / "plain", model=large_llama(), **options)
    plain.train()
    wanted = (disk / "plain/checkpoint-4/model.safetensors").read_bytes()
    with terrace.serve("2MiB", block=f"{disk}:64MiB", metrics=False) as client:
        callback = terrace.torch.TerraceCallback(client=client, timeout=1, **OPTIONS)
        ours = trainer("llama", disk / "ours", callback, large_llama(), **options)
        ours.train()
        assert ours.said == plain.said
        assert (disk / "ours/checkpoint-4/model.safetensors").read_bytes() == wanted
        sizes = sorted(parameter.nbytes for parameter in ours.model.parameters())
        assert sum(sizes) > 2 * client.places()[0].guarantee_bytes
        room = 3 * sizes[-1]
        with client.create("in the way", 2 * MIB - room, "uint8").overwrite(), LiveBytes() as live:
            ours.model.save_pretrained(disk / "again")
            accelerate.Accelerator(cpu=True).save_model(ours.model, disk / "accelerated")
        assert (disk / "again/model.safetensors").read_bytes() == wanted
        assert live.most <= 2 * sizes[-1]
        monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # what other threads make is not seen
        with LiveBytes() as live, terrace.torch.init(client=client, timeout=1, **OPTIONS):
            read = transformers.LlamaForCausalLM.from_pretrained(disk / "again")
        waiting = client.places()[0].guarantee_bytes // 4
        assert live.most <= len(wanted) + waiting + 3 * sizes[-1] < 1.3 * len(wanted)  # of which the file is mapped
        assert_same(weights(read), weights(plain.model))
        del read
        accelerate.Accelerator(cpu=True).save_model(plain.model, disk / "plain")
        assert (disk / "accelerated/model.safetensors").read_bytes() == (disk / "plain/model.safetensors").read_bytes()


def large_mixtral():
    torch.manual_seed(1)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=11))


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "300KB"}], ids=["one-file", "shards"])
def test_a_mixture_of_experts_is_converted_as_it_is_written(disk, shards):
    """Transformers writes each expert's weights by themselves: a layer at a time here, and the same files."""
    plain = large_mixtral()
    plain.save_pretrained(disk / "plain", **shards)
    sizes = sorted(parameter.nbytes for parameter in plain.parameters())
    with terrace.serve("3MiB", block=f"{disk}:64MiB", metrics=False) as client:
        ours, _ = terrace.torch.offload(large_mixtral(), client=client, timeout=1, **OPTIONS)
        with LiveBytes() as live:
            ours.save_pretrained(disk / "ours", **shards)
        assert sum(sizes) > 2 * client.places()[0].guarantee_bytes and client.leased_bytes == 0
        assert live.most <= 1.5 * sizes[-1] < sum(sizes) / 4, "a copy of the larger one of a layer's two"
        ours.save_pretrained(disk / "as it is", save_original_format=False, **shards)
        state = ours.state_dict()
        converted = transformers.modeling_utils.revert_weight_conversion(ours, dict(state))
        wanted = transformers.modeling_utils.revert_weight_conversion(plain, plain.state_dict())
        assert list(converted) == list(wanted) and len(converted) > len(state)
        for name, tensor in wanted.items():  # and whoever else asks for them has them
            assert converted[name].shape == tensor.shape and torch.equal(converted[name], tensor)
            assert torch.equal(copy.deepcopy(converted[name]), tensor)
    files = sorted(path.name for path in (disk / "plain").iterdir())
    assert files == sorted(path.name for path in (disk / "ours").iterdir()) and (len(files) > 8) == bool(shards)
    for file in files:
        assert (disk / "plain" / file).read_bytes() == (disk / "ours" / file).read_bytes(), file


def test_an_optimizer_that_is_tried(roomy, tmp_path):
    """Transformers' own Adafactor."""
    plain = trainer("gpt2", tmp_path, optim="adafactor")
    plain.train()
    ours = trainer("gpt2", tmp_path, terrace.torch.TerraceCallback(client=roomy, **OPTIONS), optim="adafactor")
    ours.train()
    compare(ours, plain)


def test_what_a_trainer_cannot_do(restless, tmp_path):
    callback = terrace.torch.TerraceCallback(client=restless)
    with pytest.raises(terrace.InvalidArgument, match="torch_compile=True"):
        callback.on_train_begin(transformers.TrainingArguments(tmp_path, torch_compile=True, use_cpu=True), None, None,
                                model=torch.nn.Linear(2, 2), optimizer=torch.optim.SGD([torch.zeros(1)]))
    with pytest.raises(TypeError, match="timeout is None"):
        terrace.torch.TerraceCallback(timeout=None)
    with pytest.raises(TypeError, match="place is 0"):
        terrace.torch.TerraceCallback(place=0)
    with pytest.raises(TypeError, match="share_frozen is 'no'; it is True or False"):
        terrace.torch.TerraceCallback(share_frozen="no")
    with pytest.raises(terrace.InvalidArgument, match="place is 'device:5'; this session can lease in host"):
        trainer("gpt2", tmp_path, terrace.torch.TerraceCallback(client=restless, place="device:5")).train()
    with pytest.raises(AttributeError, match="no attribute 'Callback'"):
        terrace.torch.Callback  # noqa: B018


@pytest.mark.parametrize("order", ["before prepare", "after prepare"])
def test_accelerate(restless, order):
    """A loop of Accelerate's documentation: accumulation, clipping, a schedule."""
    def run(client):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = made("llama")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(data("llama"), batch_size=2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        if client is not None and order == "before prepare":
            terrace.torch.offload(model, optimizer, client=client, **OPTIONS)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        if client is not None and order == "after prepare":
            model, optimizer = terrace.torch.offload(model, optimizer, client=client, **OPTIONS)
            assert type(optimizer).__name__ == "AcceleratedOptimizer"
        said = []
        torch.manual_seed(3)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    said.append(accelerator.clip_grad_norm_(model.parameters(), 1.0).item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            said.append(loss.item())
        return said, model

    wanted, plain = run(None)
    said, ours = run(restless)
    assert said == wanted and len(wanted) == 18
    assert_same(weights(ours), weights(plain))


def test_generating_between_steps(restless):
    """By sampling, by the largest, and by beams; with a cache and without."""
    ways = [{"do_sample": True}, {}, {"num_beams": 2}, {"use_cache": False}]

    def run(client):
        model = made("llama")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if client is not None:
            terrace.torch.offload(model, optimizer, client=client, **OPTIONS)
        said = []
        torch.manual_seed(3)
        for row, way in zip(data("llama"), ways, strict=False):
            loss = model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tokens = model.eval().generate(row["input_ids"][None], max_new_tokens=6, eos_token_id=None, pad_token_id=0,
                                           **way)
            model.train()
            said.append((loss.item(), tokens.tolist()))
        return said, model

    wanted, plain = run(None)
    said, ours = run(restless)
    assert said == wanted and len(said) == len(ways) and len(said[0][1][0]) == 22
    assert_same(weights(ours), weights(plain))


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_pretrained_weights_go_straight_to_terrace(restless, tmp_path, name):
    """from_pretrained() within init(), save_pretrained() of what is in Terrace: the same files and values."""
    first = made(name)
    first.save_pretrained(tmp_path / "first", max_shard_size="20KB")
    plain = type(first).from_pretrained(tmp_path / "first")
    plain.save_pretrained(tmp_path / "plain", max_shard_size="20KB")
    with terrace.torch.init(client=restless, **OPTIONS):
        ours = type(plain).from_pretrained(tmp_path / "first")
    assert all(type(one) is not torch.nn.Parameter for one in ours.parameters())
    assert_same(weights(ours), weights(plain))
    terrace.torch.offload(ours)
    ours.save_pretrained(tmp_path / "ours", max_shard_size="20KB")
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "ours").iterdir()) and len(files) > 3
    for file in files:
        assert (tmp_path / "plain" / file).read_bytes() == (tmp_path / "ours" / file).read_bytes(), file
    if name == "llama":  # Transformers writes a mixture's experts under other names than they have in the model
        terrace.torch.load(tmp_path / "ours" / "model.safetensors.index.json", again := made(name))
        assert_same(weights(again), weights(plain))


def test_every_snippet_of_the_page_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs/guides/huggingface.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```") // 2 == 2
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # serve()'s session is one, and the one that the page opens the other
    names = {}
    with terrace.serve("64MiB", metrics=False) as served:
        monkeypatch.setenv("TERRACE_SOCKET", served.socket)
        try:
            exec("\n".join(blocks), names)
            summary = terrace.torch.summary(names["model"])
            assert summary.leased_bytes == 0 and not summary.kept and len(summary.modules) > 4
            assert terrace.torch.summary(names["trainer"].model).nbytes == summary.nbytes
            assert (tmp_path / "out" / "checkpoint-3" / "optimizer.pt").exists()
            assert (tmp_path / "out" / "accelerated" / "model.safetensors").exists()
        finally:
            names.clear()
            if (opened := terrace.torch._leased.default_client._opened) is not None:
                opened[1].close()


def test_the_example(disk, monkeypatch, capsys):
    """With its own daemon, and without: the same losses and the same file; then from that file."""
    examples = ROOT / "client/python/examples"
    monkeypatch.syspath_prepend(examples)
    monkeypatch.chdir(disk)

    def said(name, *options):
        arguments = ["--steps", "2", "--layers", "2", "--width", "48", "--batch", "1", "--memory", "16MiB", "--block",
                     f"{disk}:256MiB", "--output", name, *options]
        monkeypatch.setattr("sys.argv", ["finetune_trainer.py", *arguments])
        runpy.run_path(str(examples / "finetune_trainer.py"), run_name="__main__")
        return re.findall(r"^step.*loss.*", capsys.readouterr().out, re.MULTILINE)

    plain = said("plain", "--plain")
    assert len(plain) == 2 and said("ours") == plain
    assert (disk / "plain/model.safetensors").read_bytes() == (disk / "ours/model.safetensors").read_bytes()
    further = said("further", "--model", "ours")
    assert further == said("plain", "--model", "plain", "--plain") and further != plain

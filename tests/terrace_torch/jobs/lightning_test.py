# SPDX-License-Identifier: Apache-2.0
"""Shows that Lightning's Trainer with LightningCallback, or with offload() in configure_optimizers(), and Fabric with it before
or after setup(), train to the losses, weights and states that they have without Terrace, bit for bit."""

import llama_fixtures  # noqa: F401 (before Transformers: it has it ask no network)
import lightning
import pytest
import terrace.torch
import torch
from lightning.pytorch import callbacks
from llama_fixtures import llama, tokens
from masters_fixtures import ByCopies
from model_fixtures import assert_same, nothing_stays_leased, restless, weights  # noqa: F401 (fixtures)
from terrace.torch._optimizer.optimizer import managed_optimizer

pytestmark = [pytest.mark.usefixtures("nothing_stays_leased"), pytest.mark.filterwarnings("ignore")]
OPTIONS = {"tensor_bytes_min": 1}
OFFLOAD = {}  # what offload() is given; empty: it is not called. A module that holds a client could not be copied


def loader():
    return torch.utils.data.DataLoader(tokens(3, 12, 10), batch_size=2, shuffle=True)


class Small(lightning.LightningModule):
    """where: that offload() is called, unless a callback does."""

    def __init__(self, where=None, manual=False):
        super().__init__()
        self.model = llama(attention_dropout=0.1).train()
        self.where, self.said, self.lr = where, [], 1e-2
        self.automatic_optimization = not manual

    def loss_of(self, batch):
        loss = self.model(input_ids=batch, labels=batch).loss
        self.said.append(loss.item())
        return loss

    def training_step(self, batch, number):
        loss = self.loss_of(batch)
        self.log("loss", loss)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()
        return loss

    def validation_step(self, batch, number):
        self.log("checked", self.loss_of(batch))

    def configure_optimizers(self):
        kind = ByCopies if not OFFLOAD and self.model.dtype == torch.bfloat16 else torch.optim.AdamW
        optimizer = kind(self.parameters(), lr=self.lr)
        if OFFLOAD and self.where == "configure":
            terrace.torch.offload(self, optimizer, **OFFLOAD, **OPTIONS)
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9), "interval": "step"}}

    def on_train_start(self):
        if OFFLOAD and self.where == "start":
            terrace.torch.offload(self, self.optimizers(), **OFFLOAD, **OPTIONS)


def fit(folder, module, ckpt_path=None, **options):
    """module: with its trainer, which has fitted it."""
    lightning.seed_everything(3, verbose=False)
    more = [terrace.torch.LightningCallback(**OFFLOAD, **OPTIONS)] if OFFLOAD and module.where is None else []
    trainer = lightning.Trainer(**{
        "accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
        "enable_checkpointing": False, "default_root_dir": folder, **options, "callbacks": more + options.get("callbacks", [])})
    trainer.fit(module, loader(), loader(), ckpt_path=ckpt_path)
    return module


def compare(client, train, **options):
    """train: gives what it fitted. What that has said, its weights and its states are the same with Terrace."""
    found = []
    for given in ({}, {"client": client, **options}):
        OFFLOAD.clear()
        OFFLOAD.update(given)
        try:
            module = train()
        finally:
            OFFLOAD.clear()
        (optimizer,) = module.trainer.optimizers
        assert (managed_optimizer(optimizer) is not None) == bool(given)
        states = {f"{number} {name}": value.clone() for number, state in enumerate(optimizer.state.values())
                  for name, value in state.items() if name in ("exp_avg", "exp_avg_sq")}
        assert len(states) == 2 * len(list(module.parameters()))
        found.append((module.said, weights(module), states))
    assert found[1][0] == found[0][0] and found[0][0]
    for one, other in zip(found[1][1:], found[0][1:], strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(("module", "options"), [
    ({}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}),
    ({"where": "configure"}, {"precision": "bf16-mixed", "gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    ({"where": "start"}, {}), ({"manual": True}, {"enable_model_summary": True})], ids=str)
def test_fitting(restless, tmp_path, module, options):
    compare(restless, lambda: fit(tmp_path, Small(**module), **options))


@pytest.mark.parametrize("step", ["device", "host"])
def test_masters(restless, tmp_path, step):
    compare(restless, lambda: fit(tmp_path, Small(), precision="bf16-true"), masters=torch.float32, step=step)


def test_fitting_twice_testing_and_saving(restless, tmp_path):
    """The second time with a new optimizer; and it goes on from a file that it has written."""
    def train():
        folder = tmp_path / ("ours" if OFFLOAD else "plain")
        saves = callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=2, save_top_k=-1, filename="{step}")
        module = fit(tmp_path, Small(), enable_checkpointing=True, callbacks=[saves])
        module.trainer.fit_loop.max_epochs = 2
        module.trainer.fit(module, loader(), loader())
        module.said += [module.trainer.validate(module, loader(), verbose=False)]
        read = torch.load(folder / "step=4.ckpt", weights_only=False)
        module.said += [value.tolist() for value in read["state_dict"].values()]
        again = fit(tmp_path, Small(), ckpt_path=str(folder / "step=4.ckpt"))
        again.said += module.said
        return again

    compare(restless, train)


@pytest.mark.parametrize("callback", [lambda: callbacks.EMAWeightAveraging(decay=0.9),
                                      lambda: callbacks.StochasticWeightAveraging(1e-3, swa_epoch_start=1),
                                      lambda: callbacks.LearningRateFinder(num_training_steps=3)], ids=["ema", "swa", "rate"])
def test_callbacks_that_write_weights(restless, tmp_path, callback):
    compare(restless, lambda: fit(tmp_path, Small(), max_epochs=2, callbacks=[callback()]))


@pytest.mark.parametrize("order", ["before setup", "after setup"])
def test_fabric(restless, tmp_path, order):
    def train(client):
        fabric = lightning.Fabric(accelerator="cpu", precision="bf16-mixed")
        lightning.seed_everything(3, verbose=False)
        model = llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if client is not None and order == "before setup":
            terrace.torch.offload(model, optimizer, client=client, **OPTIONS)
        model, optimizer = fabric.setup(model, optimizer)
        if client is not None and order == "after setup":
            assert terrace.torch.offload(model, optimizer, client=client, **OPTIONS) == (model, optimizer)
        said = []
        for batch in fabric.setup_dataloaders(loader()):
            loss = model(input_ids=batch, labels=batch).loss
            fabric.backward(loss)
            said.append(float(fabric.clip_gradients(model, optimizer, max_norm=0.5)))
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        fabric.save(tmp_path / "all.ckpt", {"model": model, "optimizer": optimizer})
        fabric.load(tmp_path / "all.ckpt", {"model": model, "optimizer": optimizer})
        return said, weights(model)

    plain, ours = train(None), train(restless)
    assert ours[0] == plain[0] and len(plain[0]) == 12
    assert_same(ours[1], plain[1])

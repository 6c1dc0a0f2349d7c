# SPDX-License-Identifier: Apache-2.0
"""Shows that Lightning's Trainer with LightningCallback trains on the test device as without it, and that what is in Terrace
stays there at the end of a run, where Lightning moves all to the CPU."""

import lightning
import pytest
import terrace
import terrace.torch
import torch
from device_fixtures import DEVICE, small  # noqa: F401 (a fixture)
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from terrace.torch._optimizer.optimizer import managed_optimizer
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


class Device(Accelerator):
    """The test device, to Lightning."""

    def setup_device(self, device):
        pass

    def get_device_stats(self, device):
        return {}

    def teardown(self):
        pass

    @staticmethod
    def parse_devices(devices):
        return devices

    @staticmethod
    def get_parallel_devices(devices):
        return [DEVICE]

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "fakegpu"


class Small(lightning.LightningModule):
    """fails: in its third step."""

    def __init__(self, fails=False):
        super().__init__()
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        self.fails, self.said = fails, []

    def training_step(self, batch, number):
        if self.fails and number == 2:
            raise ZeroDivisionError("in the step")
        loss = self.model(batch).square().mean()
        self.said.append(loss.item())
        return loss

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loader():
    return torch.utils.data.DataLoader(torch.randn(12, 64, generator=torch.Generator().manual_seed(3)), batch_size=2)


def trainer_of(client):
    callbacks = [] if client is None else [terrace.torch.LightningCallback(client=client, tensor_bytes_min=1)]
    return lightning.Trainer(
        strategy=SingleDeviceStrategy(device=DEVICE, accelerator=Device()), max_epochs=1, logger=False, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)


def test_fitting_twice_and_validating(small):
    found = []
    for client in (None, small):
        module = Small()
        for _ in range(2):
            trainer = trainer_of(client)
            trainer.fit(module, loader())
        trainer.validate(module, loader(), verbose=False)
        found.append((module.said, [one.detach().cpu() for one in module.parameters()]))
    assert found[1][0] == found[0][0] and len(found[0][0]) == 18
    assert all(map(torch.equal, found[1][1], found[0][1]))
    assert next(module.parameters()).device == DEVICE and "cpu" not in vars(module)
    (optimizer,) = trainer.optimizers
    assert managed_optimizer(optimizer) is not None
    states = [state["exp_avg"] for state in optimizer.state.values()]
    assert len(states) == 4 and all(one.device == DEVICE and type(one).__name__ == "OffloadedTensor" for one in states)
    assert small.leased_bytes == 0


def test_what_a_step_raises_is_what_comes(small):
    with pytest.raises(ZeroDivisionError, match="in the step"):
        trainer_of(small).fit(Small(fails=True), loader())


def test_without_the_callback_the_end_of_a_run_is_refused(small):
    module = Small()
    terrace.torch.offload(module.to(DEVICE), client=small, tensor_bytes_min=1)
    with pytest.raises(terrace.FailedPrecondition, match=r"'model.0.weight' lives in Terrace.*cannot become.*on cpu"):
        trainer_of(None).fit(module, loader())

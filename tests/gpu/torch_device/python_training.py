# SPDX-License-Identifier: Apache-2.0
"""Shows that training with terrace.torch on the test device goes as on a GPU where something happens: saving, building,
a side stream, exceptions, graphs, other devices, a daemon that is killed and started again, and a device that fails."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess

import fakegpu
import pytest
import terrace.torch
import torch
from device_fixtures import (  # noqa: F401 (a fixture)
    DEVICE,
    LOST,
    PLAIN,
    WIDE,
    Model,
    assert_ended,
    assert_same,
    build,
    control,
    expect,
    loss_of,
    mended,
    offloaded_pair,
    plain_run,
    seeded,
    serve,
    small,
    train,
    weights,
)
from python_fixtures import disk, wait_until  # noqa: F401 (a fixture)
from terrace.torch._activations import in_terrace, lanes
from torch import nn
from torch.utils.checkpoint import checkpoint

PATIENCE_SECONDS = 0.002
ADAMW = torch.optim.AdamW


def test_it_lies_in_hbm_and_below(small):
    model, optimizer = offloaded_pair(small)
    train(model, optimizer, PLAIN)
    assert_ended(small)
    assert sum(one.nbytes for one in small.tensors().values()) > 3 << 20
    assert model.head.weight.device == DEVICE and type(model.head.weight) is not nn.Parameter
    small.swap_out([one for name, one in small.tensors().items() if "activations" not in name and "/grad" not in name])
    assert train(model, optimizer, PLAIN, begin=3)


def test_a_pass_on_a_side_stream(small):
    """The script joins its stream, as it has to without Terrace."""
    said, there = plain_run(PLAIN)
    model, optimizer = offloaded_pair(small)
    stream = torch.Stream(DEVICE)
    stream.wait_stream(torch.accelerator.current_stream())
    with seeded(0, PATIENCE_SECONDS), stream:
        assert train(model, optimizer, PLAIN) == said
    torch.accelerator.current_stream().wait_stream(stream)
    assert_same(weights(model), there)


def test_saving_and_loading(small, tmp_path):
    recipe = dataclasses.replace(PLAIN, steps=2)
    model, optimizer = build(recipe)
    train(model, optimizer, recipe)
    said, there = train(model, optimizer, recipe, begin=2), weights(model)
    model, optimizer = offloaded_pair(small, recipe)
    train(model, optimizer, recipe)
    terrace.torch.save(tmp_path / "model.safetensors", model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
    assert train(model, optimizer, recipe, begin=2) == said
    for client in (None, small):
        model, optimizer = build(recipe) if client is None else offloaded_pair(small, recipe)
        terrace.torch.load(tmp_path / "model.safetensors", model, optimizer)
        assert train(model, optimizer, recipe, begin=2) == said
        assert_same(weights(model), there)
        saved = torch.load(tmp_path / "both.pt")
        assert saved["model"]["blocks.0.up.weight"].device == DEVICE
        model, optimizer = build(recipe) if client is None else offloaded_pair(small, recipe)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert train(model, optimizer, recipe, begin=2) == said
        assert_same(weights(model), there)


def test_a_model_that_is_built_in_terrace(small):
    def made(within):
        torch.manual_seed(1)
        with torch.device(DEVICE), within:
            model = Model(**WIDE)
        return model, ADAMW(model.parameters(), 1e-2, foreach=True)

    plain = made(contextlib.nullcontext())
    said = train(*plain, PLAIN)
    model, optimizer = made(terrace.torch.init(client=small, tensor_bytes_min=1))
    assert type(model.head.weight) is not nn.Parameter and small.tensors()
    model, optimizer = terrace.torch.offload(model, optimizer, client=small, tensor_bytes_min=1)
    assert train(model, optimizer, PLAIN) == said
    assert_same(weights(model), weights(plain[0]))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_in_a_pass_leaves_the_next_step_right(small, where):
    said, there = plain_run(PLAIN)
    model, optimizer = offloaded_pair(small)
    losses = train(model, optimizer, dataclasses.replace(PLAIN, steps=1))
    register = model.blocks[1].up.register_forward_hook
    handle = (register(lambda *_: 1 / 0) if where == "forward"
              else register(lambda _module, _inputs, out: out.register_hook(lambda _: 1 / 0) and None))
    with pytest.raises(ZeroDivisionError):
        loss_of(model, 7).backward()
    handle.remove()
    optimizer.zero_grad()
    assert losses + train(model, optimizer, dataclasses.replace(PLAIN, steps=2), begin=1) == said
    assert_same(weights(model), there)
    assert_ended(small)


def test_a_loop_that_never_waits_for_the_device(small):
    def run(client):
        model, optimizer = build(PLAIN) if client is None else offloaded_pair(client)
        for step in range(4):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model)

    with seeded(1, PATIENCE_SECONDS):
        assert_same(run(small), run(None))


def test_what_is_said_of_a_job_and_its_batches(small):
    """Batches that are staged go up from pinned memory; a buffer is where it was asked for."""
    model, optimizer = offloaded_pair(small)
    lines: list[str] = []
    terrace.torch.progress(model, show=lines.append)
    texts = [torch.full((2, 9), number % Model.VOCABULARY) for number in range(5)]
    for number, text in enumerate(terrace.torch.stage(texts, depth=2, client=small)):
        assert torch.equal(text.to(DEVICE, non_blocking=True).cpu(), texts[number])
        model(text.to(DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [line.split(":")[0] for line in lines] == [f"step {number}" for number in range(1, 6)]
    said = terrace.torch.summary(model)
    assert said.place == "device:0" and {one.name for one in said.modules} >= {"blocks.0.up", "embedding"}
    assert "in device:0" in str(said) and 0 < sum(one.place_bytes.get("device:0", 0) for one in said.modules) <= 2 << 20
    assert str(terrace.torch.summary()).startswith("Model")
    buffer = terrace.torch.scratch((16, 4), torch.bfloat16, client=small, place="device:0")
    expect(buffer.fill_(3), 3)
    assert buffer.device == DEVICE
    torch.accelerator.synchronize()
    del buffer, text
    assert_ended(small)


def test_checkpoints_take_no_more_hbm_than_saving_them_on_the_cpu(small):
    """Beside what goes up or down at a time, which is set to one checkpoint here. They come back beside the kernels."""
    def run(saved):
        torch.manual_seed(1)
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(12)).to(DEVICE)
        losses = []
        for step in range(3):
            torch.manual_seed(2 + step)
            hidden = torch.randn(4096, 16, requires_grad=True).to(DEVICE)
            torch.accelerator.reset_peak_memory_stats()
            with saved():
                for block in blocks:
                    hidden = checkpoint(block, hidden, use_reentrant=False)
                loss = hidden.square().mean()
            loss.backward()
            losses.append(loss.item())
        return losses, torch.accelerator.max_memory_allocated(), [one.grad.cpu() for one in blocks.parameters()]

    plain = run(contextlib.nullcontext)
    on_cpu = run(functools.partial(torch.autograd.graph.save_on_cpu, pin_memory=True, device_type=fakegpu.KIND))
    saving = terrace.torch.activations(small, what="checkpoints", keep_bytes=0)
    with seeded(2, PATIENCE_SECONDS), pytest.MonkeyPatch.context() as patch:
        for one in (lanes, in_terrace):
            patch.setattr(one, "UNDER_WAY_BYTES_MAX", 1)
        ours = run(lambda: saving)
    assert ours[0] == plain[0] and all(map(torch.equal, ours[2], plain[2]))
    assert saving.moved == 3 * 12
    checkpoint_bytes = 4096 * 16 * 4
    assert on_cpu[1] <= plain[1] - 8 * checkpoint_bytes
    assert ours[1] <= on_cpu[1] + checkpoint_bytes


def test_a_pass_is_not_captured_into_a_graph(small):
    model, _ = offloaded_pair(small)
    text = torch.arange(8, device=DEVICE)[None]
    with torch.no_grad():
        expected = model(text).cpu()
        with pytest.raises(terrace.FailedPrecondition, match="a CUDA graph was being captured"), fakegpu.captured():
            model(text)
        assert torch.equal(model(text).cpu(), expected)
    saving = terrace.torch.activations(small, min_bytes=1, keep_bytes=0)
    weight = torch.ones(4096, device=DEVICE, requires_grad=True)
    with saving, fakegpu.captured():
        (weight * 2).square()
    assert saving.moved == 0


def test_what_is_on_another_device_is_refused_by_name(small):
    other = torch.device(fakegpu.KIND, 1)
    with pytest.raises(terrace.InvalidArgument, match="the parameter '1.weight' is on fakegpu:1, and none of this session's places"):
        terrace.torch.offload(nn.Sequential(nn.Linear(64, 64).to(DEVICE), nn.Linear(64, 64).to(other)), client=small)
    with pytest.raises(terrace.InvalidArgument, match="place is 'host', which is memory of cpu, and the model is on fakegpu:0"):
        terrace.torch.offload(nn.Linear(64, 64).to(DEVICE), client=small, place="host")
    with pytest.raises(terrace.InvalidArgument, match="which is memory of fakegpu:0, and the model is on cpu"):
        terrace.torch.offload(nn.Linear(64, 64), client=small, place="device:0")
    with pytest.raises(terrace.InvalidArgument, match=r"on fakegpu:1, and none of this session's places \(device:0, host\)|"
                                                      r"on fakegpu:1, and none of this session's places \(host, device:0\)"):
        terrace.torch.offload(nn.Linear(64, 64).to(other), client=small)
    model = terrace.torch.offload(nn.Linear(64, 64), client=small)[0]  # beside it the CPU trains as ever
    model(torch.zeros(64)).sum().backward()
    assert model.weight.grad.device.type == "cpu"


def test_a_device_that_is_lost_is_said():
    with serve("2MiB", "16MiB") as client, mended():
        model, optimizer = offloaded_pair(client)
        train(model, optimizer, PLAIN)
        control.lost[0] = LOST
        with pytest.raises((torch.AcceleratorError, terrace.Error), match="CUDA_ERROR_ECC_UNCORRECTABLE"):
            train(model, optimizer, PLAIN)


class Supervised:
    """A daemon that is started again whenever it ends."""

    def __init__(self, folder: pathlib.Path):
        (folder / "terraced.toml").write_text(f"""
metrics_address = ""
[sockets]
data = "{folder}/data.sock"
grpc = "{folder}/grpc.sock"
admin = "{folder}/admin.sock"
[[tier]]
kind = "device"
device = "cuda:0"
capacity = "2MiB"
[[tier]]
kind = "memory"
capacity = "4MiB"
[[tier]]
kind = "block"
capacity = "256MiB"
paths = ["{folder}/block"]
""")
        self.socket = f"{folder}/data.sock"
        self.process = subprocess.Popen([os.environ["TERRACED"], "supervise", "--restart-delay-max-ms", "20", "--config",
                                         f"{folder}/terraced.toml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: pathlib.Path(self.socket).exists(), "the daemon to serve")

    def children(self) -> list[int]:
        return [int(each) for each in
                pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]

    def kill(self) -> None:
        """Kills the daemon; returns once there is another one."""
        (before,) = self.children()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.children() not in ([], [before]), "the next daemon")


def test_a_daemon_that_is_killed_between_steps(disk):
    said, there = plain_run(PLAIN)
    torch.zeros(1, device=DEVICE)
    daemon = Supervised(disk)
    try:
        with terrace.Client(daemon.socket) as client:
            model, optimizer = offloaded_pair(client)
            losses = []
            for step in range(3):
                losses += train(model, optimizer, dataclasses.replace(PLAIN, steps=1), begin=step)
                daemon.kill()
            assert losses == said
            assert_same(weights(model), there)
    finally:
        daemon.process.terminate()
        daemon.process.wait()

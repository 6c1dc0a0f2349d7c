# SPDX-License-Identifier: Apache-2.0
"""Models on a real GPU that do not fit there, trained bit for bit as without Terrace: 50 MB of weights and four times as
much with all that belongs to them, where HBM has 48 MiB for it and DRAM 96. For a machine with a GPU, PyTorch for CUDA and
pytest; skipped elsewhere. $TERRACED: the daemon. tests/gpu/run calls it.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import terrace.torch
import torch
import torch.distributed
from python_gpu_fixtures import serve_gpu, wait_until
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[terrace.Client]:
    with serve_gpu("48MiB", "96MiB", tmp_path_factory.mktemp("block")) as served:
        yield served


class Block(nn.Module):
    def __init__(self, width: int = 512):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


class Stack(nn.Module):
    def __init__(self, checkpoints: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.checkpoints = checkpoints

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpoints else block(hidden)
        return hidden


def build(**options) -> Stack:
    torch.manual_seed(0)
    return Stack(**options).cuda()


Run = tuple[list[float], dict[str, torch.Tensor]]
Offload = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, torch.optim.Optimizer]]


def batch_of(number: int) -> torch.Tensor:
    return torch.randn(128, 512, generator=torch.Generator().manual_seed(number)).cuda()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, *, dtype: torch.dtype | None = None,
          clip: bool = False, accumulate: int = 1, saved=contextlib.nullcontext) -> list[float]:
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    losses = []
    for step in steps:
        for part in range(accumulate):
            batch = batch_of(step * accumulate + part)
            with saved():
                with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = (model(batch) - batch.roll(1, 0)).square().mean() / accumulate
                scaler.scale(loss).backward()
            losses.append(loss.item())
        if clip:
            scaler.unscale_(optimizer)
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in model.state_dict().items()}


def equal(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == plain.keys() and all(torch.equal(ours[name], plain[name]) for name in plain)


ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD


@pytest.mark.parametrize(("optimizer", "options", "offloaded", "training"), [
    (ADAMW, {}, {}, {}),
    (ADAMW, {"fused": True}, {}, {}),
    (ADAMW, {"capturable": True}, {}, {}),
    (ADAMW, {"amsgrad": True, "foreach": False}, {}, {}),
    (SGD, {"momentum": 0.9, "nesterov": True}, {}, {}),
    (ADAMW, {}, {"step_in_backward": True}, {}),
    (ADAMW, {"fused": True}, {"step_in_backward": True}, {"dtype": torch.bfloat16}),
    (ADAMW, {}, {}, {"dtype": torch.bfloat16, "clip": True}),
    (ADAMW, {}, {}, {"dtype": torch.float16, "clip": True, "accumulate": 3}),
    (ADAMW, {"fused": True}, {}, {"dtype": torch.float16, "accumulate": 2}),
    (ADAMW, {}, {"what": "states"}, {"clip": True}),
    (ADAMW, {}, {"what": ("parameters", "states")}, {}),
], ids=["adamw", "fused", "capturable", "amsgrad", "sgd", "in_backward", "fused_in_backward", "bf16_clip",
        "fp16_clip_accumulate", "fused_fp16", "states", "parameters_states"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpoints"])
def test_a_model_that_does_not_fit_trains_on_the_gpu(small, optimizer, options, offloaded, training, checkpoints):
    model = build(checkpoints=checkpoints)
    plain = train(model, optimizer(model.parameters(), 1e-3, **options), range(4), **training)
    plain_weights = weights(model)
    model = build(checkpoints=checkpoints)
    model, stepped = terrace.torch.offload(model, optimizer(model.parameters(), 1e-3, **options), client=small, **offloaded)
    assert sum(one.nbytes for one in small.tensors().values()) > 40 << 20
    assert train(model, stepped, range(4), **training) == plain
    assert equal(weights(model), plain_weights)
    torch.cuda.synchronize()
    wait_until(lambda: small.held == 0, "the leases to end")
    assert model.blocks[0].up.weight.device == torch.device("cuda", 0)


def test_it_takes_no_hbm_beside_the_tier(small):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = build()
    model, optimizer = terrace.torch.offload(model, SGD(model.parameters(), 0.1), client=small)
    train(model, optimizer, range(2))
    held = torch.cuda.memory_allocated() - before
    assert held < 4 << 20, f"{held} bytes"


def test_activations_of_an_offloaded_model(small):
    model = build()
    plain = train(model, ADAMW(model.parameters(), 1e-3), range(4))
    model = build()
    model, optimizer = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3), client=small)
    assert train(model, optimizer, range(4), saved=lambda: terrace.torch.activations(small)) == plain


def test_it_is_built_in_hbm(small):
    def made(within) -> Stack:
        torch.manual_seed(0)
        with torch.device("cuda"), within:
            return Stack()

    model = made(contextlib.nullcontext())
    plain = train(model, ADAMW(model.parameters(), 1e-3), range(3))
    del model
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = made(terrace.torch.init(client=small))
    assert torch.cuda.max_memory_allocated() - before < 40 << 20  # of 50 MB
    model, optimizer = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3))
    assert train(model, optimizer, range(3)) == plain


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_saved_goes_on_with_and_without_terrace(small, tmp_path, fused):
    def made(client=None) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = build()
        optimizer = ADAMW(model.parameters(), 1e-3, fused=fused)
        return (model, optimizer) if client is None else terrace.torch.offload(model, optimizer, client=client)

    model, optimizer = made()
    plain = train(model, optimizer, range(6))
    plain_weights = weights(model)
    model, optimizer = made(small)
    assert train(model, optimizer, range(3)) == plain[:3]
    terrace.torch.save(tmp_path / "model.safetensors", model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
    for client in (None, small):
        model, optimizer = made(client)
        terrace.torch.load(tmp_path / "model.safetensors", model, optimizer)
        assert train(model, optimizer, range(3, 6)) == plain[3:] and equal(weights(model), plain_weights)
        saved = torch.load(tmp_path / "both.pt")
        assert saved["model"]["blocks.0.up.weight"].device == torch.device("cuda", 0)
        model, optimizer = made(client)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert train(model, optimizer, range(3, 6)) == plain[3:] and equal(weights(model), plain_weights)


def test_an_exception_in_a_pass_leaves_the_next_step_right(small):
    model = build()
    plain = train(model, ADAMW(model.parameters(), 1e-3), range(3))
    model = build()
    model, optimizer = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3), client=small)
    losses = train(model, optimizer, range(1))
    handle = model.blocks[3].up.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(batch_of(7))
    handle.remove()
    assert losses + train(model, optimizer, range(1, 3)) == plain


@pytest.mark.parametrize("built_in_terrace", [False, True])
def test_a_trainer_of_transformers(small, tmp_path, built_in_terrace):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                                      num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64)
    rows = torch.randint(0, 256, (64, 64), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in rows]

    def run(within, callbacks) -> tuple[list[float], nn.Module]:
        torch.manual_seed(0)
        with torch.device("cuda"), within:
            model = transformers.LlamaForCausalLM(config)
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=4, logging_steps=1, report_to=[],
            save_strategy="no", bf16=True, disable_tqdm=True)
        trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
        trainer.train()
        return [line["loss"] for line in trainer.state.log_history if "loss" in line], model

    plain, plain_model = run(contextlib.nullcontext(), [])
    within = terrace.torch.init(client=small) if built_in_terrace else contextlib.nullcontext()
    losses, model = run(within, [terrace.torch.TerraceCallback(client=small)])
    assert losses == plain and len(small.tensors()) > 60
    model.save_pretrained(tmp_path / "saved")
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    assert equal(weights(loaded), weights(plain_model))


def test_one_rank_of_distributed_data_parallel(small):
    def run(client=None) -> list[float]:
        model = nn.parallel.DistributedDataParallel(build())
        optimizer = ADAMW(model.parameters(), 1e-3)
        if client is not None:
            model, optimizer = terrace.torch.offload(model, optimizer, client=client)
        return train(model, optimizer, range(4), clip=True)

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        assert run(small) == run()
    finally:
        torch.distributed.destroy_process_group()


def test_a_block_that_is_compiled(small):
    def run(client=None) -> list[float]:
        model = build()
        model.blocks = nn.ModuleList([torch.compile(model.blocks[0]), *model.blocks[1:]])
        optimizer = ADAMW(model.parameters(), 1e-3)
        if client is not None:
            model, optimizer = terrace.torch.offload(model, optimizer, client=client)
        return train(model, optimizer, range(3))

    assert run(small) == run()


def test_a_pass_is_not_captured_into_a_graph(small):
    model = build()
    model, _ = terrace.torch.offload(model, ADAMW(model.parameters(), 1e-3), client=small)
    batch = batch_of(0)
    with torch.no_grad():
        expected = model(batch)
        with pytest.raises(terrace.FailedPrecondition, match="a CUDA graph was being captured"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                model(batch)
        assert torch.equal(model(batch), expected)


def test_a_loop_that_never_waits_for_the_gpu(small):
    """What Python has dropped is leased until the stream has passed, and is not yet to be told of as unneeded."""
    batches = [batch_of(step) for step in range(8)]

    def run(client=None) -> dict[str, torch.Tensor]:
        model = build()
        optimizer = SGD(model.parameters(), 0.1)
        if client is not None:
            model, optimizer = terrace.torch.offload(model, optimizer, client=client)
        torch.cuda.synchronize()
        for batch in batches:
            (model(batch) - batch.roll(1, 0)).square().mean().backward()
            torch.cuda._sleep(20_000_000)
            optimizer.step()
            optimizer.zero_grad()
        return weights(model)

    assert equal(run(small), run())


def test_saved_tensors_of_a_captured_pass_stay_where_they_are(small):
    model, batch = build(), batch_of(0)
    model(batch).sum().backward()  # so that all is loaded
    with terrace.torch.activations(small, keep_bytes=0) as saved:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            hidden = model.blocks[0](batch)
        assert hidden.requires_grad and saved.moved == 0
        model(batch).sum().backward()
        assert saved.moved > 0


def test_what_is_on_another_device_is_refused_by_name(small):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64).cuda())  # of 16 KiB each
    with pytest.raises(terrace.InvalidArgument, match="'0.weight' is on cpu, and '1.weight' on cuda:0"):
        terrace.torch.offload(model, client=small)
    with pytest.raises(terrace.InvalidArgument, match="place is 'host', which is memory of cpu, and the model is on cuda:0"):
        terrace.torch.offload(nn.Linear(64, 64).cuda(), client=small, place="host")
    with pytest.raises(terrace.InvalidArgument, match="which is memory of cuda:0, and the model is on cpu"):
        terrace.torch.offload(nn.Linear(64, 64), client=small, place="device:0")
    with terrace.serve("64MiB", metrics=False) as other:
        with pytest.raises(terrace.InvalidArgument, match=r"on cuda:0, and none of this session's places \(host\)"):
            terrace.torch.offload(nn.Linear(64, 64).cuda(), client=other)
    model = terrace.torch.offload(nn.Linear(64, 64), client=small)[0]  # beside a GPU the CPU trains as ever
    model(torch.zeros(64)).sum().backward()
    assert model.weight.grad.device.type == "cpu"

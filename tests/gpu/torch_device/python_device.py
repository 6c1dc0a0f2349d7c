# SPDX-License-Identifier: Apache-2.0
"""Shows that the test device is a GPU to PyTorch: the CPU's numbers bit for bit, memory that the CPU cannot reach and that
is poisoned when it is given, streams whose kernels run late and in an order drawn from a seed, so that whatever is not
waited for shows, and a GPU's errors."""

import ctypes
import faulthandler
import io
import os
import signal

import fakegpu
import pytest
import torch
from device_fixtures import (
    DEVICE,
    DEVICES,
    ILLEGAL_ADDRESS,
    LOST,
    SEEDS,
    Recipe,
    assert_same,
    build,
    control,
    expect,
    mended,
    serve,
    train,
    try_seeds,
    under_seeds,
    weights,
)
from python_fixtures import wait_until
from terrace._terrace import Placeholder
from torch import nn

OTHER = torch.device(fakegpu.KIND, 1)
COUNT = 1000
SGD = torch.optim.SGD


def full(number: float, device: torch.device = DEVICE) -> torch.Tensor:
    return torch.full((COUNT,), float(number), device=device)


# ---- Numbers


@pytest.mark.parametrize("recipe", [
    Recipe(), Recipe(options=(("lr", 1e-2), ("foreach", False))), Recipe(options=(("lr", 1e-2), ("fused", True))),
    Recipe(options=(("lr", 1e-2), ("amsgrad", True), ("foreach", True)), clip=True),
    Recipe(kind=SGD, options=(("lr", 0.1), ("momentum", 0.9), ("nesterov", True), ("foreach", True)), accumulation=2),
    Recipe(checkpointing=False), Recipe(checkpointing=True)], ids=str)
def test_training_has_the_cpus_bits(recipe):
    """Without autocast, whose lists of operators are other ones on the CPU than on accelerators."""
    cpu = build(recipe, torch.device("cpu"))
    wanted = train(*cpu, recipe)
    synchronous = fakegpu.native.counters()["synchronous"]
    model, optimizer = build(recipe)
    assert train(model, optimizer, recipe) == wanted
    assert_same(weights(model), weights(cpu[0]))
    assert fakegpu.native.counters()["synchronous"] == synchronous, "a shape function was missing"


def _normed(device):
    return nn.BatchNorm1d(4).to(device)(torch.arange(12., device=device).reshape(3, 4)).square().sum()


def _attended(device):
    return nn.MultiheadAttention(8, 2).to(device)(*[torch.ones(3, 2, 8, device=device)] * 3)[0].sum()


OPERATORS = {
    "convolution": lambda device: nn.Conv2d(3, 8, 3, padding=1).to(device)(torch.ones(2, 3, 8, 8, device=device)).sum(),
    "batch norm": _normed,
    "attention": _attended,
    "nonzero": lambda device: torch.arange(5., device=device).nonzero().sum(),
    "mask": lambda device: (lambda x: x[x > 2].sum())(torch.arange(5., device=device)),
    "sort": lambda device: torch.arange(5., device=device).flip(0).sort()[0].cumsum(0),
    "complex": lambda device: torch.fft.fft(torch.arange(8., device=device)).abs().sum(),
    "svd": lambda device: torch.linalg.svd(torch.eye(4, device=device))[1].sum(),
    "views": lambda device: torch.view_as_real(torch.ones(3, dtype=torch.complex64, device=device))[:, 0].unfold(0, 2, 1),
    "unique": lambda device: torch.tensor([1, 2, 2], device=device).unique(),
    "out": lambda device: torch.add(full(1, device), full(2, device), out=torch.empty(0, device=device)),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_operators_have_the_cpus_bits(operator):
    torch.manual_seed(1)
    wanted = operator(torch.device("cpu"))
    torch.manual_seed(1)
    assert torch.equal(operator(DEVICE).cpu(), wanted)


def test_random_numbers_come_again_with_their_state():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).to(DEVICE)
    batch = torch.randn(8, 64).to(DEVICE).requires_grad_()
    state = torch.fakegpu.get_rng_state()
    torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False).sum().backward()
    gradient = batch.grad.cpu()
    batch.grad = None
    torch.fakegpu.set_rng_state(state)
    model(batch).sum().backward()
    assert torch.equal(batch.grad.cpu(), gradient) and (model(batch) == 0).any()
    torch.manual_seed(5)
    drawn = torch.randn(3, device=DEVICE).cpu()
    torch.manual_seed(5)
    assert torch.equal(torch.randn(3, device=DEVICE).cpu(), drawn)


def test_tensors_are_saved_and_loaded_where_they_are():
    file = io.BytesIO()
    torch.save({"a": full(3)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["a"]
    assert loaded.device == DEVICE and torch.equal(loaded.cpu(), torch.full((COUNT,), 3.0))


# ---- Memory


@pytest.mark.parametrize("touch", [lambda at: ctypes.c_float.from_address(at).value, lambda at: ctypes.memset(at, 0, 4)],
                         ids=["read", "write"])
def test_the_cpu_cannot_reach_it(touch):
    address = full(1).data_ptr()
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        try:
            touch(address)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


def test_what_is_given_is_poisoned_and_an_address_is_given_again_at_once():
    first = full(1)
    address = first.data_ptr()
    torch.accelerator.synchronize()
    del first
    again = torch.empty(COUNT, device=DEVICE)
    assert again.data_ptr() == address
    assert again.isnan().all() and (torch.empty(COUNT, dtype=torch.int64, device=DEVICE) == -1).all()


def test_freed_memory_goes_back_and_what_is_too_much_is_said():
    torch.accelerator.empty_cache()
    with mended():
        control.device_bytes = control.used_bytes[0] + (16 << 20)
        reserved = torch.accelerator.memory_reserved()
        kept = torch.empty(3 << 20, device=DEVICE)
        with pytest.raises(torch.OutOfMemoryError, match="8388608 bytes were asked for, 4194304 of"):
            torch.empty(2 << 20, device=DEVICE)
        del kept
        torch.empty(2 << 20, device=DEVICE)  # takes the place of what was kept
        torch.accelerator.empty_cache()
        assert torch.accelerator.memory_reserved() == reserved


# ---- Streams: each case is wrong without its wait, under every seed or some, and right with it under each


def on_another_stream(mend: bool):
    stream, base = torch.Stream(DEVICE), full(3)
    torch.accelerator.synchronize()
    with stream:
        made = base * 2
    if mend:
        torch.accelerator.current_stream().wait_stream(stream)
    expect(made + 1, 7)


def behind_an_event(mend: bool):
    stream, base = torch.Stream(DEVICE), full(3)
    torch.accelerator.synchronize()
    with stream:
        made = base * 2
    event = stream.record_event()
    if mend:
        event.wait(torch.accelerator.current_stream())
    expect(made + 1, 7)


def freed_while_it_is_read(mend: bool):
    stream, source = torch.Stream(DEVICE), full(5)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        read = source * 1
    if mend:
        source.record_stream(stream)
    del source
    taken = full(9)
    torch.accelerator.synchronize()
    expect(read, 5)
    expect(taken, 9)


def pinned_memory_written_early(mend: bool):
    host = torch.ones(COUNT).pin_memory()
    assert host.is_pinned()
    there = host.to(DEVICE, non_blocking=True)
    if mend:
        torch.accelerator.synchronize()
    host.fill_(2)
    expect(there, 1)


def pinned_memory_read_early(mend: bool):
    there, host = full(4), torch.zeros(COUNT).pin_memory()
    host.copy_(there, non_blocking=True)
    if mend:
        torch.accelerator.synchronize()
    expect(host, 4)


def pinned_memory_freed_early(_mend: bool):
    """PyTorch keeps it until the copy has run."""
    there = torch.full((COUNT,), 6.0).pin_memory().to(DEVICE, non_blocking=True)
    torch.zeros(COUNT).pin_memory()
    expect(there, 6)


@pytest.mark.parametrize("case", [on_another_stream, behind_an_event, freed_while_it_is_read, pinned_memory_written_early,
                                  pinned_memory_read_early])
def test_a_wait_that_is_left_out_shows(case):
    failed = try_seeds(lambda: case(False))
    assert failed, f"none of the seeds {list(SEEDS)} shows it"
    assert try_seeds(lambda: case(False)) == failed, "a seed that fails fails again"
    under_seeds(lambda: case(True))


def test_pinned_memory_is_kept_for_its_copies():
    under_seeds(lambda: pinned_memory_freed_early(True))


def test_the_order_is_the_seeds():
    """Two streams that wait for nothing, and change one number: what it comes to tells the order."""
    streams = [torch.Stream(DEVICE) for _ in range(3)]

    def order(seed: int) -> float:
        number = full(1)
        with fakegpu.turns(seed, patience=60):
            for _ in range(4):
                for change, stream in enumerate(streams, 2):
                    with stream:
                        number.mul_(change).add_(1)
            torch.accelerator.synchronize()
            return number[0].item()

    first = [order(seed) for seed in SEEDS]
    assert [order(seed) for seed in SEEDS] == first
    assert len(set(first)) > len(first) / 2, first


def test_nothing_runs_before_somebody_waits_but_for_patience():
    stream = torch.Stream(DEVICE)
    with fakegpu.turns(1, patience=60):
        with stream:
            full(1)
        event = stream.record_event()
        assert not event.query() and not stream.query()
        event.synchronize()
        assert event.query() and stream.query()
    with fakegpu.turns(1, patience=0.001):
        event = stream.record_event()
        while not event.query():
            pass


def test_backward_runs_on_the_streams_of_forward():
    stream, seen = torch.Stream(DEVICE), []
    weight = full(1).requires_grad_()
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        loss = (weight * 3).sum()
    weight.register_hook(lambda _: seen.append(torch.accelerator.current_stream(DEVICE)))
    loss.backward()
    assert seen == [stream] and (weight.grad.cpu() == 3).all()


def test_what_is_captured_does_not_run():
    number = full(1)
    with fakegpu.captured():
        number.add_(1)
        assert fakegpu.native.is_capturing(0)
    assert (number.cpu() == 1).all() and not fakegpu.native.is_capturing(0)


# ---- Devices


def test_peers_copy_behind_both_and_before_both():
    assert torch.accelerator.device_count() == DEVICES

    def run():
        for number in range(1, DEVICES):
            other = torch.device(fakegpu.KIND, number)
            here = full(1)
            here.add_(1)
            there = here.to(other, non_blocking=True)
            here.zero_()
            assert there.device == other
            expect(there.to(OTHER, non_blocking=True) + 1, 3)

    under_seeds(run)


def test_a_model_on_two_devices_has_the_cpus_bits():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    torch.manual_seed(0)
    split = nn.Sequential(nn.Linear(8, 8).to(DEVICE), nn.Linear(8, 4).to(OTHER))
    batch = torch.randn(3, 8)
    plain(batch).square().sum().backward()

    def run():
        split.zero_grad()
        split[1](split[0](batch.to(DEVICE)).to(OTHER)).square().sum().backward()
        assert_same({name: one.grad.cpu() for name, one in split.named_parameters()},
                    {name: one.grad for name, one in plain.named_parameters()})

    under_seeds(run)


def test_a_device_that_is_not_there_is_said():
    with pytest.raises(RuntimeError, match="there is no device 7"):
        torch.zeros(1, device=torch.device(fakegpu.KIND, 7))


def test_a_storage_that_grows_keeps_what_it_had():
    tensor = full(2)
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().nbytes() == 0
    tensor = full(2)
    tensor.untyped_storage().resize_(8 * COUNT)
    assert (tensor.cpu() == 2).all() and tensor.untyped_storage().nbytes() == 8 * COUNT


def test_leased_memory_is_a_tensor_of_the_device():
    with serve("16MiB", "32MiB") as client:
        tensor = client.create("a", (COUNT,), "float32")
        with tensor.overwrite(place="device:0") as lease:
            shown = fakegpu.native.from_capsule(lease.__dlpack__())
            assert shown.device == DEVICE and shown.data_ptr() == lease.address
            shown.copy_(torch.arange(COUNT, dtype=torch.float32))
            torch.accelerator.synchronize()
            del shown
        wait_until(lambda: client.held == 0, "the lease to end")
        with tensor.read() as lease:
            assert torch.equal(torch.from_dlpack(lease), torch.arange(COUNT, dtype=torch.float32))


# ---- Errors


def assert_ended(status: int, match: str) -> None:
    """Every call says what ended the context."""
    for call in (lambda: full(1), torch.accelerator.synchronize, lambda: torch.Stream(DEVICE).record_event()):
        with pytest.raises(torch.AcceleratorError, match=match) as raised:
            call()
        assert raised.value.error_code == status


def test_a_kernel_that_fails_ends_the_context():
    with mended():
        index = torch.tensor([7], device=DEVICE)
        full(1)[:3][index]  # which nobody waits for
        with pytest.raises(torch.AcceleratorError, match=r"CUDA_ERROR_ASSERT.*index 7 is out of bounds"):
            torch.accelerator.synchronize()
        assert_ended(710, "aten::index")
    assert (full(1).cpu() == 1).all()


def test_a_write_to_what_may_be_read_alone_ends_the_context():
    with mended():
        placeholder = fakegpu.native.from_capsule(Placeholder(4096, 0).part(0, 4096))
        assert (placeholder.cpu() == 255).all()
        placeholder.zero_()
        with pytest.raises(torch.AcceleratorError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*writes to an address"):
            torch.accelerator.synchronize()
        assert_ended(ILLEGAL_ADDRESS, "writes to an address that it may not")


def test_a_device_that_is_lost_lets_nobody_wait():
    with mended():
        with fakegpu.turns(1, patience=60):
            made = full(1)
            control.lost[0] = LOST
            with pytest.raises(torch.AcceleratorError, match="CUDA_ERROR_ECC_UNCORRECTABLE"):
                made.cpu()
        assert_ended(LOST, "CUDA_ERROR_ECC_UNCORRECTABLE")
        assert (full(2, OTHER).cpu() == 2).all(), "the other one goes on"

# SPDX-License-Identifier: Apache-2.0
"""Shows that batches come out of Terrace as the loader made them, read ahead and leased until they are dropped, and
that buffers of scratch() stay where they are."""

import collections
import copy
import gc
import re
import subprocess
import sys
import threading
import warnings

import pytest
import terrace
import terrace.torch
import torch
from python_fixtures import LIMIT_SECONDS, MIB, ROOT, disk, run_program, wait_until  # noqa: F401 (a fixture)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from training_fixtures import metric, roomy  # noqa: F401 (a fixture)

stage, scratch = terrace.torch.stage, terrace.torch.scratch
Pair = collections.namedtuple("Pair", ["first", "second"])


def leaves_nothing(client):
    gc.collect()
    return client.leased_bytes == 0 and not client.tensors() and not any(
        thread.name == "terrace.torch.stage" for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loaders_own_batches(roomy, workers):
    """Shuffled, with a last batch of another size, pass after pass."""
    data = TensorDataset(torch.randn(50, 3, 8, 8), torch.arange(50))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers)
    staged = stage(loader, client=roomy)
    assert len(staged) == len(loader) == 7
    for seed in range(3):
        torch.manual_seed(seed)
        expected = list(loader)
        torch.manual_seed(seed)
        got = list(staged)
        assert [len(labels) for _, labels in got] == [8] * 6 + [2]
        for ours, plain in zip(got, expected, strict=True):
            assert type(ours) is type(plain) and all(map(torch.equal, ours, plain))
        assert roomy.leased_bytes >= 50 * (3 * 8 * 8 + 2) * 4
        del got, ours, plain, expected
        assert leaves_nothing(roomy)


def test_a_stage_has_what_the_loader_has(roomy):
    """As scripts ask it of a loader; what neither has is the loader's own error."""
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    staged = stage(loader, depth=3, client=roomy)
    assert staged.dataset is data and staged.batch_size == 2 and staged.depth == 3 and staged.loader is loader
    for epoch in range(2):
        staged.sampler.set_epoch(epoch)
        assert [batch.tolist() for (batch,) in staged] == [batch.tolist() for (batch,) in loader]
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'nobody'"):
        _ = staged.nobody
    with pytest.raises(AttributeError, match="'list' object has no attribute 'sampler'"):
        _ = stage([torch.ones(2)], client=roomy).sampler
    assert copy.copy(staged).sampler is loader.sampler
    assert leaves_nothing(roomy)


def test_batches_of_nothing_come_in_their_places(roomy):
    """A collate function that drops every sample of a batch gives None."""
    got = list(stage([None, torch.ones(2), None], client=roomy))
    assert got[0] is None and got[2] is None and torch.equal(got[1], torch.ones(2)) and len(got) == 3


def test_structures_types_and_strides(roomy):
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sparse, wanted = torch.eye(3).to_sparse(), torch.randn(3).requires_grad_()
    batch = {"pair": Pair(image, [torch.arange(5), "text", 7]), "ordered": collections.OrderedDict(a=image, b=None),
             "tuple": (torch.tensor(3.0, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bool), torch.empty(0, 4)),
             "expanded": torch.ones(3, 1).expand(3, 4), "sparse": sparse, "wanted": wanted,
             "complex": torch.randn(3, dtype=torch.complex64), "turned": torch.randn(3, 4).t(),
             "gaps": torch.randn(6, 4)[::2], "turned_gaps": torch.randn(4, 6)[:, ::2].t()}
    (got,) = stage([batch], client=roomy)
    assert list(got) == list(batch) and type(got["pair"]) is Pair and type(got["ordered"]) is collections.OrderedDict
    assert got["pair"].second[1:] == ["text", 7] and got["sparse"] is sparse and got["ordered"]["b"] is None
    assert torch.equal(got["pair"].first, image) and got["pair"].first.stride() == image.stride()
    assert got["pair"].first is got["ordered"]["a"] and got["pair"].first.data_ptr() != image.data_ptr()
    for ours, plain in ((got["pair"].second[0], torch.arange(5)), *zip(got["tuple"], batch["tuple"], strict=True),
                        *((got[key], batch[key])
                          for key in ("expanded", "wanted", "complex", "turned", "gaps", "turned_gaps"))):
        assert torch.equal(ours, plain) and ours.dtype == plain.dtype and ours.stride() == plain.clone().stride()
        assert ours.requires_grad == plain.requires_grad
    assert got["turned"].stride() == (1, 4) and batch["pair"].first is image
    del got, ours
    assert leaves_nothing(roomy)


def test_it_reads_ahead_as_far_as_it_was_told(roomy):
    read = []

    def batches():
        for number in range(10):
            read.append(number)
            yield torch.full((1000,), number)

    passes = iter(stage(batches(), depth=3, client=roomy))
    for number in range(10):
        assert int(next(passes)[0]) == number
        ahead = min(10, number + 1 + 3 + 1)  # those that wait, and one that waits for room
        wait_until(lambda ahead=ahead: len(read) == ahead, f"batch {ahead}")
    with pytest.raises(StopIteration):
        next(passes)
    with pytest.raises(StopIteration):
        next(passes)
    assert leaves_nothing(roomy)


def test_leaving_early_stops_the_thread(roomy):
    def endless():
        while True:
            yield torch.ones(1000)

    for _ in range(3):
        for first in stage(endless(), client=roomy):
            assert len(first) == 1000
            break
        del first
    passes = iter(stage(endless(), client=roomy))
    batch = next(passes)
    passes.close()
    with pytest.raises(StopIteration):
        for _ in range(100):
            next(passes)
    assert roomy.leased_bytes == batch.untyped_storage().nbytes() and torch.equal(batch, torch.ones(1000))
    del batch
    assert leaves_nothing(roomy)


def test_an_exception_of_the_loader_comes_in_its_place(roomy):
    def failing():
        yield torch.ones(10)
        yield torch.ones(20)
        raise ZeroDivisionError("the third")

    passes = iter(stage(failing(), client=roomy))
    assert [len(next(passes)), len(next(passes))] == [10, 20]
    with pytest.raises(ZeroDivisionError, match="the third"):
        next(passes)
    with pytest.raises(StopIteration):
        next(passes)
    assert leaves_nothing(roomy)


def test_batches_that_find_no_room_stay_as_they_are():
    with terrace.serve("8MiB", metrics=False) as client:
        batches = [torch.full((MIB,), float(number)) for number in range(5)]
        with pytest.warns(RuntimeWarning, match=r"RESOURCE_EXHAUSTED.*guarantees=") as caught:
            got = list(stage(batches, depth=1, client=client))
        assert len(caught) == 1 and all(map(torch.equal, got, batches))
        assert any(ours is plain for ours, plain in zip(got, batches, strict=True)) and client.leased_bytes > 0
        del got
        assert leaves_nothing(client)


KEPT = """
import sys, torch, warnings
import terrace, terrace.torch
stage = terrace.torch.stage
with terrace.serve("16MiB", block=sys.argv[1] + ":512MiB", metrics=False) as client:
    def batches(count, size):
        return [torch.full((size << 18,), float(number)) for number in range(count)]
    def in_terrace(got, plain):
        assert all(map(torch.equal, got, plain))
        return sum(ours is not one for ours, one in zip(got, plain))
    plain = batches(40, 1)
    got = list(stage(plain, client=client))
    again = list(stage(plain, client=client))  # while the others are held
    print(in_terrace(got, plain), in_terrace(again, plain))
    del got, again
    print(in_terrace(list(stage(plain[:8], client=client)), plain[:8]))
    plain = batches(8, 12)
    for number, batch in enumerate(stage(plain, client=client)):  # which has one while it waits for the next
        assert torch.equal(batch, plain[number])
    del batch
    print(client.leased_bytes)
"""


def test_a_script_that_keeps_its_batches_waits_for_none(disk):
    """It alone could end the leases that a wait would be for. Within the limit, of which each wait would take all."""
    ended = run_program(KEPT, str(disk))
    assert ended.returncode == 0 and ended.stdout == "16 0\n8\n0\n", ended.stderr
    assert ended.stderr.count("RuntimeWarning: terrace.torch.stage: Terrace did not take a batch of 1048576 bytes") >= 1


def test_room_that_the_script_may_still_give_back_is_waited_for(disk, monkeypatch):
    looks, read = [], []
    awaited = terrace.torch._buffers.stage._Line.awaited
    monkeypatch.setattr(terrace.torch._buffers.stage._Line, "awaited", lambda line: looks.append(len(read)) or awaited(line))

    def batches():
        for number in range(6):
            read.append(number)
            yield torch.full((5 << 18,), float(number))

    with terrace.serve("16MiB", block=f"{disk}:128MiB", metrics=False) as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        passes = iter(stage(batches(), depth=4, client=client))
        batch = next(passes)
        wait_until(lambda: looks.count(4) >= 3, "the fourth batch finds no room")
        for number in range(6):
            assert (batch == number).all() and client.leased_bytes >= batch.nbytes
            del batch
            batch = next(passes, None)
        assert batch is None and leaves_nothing(client)


def test_leaving_early_ends_a_wait_for_room(disk):
    with terrace.serve("16MiB", block=f"{disk}:128MiB", metrics=False) as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer = scratch(15 * MIB, torch.uint8, client=client)
        passes = iter(stage([torch.ones(1), *(torch.ones(MIB) for _ in range(3))], client=client))
        next(passes)
        passes.close()
        assert not any(thread.name == "terrace.torch.stage" for thread in threading.enumerate())
        del buffer
        assert leaves_nothing(client)


def test_a_batch_stays_where_it_is(disk):
    """While other tensors push everything else out of the memory tier."""
    with terrace.serve("8MiB", block=f"{disk}:128MiB") as client:
        buffer = scratch((256, 1024), client=client)
        buffer.fill_(7)
        (batch,) = stage([torch.full((256, 1024), 5.0)], client=client)
        address = batch.data_ptr(), buffer.data_ptr()
        others = client.create_many([(f"t{number}", MIB, "uint8") for number in range(32)])
        for other in others:
            with other.overwrite() as lease:
                lease.numpy()[:] = 1
        assert metric(client, "terrace_transfer_bytes_total", link="block_write") > 0
        assert (batch.data_ptr(), buffer.data_ptr()) == address and (batch == 5).all() and (buffer == 7).all()
        assert metric(client, "terrace_transfer_bytes_total", link="block_read") == 0


def test_room_that_nobody_would_give_back_is_not_waited_for(disk):
    """In a process of its own: other tests may have left threads, each of which might give some back."""
    ended = run_program(
        "import sys, time, torch, terrace.torch\n"
        "with terrace.serve('16MiB', block=f'{sys.argv[1]}:128MiB', metrics=False) as client:\n"
        "    kept = terrace.torch.scratch(12 << 20, torch.uint8, client=client)\n"
        "    begin = time.monotonic()\n"
        "    try:\n"
        "        terrace.torch.scratch(8 << 20, torch.uint8, client=client)\n"
        "    except terrace.ResourceExhausted as error:\n"
        "        print(error, '|', time.monotonic() - begin)\n", str(disk))
    said, _, seconds = ended.stdout.partition(" | ")
    assert said.startswith("terrace.torch.scratch: no 8388608 bytes that stay leased"), ended.stderr
    assert "holds 12582912 bytes leased already" in said and float(seconds) < LIMIT_SECONDS / 4


def test_room_that_a_thread_or_the_collector_gives_back(disk):
    with terrace.serve("16MiB", block=f"{disk}:128MiB", metrics=False) as client:
        buffers = [scratch(12 * MIB, torch.uint8, client=client)]
        helper = threading.Timer(1, buffers.clear)
        helper.start()
        cycle = [scratch(8 * MIB, torch.uint8, client=client)]
        helper.join()
        cycle.append(cycle)
        del cycle
        scratch(12 * MIB, torch.uint8, client=client)
        assert leaves_nothing(client)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_scratch_is_like_empty(roomy, dtype):
    for shape in (5, (3, 4), (), (2, 0), torch.Size([2, 1, 3])):
        buffer, plain = scratch(shape, dtype, client=roomy), torch.empty(shape, dtype=dtype)
        assert (buffer.shape, buffer.dtype, buffer.stride()) == (plain.shape, dtype, plain.stride())
        assert roomy.leased_bytes == buffer.nbytes and not roomy.tensors()
        buffer.fill_(1)
        part = buffer.view(-1)[-1:]
        del buffer
        assert (part == 1).all()
        del part
        assert leaves_nothing(roomy)


def test_errors_say_what_to_do(roomy):
    with pytest.raises(TypeError, match="terrace.torch.scratch: dtype is 'float32'"):
        scratch(3, "float32", client=roomy)
    for shape in ("ab", "", None, (2.5,), ((1, 2),)):
        with pytest.raises(TypeError, match=re.escape(f"terrace.torch.scratch: shape is {shape!r}; it is an integer, or")):
            scratch(shape, client=roomy)
    with pytest.raises(TypeError, match="create: shape is None; it is an integer, or several"):
        roomy.create("shapeless", None)
    with pytest.raises(terrace.InvalidArgument, match="terrace.torch.scratch: shape is"):
        scratch((3, -1), client=roomy)
    with pytest.raises(terrace.ResourceExhausted, match=r"scratch: no \d+ bytes that stay leased.*guarantees="):
        scratch(1 << 30, client=roomy)
    for loader in (7, "abc", b"abc"):
        with pytest.raises(TypeError, match=f"terrace.torch.stage: loader is {loader!r}; it is a DataLoader, or another"):
            stage(loader, client=roomy)
    for depth in (0, -1, 1025):
        with pytest.raises(terrace.InvalidArgument, match=f"terrace.torch.stage: depth is {depth}; it is from 1 to 1024"):
            stage([], depth, client=roomy)
    assert list(stage([], client=roomy)) == [] and leaves_nothing(roomy)
    staged = stage([torch.ones(3)], client=roomy)
    roomy.close()
    with pytest.raises(terrace.FailedPrecondition, match="terrace.torch.stage: the client is closed"):
        iter(staged)
    with pytest.raises(terrace.FailedPrecondition, match="terrace.torch.scratch: the client is closed"):
        scratch(3, client=roomy)


def example(name, *options):
    return subprocess.run([sys.executable, "-B", ROOT / "client/python/examples" / name, *options], capture_output=True,
                          text=True, timeout=LIMIT_SECONDS, check=False)


def test_the_example_for_jax():
    ended = example("jax_dlpack.py")
    assert ended.returncode == 0, ended.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d: loss ([\d.]+)$", ended.stdout, re.MULTILINE)]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
    assert ended.stdout.endswith("\n0 bytes leased at the end\n")


def test_the_example_for_numpy(disk):
    ended = example("numpy_out_of_core.py", "--block", disk, "--rows", "8192", "--rounds", "2")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("largest singular value of 8192 x 1024: 1")
    assert not list(disk.iterdir())

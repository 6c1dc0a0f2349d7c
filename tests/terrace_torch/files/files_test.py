# SPDX-License-Identifier: Apache-2.0
"""Shows that a job is saved and loaded a tensor at a time, to files that are safetensors' own byte for byte as its
documentation says, and that damaged and foreign files change nothing; and that a summary says where things are."""

import copy
import io
import json
import os
import pickle
import shutil
import struct

import pytest
import safetensors.torch
import terrace.torch
import torch
import torch.distributed.checkpoint as dcp
from model_fixtures import (  # noqa: F401 (fixtures)
    RECIPE,
    Gpt,
    Recipe,
    assert_same,
    both,
    build,
    loss_of,
    metric,
    nothing_stays_leased,
    roomy,
    train,
    weights,
)
from python_fixtures import MIB, disk, run_program  # noqa: F401 (a fixture)
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def parse(path):
    """A second reader of the format, by its documentation."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert (8 + length) % 8 == 0
    metadata = header.pop("__metadata__")
    body, at, found = content[8 + length :], 0, {}
    for name, said in header.items():
        begin, end = said["data_offsets"]
        assert begin == at and said["dtype"] in ("F32", "F64", "BF16", "I64")
        dtype = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "I64": torch.int64}[said["dtype"]]
        found[name] = torch.frombuffer(bytearray(body[begin:end]), dtype=dtype).reshape(said["shape"])
        at = end
    assert at == len(body)
    return found, metadata


@pytest.mark.parametrize("begins", ["plain", "offloaded"])
@pytest.mark.parametrize("options", [(("lr", 1e-3),), (("lr", 1e-3), ("fused", True), ("amsgrad", True))],
                         ids=["single", "fused"])
def test_a_run_goes_on_from_a_file_of_the_other_kind(roomy, tmp_path, begins, options):
    recipe = Recipe(options=options)
    plain, offloaded = both(roomy, recipe=recipe)
    first, second = (plain, offloaded) if begins == "plain" else (offloaded, plain)
    train(*first, recipe)
    terrace.torch.save(tmp_path / "model.safetensors", *first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.optimizer.safetensors", "model.safetensors"]
    found, metadata = parse(tmp_path / "model.safetensors")
    assert metadata == {"format": "pt"}
    assert_same(found, weights(first[0]))
    train(*second, Recipe(steps=1, options=options))
    terrace.torch.load(tmp_path / "model.safetensors", *second)
    assert second[1].param_groups[0]["betas"] == (0.9, 0.999)
    assert train(*first, recipe, begin=3) == train(*second, recipe, begin=3)
    assert_same(weights(first[0]), weights(second[0]))


def test_a_file_is_written_a_tensor_at_a_time(disk):
    """17 MiB through 4: never are more than two tensors leased."""
    recipe = Recipe(width=96, blocks=10)
    with terrace.serve("4MiB", block=f"{disk}:128MiB", metrics=False) as client:
        plain, plain_optimizer = build(recipe)
        model, optimizer = terrace.torch.offload(*build(recipe), client=client, timeout=5)
        assert train(model, optimizer, recipe) == train(plain, plain_optimizer, recipe)
        largest = max(parameter.nbytes for parameter in model.parameters())
        with client.create("in the way", 4 * MIB - 3 * largest, "uint8").overwrite():
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, disk / "job.pt")
            terrace.torch.save(disk / "model.safetensors", model, optimizer)
            terrace.torch.load(disk / "model.safetensors", model, optimizer)
            with pytest.raises(terrace.ResourceExhausted) as refused:  # it has no file to write to
                state = model.state_dict()
                safetensors.torch.save({name: state[name] for name in state if name != "head.weight"})
            assert any("terrace.torch.save(), torch.save()" in note for note in refused.value.__notes__)
            refused = None
        found, _ = parse(disk / "model.safetensors")
        assert_same(found, weights(plain))
        job = torch.load(disk / "job.pt")
        assert_same(job["model"], weights(plain))
        assert job["model"]["head.weight"].data_ptr() == job["model"]["embedding.weight"].data_ptr()  # written once
        for number, state in plain_optimizer.state_dict()["state"].items():
            assert_same(job["optimizer"]["state"][number], state)
        assert train(model, optimizer, recipe, begin=3) == train(plain, plain_optimizer, recipe, begin=3)


def test_saving_is_no_use_that_the_daemon_learns_from(disk):
    """Steps of 17 MiB through 4, planned for by the daemon, and a checkpoint between two of them."""
    recipe = Recipe(width=96, blocks=10)
    with terrace.serve("4MiB", block=f"{disk}:128MiB") as client:
        model, optimizer = terrace.torch.offload(*build(recipe), client=client)
        train(model, optimizer, recipe)

        def uses():
            return [metric(client, "terrace_plan_uses_total", outcome=outcome) for outcome in ("foreseen", "stray")]

        before = uses()
        assert before[0] > 0
        terrace.torch.save(disk / "model.safetensors", model, optimizer)
        torch.save(model.state_dict(), disk / "model.pt")
        assert uses() == before


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_saving_leaves_in_memory_what_others_use(disk):
    """Half of 4 MiB of memory is in use; a model of 16 MiB that lives below is saved, in each way that streams."""
    with terrace.serve("4MiB", block=f"{disk}:128MiB") as client:
        model, _ = terrace.torch.offload(nn.Sequential(*(nn.Linear(256, 256) for _ in range(64))), client=client)
        hot = [client.from_array(f"hot {number}", torch.full((256, 256), float(number))) for number in range(8)]

        def fetched():
            before = metric(client, "terrace_transfer_bytes_total", link="block_read")
            for number, tensor in enumerate(hot):
                with tensor.read() as lease:
                    assert (lease.numpy() == number).all()
            return metric(client, "terrace_transfer_bytes_total", link="block_read") - before

        fetched()
        whole = sum(parameter.nbytes for parameter in model.parameters())
        for save in (terrace.torch.save, lambda path, model: safetensors.torch.save_file(dict(model.state_dict()), path),
                     lambda path, model: torch.save(model.state_dict(), path),
                     lambda path, model: dcp.save({"model": model.state_dict()}, checkpoint_id=path)):
            before = metric(client, "terrace_transfer_bytes_total", link="block_read")
            save(disk / "model", model)
            assert metric(client, "terrace_transfer_bytes_total", link="block_read") - before > whole / 2
            assert fetched() == 0
            (shutil.rmtree if (disk / "model").is_dir() else os.unlink)(disk / "model")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints(disk):
    """Written and read a tensor at a time, by either kind of run for the other."""
    recipe = Recipe(width=96, blocks=10, steps=1)
    with terrace.serve("4MiB", block=f"{disk}:128MiB", metrics=False) as client:
        plain, offloaded = build(recipe), terrace.torch.offload(*build(recipe), client=client, timeout=1)
        largest = max(parameter.nbytes for parameter in offloaded[0].parameters())
        for job in (plain, offloaded):
            train(*job, recipe)
        with client.create("in the way", 4 * MIB - 3 * largest, "uint8").overwrite():
            for name, (model, optimizer) in (("plain", plain), ("offloaded", offloaded)):
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                dcp.save(state, checkpoint_id=disk / name)
            wanted = weights(plain[0])
            for name, (model, optimizer) in (("offloaded", plain), ("plain", offloaded)):
                with torch.no_grad():
                    for tensor in (*model.parameters(), *(one["exp_avg"] for one in optimizer.state.values())):
                        tensor.zero_()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                dcp.load(state, checkpoint_id=disk / name)
                optimizer.load_state_dict(state["optimizer"])
                assert_same(weights(model), wanted)
            of_model, of_optimizer = get_state_dict(*offloaded)
            assert of_model.keys() == get_state_dict(*plain)[0].keys()
            dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=disk / "by names")
        assert train(*plain, recipe, begin=3) == train(*offloaded, recipe, begin=3)
        assert_same(weights(offloaded[0]), weights(plain[0]))


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_checkpoint_that_is_written_while_training_goes_on(disk):
    """async_save() copies a tensor at a time, and what is tied once; the file has what was there when it was called."""
    recipe = Recipe(width=96, blocks=10, steps=1)
    with terrace.serve("4MiB", block=f"{disk}:128MiB", metrics=False) as client:
        model, optimizer = terrace.torch.offload(*build(recipe), client=client, timeout=1)
        train(model, optimizer, recipe)
        largest = max(parameter.nbytes for parameter in model.parameters())
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        wanted = weights(model), {key: one["exp_avg"].clone() for key, one in state["optimizer"]["state"].items()}
        with client.create("in the way", 4 * MIB - 3 * largest, "uint8").overwrite():
            saving = dcp.async_save(state, checkpoint_id=disk / "state")
        train(model, optimizer, recipe, begin=3)
        saving.result()
        dcp.load(state, checkpoint_id=disk / "state")
        assert_same(weights(model), wanted[0])
        assert_same({key: one["exp_avg"].clone() for key, one in state["optimizer"]["state"].items()}, wanted[1])
        assert client.leased_bytes == 0


def test_what_writes_while_training_goes_on_may_be_imported_late(disk):
    ended = run_program(
        "import os, sys, warnings, torch, terrace.torch\n"
        "warnings.simplefilter('ignore')\n"
        "with terrace.serve('4MiB', block=f'{sys.argv[1]}:16MiB', metrics=False) as client:\n"
        "    model, _ = terrace.torch.offload(torch.nn.Linear(64, 64), client=client)\n"
        "    state = model.state_dict()\n"
        "    wanted = state['weight'].clone()\n"
        "    assert 'torch.distributed.checkpoint' not in sys.modules\n"
        "    import torch.distributed.checkpoint as dcp\n"
        "    dcp.async_save(state, checkpoint_id=f'{sys.argv[1]}/late').result()\n"
        "    state['weight'].zero_()\n"
        "    dcp.load(state, checkpoint_id=f'{sys.argv[1]}/late')\n"
        "    print(torch.equal(model.weight, wanted))\n", str(disk))
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_types_and_strides(roomy, tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.transposed = nn.Parameter(torch.arange(64 * 32, dtype=torch.float64).reshape(64, 32).t())
            self.scalar = nn.Parameter(torch.tensor(3.0, dtype=torch.bfloat16))
            self.register_buffer("count", torch.tensor([1, 2, 3]))

    plain, model = Odd(), Odd()
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    terrace.torch.save(tmp_path / "model.safetensors", model)
    found, _ = parse(tmp_path / "model.safetensors")
    assert_same(found, dict(plain.state_dict()))
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    terrace.torch.load(tmp_path / "model.safetensors", model)
    assert_same(weights(model), dict(plain.state_dict()))
    assert model.transposed.stride() == (1, 32)


def test_tied_weights_by_the_package_safetensors(roomy, tmp_path):
    """Its save_model() finds which of them to write by their addresses."""
    plain, _ = build(RECIPE)
    safetensors.torch.save_model(plain, tmp_path / "plain")
    model, _ = terrace.torch.offload(*build(RECIPE), client=roomy, tensor_bytes_min=1)
    safetensors.torch.save_model(model, tmp_path / "ours")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "plain").read_bytes()
    assert safetensors.torch.load_model(build(RECIPE)[0], tmp_path / "ours") == (set(), [])


class EveryType(nn.Module):
    """A parameter of each element type that a file can name, empty and scalar ones, and names that JSON escapes."""

    TYPES = (torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.int16, torch.uint16,
             torch.float16, torch.bfloat16, torch.int32, torch.uint32, torch.float32, torch.complex64, torch.float64,
             torch.int64, torch.uint64)

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        for number, dtype in enumerate(self.TYPES):
            content = torch.randint(0, 2, (3 + number, 8 * dtype.itemsize), dtype=torch.uint8).view(dtype)
            self.register_parameter(f"é{number}", nn.Parameter(content, requires_grad=False))
            self.register_parameter(f"a\n{number}", nn.Parameter(content[0, 0].clone(), requires_grad=False))
        self.register_buffer("empty", torch.zeros(0, 4))


@pytest.mark.parametrize("metadata", [None, {"of": "\"é\""}])
def test_the_package_safetensors_streams_the_same_bytes(roomy, tmp_path, metadata):
    """Its save_file() given what a state_dict() has, or the parameters themselves; what it refuses it still refuses."""
    plain, model = EveryType(), EveryType()
    save_file(dict(plain.state_dict()), tmp_path / "plain", metadata)
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=8)
    ours = safetensors.torch.save_file
    assert globals()["save_file"] is ours and ours.__name__ == "save_file"  # that name was imported before offload()
    ours(dict(model.state_dict()), tmp_path / "ours", metadata)
    parameters = dict(model.named_parameters()) | dict(model.named_buffers())
    ours({name: parameters[name] for name in model.state_dict()}, tmp_path / "parameters", metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "parameters").read_bytes() == (
        tmp_path / "plain").read_bytes()
    whole, other = model.state_dict()["é11"], torch.ones(4, 4)
    for wrong, said in (({"a": whole, "b": whole}, "share memory"), ({"a": whole, "b": other.t()[1:]}, "contiguous"),
                        ({"a": whole, "b": 1}, "expected torch.Tensor"), ({"a": whole, "b": other.to_sparse()}, "sparse"),
                        ({"a": whole, "b": other, "c": other[1:]}, "share memory")):
        with pytest.raises((RuntimeError, ValueError), match=said):
            ours(wrong, tmp_path / "wrong", metadata)
    ours({"a": whole, "b": other[:2], "c": other[2:]}, tmp_path / "parts", metadata)
    found = safetensors.torch.load_file(tmp_path / "parts")
    assert_same(found, {"a": plain.state_dict()["é11"], "b": other[:2], "c": other[2:]})


def test_foreign_and_damaged_files_change_nothing(roomy, tmp_path):
    model, optimizer = terrace.torch.offload(*build(RECIPE), client=roomy, tensor_bytes_min=1)
    before = weights(model)
    path = tmp_path / "model.safetensors"
    terrace.torch.save(path, Gpt(width=16))
    with pytest.raises(terrace.InvalidArgument, match=r"'positions' has the shape \(16, 16\).*\(16, 32\)"):
        terrace.torch.load(path, model)
    terrace.torch.save(path, nn.Linear(3, 3))
    with pytest.raises(terrace.InvalidArgument, match=r"lacks \['blocks.*and has \['bias', 'weight'\]"):
        terrace.torch.load(path, model)
    terrace.torch.save(path, model)
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    for damaged in (b"", whole[:5], whole[:100], whole[:-1], b"\xff" * 8 + whole[8:], whole[:8] + b"x" * length,
                    whole.replace(b'"shape":[64,32]', b'"shape":[64,33]'), whole.replace(b'"F32"', b'"Q32"')):
        path.write_bytes(damaged)
        with pytest.raises(terrace.InvalidArgument, match="is no safetensors file"):
            terrace.torch.load(path, model)
    path.write_bytes(whole)
    (tmp_path / "model.optimizer.safetensors").write_bytes(whole)
    with pytest.raises(terrace.InvalidArgument, match="holds no optimizer"):
        terrace.torch.load(path, model, optimizer)
    assert_same(weights(model), before)
    with pytest.raises(FileNotFoundError):
        terrace.torch.save(tmp_path / "missing" / "model.safetensors", model)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("offloads", [False, True], ids=["plain", "offloaded"])
def test_an_optimizers_file_that_does_not_fit_changes_nothing(roomy, tmp_path, offloads):
    """Missing, of no optimizer, of other groups, of other shapes, or not to be read: neither the model nor the optimizer
    has anything of either file."""
    model, optimizer = build(RECIPE)
    if offloads:
        terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    train(model, optimizer, RECIPE)
    path, beside = tmp_path / "model.safetensors", tmp_path / "model.optimizer.safetensors"
    terrace.torch.save(path, model, optimizer)
    whole = beside.read_bytes()
    train(model, optimizer, RECIPE, begin=3)
    before = weights(model)
    moments = {number: state["exp_avg"].clone() for number, state in enumerate(optimizer.state.values())}

    def other(recipe, many=None):
        found, its = build(recipe)
        train(found, its, recipe)
        if many is not None:
            its = torch.optim.AdamW(found.parameters(), lr=1e-3)
        terrace.torch.save(tmp_path / "other.safetensors", found, its)
        return (tmp_path / "other.optimizer.safetensors").read_bytes()

    cases = [(None, FileNotFoundError, "model.optimizer.safetensors"),
             (path.read_bytes(), terrace.InvalidArgument, "holds no optimizer: "),
             (other(RECIPE, many=1), terrace.InvalidArgument, r"its parameter groups have \[\d+\] parameters"),
             (other(Recipe(width=16)), terrace.InvalidArgument, r"'0.exp_avg' has the shape \(16, 16\).*\(16, 32\)"),
             (whole.replace(b"0.exp_avg", b"z.exp_avg"), terrace.InvalidArgument, "no optimizer that could be read"),
             (whole.replace(b'"0.exp_avg"', b'"-.exp_avg"'), terrace.InvalidArgument, "could be read"),
             (whole.replace(b"[0.9, 0.999]", b"1.2345678901"), terrace.InvalidArgument,
              r"model\.optimizer\.safetensors is not of this optimizer: 'betas' of its group 0 is 1\.23.*\(0\.9, 0\.999\)"),
             (whole[:-1], terrace.InvalidArgument, "cut off")]
    for content, error, said in cases:
        beside.unlink(missing_ok=True)
        if content is not None:
            beside.write_bytes(content)
        with pytest.raises(error, match=said):
            terrace.torch.load(path, model, optimizer)
        assert_same(weights(model), before)
        assert all(torch.equal(state["exp_avg"], moments[number])
                   for number, state in enumerate(optimizer.state.values()))
    beside.write_bytes(whole)
    terrace.torch.load(path, model, optimizer)
    assert not torch.equal(weights(model)["positions"], before["positions"])


def test_an_optimizer_that_files_cannot_hold_changes_none(tmp_path):
    """By the group's number and the key; neither file is touched."""
    model, optimizer = build(RECIPE)
    train(model, optimizer, RECIPE)
    path = tmp_path / "model.safetensors"
    terrace.torch.save(path, model, optimizer)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    train(model, optimizer, RECIPE, begin=3)
    first = next(iter(optimizer.state.values()))
    for holder, value, said in (
            (optimizer.param_groups[1], {1, 2}, "'odd' of its parameter group 1 is of type set.*JSON"),
            (optimizer.param_groups[0], torch.ones(2), "'odd' of its parameter group 0 is of type Tensor.*JSON"),
            (first, object(), "'odd' of its state of parameter 0 is of type object.*JSON"),
            (first, torch.zeros(2, dtype=torch.complex128), r"'0\.odd' is of torch\.complex128, which safetensors has no")):
        holder["odd"] = value
        with pytest.raises(terrace.InvalidArgument, match=said):
            terrace.torch.save(path, model, optimizer)
        assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
        del holder["odd"]
    terrace.torch.save(path, model, optimizer)
    assert {one.name for one in tmp_path.iterdir()} == set(before)


def test_a_name_that_files_have_other_use_of(roomy, tmp_path):
    """No file is touched, whichever way it would be written."""
    model = nn.Linear(8, 8)
    model.register_buffer("__metadata__", torch.ones(4))
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    for save in (lambda: terrace.torch.save(path, model),
                 lambda: safetensors.torch.save_file(dict(model.state_dict()), path)):
        with pytest.raises(terrace.InvalidArgument, match="a tensor is named '__metadata__'.*give the tensor another one"):
            save()
        assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"before"]
    del model.__metadata__
    terrace.torch.save(path, model)
    assert set(safetensors.torch.load_file(path)) == {"weight", "bias"}


def test_pickling_of_other_kinds(roomy):
    """Python's own, the old format of torch.save(), deep copies, and storages that somebody looks into."""
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = nn.Parameter(torch.arange(64, dtype=torch.int16), requires_grad=False)
            self.transposed = nn.Parameter(torch.randn(8, 16, dtype=torch.bfloat16).t())

    model = Mixed()
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    state = dict(model.state_dict())
    old = io.BytesIO()
    torch.save(state, old, _use_new_zipfile_serialization=False)
    old.seek(0)
    for copied in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state), torch.load(old)):
        assert_same(copied, wanted)
        assert all(type(value) is torch.Tensor for value in copied.values())
        assert copied["transposed"].stride() == (1, 16)
    storage = state["whole"].untyped_storage()
    other = state["transposed"].untyped_storage()
    assert storage.nbytes() == len(storage) == 128 and storage.data_ptr() != other.data_ptr()
    assert storage.tolist() == list(wanted["whole"].untyped_storage()) and storage[2] == 1
    storage[0] = 9
    assert model.whole[0].item() == 9
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.empty(0, dtype=torch.uint8).set_(storage, 0, (128,), (1,))


def test_what_another_process_is_sent(roomy, tmp_path):
    """By a queue, and as an argument of its own: ordinary tensors."""
    model, optimizer = build(RECIPE)
    terrace.torch.offload(model, optimizer, client=roomy, tensor_bytes_min=1)
    loss_of(model, 0).backward()
    optimizer.step()
    context = torch.multiprocessing.get_context("spawn")
    wanted = weights(model)
    queue = context.SimpleQueue()
    queue.put([model.state_dict(), model.norm.weight])
    copied, parameter = queue.get()
    assert_same(copied, wanted)
    assert type(parameter) is nn.Parameter and torch.equal(parameter, wanted["norm.weight"])
    writer = context.Process(target=torch.save, args=([model.state_dict(), optimizer.state_dict()], tmp_path / "sent.pt"))
    writer.start()
    writer.join()
    copied, states = torch.load(tmp_path / "sent.pt")
    assert_same(copied, wanted)
    assert torch.equal(states["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_a_summary(roomy):
    model, optimizer = terrace.torch.offload(*build(RECIPE), client=roomy, tensor_bytes_min=256)
    train(model, optimizer, RECIPE)
    said = terrace.torch.summary(model)
    assert sum(one.nbytes for one in said.modules) == said.nbytes > 0 and said.kept == []
    by_name = {one.name: one for one in said.modules}
    assert by_name["blocks.0.wide"].nbytes == 4 * (32 * 128 + 128) * 4
    assert by_name["blocks.0.wide"].leases > 0 and by_name["blocks.0.wide"].wait_seconds > 0
    assert ("norm.weight", "smaller than 256 bytes") in said.left_alone
    kept = model.head.weight.view(-1)
    said = terrace.torch.summary(model)
    assert said.kept == ["embedding.weight"] and said.leased_bytes > 0
    assert "kept leased by references of the script: embedding.weight" in str(said)
    assert "blocks.0.wide " in str(said) and "norm.weight (smaller than 256 bytes)" in str(said)
    del kept
    with pytest.raises(terrace.FailedPrecondition, match="was not offloaded"):
        terrace.torch.summary(nn.Linear(1, 1))
    loss_of(model, 0)

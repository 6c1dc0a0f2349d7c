# SPDX-License-Identifier: Apache-2.0
"""Shows that what="auto" sends to Terrace what there is no room for where the model is, states first, and says so in a line;
that it leaves alone what fits; that step="auto" picks the device or the host by the room, the link and the CPU's time, and says
why; and that the bits are those of plain PyTorch whatever they choose."""

import gc

import pytest
import terrace.torch
import torch
from held_fixtures import held  # noqa: F401 (a fixture)
from model_fixtures import (  # noqa: F401 (fixtures)
    Recipe,
    assert_same,
    build,
    in_terrace,
    loss_of,
    nothing_stays_leased,
    restless,
    roomy,
    train,
    weights,
)
from pytorch_optimizer import Lookahead
from terrace.torch._device import free
from terrace.torch._device.link import Link
from terrace.torch._offload import auto
from terrace.torch._offload.needs import made_already
from terrace.torch._offload.where import StepCosts, choose_on_cpu, choose_on_gpu
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")

CPU = torch.device("cpu")


@pytest.fixture
def has_free(monkeypatch):
    """Sets how many bytes are free, as far as auto asks."""
    return lambda size: monkeypatch.setattr(auto, "free_bytes", lambda device, tiers: 2 * size + 1)


def bytes_of(model):
    return sum(one.nbytes for one in model.parameters())


# Free memory, in units of the parameters' bytes; gradients take one of them, and Adam's states two.
@pytest.mark.parametrize(("units", "what", "said"), [
    (3, set(), "all stays where the model is"), (2.9, {"states"}, "states ("), (1, {"states"}, "states ("),
    (0.9, {"parameters", "gradients", "states"}, "all of the job")])
def test_what_goes(restless, has_free, capfd, units, what, said):
    plain, plain_optimizer = build(Recipe())
    model, optimizer = build(Recipe())
    losses = train(plain, plain_optimizer, Recipe())
    has_free(int(units * bytes_of(model)))
    assert terrace.torch.offload(model, optimizer, client=restless, what="auto") == (model, optimizer)
    line = capfd.readouterr().err
    assert line.startswith(f"terrace.torch.offload: Gpt: {said}") and line.count("\n") == 1
    assert train(model, optimizer, Recipe()) == losses
    assert_same(weights(model), weights(plain))
    parameter = model.blocks[0].wide.weight
    assert in_terrace(parameter) == ("parameters" in what)
    assert in_terrace(optimizer.state[parameter]["exp_avg"]) == ("states" in what)


@pytest.mark.parametrize(("options", "what"), [
    ({"step_in_backward": True}, {"parameters", "gradients", "states"}), ({}, {"states"})])
def test_what_else_was_asked_for(restless, has_free, options, what):
    model, optimizer = build(Recipe())
    has_free(2 * bytes_of(model))
    terrace.torch.offload(model, optimizer, client=restless, what="auto", **options)
    assert in_terrace(model.blocks[0].wide.weight) == ("parameters" in what)


def test_what_is_there_already_takes_no_more(restless, has_free):
    """A run that is resumed, with gradients and states in memory, chooses as it did without."""
    chosen = {}
    for made in (False, True):
        model, optimizer = build(Recipe())
        has_free(2.9 * bytes_of(model))
        if made:
            loss_of(model, 0).backward()
            optimizer.step()
            there = made_already(model, [optimizer])
            has_free(2.9 * bytes_of(model) - (there.gradients + there.states) / 2)
        terrace.torch.offload(model, optimizer, client=restless, what="auto")
        train(model, optimizer, Recipe(steps=1))
        chosen[made] = in_terrace(optimizer.state[model.blocks[0].wide.weight]["exp_avg"])
    assert chosen == {False: True, True: True}


def test_models_do_not_get_the_same_room(restless, has_free, capfd):
    """What one that was left is yet to make counts, until it is there, or the model is gone."""
    first, second = build(Recipe()), build(Recipe())
    has_free(4 * bytes_of(first[0]))
    terrace.torch.offload(*first, client=restless, what="auto")
    terrace.torch.offload(*second, client=restless, what="auto")
    assert ["all stays" in line for line in capfd.readouterr().err.splitlines()] == [True, False]
    train(*first, Recipe(steps=1))
    del first
    gc.collect()
    third = build(Recipe())
    terrace.torch.offload(*third, client=restless, what="auto")
    assert "all stays" in capfd.readouterr().err


def test_what_was_left_and_moved_since_takes_no_room(restless, has_free, capfd):
    first, second = build(Recipe()), build(Recipe())
    has_free(4 * bytes_of(first[0]))
    terrace.torch.offload(*first, client=restless, what="auto")
    terrace.torch.offload(*first, client=restless, what="all")
    terrace.torch.offload(*second, client=restless, what="auto")
    assert ["all stays" in line for line in capfd.readouterr().err.splitlines()] == [True, True]


def test_what_a_daemon_may_yet_take_is_not_free(restless, roomy, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(auto, "free_bytes", lambda device, tiers: asked.append(tiers) or 1 << 40)
    for client in (restless, roomy, None):
        terrace.torch.offload(*build(Recipe()), client=client, what="auto")
    assert asked[:2] == [free.Tiers(32 << 20, False), free.Tiers(64 << 20, True)]
    assert free._available(1 << 60) == 0 and free._available(0) > 0
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("shmem 200\ninactive_file 150\n")
    assert [free._free_in(tmp_path, size) for size in (0, 200, 300, 9000)] == [450, 450, 350, 0]


def test_reports_of_what_stays(has_free, capfd):
    has_free(1 << 40)
    model, optimizer = build(Recipe())
    terrace.torch.offload(model, optimizer, what="auto")  # without a daemon
    assert "parameters stay in the process's memory: " in str(said := terrace.torch.summary(model)) and said.nbytes == 0
    terrace.torch.progress(model)
    assert train(model, optimizer, Recipe())
    assert capfd.readouterr().out == ""
    with pytest.raises(terrace.FailedPrecondition, match="was not offloaded"):
        terrace.torch.summary(build(Recipe())[0])


def test_an_optimizer_in_a_wrapper_has_its_states_counted_once():
    model = nn.Linear(64, 64)
    optimizer = Lookahead(torch.optim.AdamW(model.parameters()))
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    of_both = [optimizer, optimizer.optimizer]
    assert made_already(model, of_both).states >= 2 * bytes_of(model)
    assert made_already(model, [optimizer, *of_both]) == made_already(model, of_both)


def test_masters_are_in_terrace(restless, has_free, capfd):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    has_free(1 << 30)
    terrace.torch.offload(model, optimizer, client=restless, what="auto", masters=torch.float32)
    assert "states and masters" in capfd.readouterr().err
    model(torch.ones(2, 64, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    assert optimizer.state[model[0].weight]["exp_avg"].dtype == torch.float32


def test_what_init_built_is_there(restless, has_free):
    has_free(1 << 40)
    with terrace.torch.init(client=restless):
        model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    terrace.torch.offload(model, optimizer, what="auto")
    assert in_terrace(model.weight)


def test_another_optimizer_for_a_model_that_is_offloaded(restless, has_free):
    has_free(0)
    model, optimizer = build(Recipe())
    terrace.torch.offload(model, optimizer, client=restless, what="auto")
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    terrace.torch.offload(model, other, client=restless, what="auto")
    assert train(model, other, Recipe())


@pytest.mark.parametrize(("said", "what"), [
    (None, set()), ("auto", set()), ("all", {"parameters", "states"}), ("states", {"states"}),
    ("parameters, gradients", {"parameters"})])
def test_what_goes_where_the_script_does_not_say(restless, has_free, monkeypatch, said, what):
    has_free(1 << 40)
    monkeypatch.delenv("TERRACE_WHAT")
    if said is not None:
        monkeypatch.setenv("TERRACE_WHAT", said)
    model, optimizer = build(Recipe())
    terrace.torch.offload(model, optimizer, client=restless)
    train(model, optimizer, Recipe(steps=1))
    parameter = model.blocks[0].wide.weight
    assert in_terrace(parameter) == ("parameters" in what)
    assert in_terrace(optimizer.state[parameter]["exp_avg"]) == ("states" in what)


def test_what_the_environment_cannot_say(restless, monkeypatch):
    model, optimizer = build(Recipe())
    for wrong in ("", "everything", "states,weights"):
        monkeypatch.setenv("TERRACE_WHAT", wrong)
        with pytest.raises(terrace.InvalidArgument, match=f"TERRACE_WHAT is '{wrong}'; it is 'auto', 'all'"):
            terrace.torch.offload(model, optimizer, client=restless)
    monkeypatch.setenv("TERRACE_WHAT", "states")
    with pytest.raises(terrace.InvalidArgument, match=r"no optimizer is given .*\(what is 'states' by the environment's TERRACE_WHAT"):
        terrace.torch.offload(model, client=restless)


def test_what_no_caller_can_say(restless):
    model, optimizer = build(Recipe())
    for wrong in (5, b"all"):
        with pytest.raises(TypeError, match=f"what is {wrong!r}; it is 'auto', 'all'"):
            terrace.torch.offload(model, optimizer, client=restless, what=wrong)
    with pytest.raises(terrace.InvalidArgument, match="what has 'all' in a set: give what='all' by itself"):
        terrace.torch.offload(model, optimizer, client=restless, what={"all"})


def test_a_client_or_a_place_that_cannot_be_had_is_refused_though_all_stays(restless, has_free):
    has_free(1 << 40)
    model, optimizer = build(Recipe())
    for error, options, said in (
            (TypeError, {"client": "x"}, "client is 'x'"), (TypeError, {"place": 5}, "place"),
            (terrace.InvalidArgument, {"place": "nonsense", "client": restless}, "nonsense")):
        with pytest.raises(error, match=said):
            terrace.torch.offload(model, optimizer, what="auto", **options)
    terrace.torch.offload(model, optimizer, client=restless, what="states")
    with pytest.raises(terrace.FailedPrecondition, match="is as the first call has chosen"):
        terrace.torch.offload(model, optimizer, client=restless, what="all")


def test_bad_input_is_refused_before_anything_is_chosen(restless, has_free):
    has_free(1 << 40)
    model, optimizer = build(Recipe())
    with pytest.raises(terrace.InvalidArgument, match="step_in_backward=True needs the optimizer"):
        terrace.torch.offload(model, client=restless, what="auto", step_in_backward=True)
    for options, said in (({"what": {"auto"}}, "what has 'auto'"), ({"what": "auto", "masters": torch.float32}, "masters=")):
        with pytest.raises(terrace.InvalidArgument, match=said):
            terrace.torch.offload(model, optimizer, client=restless, **options)


def test_free_memory_is_the_least_that_any_cgroup_leaves(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert free._free_in(tmp_path) == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert free._free_in(tmp_path) > 1 << 50
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(free, "_available", lambda tier_bytes: 1 << 20)
    assert free.free_bytes(CPU) == 1 << 18
    for wrong in ("0", "-1", "abc", ""):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", wrong)
        with pytest.raises(terrace.InvalidArgument, match=f"LOCAL_WORLD_SIZE is '{wrong}'"):
            free.free_bytes(CPU)


GIB = 1 << 30
SEVEN_BILLION = StepCosts("device:0", gradient_bytes=13 * GIB, weight_bytes=13 * GIB, leased_bytes=104 * GIB, room_bytes=24 * GIB,
                          link=Link(50.0 * GIB, 40.0 * GIB), cpu_seconds=1.0, threads=16)


@pytest.mark.parametrize(("changed", "step", "said"), [
    ({}, "host", "a step takes 1.6 s (0.26 s for gradients to come down, 1 s on 16 threads, 0.33 s for weights to go up), and for "
                 "a step on the GPU its link takes 2 s (80 GiB each way, at 40 GiB/s)"),
    ({"cpu_seconds": 2.0}, "device", "2 s on 16 threads"),  # as few cores take
    ({"link": Link(100.0 * GIB, 90.0 * GIB)}, "device", "its link takes 0.89 s"),
    ({"link": Link(10.0 * GIB, 8.0 * GIB)}, "host", "its link takes 10 s"),
    ({"room_bytes": 64 * GIB}, "device", "40 GiB each way"),
    ({"room_bytes": 104 * GIB, "link": Link(0.0, 0.0)}, "device", "all that a step is at (104 GiB) has room in device:0"),
], ids=str)
def test_which_step_a_gpu_has(changed, step, said):
    where = choose_on_gpu(SEVEN_BILLION._replace(**changed))
    assert where.step == step and said in where.why


@pytest.mark.parametrize(("leased", "step", "said"), [
    (4 * GIB, "device", "waits for nothing"), (4 * GIB + 1, "host", "waits for them while that computes")])
def test_which_step_the_cpu_has(leased, step, said):
    where = choose_on_cpu(leased, 4 * GIB, "host")
    assert where.step == step and said in where.why


class Derived(torch.optim.AdamW):
    """A user's own, which is not tried, and may do more."""


@pytest.mark.parametrize(("kind", "guarantee", "step", "said"), [
    (torch.optim.AdamW, 1 << 20, "host", "GiB of the job are below host"), (torch.optim.AdamW, 24 << 20, "device", "has room in host"),
    (Derived, 1 << 20, "device", "what Derived steps is stepped before step() returns"), (None, 1 << 20, "host", "")], ids=str)
def test_a_step_that_is_picked(held, kind, guarantee, step, said):
    with terrace.Client(held.socket, guarantees={"host": guarantee}) as client:
        recipe = Recipe(width=128, steps=3, kind=kind or torch.optim.AdamW)
        (plain, plain_optimizer), (model, optimizer) = build(recipe), build(recipe)
        if kind is None:
            terrace.torch.offload(model, client=client, step="auto")
            assert not (given := terrace.torch.summary(model)).step and given.step_why == "no optimizer is given"
        terrace.torch.offload(model, optimizer, client=client, step="auto", tensor_bytes_min=1)  # and decides now
        given = terrace.torch.summary(model)
        assert given.step == step and said in given.step_why and f"step='{step}': {given.step_why}" in str(given)
        assert train(model, optimizer, recipe) == train(plain, plain_optimizer, recipe)
        assert_same(weights(model), weights(plain))

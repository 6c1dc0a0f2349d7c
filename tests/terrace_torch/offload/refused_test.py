# SPDX-License-Identifier: Apache-2.0
"""Shows that what terrace.torch cannot do is refused by name, with what works in its place, and that the model is then
as it was: optimizers, casts, shapes, memory that is not there, a daemon that is not there, forks."""

import os
import warnings

import pytest
import terrace.torch
import torch
from model_fixtures import RECIPE, Recipe, assert_same, build, loss_of, roomy, train, weights  # noqa: F401
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)
from torch import nn


@pytest.fixture(autouse=True)
def nothing_stays(roomy):
    yield
    assert roomy.leased_bytes == 0 and roomy.held == 0 and not roomy.tensors()


def offloaded(client, **options):
    return terrace.torch.offload(*build(RECIPE), client=client, tensor_bytes_min=1, **options)


class Clipping(torch.optim.Optimizer):
    """Descends by gradients that it divides by the norm of all of them."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        gradients = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
        norm = torch.stack([one.square().sum() for one in gradients]).sum().sqrt()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad / norm, alpha=group["lr"])


@pytest.mark.parametrize("make, said", [
    (Clipping, r"came to other numbers than one that stepped them together \(after step 1 a parameter of shape"),
    (torch.optim.LBFGS, "since it searches along a line over all of them")], ids=["Clipping", "LBFGS"])
def test_optimizers_that_do_not_treat_parameters_one_by_one(roomy, make, said):
    model, _ = build(RECIPE)
    before = weights(model)
    with pytest.raises(terrace.InvalidArgument, match=rf"{make.__name__} does not treat its parameters one by one.*{said}.*"
                       r"use offload\(model, what='all'\)"):
        terrace.torch.offload(model, make(model.parameters()), client=roomy)
    assert_same(weights(model), before)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


@pytest.mark.parametrize("make", [Clipping, torch.optim.LBFGS], ids=lambda made: made.__name__)
def test_they_work_beside_an_offloaded_model(roomy, make):
    """Without them parameters and gradients are in Terrace, and the weights are the same bits."""
    def matrices():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.GELU(), nn.Linear(64, 64, bias=False))
        return model, make(model.parameters())

    found = []
    for client in (None, roomy):
        model, optimizer = matrices()
        if client is not None:
            terrace.torch.offload(model, client=client)
        for number in range(3):
            def closure(number=number, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                x = torch.randn(8, 64, generator=torch.Generator().manual_seed(number))
                loss = model(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        found.append(weights(model))
    assert_same(*found)


def test_what_is_no_optimizer_or_no_module(roomy):
    model, optimizer = build(RECIPE)
    with pytest.raises(terrace.InvalidArgument, match="Gpt is no torch.optim.Optimizer"):
        terrace.torch.offload(model, model, client=roomy)
    with pytest.raises(terrace.InvalidArgument, match="differentiable=True"):
        terrace.torch.offload(model, torch.optim.AdamW(model.parameters(), differentiable=True), client=roomy)
    with pytest.raises(TypeError, match="model is AdamW; it is a torch.nn.Module"):
        terrace.torch.offload(optimizer, client=roomy)
    with pytest.raises(TypeError, match="client is .*; it is a terrace.Client"):
        terrace.torch.offload(model, client=terrace.serve("4MiB"))
    with pytest.raises(terrace.InvalidArgument, match="place is 'attic'; this session can lease in host$"):
        terrace.torch.offload(model, client=roomy, place="attic")
    with pytest.raises(terrace.InvalidArgument, match="tensor_bytes_min is -1"):
        terrace.torch.offload(model, client=roomy, tensor_bytes_min=-1)
    for name, wrong in (("step_in_backward", "yes"), ("share_frozen", 2)):
        with pytest.raises(TypeError, match=f"offload: {name} is {wrong!r}; it is True or False"):
            terrace.torch.offload(model, optimizer, client=roomy, **{name: wrong})
    with pytest.raises(TypeError, match="timeout is None"):
        terrace.torch.offload(model, client=roomy, timeout=None)
    with pytest.raises(terrace.InvalidArgument, match="'weight' is on meta"):
        terrace.torch.offload(nn.Linear(64, 64, device="meta"), client=roomy)
    with pytest.raises(terrace.InvalidArgument, match="'weight' has no shape yet"):
        terrace.torch.offload(nn.LazyLinear(64), client=roomy)
    compiled = nn.Linear(64, 64)
    compiled.compile()
    with pytest.raises(terrace.InvalidArgument, match="compiled in place"):
        terrace.torch.offload(compiled, client=roomy)


class Decorated(nn.Sequential):
    @torch.compile(backend="eager")
    def forward(self, x):
        return super().forward(x)


def with_forward(module, change):
    module.forward = change(module.forward)
    return module


def eagerly(compiled):
    return torch.compile(compiled, backend="eager")


@pytest.mark.parametrize("make", [
    lambda: with_forward(nn.Sequential(nn.Linear(64, 64)), eagerly), lambda: Decorated(nn.Linear(64, 64)),
    lambda: with_forward(nn.TransformerEncoderLayer(64, 2, 64), eagerly)], ids=["assigned", "decorated", "layer"])
def test_a_compiled_forward_over_modules(roomy, make):
    """What runs modules in compiled code, that would lease there."""
    model = nn.Sequential(nn.Linear(64, 64), make())
    with pytest.raises(terrace.InvalidArgument, match=r"forward of the module '1' is compiled.*torch\.compile\(module\)"):
        terrace.torch.offload(model, client=roomy)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


@pytest.mark.parametrize("make", [
    lambda: with_forward(nn.Linear(64, 64), eagerly), lambda: eagerly(nn.Sequential(nn.Linear(64, 64))),
    lambda: eagerly(nn.Sequential(with_forward(nn.Linear(64, 64), eagerly))),
    lambda: with_forward(nn.Sequential(nn.Linear(64, 64)), torch.compiler.disable),
    lambda: with_forward(nn.Sequential(nn.Linear(4, 4)), eagerly)], ids=["leaf", "place", "both", "disabled", "small"])
def test_a_compiled_forward_under_which_nothing_leases(make):
    torch.manual_seed(1)
    model = nn.Sequential(make(), nn.ReLU())
    x = torch.ones(2, list(model.parameters())[-1].shape[-1])
    wanted = model(x)
    with terrace.serve("64MiB", metrics=False) as client:  # of its own: PyTorch keeps what it has compiled
        terrace.torch.offload(model, client=client)
        assert torch.equal(model(x), wanted)
        model(x).sum().backward()


def test_a_compiled_function_around_a_model():
    model = nn.Sequential(nn.Linear(64, 64))
    with terrace.serve("64MiB", metrics=False) as client:
        terrace.torch.offload(model, client=client)
        with pytest.raises(terrace.FailedPrecondition, match=r"a function that runs it.*torch\.compile\(module\)"):
            eagerly(lambda x: model(x))(torch.ones(2, 64))


def test_twice(roomy):
    model, optimizer = offloaded(roomy)
    with pytest.raises(terrace.FailedPrecondition, match="this model is offloaded already"):
        terrace.torch.offload(model, client=roomy)
    with pytest.raises(terrace.FailedPrecondition, match="this optimizer is offloaded already.*ModuleList"):
        terrace.torch.offload(nn.Linear(64, 64), optimizer, client=roomy)


@pytest.mark.parametrize("cast", [
    lambda model: model.to(torch.bfloat16), lambda model: model.half(), lambda model: model.double(),
    lambda model: model.to("meta"), lambda model: model.blocks[0].to(torch.float64)])
def test_moving_or_casting_afterwards(roomy, cast):
    model, optimizer = offloaded(roomy)
    before = weights(model)
    with pytest.raises(terrace.FailedPrecondition, match=r"the parameter '[\w.]+' lives in Terrace.*before terrace"):
        cast(model)
    assert_same(weights(model), before)
    model.to("cpu").float()  # nothing to do
    loss_of(model, 0).backward()
    optimizer.step()


def test_swapping_parameters(roomy):
    """As PyTorch does on request, in loading and moving; PyTorch collects the errors of loading."""
    model, _ = offloaded(roomy)
    before = weights(model)
    other = {name: value + 1 for name, value in before.items()}
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        said = r"'embedding.weight' lives in Terrace, and another.*set_swap_module_params_on_conversion\(False\)"
        with pytest.raises(RuntimeError, match=said):
            model.load_state_dict(other)
        with pytest.raises(terrace.FailedPrecondition, match=said):
            model.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert_same({name: value for name, value in weights(model).items() if name != "scale"},
                {name: value for name, value in before.items() if name != "scale"})
    model.load_state_dict(other)
    assert_same(weights(model), other)


def test_an_optimizer_of_another_model(roomy):
    model, other = nn.Linear(16, 16), nn.Linear(16, 16)
    with pytest.warns(UserWarning, match="none of this model's parameters"):
        terrace.torch.offload(model, torch.optim.SGD(other.parameters()), client=roomy, tensor_bytes_min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        terrace.torch.offload(other, torch.optim.SGD([other.bias]), client=roomy, tensor_bytes_min=1)


def test_a_reentrant_checkpoint_that_is_given_another_modules_weight(roomy):
    model, optimizer = offloaded(roomy)
    weight = next(model.parameters())

    def run(x, given):
        return (x * given.sum()).sum()

    x = torch.ones(4, requires_grad=True)
    with pytest.raises(terrace.FailedPrecondition, match="use_reentrant=False"):
        torch.utils.checkpoint.checkpoint(run, x, weight, use_reentrant=True).backward()
    optimizer.zero_grad()
    torch.utils.checkpoint.checkpoint(run, x, weight, use_reentrant=False).backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 4.0))


def test_resizing_behind_our_back(roomy):
    model, optimizer = offloaded(roomy)
    before = weights(model)
    weight = model.blocks[0].wide.weight
    with pytest.raises(terrace.FailedPrecondition, match=r"'blocks.0.wide.weight' lives in Terrace as \(128, 32\)"):
        weight.data = torch.zeros(64, 32, dtype=torch.float16)
    with pytest.raises(terrace.FailedPrecondition, match=r"'blocks.0.wide.weight'.*another shape"), torch.no_grad():
        weight.requires_grad_(False).resize_(64, 32)
    with pytest.raises(terrace.FailedPrecondition, match=r"'blocks.0.wide.weight'.*another shape"):
        weight.data.resize_(64, 32)
    assert weight.shape == (128, 32)
    assert_same(weights(model), before)
    loss_of(model, 0).backward()
    optimizer.step()


def test_a_parameter_that_is_replaced_is_named(roomy):
    model, optimizer = offloaded(roomy)
    model.blocks[0].wide.weight = nn.Parameter(torch.ones(128, 32))
    loss_of(model, 0).backward()
    with pytest.warns(UserWarning, match="'blocks.0.wide.weight' was replaced.*not in Terrace"):
        optimizer.step()
    assert model.blocks[0].wide.weight.grad is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()  # said once


def test_a_state_dict_of_another_shape(roomy):
    model, optimizer = offloaded(roomy)
    before = weights(model)
    other, _ = build(Recipe(width=16))
    with pytest.raises(RuntimeError, match="size mismatch for embedding.weight"):
        model.load_state_dict(other.state_dict())
    assert list(before) == list(weights(model))
    train(model, optimizer, RECIPE)


def test_a_write_that_nobody_could_see_is_an_error_and_no_wrong_number(roomy):
    """What autograd keeps of a checkpointed block is not expected to be written to."""
    model, _ = offloaded(roomy)
    managed = model.norm.weight.terrace
    managed.version -= 1
    with pytest.raises(terrace.FailedPrecondition, match="'norm.weight' was written to while it was not leased"):
        loss_of(model, 0)
    managed.version += 1
    loss_of(model, 0).backward()


def test_gradients_as_views_of_buckets(roomy, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model, _ = build(RECIPE)
        wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        with pytest.raises(terrace.InvalidArgument, match="gradient_as_bucket_view=True"):
            terrace.torch.offload(wrapped, client=roomy)
        del wrapped
        plain, plain_optimizer = build(RECIPE)
        wanted = train(nn.parallel.DistributedDataParallel(plain), plain_optimizer, RECIPE)
        model, optimizer = build(RECIPE)
        terrace.torch.offload(nn.parallel.DistributedDataParallel(model), optimizer, client=roomy)
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert train(wrapped, optimizer, RECIPE) == wanted
        assert_same(weights(model), weights(plain))
        del wrapped
    finally:
        torch.distributed.destroy_process_group()


def test_no_daemon(monkeypatch, tmp_path):
    monkeypatch.setenv("TERRACE_SOCKET", str(tmp_path / "nobody.sock"))
    model, optimizer = build(RECIPE)
    with pytest.raises(terrace.Unavailable, match="terraced"):
        terrace.torch.offload(model, optimizer)
    loss_of(model, 0).backward()
    optimizer.step()


@pytest.mark.parametrize("blocks", [4, 12])
def test_a_daemon_that_is_too_small(blocks):
    """For the parameters, or for the states alone: the model is as it was."""
    recipe = Recipe(width=64, blocks=blocks)
    with terrace.serve("4MiB", metrics=False) as client:
        model, optimizer = build(recipe)
        for _ in range(2):
            train(model, optimizer, Recipe(steps=1))
        before = weights(model)
        size = sum(parameter.nbytes for parameter in model.parameters())
        filled = client.create("other", 4 * MIB - size * 5 // 2, "uint8") if blocks == 4 else None
        with pytest.raises(terrace.ResourceExhausted):
            terrace.torch.offload(model, optimizer, client=client)
        assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
        assert all(type(value) is torch.Tensor for state in optimizer.state.values() for value in state.values())
        assert_same(weights(model), before)
        assert list(client.tensors()) == (["other"] if filled is not None else []) and client.leased_bytes == 0
        train(model, optimizer, Recipe(steps=1))


def test_memory_that_ends_while_states_are_moved(roomy, monkeypatch):
    plain, ours = build(RECIPE), build(RECIPE)
    assert train(*ours, RECIPE) == train(*plain, RECIPE)
    left = len(list(ours[0].parameters())) + 3  # all parameters, and some states
    acquire = roomy._acquire

    def acquire_some(tensors, mode, *options):
        nonlocal left
        left -= mode == "overwrite"
        if mode == "overwrite" and left < 0:
            raise terrace.ResourceExhausted("no more, on purpose")
        return acquire(tensors, mode, *options)

    with monkeypatch.context() as patched, pytest.raises(terrace.ResourceExhausted, match="no more"):
        patched.setattr(roomy, "_acquire", acquire_some)
        terrace.torch.offload(*ours, client=roomy, tensor_bytes_min=1)
    assert left < 0
    assert train(*ours, RECIPE, begin=3) == train(*plain, RECIPE, begin=3)
    assert_same(weights(ours[0]), weights(plain[0]))


def test_a_module_that_is_too_large(disk):
    """More than a session's guarantee: one warning, with the number; more than there is: an error, with the number."""
    with terrace.serve("8MiB", block=f"{disk}:128MiB", metrics=False) as client:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(1024, 1280, bias=False))
        with pytest.warns(UserWarning, match=r"the module '1' leases 5242880 bytes.*guarantees=\{'host': 5 << 20\}"):
            terrace.torch.offload(model, client=client)
        model[1](torch.zeros(1, 1024)).sum().backward()
        large = nn.Sequential(nn.Linear(64, 64), nn.Linear(1024, 2560, bias=False))
        with pytest.raises(terrace.ResourceExhausted, match="1.weight' of 10485760 bytes fits no place"):
            terrace.torch.offload(large, client=client)
        assert type(large[1].weight) is nn.Parameter
        large = nn.Sequential(nn.Linear(64, 64), nn.LSTM(512, 512))
        with pytest.raises(terrace.ResourceExhausted, match=r"the module '1' leases 8404992.*at least 9 MiB"):
            terrace.torch.offload(large, client=client)
        assert type(large[1].weight_hh_l0) is nn.Parameter
        large = eagerly(nn.Sequential(*(nn.Linear(1024, 512, bias=False) for _ in range(5))))
        with pytest.raises(terrace.ResourceExhausted, match=r"the model, which torch\.compile made one module "
                           r"\(compile its blocks instead\), leases 10485760 bytes at once.*at least 10 MiB"):
            terrace.torch.offload(large, client=client)
        with pytest.raises(terrace.ResourceExhausted, match=r"the module '1', which torch\.compile made one module "
                           r"\(compile its blocks instead\), leases 10485760 bytes"):
            terrace.torch.offload(nn.Sequential(nn.Linear(64, 64), large), client=client)
        large = nn.LSTM(512, 512)
        with pytest.raises(terrace.ResourceExhausted, match="the model leases 8404992.*make the module smaller"):
            terrace.torch.offload(large, client=client)
        large = nn.Linear(1024, 1024, bias=False)
        with pytest.raises(terrace.ResourceExhausted, match=r"the optimizer's step on 'weight' leases 16777216"):
            terrace.torch.offload(large, torch.optim.AdamW(large.parameters()), client=client)


def test_a_fork_is_named(roomy):
    model, optimizer = offloaded(roomy)
    loss_of(model, 0).backward()
    child = os.fork()
    if not child:
        said = 0
        try:
            for call in (lambda: loss_of(model, 1), lambda: model.head.weight.sum(), optimizer.step,
                         lambda: model.norm.weight.grad.sum()):
                try:
                    call()
                except terrace.FailedPrecondition as error:
                    said += "fork" in str(error)
        finally:
            os._exit(said)  # whatever happens, the child runs no tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    optimizer.step()
    loss_of(model, 1).backward()


def test_a_session_that_is_closed():
    with terrace.serve("64MiB", metrics=False) as client:
        model, _ = offloaded(client)
    with pytest.raises(terrace.Error):
        loss_of(model, 0)


def test_other_memory(roomy):
    model, _ = offloaded(roomy)
    loss_of(model, 0).backward()
    weight = model.blocks[0].wide.weight
    before, gradient = weights(model), weight.grad.clone()
    for tensor in (weight, weight.data, weight.grad):
        with torch.no_grad(), pytest.raises(terrace.FailedPrecondition,
                                            match=r"'blocks.0.wide.weight.* lives in Terrace.*other memory.*copy_\(\)"):
            tensor.set_(torch.zeros_like(weight))
    assert_same(weights(model), before)
    assert torch.equal(weight.grad, gradient)
    with torch.no_grad():
        assert weight.set_(weight) is weight, "its own"
    assert torch.equal(torch.empty(0).set_(weight.detach()), weight), "of another tensor it does what it did"


def test_another_memory_format(roomy):
    """Kernels are chosen by it, and bits follow from that."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(576, 4))
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    before = weights(model)
    with pytest.raises(terrace.FailedPrecondition, match=r"'0.weight' lives in Terrace with strides \(27, 9, 3, 1\).*before"):
        model.to(memory_format=torch.channels_last)
    assert_same(weights(model), before)
    other = nn.Conv2d(3, 16, 3).to(memory_format=torch.channels_last)
    terrace.torch.offload(other, client=roomy, tensor_bytes_min=1)
    for again in (model.float(), model.cpu(), other.to(memory_format=torch.channels_last), other.to("cpu")):
        again(torch.randn(1, 3, 8, 8))
    assert other.weight.stride() == (27, 1, 9, 3)


def test_arguments_of_another_kind_are_named(roomy, tmp_path):
    """Each call, before it does anything."""
    calls, path = terrace.torch, tmp_path / "file"
    model, optimizer = offloaded(roomy)
    for said, call in (("offload: model is None; it is a torch.nn.Module", lambda: calls.offload(None, client=roomy)),
                       ("summary: model is 5; it is a torch.nn.Module, or None", lambda: calls.summary(5)),
                       ("progress: model is None; it is a torch.nn.Module", lambda: calls.progress(None)),
                       ("progress: show is 5; it is a function", lambda: calls.progress(model, show=5)),
                       ("save: model is None; it is a torch.nn.Module", lambda: calls.save(path, None)),
                       ("save: model is OrderedDict; it is", lambda: calls.save(path, model.state_dict())),
                       ("save: optimizer is 5; it is a torch.optim", lambda: calls.save(path, model, 5)),
                       ("save: path is None; it is a str or an os.PathLike", lambda: calls.save(None, model)),
                       ("load: path is b'file'; it is a str", lambda: calls.load(b"file", model)),
                       ("load: model is AdamW; it is", lambda: calls.load(path, optimizer))):
        with pytest.raises(TypeError, match=f"^terrace.torch.{said}"):
            call()
    for said, call in (("save: path is ''; it is a file's path", lambda: calls.save("", model)),
                       ("load: path is '/'; it is a file's path", lambda: calls.load("/", model)),
                       (r"save: path is 'a\\x00b'; .* null", lambda: calls.save("a\0b", model))):
        with pytest.raises(terrace.InvalidArgument, match=f"^terrace.torch.{said}"):
            call()
    assert not list(tmp_path.iterdir())
    loss_of(model, 0).backward()
    optimizer.step()

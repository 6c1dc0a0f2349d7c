# SPDX-License-Identifier: Apache-2.0
"""Shows that what scripts do with models, gradients and optimizers gives, bit for bit, what it gives without Terrace:
weights outside their modules, closures, scaling, saving and loading, evaluation, copies, references that are kept."""

import copy
import io
import itertools
import weakref

import pytest
import torch
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)
from python_torch_models import (
    Gpt,
    Recipe,
    assert_same,
    batch,
    build,
    loss_of,
    train,
    weights,
)
from torch import nn
from torch.nn import functional

import terrace.torch

RECIPE = Recipe()


@pytest.fixture(scope="module")
def client():
    with terrace.serve("64MiB", metrics=False) as served:
        yield served


@pytest.fixture(autouse=True)
def nothing_stays_leased(client):
    yield
    assert client.leased_bytes == 0 and client.held == 0


def both(client, make=build, recipe=RECIPE):
    """The same model and optimizer without Terrace and with it."""
    plain = make(recipe)
    return plain, terrace.torch.offload(*make(recipe), client=client, tensor_bytes_min=1)


def same_for_both(client, run, make=build):
    """Runs a script's lines with both; what they return is equal, as are the weights. Gives the offloaded pair."""
    plain, offloaded = both(client, make)
    torch.manual_seed(7)
    wanted = run(*plain)
    torch.manual_seed(7)
    got = run(*offloaded)
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(wanted, got) and type(got) is torch.Tensor
    else:
        assert wanted == got
    del wanted, got
    assert_same(weights(offloaded[0]), weights(plain[0]))
    return offloaded


def steps(model, optimizer, count=2):
    for number in range(count):
        loss_of(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_several_forwards_before_a_backward(client):
    def run(model, optimizer):
        loss = loss_of(model, 0) + 2 * loss_of(model, 1)
        with torch.no_grad():
            loss_of(model, 2)
        loss.backward()
        optimizer.step()
        return loss.item()

    same_for_both(client, run)


def test_a_graph_that_is_kept(client):
    def run(model, optimizer):
        loss = loss_of(model, 0)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    same_for_both(client, run)


def test_a_step_between_forward_and_backward_is_an_error_as_always(client):
    _, (model, optimizer) = both(client)
    loss = loss_of(model, 0)
    loss_of(model, 1).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation: the parameter '.*' is at version"):
        loss.backward()
    optimizer.zero_grad()
    steps(model, optimizer)


def test_closures(client):
    def run(model, optimizer):
        calls = []

        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = loss_of(model, len(calls))
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(2)], len(calls)

    same_for_both(client, run)


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["foreach", "fused"])
def test_gradient_scaler(client, options):
    def run(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        said = []
        for number in range(5):
            loss = loss_of(model, number)
            scaler.scale(loss).backward()
            if number == 2:
                model.norm.weight.grad.fill_(float("inf"))  # this step is left out
            scaler.unscale_(optimizer)
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            said.append(scaler.get_scale())
        return str(said)

    def make(recipe):
        model, _ = build(recipe)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, **options)

    same_for_both(client, run, make)


def test_gradients_by_hand(client):
    def run(model, optimizer):
        loss_of(model, 0).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
            parameter.grad += 0.25 * parameter.grad
            parameter.grad.data.clamp_(-0.1, 0.1)
        model.norm.weight.grad = model.norm.weight.grad * 3
        model.norm.bias.grad.zero_()
        model.positions.grad = None
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        total = sum(parameter.grad.norm().item() for parameter in model.parameters() if parameter.grad is not None)
        loss_of(model, 1).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert all(not parameter.grad.any() for parameter in model.parameters())
        loss_of(model, 2).backward()
        optimizer.step()
        return total

    same_for_both(client, run)


def test_a_gradient_that_is_kept_stays_what_it_was(client):
    def run(model, optimizer):
        kept = []
        for number in range(4):
            loss_of(model, number).backward()
            kept.append([parameter.grad for parameter in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        return [gradient.double().sum().item() for gradients in kept for gradient in gradients]

    same_for_both(client, run)


def test_an_alias_of_a_gradient_that_is_kept_stays_what_it_was(client):
    def run(model, optimizer):
        kept = []
        for number in range(3):
            loss_of(model, number).backward()
            kept.append(model.head.weight.grad.view(-1)[10:20])
            optimizer.step()
            optimizer.zero_grad()
        return [part.tolist() for part in kept]

    same_for_both(client, run)


def test_gradients_that_are_asked_for(client):
    def run(model, optimizer):
        steps(model, optimizer)
        loss_of(model, 2).backward()
        asked = torch.autograd.grad(loss_of(model, 3), [model.head.weight, model.positions])
        penalty = torch.autograd.grad(loss_of(model, 4), list(model.parameters()), create_graph=True)
        (loss_of(model, 5) + sum(part.square().sum() for part in penalty)).backward()
        optimizer.step()
        return [part.double().sum().item() for part in (*asked, *penalty)]

    same_for_both(client, run)


def test_gradients_with_a_graph(client):
    def run(model, optimizer):
        loss_of(model, 0).backward(create_graph=True)
        norm = sum(parameter.grad.square().sum() for parameter in model.parameters())
        for parameter in model.parameters():
            parameter.grad = None
        norm.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps(model, optimizer)
        return norm.item()

    same_for_both(client, run)


def test_weights_outside_their_modules(client):
    def run(model, optimizer):
        said = []
        for number in range(3):
            penalty = sum(parameter.square().sum() for parameter in model.parameters())
            logits = functional.linear(model.embedding(batch(number)[0]), model.head.weight, model.norm.bias.sum())
            loss = logits.logsumexp(-1).mean() + 0.01 * penalty + loss_of(model, number)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        return said

    same_for_both(client, run)


def test_writing_weights(client):
    def run(model, optimizer):
        steps(model, optimizer)
        with torch.no_grad():
            model.positions.mul_(0.5)
            model.head.weight[3] = 0
            model.norm.weight.copy_(torch.arange(32.0))
            model.norm.weight.view(-1)[4:8].add_(1)
        nn.init.normal_(model.blocks[0].wide.weight)
        model.blocks[1].wide.weight.data.clamp_(-0.01, 0.01)
        model.blocks[2].wide.weight.data = torch.ones(128, 32)
        model.blocks[2].narrow.weight.detach().fill_(0.01)
        data = model.blocks[3].wide.weight.data
        data[0] = 7
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        vector = nn.utils.parameters_to_vector(model.blocks.parameters())
        nn.utils.vector_to_parameters(vector * 1.5, model.blocks.parameters())
        steps(model, optimizer)

    same_for_both(client, run)


def test_writing_weights_within_forward(client):
    """As spectral norms, clipped weights and moving averages do: by the parameter, and behind autograd's back."""

    class Clipped(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            self.bias.data.mul_(0.9)
            if not hasattr(self, "kept"):
                self.kept = self.weight.detach()
            return super().forward(x)

    def make(recipe):
        torch.manual_seed(3)
        model = nn.Sequential(Clipped(32, 32), nn.ReLU(), Clipped(32, 8))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run(model, optimizer):
        said = []
        for _ in range(3):
            loss = model(torch.ones(4, 32)).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
            said.append(model[0].kept.double().sum().item())
            model[0].kept[3] = 1  # written through what was kept, outside
        return said

    offloaded = same_for_both(client, run, make)
    assert client.leased_bytes > 0  # what is kept costs memory
    del offloaded[0][0].kept, offloaded[0][2].kept


def test_a_parameter_that_is_kept_works_wherever_it_is_used(client):
    def run(model, optimizer):
        kept = dict(model.named_parameters())
        view = model.head.weight.detach()
        steps(model, optimizer)
        said = [kept[name].double().sum().item() for name in kept] + [view.double().sum().item()]
        said += model.norm.weight.tolist() + [len(model.norm.weight), float(model.norm.weight[3])]
        said.append(torch.stack([kept["norm.weight"], kept["norm.bias"]]).sum().item())
        said.append(model.norm.weight.numpy(force=True).tolist())
        return said

    same_for_both(client, run)


def test_evaluation_between_steps(client):
    def run(model, optimizer):
        said = []
        for number in range(3):
            loss_of(model, number).backward()
            model.eval()
            with torch.no_grad():
                said.append(loss_of(model, 10).item())
            with torch.inference_mode():
                text = batch(11)[0]
                for _ in range(3):
                    following = model(text)[:, -1].argmax(-1, keepdim=True)
                    text = torch.cat([text[:, 1:], following], 1)
                said.append(text.tolist())
                said.append(model.head.weight.sum().item())
            model.train()
            optimizer.step()
            optimizer.zero_grad()
        return said

    same_for_both(client, run)


def test_freezing_and_unfreezing(client):
    def run(model, optimizer):
        model.blocks.requires_grad_(False)
        steps(model, optimizer)
        model.blocks[0].wide.weight.requires_grad = True
        model.blocks[1].requires_grad_(True)
        steps(model, optimizer)

    same_for_both(client, run)


def test_parameters_frozen_at_first(client):
    def make(recipe):
        model, _ = build(recipe)
        model.blocks.requires_grad_(False)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(model, optimizer):
        steps(model, optimizer)
        model.blocks.requires_grad_(True)
        steps(model, optimizer)

    same_for_both(client, run, make)


def test_a_group_that_is_added(client):
    def make(recipe):
        model, _ = build(recipe)
        return model, torch.optim.SGD(model.blocks.parameters(), lr=1e-2, momentum=0.9)

    def run(model, optimizer):
        steps(model, optimizer)
        optimizer.add_param_group({"params": [model.head.weight], "lr": 1e-3})
        steps(model, optimizer)

    same_for_both(client, run, make)


def test_hooks_of_the_script_run_when_they_would(client):
    def run(model, optimizer):
        said = []

        def clip(stepped, _args, _kwargs):
            said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            said.append([len(group["params"]) for group in stepped.param_groups])

        optimizer.register_step_pre_hook(clip)
        optimizer.register_step_post_hook(lambda *_: said.append(model.head.weight.sum().item()))
        model.norm.register_forward_pre_hook(lambda module, _: said.append(module.weight.sum().item()))
        model.norm.register_forward_hook(lambda module, *_: said.append(module.bias.sum().item()))
        model.norm.register_full_backward_hook(lambda _module, _, out: said.append(out[0].sum().item()))
        model.head.weight.register_hook(lambda gradient: gradient * 2)
        model.head.weight.register_post_accumulate_grad_hook(lambda p: said.append(p.grad.sum().item()))
        steps(model, optimizer)
        return said

    same_for_both(client, run)


def test_state_dicts_are_as_without_us(client):
    plain, (model, optimizer) = both(client)
    for pair in (plain, (model, optimizer)):
        train(*pair, RECIPE)
    files = []
    for one, other in (plain, (model, optimizer)):
        files.append(io.BytesIO())
        torch.save({"model": one.state_dict(), "optimizer": other.state_dict()}, files[-1])
        files[-1].seek(0)
    wanted, got = (torch.load(file, weights_only=True) for file in files)
    assert_same(got["model"], wanted["model"])
    assert got["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
    assert list(got["optimizer"]["state"]) == list(wanted["optimizer"]["state"])
    for index, state in wanted["optimizer"]["state"].items():
        assert_same(got["optimizer"]["state"][index], state)
    assert len(files[0].getvalue()) == len(files[1].getvalue())


@pytest.mark.parametrize("begins", ["plain", "offloaded"])
def test_a_run_goes_on_from_a_checkpoint_of_the_other_kind(client, begins):
    plain, offloaded = both(client)
    first, second = (plain, offloaded) if begins == "plain" else (offloaded, plain)
    train(*first, RECIPE)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    train(*second, Recipe(steps=1))  # there are states already, and they are replaced
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert train(*first, RECIPE, begin=3) == train(*second, RECIPE, begin=3)
    assert_same(weights(first[0]), weights(second[0]))


def test_states_that_exist_already_move(client):
    plain, moved = build(RECIPE), build(RECIPE)
    for pair in (plain, moved):
        train(*pair, RECIPE)
    terrace.torch.offload(*moved, client=client, tensor_bytes_min=1)
    assert train(*plain, RECIPE, begin=3) == train(*moved, RECIPE, begin=3)


def test_copies_are_ordinary_models(client):
    plain, (model, optimizer) = both(client)
    train(model, optimizer, RECIPE)
    copied = copy.deepcopy(model)
    pickled = torch.load(_saved(model), weights_only=False)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    for other in (copied, pickled):
        assert all(type(parameter) is nn.Parameter for parameter in other.parameters())
        assert_same(weights(other), weights(model))
        assert other.head.weight is other.embedding.weight
        assert loss_of(other.eval(), 5).item() == loss_of(model.eval(), 5).item()
    states = copy.deepcopy(optimizer.state_dict())
    assert type(states["state"][0]["exp_avg"]) is torch.Tensor
    del plain


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def test_functional_calls_and_transforms(client):
    def run(model, optimizer):
        source = batch(0)[0]
        model.eval()
        doubled = {name: parameter.detach().clone() * 2 for name, parameter in model.named_parameters()}
        said = [torch.func.functional_call(model, doubled, (source,)).sum().item()]
        values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

        def of(values, source):
            return torch.func.functional_call(model, values, (source,)).square().mean()

        said += [part.sum().item() for part in torch.func.grad(of)(values, source).values()]
        said.append(torch.func.vmap(of, in_dims=(None, 0))(values, source.unsqueeze(1)).tolist())
        return said

    same_for_both(client, run)


def test_saved_tensors_of_others(client):
    """Hooks of the script below and above ours."""
    def run(model, optimizer):
        for _ in range(2):
            with torch.autograd.graph.save_on_cpu():
                loss = loss_of(model, 0)
            loss.backward()
            seen = []
            with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(1) or x.detach(), lambda x: x):
                loss = loss_of(model, 1)
            loss.backward()
            assert seen
            optimizer.step()
            optimizer.zero_grad()

    same_for_both(client, run)


MODULES = {
    "attention": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True), 2),
    "lstm": lambda: nn.LSTM(32, 32, 2, batch_first=True),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)).to(
        memory_format=torch.channels_last),
    "parametrization": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)),
                                             nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32))),
    "shared": lambda: nn.Sequential(*[nn.Linear(32, 32)] * 3),
    "bag": lambda: nn.Sequential(nn.Linear(32, 32), nn.Bilinear(32, 32, 8)) and nn.Linear(32, 8, dtype=torch.float64),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_other_kinds(client, name):
    def make(recipe):
        torch.manual_seed(4)
        model = MODULES[name]()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(model, optimizer):
        said = []
        chance = torch.Generator().manual_seed(5)
        dtype = next(model.parameters()).dtype
        for number in range(4):
            x = torch.randn(4, 8, 32, generator=chance, dtype=dtype)
            if number == 2:
                model.eval()
                with torch.no_grad():
                    out = model(x)
                    said.append((out[0] if isinstance(out, tuple) else out).sum().item())
                model.train()
            out = model(x)
            loss = (out[0] if isinstance(out, tuple) else out).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        return said

    same_for_both(client, run, make)


def test_sparse_gradients_stay_as_they_are(client):
    def make(recipe):
        torch.manual_seed(4)
        model = nn.Embedding(64, 32, sparse=True)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def run(model, optimizer):
        for number in range(2):
            model(batch(number)[0]).square().sum().backward()
            assert model.weight.grad.is_sparse
            optimizer.step()
            optimizer.zero_grad()

    same_for_both(client, run, make)


def test_an_exception_in_forward_or_backward(client):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError("in backward")

    def run(model, optimizer):
        steps(model, optimizer)
        handle = model.blocks[2].wide.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(model, 2)
        handle.remove()
        handle = model.blocks[1].register_forward_hook(lambda _module, _inputs, output: Wrong.apply(output))
        with pytest.raises(ZeroDivisionError, match="in backward"):
            loss_of(model, 3).backward()
        handle.remove()
        optimizer.zero_grad()
        steps(model, optimizer)

    same_for_both(client, run)


def test_the_model_owns_its_tensors(client):
    before = len(client.tensors())
    model, optimizer = terrace.torch.offload(*build(RECIPE), client=client)
    steps(model, optimizer)
    assert len(client.tensors()) > before
    gone = weakref.ref(model)
    del model, optimizer
    assert gone() is None
    assert len(client.tensors()) == before


def test_optimizers_that_are_not_offloaded_work_on_what_is(client):
    """Also the ones that offload() refuses."""
    def make(recipe):
        torch.manual_seed(6)
        model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
        return model, torch.optim.Muon(model.parameters(), lr=1e-2)

    plain, _ = make(RECIPE), None
    model, optimizer = make(RECIPE)
    terrace.torch.offload(model, client=client, tensor_bytes_min=1)
    for one, other in (plain, (model, optimizer)):
        for number in range(3):
            one(torch.full((2, 32), float(number + 1))).square().mean().backward()
            other.step()
            other.zero_grad()
    assert_same(weights(model), weights(plain[0]))


def test_two_models_of_one_client(client):
    pairs = [terrace.torch.offload(*build(RECIPE), client=client, tensor_bytes_min=1) for _ in range(2)]
    said = [train(model, optimizer, RECIPE) for model, optimizer in pairs]
    assert said[0] == said[1]
    assert_same(weights(pairs[0][0]), weights(pairs[1][0]))
    for mine, other in itertools.pairwise(pairs):
        mine[0].load_state_dict(other[0].state_dict())
        mine[1].load_state_dict(copy.deepcopy(other[1].state_dict()))
    said = [train(model, optimizer, RECIPE, begin=3) for model, optimizer in pairs]
    assert said[0] == said[1]

# SPDX-License-Identifier: Apache-2.0
"""Shows that saving, loading, copying, transforming and sharing offloaded models gives what it gives without Terrace,
for modules of many kinds, and that an exception leaves a model that goes on."""

import copy
import gc
import io
import itertools
import subprocess
import sys
import threading
import weakref

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    RECIPE,
    FailsInBackward,
    Recipe,
    assert_same,
    batch,
    both,
    build,
    loss_of,
    nothing_stays_leased,
    restless,
    roomy,
    same_for_both,
    steps,
    train,
    weights,
)
from python_fixtures import LIMIT_SECONDS
from terrace.torch._parameters.parameter import enter, leave
from torch import nn
from training_fixtures import model_of

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def test_state_dicts_are_as_without_us(restless):
    plain, (model, optimizer) = both(restless)
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
    sizes = [len(file.getvalue()) for file in files]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)  # each tensor's own bytes, and not those of what it lies in


@pytest.mark.parametrize("begins", ["plain", "offloaded"])
def test_a_run_goes_on_from_a_checkpoint_of_the_other_kind(restless, begins):
    plain, offloaded = both(restless)
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


def test_states_that_exist_already_move(restless):
    plain, moved = build(RECIPE), build(RECIPE)
    for pair in (plain, moved):
        train(*pair, RECIPE)
    terrace.torch.offload(*moved, client=restless, tensor_bytes_min=1)
    assert train(*plain, RECIPE, begin=3) == train(*moved, RECIPE, begin=3)


def test_copies_are_ordinary_models(restless):
    plain, (model, optimizer) = both(restless)
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


class PicklesWithoutItsLock(nn.Linear):
    """Says what a pickle has of it, as scripts do."""

    def __init__(self, width):
        super().__init__(width, width)
        self.lock = threading.Lock()

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "lock"}


@pytest.mark.parametrize("make_module", [lambda: nn.LSTM(32, 32), lambda: PicklesWithoutItsLock(32),
                                         lambda: nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))],
                         ids=["lstm", "own", "parametrized"])
def test_copies_of_modules_that_copy_all_they_have(restless, make_module):
    """A copy has weights of its own, whatever becomes of the model's."""
    def make(recipe):
        torch.manual_seed(4)
        model = nn.Sequential(make_module())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run(model, optimizer):
        def sum_of(ran):
            out = ran(torch.ones(2, 3, 32))
            return (out[0] if isinstance(out, tuple) else out).sum()

        copies = [copy.deepcopy(model)]
        if not torch.nn.utils.parametrize.is_parametrized(model[0]):  # which PyTorch does not pickle
            copies.append(torch.load(_saved(model), weights_only=False))
        sum_of(model).backward()
        optimizer.step()
        return [sum_of(ran).item() for ran in (model, *copies)]

    model, _ = same_for_both(restless, run, make)
    terrace.torch.offload(copy.deepcopy(model), client=restless, tensor_bytes_min=1)


class Doubles(nn.Linear):
    """Is made of another module's __dict__."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_modules_that_were_given_the_dict_of_another(restless):
    """They run themselves, over the same parameters."""
    def run(model, optimizer):
        said = []
        for _ in range(2):
            doubles = Doubles.__new__(Doubles)
            doubles.__dict__.update(model.blocks[0].wide.__dict__)
            replica = model.blocks[1].wide._replicate_for_data_parallel()
            replica._parameters = dict(model.blocks[1].wide._parameters)
            x = torch.ones(2, doubles.in_features)
            loss = doubles(x).sum() + replica(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        return said

    same_for_both(restless, run)


def test_a_pickle_of_a_model_needs_no_terrace(roomy, tmp_path):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 32), nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True))
    terrace.torch.offload(model, client=roomy, tensor_bytes_min=1)
    x = torch.randn(2, 4, 32)
    torch.save(model, tmp_path / "model.pt")
    torch.save((x, model.eval()(x).detach()), tmp_path / "wanted.pt")
    subprocess.run([sys.executable, "-c", WITHOUT_TERRACE, tmp_path], check=True, timeout=LIMIT_SECONDS)


WITHOUT_TERRACE = """
import sys
sys.modules["terrace"] = None  # it cannot be imported
import torch
torch.set_num_threads(1)
model = torch.load(sys.argv[1] + "/model.pt", weights_only=False).eval()
x, wanted = torch.load(sys.argv[1] + "/wanted.pt")
assert torch.equal(model(x), wanted)
model(x).sum().backward()
torch.compile(model, backend="eager")(x)
assert all(type(parameter) is torch.nn.Parameter and parameter.grad is not None for parameter in model.parameters())
"""


def test_functional_calls_and_transforms(restless):
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

    same_for_both(restless, run)


def test_saved_tensors_of_others(restless):
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

    same_for_both(restless, run)


class Lists(nn.Module):
    """Has its parameters in lists, and one used by a method that is not forward."""

    def __init__(self):
        super().__init__()
        self.several = nn.ParameterList([torch.randn(32, 32) for _ in range(3)])
        self.named = nn.ParameterDict({"bias": torch.randn(32)})
        self.inner = nn.Linear(32, 32)

    def forward(self, x):
        for weight in self.several:
            x = torch.tanh(x @ weight + self.named["bias"])
        return x @ self.inner.weight.t() + torch.stack(list(self.several)).mean()


MODULES = {
    "lists": Lists,
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
def test_modules_of_other_kinds(restless, name):
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

    same_for_both(restless, run, make)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("nested", [True, False])
def test_padded_batches_of_an_encoder(restless, nested, layers):
    """In evaluation PyTorch packs a padded batch, if it finds the first layer's weights to be ordinary ones; what was
    packed is zero where it was padded."""
    def make(recipe):
        torch.manual_seed(4)
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
        model = nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, layers, nn.LayerNorm(32), nested),
                               "head": nn.Linear(32, 8)})
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run(model, optimizer):
        said = []
        for number in range(6):
            x = torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(number))
            padding = torch.arange(8)[None, :] >= torch.tensor([8, 5, 3, 1])[:, None]
            for arguments, options in (((x,), {}), ((x, None, padding), {}), ((x,), {"src_key_padding_mask": padding})):
                model.train(number not in (2, 5))
                if number == 5:
                    model.requires_grad_(False)
                with torch.set_grad_enabled(number != 2):
                    out = model["encoder"](*arguments, **options)
                    said.append(out.detach().numpy().tobytes())
                    loss = model["head"](out.mean(1)).square().mean()
                if loss.requires_grad:
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return said

    same_for_both(restless, run, make)


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_selective_checkpointing(restless, autocast):
    """Matrix products are kept, all else is computed again."""
    def make(recipe):
        model = model_of(3, checkpointing="selective")
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(model, optimizer):
        said = []
        for number in range(4):
            torch.manual_seed(number)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(torch.randn(2, 128, 32)).square().mean()
            loss.backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            said.append(loss.item())
        return said

    same_for_both(restless, run, make)


def test_sparse_gradients_stay_as_they_are(restless):
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

    same_for_both(restless, run, make)


def test_an_exception_in_forward_or_backward(restless):
    def run(model, optimizer):
        steps(model, optimizer)
        handle = model.blocks[2].wide.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(model, 2)
        handle.remove()
        handle = model.blocks[1].register_forward_hook(lambda _module, _inputs, output: FailsInBackward.apply(output))
        with pytest.raises(ZeroDivisionError, match="in backward"):
            loss_of(model, 3).backward()
        handle.remove()
        optimizer.zero_grad()
        steps(model, optimizer)

    same_for_both(restless, run)


def test_a_gradient_that_a_failed_pass_was_to_be_added_to_is_let_go(roomy):
    """The gradient was leased to be added to, and then a hook of the script's raised."""
    plain = nn.Linear(64, 64)
    model, _ = terrace.torch.offload(copy.deepcopy(plain), client=roomy, tensor_bytes_min=1)
    x = torch.ones(2, 64)
    for one in (plain, model):
        one(x).sum().backward()
    before = model.weight.grad.clone()
    handle = model.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(x).sum().backward()
    handle.remove()
    assert roomy.leased_bytes == 0 and roomy.held == 0
    assert torch.equal(model.weight.grad, before)
    for one in (plain, model):
        one(x).sum().backward()
    assert torch.equal(model.weight.grad, plain.weight.grad)


def test_threads_share_a_model(roomy):
    """Each runs it forward and backward by itself, as a server's threads do."""
    plain, (model, optimizer) = both(roomy)
    for one, other in (plain, (model, optimizer)):
        steps(one.eval(), other)
    wanted = [loss_of(plain[0], number).item() for number in range(4)]
    got: dict[int, list[float]] = {}

    def run(number):
        got[number] = [loss_of(model, number).item() for _ in range(10)]
        torch.autograd.grad(loss_of(model, number), list(model.parameters()))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert got == {number: [loss] * 10 for number, loss in enumerate(wanted)}


def test_a_use_that_ends_while_another_waits_for_memory(roomy, monkeypatch):
    """The one that waits counts from its beginning: what it found shown stays so."""
    _, (model, _) = both(roomy)
    shown, hidden = model.norm.weight, model.norm.bias
    wanted = shown.sum().item()
    store = shown.terrace.store
    enter(store, [shown.terrace])
    lease = store.lease

    def ends_the_other(slots, mode="read"):
        monkeypatch.undo()
        other = threading.Thread(target=leave, args=([shown.terrace],))
        other.start()
        other.join(LIMIT_SECONDS)
        return lease(slots, mode)

    monkeypatch.setattr(store, "lease", ends_the_other)
    enter(store, [shown.terrace, hidden.terrace])
    assert shown.sum().item() == wanted
    leave([shown.terrace, hidden.terrace])
    monkeypatch.setattr(store, "lease", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        enter(store, [shown.terrace])
    monkeypatch.undo()
    assert shown.terrace.uses == hidden.terrace.uses == 0


def test_the_model_owns_its_tensors(restless):
    gc.collect()  # models of earlier tests
    before = len(restless.tensors())
    model, optimizer = terrace.torch.offload(*build(RECIPE), client=restless)
    steps(model, optimizer)
    assert len(restless.tensors()) > before
    gone = weakref.ref(model)
    del model, optimizer
    assert gone() is None
    assert len(restless.tensors()) == before


def test_optimizers_that_are_not_offloaded_work_on_what_is(restless):
    """Also the ones that offload() refuses."""
    def make(recipe):
        torch.manual_seed(6)
        model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
        return model, torch.optim.Muon(model.parameters(), lr=1e-2)

    plain, _ = make(RECIPE), None
    model, optimizer = make(RECIPE)
    terrace.torch.offload(model, client=restless, tensor_bytes_min=1)
    for one, other in (plain, (model, optimizer)):
        for number in range(3):
            one(torch.full((2, 32), float(number + 1))).square().mean().backward()
            other.step()
            other.zero_grad()
    assert_same(weights(model), weights(plain[0]))


def test_two_models_of_one_client(restless):
    pairs = [terrace.torch.offload(*build(RECIPE), client=restless, tensor_bytes_min=1) for _ in range(2)]
    said = [train(model, optimizer, RECIPE) for model, optimizer in pairs]
    assert said[0] == said[1]
    assert_same(weights(pairs[0][0]), weights(pairs[1][0]))
    for mine, other in itertools.pairwise(pairs):
        mine[0].load_state_dict(other[0].state_dict())
        mine[1].load_state_dict(copy.deepcopy(other[1].state_dict()))
    said = [train(model, optimizer, RECIPE, begin=3) for model, optimizer in pairs]
    assert said[0] == said[1]

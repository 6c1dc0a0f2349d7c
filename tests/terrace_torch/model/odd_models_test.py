# SPDX-License-Identifier: Apache-2.0
"""Shows that models which are no transformers train to the same bits: recurrent cells, weights seen as complex numbers or
as real ones, weights that are rounded on the way, weights that functions of the script's own save; and that a step needs
no more room than what offload asks for."""

import contextlib
import warnings

import pytest
import terrace
import terrace.torch
import torch
from python_fixtures import disk  # noqa: F401 (a fixture)
from torch import nn
from torch.nn.utils import parametrize

WIDTH = 64
STEPS = 3


class Recurrent(nn.Module):
    """kind: a cell, or a whole LSTM of a kind that has no kernel of its own on a CPU."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.inner = (nn.LSTM(WIDTH, WIDTH, dtype=torch.float64) if kind == "lstm64" else
                      nn.LSTM(WIDTH, WIDTH, proj_size=WIDTH // 2) if kind == "projected" else
                      nn.GRUCell(WIDTH, WIDTH) if kind == "gru" else nn.LSTMCell(WIDTH, WIDTH))
        self.out = nn.Linear(WIDTH // 2 if kind == "projected" else WIDTH, WIDTH)

    def forward(self, x):
        if isinstance(self.inner, nn.LSTM):
            return self.out(self.inner(x.to(next(self.inner.parameters()).dtype).expand(4, *x.shape))[0][-1].float())
        state = None
        for _ in range(4):
            state = self.inner(x, state)
        return self.out(state if self.kind == "gru" else state[0])


class Chunked(nn.Module):
    """What the cells do, by hand: parts of one storage that are written to in place, with a version each."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x):
        one, two, three, four = torch.unsafe_chunk(self.wide(x), 4, 1)
        return (two.sigmoid_() + one.sigmoid_() * three.tanh_()).tanh() * four.sigmoid_()


class SeenAs(nn.Module):
    """A weight whose bytes are seen as of another type, or conjugated, and not converted."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, 2) * 0.1 if how == "complex" else
                                   torch.randn(WIDTH, WIDTH, dtype=torch.complex64) * 0.1)

    def forward(self, x):
        if self.how == "complex":
            return (x.to(torch.complex64) @ torch.view_as_complex(self.weight)).abs()
        if self.how == "conjugate":
            return (x.to(torch.complex64) @ self.weight.conj().t() + x.to(torch.complex64) @ self.weight.mH).abs()
        if self.how == "negative":
            return x @ self.weight.conj().imag
        real = torch.view_as_real(self.weight)
        return x @ (real[..., 0] * real[..., 1]) + x @ self.weight.real + x @ self.weight.imag


class CastSeenAs(nn.Module):
    """A cast of the weight, whose bytes are seen as of another type."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.weight = nn.Parameter((torch.randn(WIDTH, WIDTH, 2) * 0.1).bfloat16() if how == "complex" else
                                   torch.randn(WIDTH, WIDTH, dtype=torch.complex64) * 0.1)

    def forward(self, x):
        if self.how == "complex":
            return (x.to(torch.complex64) @ torch.view_as_complex(self.weight.float())).abs()
        wide = self.weight.to(torch.complex128)
        real = torch.view_as_real(wide)
        return (x.double() @ (real[..., 0] * real[..., 1]) + x.double() @ wide.conj().imag).float()


class Rounded(nn.Module):
    """A straight-through estimator: a cast of the weight, rounded in place."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)
        self.dtype = dtype

    def forward(self, x):
        weight = self.weight.to(self.dtype)
        with torch.no_grad():
            weight.mul_(8).round_().div_(8)
        return (x.to(self.dtype) @ weight.t()).float()


class Product(torch.autograd.Function):
    """As fused kernels are written for PyTorch."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return gradient @ weight, gradient.t() @ x


class Outside(nn.Module):
    """Another module's weight is given to such a function. own: this module has a parameter itself, too."""

    def __init__(self, own):
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.own = nn.Parameter(torch.ones(WIDTH)) if own else None

    def forward(self, x):
        x = Product.apply(x, self.head.weight)
        return x if self.own is None else x * self.own


class Added(nn.Module):
    """What another weight makes of two factors is added to."""

    def __init__(self, one, other):
        super().__init__()
        self.factors = [one, other]  # which are another module's

    def forward(self, weight):
        return weight + self.factors[0] @ self.factors[1]


class Adapted(nn.Module):
    """A layer that is parametrized as it runs, and not afterwards, as PEFT does to adapt a weight by its name. always: from its
    first run on."""

    def __init__(self, always):
        super().__init__()
        self.always = always
        self.base = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Parameter(torch.randn(WIDTH, 4)), nn.Parameter(torch.randn(4, WIDTH) * 0.1)

    def forward(self, x):
        if not parametrize.is_parametrized(self.base):
            parametrize.register_parametrization(self.base, "weight", Added(self.up, self.down))
        with parametrize.cached():
            made = self.base(x)
        if not self.always:
            parametrize.remove_parametrizations(self.base, "weight", leave_parametrized=False)
        return made


MODELS = {"adapted": lambda: Adapted(False), "parametrized": lambda: Adapted(True),
          "cell": lambda: Recurrent("lstm"), "gru": lambda: Recurrent("gru"), "lstm64": lambda: Recurrent("lstm64"),
          "projected": lambda: Recurrent("projected"), "chunked": Chunked, "complex": lambda: SeenAs("complex"),
          "real": lambda: SeenAs("real"), "conjugate": lambda: SeenAs("conjugate"),
          "negative": lambda: SeenAs("negative"), "complex cast": lambda: CastSeenAs("complex"),
          "real cast": lambda: CastSeenAs("real"), "bfloat16": lambda: Rounded(torch.bfloat16),
          "float64": lambda: Rounded(torch.float64), "outside": lambda: Outside(False), "inside": lambda: Outside(True)}


def trained(make, client, offloads, context):
    """Losses and weights after a few steps."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), make(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if offloads:
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=0)
    losses = []
    for step in range(STEPS):
        with context():
            inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
            loss = model(inputs).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: one.detach().clone() for name, one in model.state_dict().items()}


@pytest.fixture
def served(disk):
    with terrace.serve("8MiB", block=f"{disk}:64MiB", metrics=False) as client:
        yield client


@pytest.mark.parametrize(("offloads", "saved"), [
    *((False, saved) for saved in ("activations", "casts")),
    *((True, saved) for saved in ("kept", "activations", "casts", "save_on_cpu", "hooks"))])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits(served, name, offloads, saved):
    contexts = {
        "kept": contextlib.nullcontext,
        "activations": lambda: terrace.torch.activations(served, min_bytes=1, keep_bytes=0),
        "casts": lambda: terrace.torch.activations(served, min_bytes=1, recompute_casts=True, recompute=True),
        "save_on_cpu": torch.autograd.graph.save_on_cpu,
        "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)}
    losses, weights = trained(MODELS[name], None, False, contextlib.nullcontext)
    ours, found = trained(MODELS[name], served, offloads, contexts[saved])
    assert ours == losses
    for key, tensor in weights.items():
        assert torch.equal(tensor, found[key]), key


def test_a_weight_that_a_function_of_the_scripts_saves_behind_the_model(served):
    """As fused losses take the weight of the head: neither within a module, nor within the model."""
    for context in (contextlib.nullcontext, lambda: terrace.torch.activations(served)):
        found = []
        for offloads in (False, True):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if offloads:
                terrace.torch.offload(model, optimizer, client=served, tensor_bytes_min=0)
            for step in range(STEPS):
                with context():
                    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
                    Product.apply(model[0](inputs), model[1].weight).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append([one.detach().clone() for one in model.parameters()])
        for plain, ours in zip(*found, strict=True):
            assert torch.equal(plain, ours)


@pytest.mark.parametrize("kind", ["foreach", "fused", "one by one"])
def test_a_step_needs_no_more_than_what_offload_asks_for(disk, kind):
    """Weights alone, without a bias between two that would end a lease early: four times the largest is the guarantee."""
    width, mib = 512, 1 << 20
    options = {"foreach": {"foreach": True}, "fused": {"fused": True}, "one by one": {"foreach": False}}[kind]

    def run(client):
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
        if client is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                terrace.torch.offload(model, optimizer, client=client, timeout=20)
        for step in range(STEPS):
            model(torch.randn(4, width, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [one.detach().clone() for one in model.parameters()]

    plain = run(None)
    with terrace.serve("5MiB", block=f"{disk}:128MiB", metrics=False, guarantees={"host": 4 * mib}) as client:
        for one, other in zip(plain, run(client), strict=True):
            assert torch.equal(one, other)


class Tiny(nn.Module):
    """Of which each parameter takes a page, and has 12 bytes."""

    def __init__(self):
        super().__init__()
        self.many = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(400)])

    def forward(self, x):
        return x[:, :3] * sum(self.many)


def test_small_parameters_take_a_page_each(disk):
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    with terrace.serve("4MiB", block=f"{disk}:64MiB", metrics=False, guarantees={"host": 400 * 4096}) as client:
        terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1)
        for _ in range(STEPS):
            model(torch.randn(2, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_what_is_kept_of_a_step_stands_for_what_is_there(served):
    """A step of the script's own that keeps what it was shown finds the content later, and keeps no memory."""
    kept = []

    @terrace.torch.declare
    class Keeps(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                kept.extend((one.grad, self.state[one].get("momentum_buffer")) for one in group["params"])
            return super().step(closure)

    torch.manual_seed(1)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = Keeps(model.parameters(), lr=0.1, momentum=0.9)
    terrace.torch.offload(model, optimizer, client=served, tensor_bytes_min=0)
    for step in range(2):
        model(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
    gradient, momentum = kept[-1]
    assert torch.equal(gradient.clone(), model.weight.grad.clone())
    assert torch.equal(momentum.clone(), optimizer.state[model.weight]["momentum_buffer"].clone())
    assert served.leased_bytes == 0
    kept.clear()


@pytest.mark.parametrize("entered", ["each step", "once"])
def test_a_detached_weight_that_a_fused_step_changed_while_the_graph_before_is_there(served, entered):
    """PyTorch's fused kernels change no version."""
    def run(once, each):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        kept = []
        with once():
            for step in range(STEPS):
                inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step), requires_grad=True)
                with each():
                    kept.append(model[1](torch.tanh(nn.functional.linear(inputs, model[0].weight.detach()))
                                         + model[0](inputs)).square().mean())
                kept[-1].backward(retain_graph=True)
                optimizer.step()
                optimizer.zero_grad()
                kept.append(inputs.grad)
        return [one.detach() for one in kept]

    def saving():
        return terrace.torch.activations(served, min_bytes=1, keep_bytes=0)

    ways = (saving, contextlib.nullcontext) if entered == "once" else (contextlib.nullcontext, saving)
    for one, other in zip(run(contextlib.nullcontext, contextlib.nullcontext), run(*ways), strict=True):
        assert torch.equal(one, other)


class Overwrites(nn.Module):
    """Writes to an activation that autograd has saved."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)

    def forward(self, x):
        return torch.sigmoid(x @ self.weight).mul_(2)


def test_a_write_to_what_autograd_saved_is_an_error_as_always(served):
    for offloads in (False, True):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            trained(Overwrites, served, offloads, contextlib.nullcontext)


class Statistics(nn.Module):
    """Batch norm whose statistics are frozen parameters."""

    def __init__(self, width):
        super().__init__()
        self.running_mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.running_var = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x):
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, training=self.training)


def test_statistics_that_are_frozen_parameters(disk):
    def run(client=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 1024), Statistics(1024), nn.GELU(), nn.Linear(1024, 256), nn.Linear(256, 8))
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
        if client is not None:
            terrace.torch.offload(model, optimizer, client=client)
            assert "1.running_mean (are statistics" in str(terrace.torch.summary(model))
        seen = []
        for step in range(STEPS):
            model.train()(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                seen.append(model.eval()(torch.ones(4, 16)).sum().item())
        return seen, model[1].running_mean.sum().item()

    with terrace.serve("8MiB", block=f"{disk}:64MiB", guarantees={"host": 7 << 20}, metrics=False) as client:
        assert run(client) == run()

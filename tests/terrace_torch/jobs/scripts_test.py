# SPDX-License-Identifier: Apache-2.0
"""Shows that what training scripts do between forward and step gives, bit for bit, what it gives without Terrace:
weights outside their modules, closures, scaling, gradients by hand and kept, evaluation, hooks, kept references."""

import pytest
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    batch,
    both,
    build,
    loss_of,
    nothing_stays_leased,
    restless,
    same_for_both,
    steps,
)
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")


def test_several_forwards_before_a_backward(restless):
    def run(model, optimizer):
        loss = loss_of(model, 0) + 2 * loss_of(model, 1)
        with torch.no_grad():
            loss_of(model, 2)
        loss.backward()
        optimizer.step()
        return loss.item()

    same_for_both(restless, run)


def test_a_graph_that_is_kept(restless):
    def run(model, optimizer):
        loss = loss_of(model, 0)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    same_for_both(restless, run)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_step_between_forward_and_backward_is_an_error_as_always(restless, autocast):
    """Under autocast, too, whose casts PyTorch alone would have kept."""
    _, (model, optimizer) = both(restless)
    loss = loss_of(model, 0, autocast=autocast)
    loss_of(model, 1).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation: the parameter '.*' is at version"):
        loss.backward()
    optimizer.zero_grad()
    steps(model, optimizer)


def test_a_fused_step_between_forward_and_backward(restless):
    """PyTorch's fused kernels do not say that they wrote. The backward pass then uses the new weights, as always; but
    the casts that autocast made of the old ones are not there any more."""
    def make(recipe):
        model, _ = build(recipe)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def run(model, optimizer):
        loss = loss_of(model, 0)
        loss_of(model, 1).backward()
        optimizer.step()
        loss.backward()
        optimizer.step()

    model, optimizer = same_for_both(restless, run, make)
    loss = loss_of(model, 0, autocast=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation: the parameter"):
        loss.backward()
    optimizer.zero_grad()


def test_one_autocast_around_it_all(restless):
    """autocast then keeps its casts of the first step's weights, and so they are used, as always."""
    def make(recipe):
        model, _ = build(recipe)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def run(model, optimizer):
        with torch.autocast("cpu", torch.bfloat16):
            for number in range(3):
                loss_of(model, number, autocast=True).backward()
                optimizer.step()
                optimizer.zero_grad()

    same_for_both(restless, run, make)


def test_closures(restless):
    def run(model, optimizer):
        calls = []

        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = loss_of(model, len(calls))
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(2)], len(calls)

    same_for_both(restless, run)


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["foreach", "fused"])
def test_gradient_scaler(restless, options):
    def run(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        said = []
        for number in range(5):
            loss = loss_of(model, number)
            scaler.scale(loss).backward()
            if number == 2:
                model.norm.weight.grad.fill_(float("inf"))  # this step is left out
            if number % 2:
                scaler.unscale_(optimizer)
                said.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            scaler.step(optimizer)
            said.append(sum(parameter.grad.double().sum().item() for parameter in model.parameters()))
            scaler.update()
            optimizer.zero_grad()
            said.append(scaler.get_scale())
        return str(said)

    def make(recipe):
        model, _ = build(recipe)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, **options)

    same_for_both(restless, run, make)


def test_gradients_by_hand(restless):
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

    same_for_both(restless, run)


def test_a_gradient_that_is_kept_stays_what_it_was(restless):
    def run(model, optimizer):
        kept = []
        for number in range(4):
            loss_of(model, number).backward()
            kept.append([parameter.grad for parameter in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        return [gradient.double().sum().item() for gradients in kept for gradient in gradients]

    same_for_both(restless, run)


def test_an_alias_of_a_gradient_that_is_kept_stays_what_it_was(restless):
    def run(model, optimizer):
        kept = []
        for number in range(3):
            loss_of(model, number).backward()
            kept.append(model.head.weight.grad.view(-1)[10:20])
            optimizer.step()
            optimizer.zero_grad()
        return [part.tolist() for part in kept]

    same_for_both(restless, run)


def test_an_array_of_a_gradient(restless):
    """numpy writes unseen."""
    def run(model, optimizer):
        loss_of(model, 0).backward()
        array = model.head.weight.grad.numpy()
        array[3] = 5
        del array
        said = model.norm.weight.grad.sum().item()
        optimizer.step()
        return said

    same_for_both(restless, run)


def test_a_gradient_right_after_another_was_dropped(restless):
    def run(model, optimizer):
        loss = model.head.weight.sum() * 2
        loss.backward(retain_graph=True)
        optimizer.zero_grad()
        loss.backward()
        return [model.norm.bias.sum().item(), model.head.weight.grad.sum().item()]

    same_for_both(restless, run)


def test_gradients_that_are_asked_for(restless):
    def run(model, optimizer):
        steps(model, optimizer)
        loss_of(model, 2).backward()
        asked = torch.autograd.grad(loss_of(model, 3), [model.head.weight, model.positions])
        penalty = torch.autograd.grad(loss_of(model, 4), list(model.parameters()), create_graph=True)
        (loss_of(model, 5) + sum(part.square().sum() for part in penalty)).backward()
        optimizer.step()
        return [part.double().sum().item() for part in (*asked, *penalty)]

    same_for_both(restless, run)


def test_gradients_with_a_graph(restless):
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

    same_for_both(restless, run)


def test_weights_outside_their_modules(restless):
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

    same_for_both(restless, run)


def test_writing_weights(restless):
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
        del data  # below the parameter is given other data
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        vector = nn.utils.parameters_to_vector(model.blocks.parameters())
        nn.utils.vector_to_parameters(vector * 1.5, model.blocks.parameters())
        steps(model, optimizer)

    same_for_both(restless, run)


def test_writing_weights_within_forward(restless):
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

    offloaded = same_for_both(restless, run, make)
    assert restless.leased_bytes > 0  # what is kept costs memory
    del offloaded[0][0].kept, offloaded[0][2].kept


def test_writing_through_what_outlived_a_frozen_module(restless):
    class Keeping(nn.Linear):
        def forward(self, x):
            self.kept = self.weight.detach()
            return super().forward(x)

    def make(recipe):
        torch.manual_seed(3)
        model = nn.Sequential(Keeping(32, 32), nn.Linear(32, 8))
        model[0].requires_grad_(False)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run(model, optimizer):
        said = []
        for number in range(3):
            said.append(model(torch.ones(4, 32)).square().sum().item())
            model[0].kept[number] = 1
            del model[0].kept
            said.append(model[1].weight.sum().item())
        return said

    same_for_both(restless, run, make)


def test_a_parameter_that_is_kept_works_wherever_it_is_used(restless):
    def run(model, optimizer):
        kept = dict(model.named_parameters())
        view = model.head.weight.detach()
        steps(model, optimizer)
        said = [kept[name].double().sum().item() for name in kept] + [view.double().sum().item()]
        said += model.norm.weight.tolist() + [len(model.norm.weight), float(model.norm.weight[3])]
        said.append(torch.stack([kept["norm.weight"], kept["norm.bias"]]).sum().item())
        said.append(model.norm.weight.numpy(force=True).tolist())
        return said

    same_for_both(restless, run)


def test_evaluation_between_steps(restless):
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

    same_for_both(restless, run)


def test_freezing_and_unfreezing(restless):
    def run(model, optimizer):
        model.blocks.requires_grad_(False)
        steps(model, optimizer)
        model.blocks[0].wide.weight.requires_grad = True
        model.blocks[1].requires_grad_(True)
        steps(model, optimizer)

    same_for_both(restless, run)


def test_parameters_frozen_at_first(restless):
    def make(recipe):
        model, _ = build(recipe)
        model.blocks.requires_grad_(False)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(model, optimizer):
        steps(model, optimizer)
        model.blocks.requires_grad_(True)
        steps(model, optimizer)

    same_for_both(restless, run, make)


def test_a_group_that_is_added(restless):
    def make(recipe):
        model, _ = build(recipe)
        return model, torch.optim.SGD(model.blocks.parameters(), lr=1e-2, momentum=0.9)

    def run(model, optimizer):
        steps(model, optimizer)
        optimizer.add_param_group({"params": [model.head.weight], "lr": 1e-3})
        steps(model, optimizer)

    same_for_both(restless, run, make)


def test_hooks_of_the_script_run_when_they_would(restless):
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

    same_for_both(restless, run)


def test_kernels_of_lists_with_a_number_for_each_in_one_tensor(restless):
    def run(model, optimizer):
        steps(model, optimizer, 1)
        ours = list(model.parameters())
        with torch.no_grad():
            torch._foreach_addcmul_(ours, ours, ours, torch.arange(float(len(ours))) / 100)
            divided = torch._foreach_addcdiv(ours[:2], ours[:2], torch._foreach_exp(ours[:2]), scalars=torch.tensor([1.0, 2]))
        return [float(one.sum()) for one in divided]

    same_for_both(restless, run)

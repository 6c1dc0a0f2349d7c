# SPDX-License-Identifier: Apache-2.0
"""Shows that Ctrl-C and sys.exit() in the midst of a step leave nothing leased and no hooks behind, and that a script
that catches them goes on with the losses that it would have without Terrace."""

import contextlib
import gc

import pytest
import terrace.torch
import torch
from model_fixtures import (  # noqa: F401 (fixtures)
    Recipe,
    batch,
    build,
    loss_of,
    nothing_stays_leased,
    restless,
    same_for_both,
)
from terrace.torch._optimizer.batch import Batch
from terrace.torch._parameters.parameter import ManagedParameter

pytestmark = pytest.mark.usefixtures("nothing_stays_leased")
top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class InterruptsBackward(torch.autograd.Function):
    """The identity, in whose backward pass the user presses Ctrl-C."""

    @staticmethod
    def forward(_context, tensor):
        return tensor.clone()

    @staticmethod
    def backward(_context, _gradient):
        raise KeyboardInterrupt


def interrupt(kind):
    """A hook of a module's forward pass."""
    def hook(*_):
        raise kind
    return hook


class InTheSecondRun:
    """Interrupts what checkpointing computes again."""

    def __init__(self):
        self.runs = 0

    def __call__(self, *_):
        self.runs += 1
        if self.runs == 2:
            raise KeyboardInterrupt


INTERRUPTS = {
    "outermost": lambda model: model.register_forward_hook(interrupt(KeyboardInterrupt)),
    "inner": lambda model: model.blocks[2].wide.register_forward_pre_hook(interrupt(KeyboardInterrupt)),
    "checkpointed": lambda model: model.blocks[1].wide.register_forward_pre_hook(interrupt(KeyboardInterrupt)),
    "exit": lambda model: model.blocks[0].norm.register_forward_hook(interrupt(SystemExit)),
    "backward": lambda model: model.blocks[1].register_forward_hook(
        lambda _module, _inputs, output: InterruptsBackward.apply(output)),
    "gradient": lambda model: model.blocks[3].out.weight.register_hook(interrupt(KeyboardInterrupt)),
    "again": lambda model: model.blocks[1].wide.register_forward_pre_hook(InTheSecondRun()),
}
CONTEXTS = {
    "alone": lambda _: contextlib.nullcontext(),
    "activations": lambda client: terrace.torch.activations(client, min_bytes=1, keep_bytes=0),
    "on the CPU": lambda _: torch.autograd.graph.save_on_cpu(),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("checkpointing", [None, True, False], ids=["kept", "reentrant", "checkpointed"])
def test_interrupts(restless, checkpointing, context):
    """One or two of them before each step, which finds what gradients came before them."""
    def run(model, optimizer):
        said = []
        for number, name in enumerate(INTERRUPTS):
            handle = INTERRUPTS[name](model)
            try:
                with CONTEXTS[context](restless):
                    loss_of(model, number).backward()
                said.append("not interrupted")
            except (KeyboardInterrupt, SystemExit) as interrupted:
                said.append(type(interrupted))
            handle.remove()
            assert top_hooks(False) is None
            gc.collect()  # checkpointing leaves cycles
            if name != "gradient":  # PyTorch's queue keeps the nodes that were to come until the next backward pass
                assert restless.leased_bytes == 0 and restless.held == 0
            if number % 3:
                with CONTEXTS[context](restless):
                    loss = loss_of(model, number)
                loss.backward()
                said.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
                gc.collect()
                assert restless.leased_bytes == 0 and restless.held == 0
        return said

    same_for_both(restless, run, lambda _: build(Recipe(checkpointing=checkpointing)))


def test_an_interrupt_that_a_forward_pass_catches(restless):
    """The modules around it go on, with what they lease."""
    def run(model, optimizer):
        forward, tries = model.blocks[1].forward, []

        def twice(x):
            handle = model.blocks[1].wide.register_forward_pre_hook(interrupt(KeyboardInterrupt))
            with contextlib.suppress(KeyboardInterrupt):
                forward(x)
            handle.remove()
            tries.append(x)
            return forward(x)

        model.blocks[1].forward = twice
        said = []
        for number in range(3):
            loss = loss_of(model, number)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        assert len(tries) == 3 and top_hooks(False) is None
        tries.clear()
        del model.blocks[1].forward
        return said

    same_for_both(restless, run)


@pytest.mark.parametrize("divided", ["show", "hide"])
def test_an_interrupt_while_a_module_leases(restless, monkeypatch, divided):
    """Between its weight and its bias, as it begins to run and as it ends."""
    model, _ = terrace.torch.offload(*build(Recipe()), client=restless, tensor_bytes_min=1)
    wanted = loss_of(model.eval(), 0).item()
    done, calls = getattr(ManagedParameter, divided), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        done(*arguments)

    monkeypatch.setattr(ManagedParameter, divided, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.blocks[0].wide(torch.ones(1, 32))
    monkeypatch.undo()
    calls.clear()
    assert restless.leased_bytes == 0 and restless.held == 0 and top_hooks(False) is None
    assert loss_of(model, 0).item() == wanted


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_an_interrupt_while_a_step_puts_back_what_it_leased(restless, monkeypatch, at):
    end, calls = Batch._end_lease, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == at:
            calls.append(None)
            raise KeyboardInterrupt
        end(*arguments)

    model, optimizer = terrace.torch.offload(*build(Recipe()), client=restless, tensor_bytes_min=1)
    loss_of(model, 0).backward()
    monkeypatch.setattr(Batch, "_end_lease", staticmethod(interrupted))
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert len(calls) > at, "it goes on with what is left"
    monkeypatch.undo()
    calls.clear()
    gc.collect()
    assert restless.leased_bytes == 0 and restless.held == 0
    loss_of(model, 1).backward()
    optimizer.step()

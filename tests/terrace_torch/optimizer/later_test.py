# SPDX-License-Identifier: Apache-2.0
"""Shows that a step that goes on when step() has returned cannot be told from one that is over: whatever looks at a weight, a
state or the optimizer sees the finished step, what the script changes meanwhile changes the next one, and an error is raised
where something waits."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading

import pytest
import terrace.torch
import torch
from held_fixtures import THREAD, HeldClient, begun, gate, held, same  # noqa: F401 (fixtures)
from model_fixtures import Recipe, loss_of, weights
from python_fixtures import LIMIT_SECONDS, wait_until
from terrace.torch._leased.store import Store
from terrace.torch._parameters import casts

SGD = torch.optim.SGD


def forward(model, _optimizer):
    return loss_of(model, 9)


def saved(model, optimizer):
    return copy.deepcopy(model.state_dict())


def counted(_model, optimizer):
    return [state["step"].clone() for state in optimizer.state.values()]


def states(_model, optimizer):
    return copy.deepcopy(optimizer.state_dict()["state"])


def pickled(_model, optimizer):
    made = pickle.loads(pickle.dumps(optimizer.state))
    return [value.clone() for state in made.values() for value in state.values()]


def evaluated(model, _optimizer):
    with torch.no_grad():
        return loss_of(model.eval(), 9)


def backward(model, optimizer):
    optimizer.zero_grad()
    loss_of(model, 9).backward()
    return [one.grad.clone() for one in model.parameters()]


def written(model, _optimizer):
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(0.5)
    return weights(model)


def replaced(model, _optimizer):
    for one in model.parameters():
        one.data = torch.ones_like(one)
    return weights(model)


def zeroed(model, optimizer):
    optimizer.zero_grad(set_to_none=False)
    return weights(model)


def added_to(model, optimizer):
    """Without zero_grad(): what was stepped with is added to."""
    loss_of(model, 9).backward()
    return [one.grad.clone() for one in model.parameters()]


def loaded(model, optimizer):
    optimizer.load_state_dict(optimizer.state_dict())
    loss_of(model, 9).backward()
    optimizer.step()
    return weights(model)


def stepped_again(model, optimizer):
    optimizer.step()
    return weights(model)


def copied(model, _optimizer):
    return weights(copy.deepcopy(model))


def read(model, _optimizer):
    return [one.detach().clone() for one in model.parameters()]


def of_arrays(model, _optimizer):
    return [torch.from_numpy(one.detach().numpy().copy()) for one in model.parameters()]


def summed(model, _optimizer):
    return terrace.torch.summary(model).kept if hasattr(model.head.weight, "terrace") else []


def loaded_weights(model, _optimizer):
    model.load_state_dict({name: torch.ones_like(one) for name, one in model.state_dict().items()})
    return weights(model)


def zeroed_at_once(model, optimizer):
    optimizer.zero_grad(set_to_none=False)
    return [one.grad.clone() for one in model.parameters()]


def put_at_once(model, _optimizer):
    model.embedding.weight.data = torch.ones(64, 32)
    return weights(model)


@pytest.mark.parametrize("after", [0, 1], ids=["before it leases", "while it leases"])
@pytest.mark.parametrize("look", [forward, saved, counted, states, pickled, evaluated, backward, written, replaced, zeroed, added_to,
                                  loaded, stepped_again, copied, read, of_arrays, loaded_weights, summed,
                                  zeroed_at_once, put_at_once],
                         ids=lambda each: each.__name__)
def test_whoever_looks_sees_the_finished_step(held, gate, look, after):
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    plain_optimizer.step()
    with gate.closed(after):
        optimizer.step()
        gate.await_arrival(after + 1)
        torch.manual_seed(5)
        got = look(model, optimizer)
        assert gate.waits
    torch.manual_seed(5)
    same(got, look(plain, plain_optimizer))
    same(weights(model), weights(plain))


def run_cast(model, inputs):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return model.head(inputs)  # which has no bias to wait for


def test_a_cast_of_a_weight(held, gate, monkeypatch):
    """It is made anew by the step: whoever waits for it has no lock that this wants."""
    monkeypatch.setattr(casts, "BYTES_MIN", 1)
    monkeypatch.setattr(Store, "fits", lambda _store: False)
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    inputs = torch.ones(2, 32)
    for of, steps in ((plain, plain_optimizer), (model, optimizer)):
        for _ in range(2):  # casts alone will do from the second time on
            run_cast(of, inputs)
        with gate.closed():
            steps.step()
            said = run_cast(of, inputs)
            assert of is plain or gate.waits
        if of is plain:
            wanted = said
    assert torch.equal(said, wanted)
    for number in range(2, 4):
        loss_of(model, number, True).backward()
    optimizer.step()
    assert optimizer.state  # waits
    assert all(form.is_current() for one in model.parameters() for form in one.terrace.casts.values())


def test_a_graph_from_before_the_step_is_of_other_weights(held, gate):
    """And says so, as in PyTorch alone, though nothing is stepped yet."""
    for model, optimizer in begun(held):
        loss = loss_of(model, 5)
        with gate.closed():
            optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            assert not gate.waits


def test_a_module_waits_for_its_own_weights_alone(held, gate):
    """The first ones are stepped first: while all others are yet to be, their module runs, and no other does."""
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    plain_optimizer.step()
    text = torch.arange(4)[None]
    with gate.closed(after=2):
        optimizer.step()
        gate.await_arrival(3)
        torch.manual_seed(5)
        assert torch.equal(model.embedding(text), plain.embedding(text))
        assert not gate.waits
        hidden = model.blocks[3].narrow(torch.ones(1, 128))
        assert gate.waits
    assert torch.equal(hidden, plain.blocks[3].narrow(torch.ones(1, 128)))
    same(weights(model), weights(plain))


def test_what_changes_meanwhile_changes_the_next_step(held, gate):
    """The options of a group, what is in them, its members, and whether there are gradients."""
    rate = torch.tensor(1e-2)
    recipe = Recipe(options=(("lr", 1e-2), ("betas", (0.8, 0.9))))
    (plain, plain_optimizer), (model, optimizer) = begun(held, recipe)
    for number, of in enumerate((plain_optimizer, optimizer)):
        of.param_groups[1]["lr"] = rate.clone()
    plain_optimizer.step()
    with gate.closed():
        optimizer.step()
        gate.await_arrival()
        for of in (plain_optimizer, optimizer):
            of.param_groups[0]["lr"] = 1.0
            of.param_groups[0]["betas"] = (0.1, 0.2)
            of.param_groups[1]["lr"].fill_(1.0)
            of.param_groups[1]["params"].pop()
            of.zero_grad()
        assert not gate.waits
    same(weights(model), weights(plain))
    for of, steps in ((plain, plain_optimizer), (model, optimizer)):
        torch.manual_seed(6)
        loss_of(of, 3).backward()
        steps.step()
    same(weights(model), weights(plain))


def test_what_a_script_has_of_a_state_is_of_the_step(held, gate):
    """Its count of steps, which is in memory, and its tensors."""
    _, (model, optimizer) = begun(held)
    had = dict(optimizer.state[model.head.weight])
    with gate.closed():
        optimizer.step()
        gate.await_arrival()
        assert had["step"].item() == 2 and not gate.waits
        assert torch.equal(had["exp_avg"], optimizer.state[model.head.weight]["exp_avg"]) and gate.waits
    assert had["step"].item() == 2


def test_a_new_optimizer_waits_for_the_last_step_of_another(held, gate):
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    plain_optimizer.step()
    with gate.closed():
        optimizer.step()
        gate.await_arrival()
        model, other = terrace.torch.offload(model, SGD(model.parameters(), 0.1), client=held, tensor_bytes_min=1)
        assert gate.waits
    second = SGD(plain.parameters(), 0.1)
    for of, steps in ((plain, second), (model, other)):
        steps.zero_grad()
        torch.manual_seed(4)
        loss_of(of, 4).backward()
        steps.step()
    same(weights(model), weights(plain))


@pytest.mark.parametrize("after", [0, 1])
def test_a_state_that_is_loaded_goes_where_the_last_one_was(held, gate, after):
    (plain, plain_optimizer), (model, optimizer) = begun(held)
    given = [copy.deepcopy(one.state_dict()) for one in (plain_optimizer, optimizer)]
    plain_optimizer.step()
    there = set(held.tensors())
    with gate.closed(after):
        optimizer.step()
        gate.await_arrival(after + 1)
        optimizer.load_state_dict(given[1])
    plain_optimizer.load_state_dict(given[0])
    assert set(held.tensors()) == there
    for of, steps in ((plain, plain_optimizer), (model, optimizer)):
        torch.manual_seed(4)
        loss_of(of, 4).backward()
        steps.step()
    same(weights(model), weights(plain))


def test_a_client_that_is_closed_ends_the_step(held, gate):
    with HeldClient(held.socket, guarantees={"host": 4 << 20}) as client:
        _, (model, optimizer) = begun(client)
        with gate.closed():
            optimizer.step()
            gate.await_arrival()
            client.close()
            assert gate.waits
    with pytest.raises(terrace.Error):
        model.blocks[0].wide.weight.clone()
    assert optimizer.state  # no error was there to be told of


def test_a_client_is_closed_though_the_step_has_failed(held, gate, monkeypatch):
    client = HeldClient(held.socket, guarantees={"host": 4 << 20})
    _, (_, optimizer) = begun(client)
    with monkeypatch.context() as patched:
        fails(patched, gate, after=0)
        optimizer.step()
        with pytest.raises(terrace.ResourceExhausted, match="says the test"):
            client.close()
    assert client.session == 0


def test_a_forked_child_does_not_wait(held, gate):
    _, (model, optimizer) = begun(held)
    with gate.closed():
        optimizer.step()
        gate.await_arrival()
        child = os.fork()
        if not child:
            try:
                model.blocks[0].wide.weight.clone()
            except terrace.FailedPrecondition:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def fails(monkeypatch, gate, after=2):
    """Has the step's thread fail where it leases its second set."""
    asked = HeldClient._acquire

    def acquire(self, tensors, *options):
        if threading.current_thread().name == THREAD:
            if gate.came >= after:
                failed[:] = [tensor.name for tensor in tensors]
                raise terrace.ResourceExhausted("no room, says the test")
        return asked(self, tensors, *options)

    monkeypatch.setattr(HeldClient, "_acquire", acquire)


def whatever_failed(model, _optimizer):
    """A weight of the very batch that failed."""
    return model.get_parameter(failed[0].partition("/")[2]).detach().clone()


failed = []  # the names of what was asked for


@pytest.mark.parametrize("look", [forward, states, counted, stepped_again, saved, whatever_failed], ids=lambda each: each.__name__)
def test_an_error_in_the_step_is_raised_where_something_waits(held, gate, monkeypatch, look):
    _, (model, optimizer) = begun(held)
    with monkeypatch.context() as patched:
        failed.clear()
        fails(patched, gate)
        with gate.closed(after=2):
            optimizer.step()
            gate.await_arrival(2)
            if look is whatever_failed:
                gate.open()
                wait_until(lambda: failed, "the step to fail")
            with pytest.raises(terrace.ResourceExhausted, match="says the test") as raised:
                look(model, optimizer)
    assert "it had not stepped all of blocks." in "".join(raised.value.__notes__)
    del raised
    gc.collect()
    loss_of(model, 4).backward()  # told once, it is over
    optimizer.step()
    weights(model)
    assert optimizer.state and held.leased_bytes == 0 and held.held == 0


def test_a_script_that_ends_ends_its_step(held):
    """Also where nothing waits for it; and what it failed with is said."""
    script = """
import terrace.torch, torch, sys
sys.path[:0] = {paths!r}
from held_fixtures import HeldClient
from model_fixtures import Recipe, build, loss_of
class Failing(HeldClient):
    def _acquire(self, tensors, *options):
        import threading
        if {fails} and threading.current_thread().name == "terrace step":
            raise terrace.ResourceExhausted("says the script")
        return super()._acquire(tensors, *options)
client = Failing({socket!r}, guarantees={{"host": 4 << 20}})
model, optimizer = terrace.torch.offload(*build(Recipe()), client=client, step="host", tensor_bytes_min=1)
for step in range(2):
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad()
print("ended")
"""
    for failing in (False, True):
        ran = subprocess.run([sys.executable, "-c", script.format(paths=sys.path, socket=held.socket, fails=failing)],
                             capture_output=True, text=True, timeout=LIMIT_SECONDS)
        assert ran.stdout == "ended\n" and ran.returncode == 0, ran.stderr
        assert ("says the script" in ran.stderr) == failing, ran.stderr


def interrupted(_thread):
    raise KeyboardInterrupt


def test_an_interrupt_before_the_step_has_begun(held, monkeypatch):
    """It is the step's, of which nothing is done; and nothing waits for it."""
    _, (model, optimizer) = begun(held)
    before = weights(model)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    same(weights(model), before)
    assert [state["step"].item() for state in optimizer.state.values()] == [1] * len(optimizer.state)
    optimizer.step()
    assert not torch.equal(weights(model)["head.weight"], before["head.weight"])
    assert held.leased_bytes == 0 and held.held == 0

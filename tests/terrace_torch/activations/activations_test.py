# SPDX-License-Identifier: Apache-2.0
"""Shows that what autograd saves can wait in Terrace: the same losses, gradients and weights to the last bit, whatever
computes them and however little memory the tiers have; less memory in the trainer; and nothing left behind."""

import contextlib
import re
import threading
import warnings

import pytest
import terrace
import terrace.torch
import torch
from python_fixtures import LIMIT_SECONDS, MIB, ROOT, disk, run_program  # noqa: F401 (a fixture)
from torch.utils.checkpoint import checkpoint
from training_fixtures import (  # noqa: F401 (a fixture)
    LiveBytes,
    leaves_nothing,
    metric,
    model_of,
    roomy,
    same,
    train,
)

activations = terrace.torch.activations


@pytest.mark.parametrize("bfloat16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [None, "reentrant", "plain", "selective"])
def test_equal_bit_for_bit_through_the_block_tier(disk, checkpointing, bfloat16):
    """The memory tier holds a fraction of what is saved, so that it comes and goes through the disk."""
    memory, options = ("8MiB" if checkpointing is None else "2MiB"), {"batch": 24, "bfloat16": bfloat16}
    plain = train(model_of(8, checkpointing=checkpointing), contextlib.nullcontext(), 3, **options)
    with terrace.serve(memory, block=f"{disk}:256MiB") as client:
        context = activations(client, min_bytes=4096, keep_bytes=0)
        assert same(train(model_of(8, checkpointing=checkpointing), context, 3, **options), plain)
        assert context.moved_bytes > 4 * MIB and context.refused == 0
        assert metric(client, "terrace_transfer_bytes_total", link="block_read") > MIB, "the block tier carried nothing"
        assert leaves_nothing(context)


def test_memory_falls_by_more_than_seventy_percent(roomy):
    """A deep and narrow model, as the heap saw it; the keep of a sixteenth included."""
    most = {}
    for name, context in (("plain", contextlib.nullcontext()), ("terrace", activations(roomy, min_bytes=4096))):
        model = model_of(16)
        train(model, context, 3)
        with LiveBytes() as live:
            train(model, context, 1)
        most[name] = live.most
    print(most)
    assert most["terrace"] < 0.3 * most["plain"]


def test_tangents_of_zero_which_have_no_memory(roomy):
    """Forward-mode differentiation saves them."""
    def gradients(context):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
        x = torch.ones(64, 64)
        with context:
            y, tangent = torch.func.jvp(model, (x,), (torch.ones_like(x),))
            (y + tangent).square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    wanted = gradients(contextlib.nullcontext())
    for one, other in zip(gradients(activations(roomy, min_bytes=1, keep_bytes=0)), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("inplace", [False, True])
def test_the_noise_of_rrelu_which_is_filled_after_it_was_saved(roomy, inplace):
    """PyTorch's kernel fills it unseen by autograd. In a module that is offloaded as well, too."""
    def gradients(context, *, offloads=False):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.RReLU(inplace=inplace), torch.nn.Linear(64, 64))
        if offloads:
            terrace.torch.offload(model, client=roomy)
        with context:
            loss = model(torch.randn(64, 64)).square().mean()
            loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in model.parameters()]

    wanted = gradients(contextlib.nullcontext())
    assert same(gradients(activations(roomy, min_bytes=1, keep_bytes=0)), wanted)
    assert same(gradients(activations(roomy, min_bytes=1, keep_bytes=0), offloads=True), wanted)


def test_checkpoints_themselves_go_to_terrace(roomy):
    for kind in ("plain", "reentrant"):
        alone = activations(roomy, what="checkpoints", keep_bytes=0, min_bytes=1)
        most, said = {}, {}
        for name, context in (("plain", contextlib.nullcontext()), ("terrace", activations(roomy, keep_bytes=0)), ("alone", alone)):
            model = model_of(8, checkpointing=kind)
            with LiveBytes() as live:
                said[name] = train(model, context, 1, batch=32)
            most[name] = live.most
            assert same(said[name], said["plain"])
        print(kind, most)
        for name in ("terrace", "alone"):
            assert most["plain"] - most[name] > 0.8 * 8 * (32 * 128 * 32 * 4), "of eight checkpoints"
        with alone:
            torch.randn(64, 64, requires_grad=True).exp().sum().backward()
        assert alone.moved == 8
        offloaded = terrace.torch.offload(model_of(8, checkpointing=kind), client=roomy)[0]
        assert same(train(offloaded, alone, 1, batch=32), said["plain"]) and alone.moved == 16
    with pytest.raises(terrace.InvalidArgument, match="what is 'inputs'; it is 'all', or 'checkpoints'"):
        activations(roomy, what="inputs")


def test_a_steady_step_creates_nothing(roomy):
    context, model = activations(roomy, min_bytes=4096), model_of(4)
    train(model, context, 2)
    tensors, created = set(roomy.tensors()), []
    create = roomy.create
    roomy.create = lambda *arguments, **options: created.append(arguments) or create(*arguments, **options)
    train(model, context, 5)
    assert not created and set(roomy.tensors()) == tensors and context.slots == len(tensors) > 10
    context.clear()
    assert context.slots == 0 and not roomy.tensors()


def test_fresh_bytes_are_not_fetched(disk):
    """Saving again into a tensor whose old bytes are on disk reads nothing from there."""
    with terrace.serve("8MiB", block=f"{disk}:64MiB") as client:
        context = activations(client, keep_bytes=0)
        with context:
            graph = torch.randn(MIB // 4).requires_grad_().mul(2).square()
        del graph
        client.swap_out(list(client.tensors().values()))
        with context:
            graph = torch.randn(MIB // 4).requires_grad_().mul(2).square()
        assert context.moved == 2 and context.slots == 1
        assert metric(client, "terrace_transfer_bytes_total", link="block_read") == 0
        graph.sum().backward()


def test_a_storage_goes_once_and_views_keep_their_geometry(roomy):
    base = torch.randn(64, 96, 4).requires_grad_() * 1
    views = [base.permute(2, 0, 1), base[:, ::2], base.as_strided((60, 50), (96 * 4, 3), 7), base.expand(2, 64, 96, 4)]
    context = activations(roomy, keep_bytes=0)
    with context:
        results = [view.square() for view in views]
    assert (context.moved, context.duplicates) == (1, len(views) - 1)
    seen = [result.grad_fn._saved_self for result in results]
    for view, saved in zip(views, seen, strict=True):
        assert torch.equal(saved, view) and saved.data_ptr() != view.data_ptr()
        assert (saved.stride(), saved.storage_offset()) == (view.stride(), view.storage_offset())
    assert len({saved.untyped_storage().data_ptr() for saved in seen}) == 1
    assert roomy.leased_bytes > 0
    del results, seen, saved
    assert leaves_nothing(context)


def test_a_storage_that_changed_is_another_one(roomy):
    with activations(roomy, keep_bytes=0) as context:
        weight = torch.randn(10000).requires_grad_()
        value = weight * 1
        first = value.square()
        old = value.detach().clone()
        value.detach().add_(1)  # moves the version on
        second = value.square()
        assert (context.moved, context.duplicates) == (2, 0)
    assert torch.equal(first.grad_fn._saved_self, old)
    assert torch.equal(second.grad_fn._saved_self, value)


def test_another_storage_at_the_same_address_is_another_one(roomy):
    """PyTorch's allocator gives an address again as soon as it is free."""
    weight = torch.randn(100_000).requires_grad_()
    with activations(roomy, keep_bytes=0) as context:
        total = weight.new_zeros(())
        for number in range(8):
            total = total + (weight * number).square().sum()
        assert (context.moved, context.duplicates) == (8, 0)
    total.backward()
    expected = sum(2 * number * number for number in range(8)) * weight.detach()
    assert torch.allclose(weight.grad, expected)


def test_what_is_left_alone(roomy):
    def saved_as_it_is(make):
        context = activations(roomy, keep_bytes=0)
        with context:
            result = make()
        del result
        return context.moved == 0

    weight = torch.nn.Parameter(torch.randn(200, 200))
    frozen = torch.nn.Parameter(torch.randn(200, 200), requires_grad=False)
    made = torch.randn(200, 200).requires_grad_() * 1
    sparse = torch.eye(200).to_sparse()
    assert saved_as_it_is(lambda: weight * weight)
    assert saved_as_it_is(lambda: weight.t().square())
    assert saved_as_it_is(lambda: (frozen.t() * made.sum()))
    assert saved_as_it_is(lambda: torch.sparse.mm(sparse.requires_grad_(), weight))
    assert saved_as_it_is(lambda: made[:20].square())  # a tenth of its storage
    assert saved_as_it_is(lambda: (torch.randn(10).requires_grad_() * 1).square())
    assert saved_as_it_is(lambda: torch.empty(200, 200, device="meta", requires_grad=True).mul(1).square())
    assert not saved_as_it_is(lambda: made.square())


def test_parts_that_add_up_go_as_a_whole(roomy):
    """Of three parts the first is left; with the second there is more than half of the storage, and all of it goes."""
    whole = torch.randn(300, 300).requires_grad_() * 1
    with activations(roomy, keep_bytes=0) as context:
        parts = [part.square() for part in whole.chunk(3, 1)]
        assert (context.moved, context.duplicates) == (1, 1)
    for result, part in zip(parts, whole.chunk(3, 1), strict=True):
        saved = result.grad_fn._saved_self
        assert torch.equal(saved, part) and saved.stride() == part.stride() and saved.data_ptr() != part.data_ptr()


def test_casts_of_parameters_are_made_again(roomy):
    context = activations(roomy, keep_bytes=0, recompute_casts=True)
    layer, source = torch.nn.Linear(300, 300), torch.randn(4, 300)
    with context, torch.autocast("cpu", torch.bfloat16):
        # The cast and its transposed view are saved by different layers; neither travels.
        result = layer(layer(source)).float().sum()
    assert context.recast > 0 and context.moved == 0
    result.backward()
    ours, layer.weight.grad = layer.weight.grad, None
    with torch.autocast("cpu", torch.bfloat16):
        layer(layer(source)).float().sum().backward()
    assert torch.equal(ours, layer.weight.grad)
    with context, torch.autocast("cpu", torch.bfloat16):
        result = layer(layer(source)).float().sum()
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match=r"changed in place .*recompute_casts=False"):
        result.backward()


def test_casts_that_autocast_kept_over_a_step_are_what_they_were(roomy):
    """One region around several steps: autocast casts a weight once, and its cast outlives the weight's value."""
    def weights(context):
        torch.manual_seed(1)
        layer = torch.nn.Linear(256, 256)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                source = torch.randn(64, 256, requires_grad=True)
                with context:
                    layer(layer(source)).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return layer.weight

    assert torch.equal(weights(contextlib.nullcontext()), weights(activations(roomy, min_bytes=1024)))


def test_a_tensor_that_stayed_and_changed_is_an_error_as_without(roomy):
    weight = torch.randn(10).requires_grad_()
    with activations(roomy):
        value = weight * 1
        result = value.square()
    value.detach().add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.* version 1; expected version 0"):
        result.sum().backward()


def test_backward_twice_and_of_backward(roomy):
    def gradients(context):
        torch.manual_seed(3)
        weight = torch.randn(200, 200).requires_grad_()
        with context:
            loss = ((weight @ weight).tanh() @ weight).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
            (first,) = torch.autograd.grad((weight * 2).tanh().sum(), weight, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), weight)
        return weight.grad, first.detach(), second

    context = activations(roomy, keep_bytes=0)
    for ours, plain in zip(gradients(context), gradients(contextlib.nullcontext()), strict=True):
        assert torch.equal(ours, plain)
    assert context.moved > 0 and leaves_nothing(context)


@pytest.mark.parametrize("where", ["forward", "backward", "nowhere"])
def test_a_graph_that_is_not_used_up_leaves_nothing(roomy, where):
    def fail(value):
        raise ZeroDivisionError

    context, model = activations(roomy, keep_bytes=0), model_of(3)
    expected = train(model_of(3), contextlib.nullcontext(), 2)
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError), context:
            hidden = model(torch.randn(8, 128, 32))
            if where == "forward":
                raise ZeroDivisionError
            if where == "backward":
                hidden.register_hook(fail)
                model.blocks[1].down.weight.register_hook(fail)
                hidden.sum().backward()
        hidden = None
        model.zero_grad()
    assert leaves_nothing(context) and context.moved > 0
    slots = context.slots
    assert same(train(model_of(3), context, 2), expected)
    assert context.slots <= slots + 8 and leaves_nothing(context)


def test_a_tensor_that_backward_hands_out_keeps_its_bytes(roomy):
    """A gradient may be the saved tensor itself. Its bytes stay as long as it does, whatever is saved meanwhile."""
    class Given(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            context.save_for_backward(value * 3)
            return value.sum()

        @staticmethod
        def backward(context, gradient):
            return context.saved_tensors[0]

    context = activations(roomy, keep_bytes=0)
    weight = torch.randn(2, 10000).requires_grad_()
    expected = weight.detach() * 3
    with context:
        Given.apply(weight).backward()
        assert roomy.leased_bytes > 0 and context.slots_in_use == 1
        for _ in range(3):
            (torch.randn(20000).requires_grad_() * 1).square().sum().backward()
        assert torch.equal(weight.grad, expected)
    weight.grad = None
    assert leaves_nothing(context)


def test_nested_and_without_gradients(roomy):
    outer, inner = activations(roomy, keep_bytes=0), activations(roomy, keep_bytes=0)
    weight = torch.randn(200, 200).requires_grad_()
    with outer:
        value = (weight * 1).square()
        with inner, outer, inner:
            value = (value * 1).square()
        value = (value * 1).square()
        assert outer.moved > 0 and inner.moved > 0
        value.sum().backward()
    assert leaves_nothing(outer) and leaves_nothing(inner)
    with outer, torch.no_grad():
        moved = outer.moved
        model_of(2)(torch.randn(8, 128, 32))
        with torch.inference_mode():
            model_of(2)(torch.randn(8, 128, 32))
    assert outer.moved == moved


def test_backward_after_the_context_and_on_another_thread(roomy):
    context = activations(roomy, keep_bytes=0)
    weight = torch.randn(200, 200).requires_grad_()
    with context:
        loss = (weight @ weight).tanh().sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join(LIMIT_SECONDS)
    plain = weight.detach().clone().requires_grad_()
    (plain @ plain).tanh().sum().backward()
    assert context.moved > 0 and torch.equal(weight.grad, plain.grad)
    del loss
    assert leaves_nothing(context)


def test_backward_declares_what_it_needs_next(disk):
    """In the order in which it will be used: the reverse of saving at first, then as the steps before went."""
    with terrace.serve("8MiB", block=f"{disk}:128MiB") as client:
        context = activations(client, keep_bytes=0)
        declared = []
        prefetch = client._prefetch_later
        client._prefetch_later = lambda tensors, place: declared.extend(tensors) or prefetch(tensors, place)

        def step(order):
            declared.clear()
            weights = [torch.randn(MIB // 4).requires_grad_() for _ in range(24)]
            with context:
                saved = [(weight * 1).square() for weight in weights]
            at = {saving.moved().box.tensor.name: number
                  for number, saving in enumerate(context._keeper.order._step.savings)}
            for number in order:
                saved[number].sum().backward()
                saved[number] = None
            return [at[tensor.name] for tensor in declared]

        backwards, mixed = [*reversed(range(24))], [*range(0, 24, 2), *range(1, 24, 2)]
        assert step(backwards) == backwards[1:]
        step(mixed)
        assert step(mixed) == mixed[1:]
        assert metric(client, "terrace_prefetches_total", outcome="used") > 0
        assert leaves_nothing(context)


def test_what_does_not_pay_stays(roomy):
    """Within its bound; and what the script holds anyway stays too."""
    table = torch.randn(2, MIB // 8)
    context = activations(roomy, keep_bytes=2 * MIB)

    def step():
        before = context.stayed, context.moved
        weight = torch.randn(2, MIB // 8).requires_grad_()
        with context:
            value = weight * table
            for _ in range(8):
                value = value.mul(1).square()
            value.sum().backward()
        return context.stayed - before[0], context.moved - before[1]

    assert [step() for _ in range(3)] == [(0, 9), (3, 6), (3, 6)]


def test_a_full_store_leaves_training_as_it_is(disk):
    with terrace.serve("4MiB", metrics=False) as client:
        context = activations(client, keep_bytes=0, min_bytes=4096)
        plain = train(model_of(4), contextlib.nullcontext(), 3)
        with pytest.warns(RuntimeWarning, match=r"RESOURCE_EXHAUSTED.*last tier room for at least \d+") as caught:
            assert same(train(model_of(4), context, 3), plain)
        assert len([warning for warning in caught if "terrace" in str(warning.message)]) == 1
        assert context.refused > 0 and context.moved > 0 and leaves_nothing(context)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(model_of(4), context, 1)


def test_errors_say_what_to_do(roomy, monkeypatch, tmp_path):
    for said, wrong in (("client is 'x'", {"client": "x"}), ("min_bytes is 1.5", {"min_bytes": 1.5}),
                        ("recompute is 'no'; it is True or False", {"recompute": "no"}),
                        ("recompute_casts is None", {"recompute_casts": None})):
        with pytest.raises(TypeError, match=f"terrace.torch.activations: {said}"):
            activations(**{"client": roomy, **wrong})
    with pytest.raises(terrace.InvalidArgument, match="terrace.torch.activations: keep_bytes is -1"):
        activations(roomy, keep_bytes=-1)
    context = activations(roomy, keep_bytes=0)
    with context:
        loss = (torch.randn(20000).requires_grad_() * 1).square().sum()
        roomy.close()
        with pytest.warns(RuntimeWarning, match="FAILED_PRECONDITION"):
            kept = (torch.randn(20000).requires_grad_() * 1).square().sum()
    kept.backward()
    with pytest.raises(terrace.FailedPrecondition, match=r"activations: a saved tensor of 80000 bytes .*closed"):
        loss.backward()
    with pytest.raises(terrace.FailedPrecondition, match="activations: the client is closed"):
        context.__enter__()
    monkeypatch.setenv("TERRACE_SOCKET", str(tmp_path / "nobody.sock"))
    with pytest.raises(terrace.Unavailable, match=r"activations: no client was given.*terraced"):
        activations()


def test_a_forked_child_and_the_end_of_the_interpreter(roomy):
    ended = run_program(
        "import os, sys, torch, terrace, terrace.torch\n"
        "client = terrace.Client(sys.argv[1], guarantees={'host': 1 << 20})\n"
        "with terrace.torch.activations(client, keep_bytes=0) as saved:\n"
        "    loss = (torch.randn(20000).requires_grad_() * 1).square().sum()\n"
        "assert saved.moved == 1\n"
        "if os.fork() == 0:\n"
        "    del loss\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "loss.backward()\n"
        "with saved:\n"
        "    left = (torch.randn(20000).requires_grad_() * 1).square().sum()\n"
        "print('done')\n", roomy.socket)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "done", "")


def test_a_compiled_model(roomy):
    """What a compiled region saves goes through the same hooks, where the region is compiled without them in view."""
    def result(context):
        torch._dynamo.reset()
        torch.manual_seed(5)
        layer = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
        compiled = torch.compile(layer, backend="aot_eager")
        for _ in range(2):
            with context:
                compiled(torch.ones(512, 64)).square().mean().backward()
        return [parameter.grad for parameter in layer.parameters()]

    context = activations(roomy, keep_bytes=0)
    assert all(map(torch.equal, result(context), result(contextlib.nullcontext())))
    assert context.moved > 0 and leaves_nothing(context)


def test_the_documents_snippets_run(roomy):
    text = (ROOT / "docs/guides/activations.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(snippets) == text.count("```") // 2 == 5
    names = {"terrace": terrace, "torch": torch, "client": roomy, "model": model_of(2),
             "loader": torch.utils.data.DataLoader(torch.randn(6, 128, 32), batch_size=2)}
    for snippet in snippets:
        exec(snippet, names)  # each goes on from the one before, as on the page

# SPDX-License-Identifier: Apache-2.0
"""Leases each module's own parameters, as one set, for as long as the module runs forward.

The hooks are functions of this file and look up what belongs to a module: a copy of a module has the hooks too, and
nothing belongs to it.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .._errors import FailedPrecondition
from ._ddp import check_running
from ._parameters import ManagedParameter, by_store, enter_each, leave
from ._saved import pop, push
from ._store import Store


class _Uses:
    """A module's parameters, and its runs that are under way."""

    def __init__(self, parameters: Sequence[ManagedParameter]):
        self.parameters = parameters
        self.sets = by_store(parameters)
        self.handles: list[Any] = []
        self.names: dict[str, nn.Parameter] = {}
        self.pushed = threading.local()  # of each thread's runs: whether hooks were pushed

    def runs(self) -> list[bool]:
        """This thread's runs that are under way."""
        runs: list[bool] | None = getattr(self.pushed, "runs", None)
        if runs is None:
            runs = self.pushed.runs = []
        return runs


_uses: weakref.WeakKeyDictionary[nn.Module, _Uses] = weakref.WeakKeyDictionary()

_compiler_of_thread = torch._C._dynamo.eval_frame.get_eval_frame_callback

_running_backward = torch._C._current_graph_task_id
_NO_TASK = -1

# They never run: who has them uses what they hold.
_LISTS = (nn.ParameterList, nn.ParameterDict)

# Their forward reads the parameters of modules inside them, without running those.
_WHOLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def _check_not_ahead(parameters: Sequence[ManagedParameter]) -> None:
    """Raises where one was stepped in a backward pass, and its optimizer.step() has not come: PyTorch alone would still
    have the weights before. Not where it was written to since, as by load_state_dict()."""
    for one in parameters:
        if one.gradient is None or one.gradient.ahead_at is None:
            continue
        with torch._C.DisableTorchFunctionSubclass():
            version = one.parameter._version
        if (one.writes, version) == (one.gradient.ahead_at, one.gradient.ahead_version):
            raise FailedPrecondition(
                f"terrace.torch.offload(step_in_backward=True): the parameter '{one.name}' was stepped in a backward pass, "
                "and the model runs again before optimizer.step(): a second gradient (gradient accumulation) cannot be "
                "had, and if optimizer.step() was left out, its weights are stepped all the same. Call it first, "
                "load other weights, or offload without step_in_backward")


def _before(module: nn.Module, _inputs: Any) -> None:
    if torch.compiler.is_compiling() or _compiler_of_thread() is not None:
        raise FailedPrecondition("an offloaded module would lease in compiled code: what is compiled is a function that "
                                 "runs it, or was compiled after terrace.torch.offload(). Use torch.compile(module) "
                                 "in the place of the module, before terrace.torch.offload()")
    uses = _uses.get(module)
    if uses is None:
        return
    if torch.jit.is_tracing():
        raise FailedPrecondition("a module was traced after terrace.torch.offload(), and the trace would not lease: "
                                 "trace a copy.deepcopy() of the model")
    check_running(uses.parameters)
    if _running_backward() == _NO_TASK:
        _check_not_ahead(uses.parameters)
    for store, _ in uses.sets:
        store.drop_unneeded()
    enter_each(uses.sets)
    uses.runs().append(push())


def _after(module: nn.Module, _inputs: Any, _output: Any) -> None:
    uses = _uses.get(module)
    runs = [] if uses is None else uses.runs()
    if uses is None or not runs:
        return  # nothing was leased: something before raised
    if runs.pop():
        pop()
    leave(uses.parameters)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what torch.compile() gave: what is inside is leased as a whole, and not looked into."""
    return type(module).__name__ == "OptimizedModule" and isinstance(getattr(module, "_orig_mod", None), nn.Module)


def _is_whole(module: nn.Module) -> bool:
    """Whether all that is in it is leased with it."""
    return is_compiled(module) or isinstance(module, _WHOLE)


def _used_by(part: nn.Module) -> list[nn.Parameter]:
    """The parameters that a module's own forward reads."""
    whole = _is_whole(part)
    found = list(part.parameters(recurse=whole))
    if isinstance(part, nn.TransformerEncoder) and getattr(part, "use_nested_tensor", False):
        found += part.layers[0].parameters()  # by which it decides whether padded batches are packed
    if not whole:
        for below in part.children():
            found += below.parameters() if isinstance(below, _LISTS) else ()
    return list(dict.fromkeys(found))


def used_by_each(model: nn.Module) -> dict[nn.Module, list[nn.Parameter]]:
    """Which parameters each module is to lease as it runs. What is in one that is leased as a whole is left out, unless
    it is such a one itself, and may run alone; in compiled code nothing leases."""
    left_out: set[nn.Module] = set()
    for part in filter(_is_whole, model.modules()):
        left_out.update(below for below in part.modules()
                        if below is not part and (is_compiled(part) or not _is_whole(below)))
    return {part: _used_by(part) for part in model.modules()
            if part not in left_out and not isinstance(part, _LISTS)}


def attach(module: nn.Module, managed: dict[int, ManagedParameter]) -> None:
    """Leases the parameters of a module and all in it, module by module, from now on."""
    for part, used in used_by_each(module).items():
        own = [managed[id(parameter)] for parameter in used if id(parameter) in managed]
        if not own:
            continue
        for one in own if is_compiled(part) else ():
            one.compiled = True
        uses = _uses[part] = _Uses(own)
        uses.names = {key: one for key, one in part.named_parameters(recurse=False, remove_duplicate=False)
                      if id(one) in managed}
        uses.handles = [part.register_forward_pre_hook(_before, prepend=True),
                        part.register_forward_hook(_after, always_call=True)]


def detach(module: nn.Module) -> None:
    """Leases nothing for the module any more."""
    for part in module.modules():
        uses = _uses.pop(part, None)
        for handle in uses.handles if uses is not None else ():
            handle.remove()


def replaced(module: nn.Module) -> list[str]:
    """The names of parameters that a module was given in the place of those that are in Terrace."""
    return [f"{name}.{key}".lstrip(".")
            for name, part in module.named_modules() if (uses := _uses.get(part)) is not None
            for key, expected in uses.names.items()
            if part._parameters.get(key, expected) is not expected and part._parameters[key] is not None]


def _called(name: str, part: nn.Module) -> str:
    """How a module is called where it leases too much."""
    called = f"the module '{name}'" if name else "the model"
    if is_compiled(part):
        called += ", which torch.compile made one module (compile its blocks instead),"
    return called


def largest(module: nn.Module, store: Store) -> tuple[int, str]:
    """Bytes of the largest set of a store that is leased at once, and whose it is."""
    found = [(sum(one.slot.nbytes for one in own), _called(name, part))
             for name, part in module.named_modules() if (uses := _uses.get(part)) is not None
             for its, own in uses.sets if its is store]
    return max(found, default=(0, ""))

# SPDX-License-Identifier: Apache-2.0
"""Leases each module's own parameters, as one set, for as long as the module runs forward.

A module is called through PyTorch's own place for a compiled call, not by hooks: what it leased ends however the call
does (hooks are left out for KeyboardInterrupt), nn.TransformerEncoderLayer takes its fast path, which it does not where
there are hooks, and neither a copy of the module nor a pickle has it.
"""

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..._errors import FailedPrecondition
from .._leased.place import Place
from .._leased.store import Store
from .._parameters.casts import pays
from .._parameters.parameter import ManagedParameter, by_store, enter_each, is_managed_parameter, leave
from .._parameters.saved import pop, push, push_over_others
from .._parameters.shard import ManagedShard, enter_shards, leave_shards
from .._pytorch.modes import check_not_compiled, is_traced
from .._pytorch.private import (
    COMPILED_CALL,
    NO_BACKWARD,
    asks_torch_function,
    has_hooks,
    mark_hooked,
    module_called,
    running_backward,
    sequence_number,
    unmark_hooked,
)
from .._ranks.ddp import check_running
from .._tensors.offloaded import OffloadedParameter, OffloadedTensor, leaves
from .autocast import casts_to
from .graphs import let_go
from .transforms import as_views, saves_unasked


class _Uses:
    """What a module is to do when it is called."""

    def __init__(self, parameters: Sequence[ManagedParameter]):
        self.parameters = parameters
        self.sets = by_store(parameters)
        self.pieces: Sequence[ManagedParameter] = ()  # of them, those that are no parameters: see _parameters/pieces.py
        self.names: dict[str, weakref.ref[nn.Parameter]] = {}  # the module's own
        self.keeps_frozen = False  # some are frozen, which functions may keep for the backward pass unasked
        self.packs_only = False  # it uses them to see whether it can pack a batch, and for nothing else
        self.shards: Sequence[ManagedShard] = ()  # of parameters that are split over ranks
        self.whole: set[ManagedParameter] = set()  # of which autocast's casts alone will not do here
        self.known: dict[tuple[bool, bool], set[ManagedParameter]] = {}  # of which they have done, by whether the module trained
        self.first: list[Callable[[nn.Module], None]] = []  # to call, before anything is leased

    def drop_gone(self) -> bool:
        """Uses no more what the module was given others for, and nobody has. Whether there was anything. What of it is in
        Terrace is the job's to delete."""
        left = [one for one in self.parameters if not one.gone]
        if len(left) == len(self.parameters):
            return False
        self.parameters, self.sets = left, by_store(left)
        return True


_uses: weakref.WeakKeyDictionary[nn.Module, _Uses] = weakref.WeakKeyDictionary()


# They never run: who has them uses what they hold.
_LISTS = (nn.ParameterList, nn.ParameterDict)

# Their forward reads the parameters of modules inside them, without running those.
_WHOLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

# Where forwards are whose every use of a weight is one of PyTorch's functions.
_FORWARDS = ("torch.nn.", "transformers.pytorch_utils")
_NOT_FORWARDS = "torch.nn.utils."  # parametrizations, which give a weight to the script's own code

_ORDINARY = (torch.Tensor, nn.Parameter)

_MARK: Any = "terrace"

_TRANSLATED = ("a module was scripted or traced (torch.jit, make_fx) after terrace.torch.offload(), and that code would "
               "not lease: script or trace a copy.deepcopy() of the model")


def _check_not_ahead(parameters: Sequence[ManagedParameter]) -> None:
    """Raises where one was stepped in a backward pass, and its optimizer.step() has not come: PyTorch alone would still
    have the weights before. Not where others were put in their place since, as by load_state_dict()."""
    for one in parameters:
        ahead = None if one.gradient is None else one.gradient.ahead
        if ahead is not None and not ahead.replaced:
            raise FailedPrecondition(
                f"terrace.torch.offload(step_in_backward=True): the parameter '{one.name}' was stepped in a backward pass, "
                "and the model runs again before optimizer.step(): a second gradient (gradient accumulation) cannot be "
                "had, and if optimizer.step() was left out, its weights are stepped all the same. Call it first, "
                "load other weights, or offload without step_in_backward")


class _Casts:
    """The weights of a module that autocast may have casts of, while it runs.

    At first a module runs with all of them leased, and each of PyTorch's functions that it gives one is looked at. What is
    given to those alone that autocast casts for is not leased from then on. What no function was given, though the module
    ran, something else may read (an extension's C++), which does not ask: that goes on being leased.
    """

    def __init__(self, module: nn.Module, uses: _Uses):
        self._uses = uses
        self._known = uses.known.setdefault((torch.is_grad_enabled(), module.training), set())
        self._counts = [(one, one.cast_uses, one.whole_uses) for one in uses.parameters
                        if one not in uses.whole and not one.gone and pays(one)]
        self.left_out = [one for one, _, _ in self._counts if one in self._known]

    def look(self) -> None:
        """The others are leased: has functions of PyTorch tell which they are given."""
        for one, _, _ in self._counts:
            if one not in self._known:
                one.parameter.__class__ = OffloadedParameter

    def note(self) -> None:
        """The module has run."""
        for one, casts, wholes in self._counts:
            if one.whole_uses != wholes:
                self._uses.whole.add(one)
            elif one.cast_uses != casts:
                self._known.add(one)


def _casts_in(module: nn.Module, uses: _Uses, given: Any) -> _Casts | None:
    """Those of a module that is about to run, if autocast casts at all. None where its forward is not one of PyTorch's, or
    has hooks, or may be given what PyTorch's functions ask before our weights: a weight may come to compiled code or to an
    extension then, where nothing can be looked at.

    given: the module's arguments."""
    if uses.packs_only or _is_whole(module) or not any(casts_to(place.device.type) for store, _ in uses.sets for place in store.places):
        return None
    of = "" if "forward" in module.__dict__ else type(module).forward.__module__
    if not of.startswith(_FORWARDS) or of.startswith(_NOT_FORWARDS) or has_hooks(module) or not asks_torch_function():
        return None
    ordinary = all(type(one) in _ORDINARY or isinstance(one, OffloadedTensor) for one in leaves(given))
    return _Casts(module, uses) if ordinary else None


def _enter(uses: _Uses, casts: _Casts | None) -> tuple[bool, Sequence[ManagedParameter]]:
    """Shows what a module uses, but for weights whose casts will do. Whether pop() is due, and what is shown."""
    if is_traced():
        raise FailedPrecondition(_TRANSLATED)
    check_running(uses.parameters)
    if running_backward() == NO_BACKWARD:
        _check_not_ahead(uses.parameters)
    for store, _ in uses.sets:
        store.drop_unneeded()
    left_out = [] if casts is None else casts.left_out
    try:
        entered = _enter_others(uses, left_out)
    except FailedPrecondition:
        if not uses.drop_gone():
            raise
        entered = _enter_others(uses, left_out)
    try:
        if casts is not None:
            casts.look()
        return push(), entered
    except BaseException:
        leave(entered)
        raise


def _enter_others(uses: _Uses, left_out: Sequence[ManagedParameter]) -> Sequence[ManagedParameter]:
    if not left_out:
        enter_each(uses.sets)
        return uses.parameters
    others = [one for one in uses.parameters if one not in left_out]
    enter_each(by_store(others))
    return others


class _Caller:
    """What PyTorch calls in the place of a module."""

    def __init__(self, module: nn.Module, uses: _Uses):
        self._module = weakref.ref(module)
        self._uses = uses

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        uses = self._uses
        if uses.sets or torch.compiler.is_compiling():
            check_not_compiled()
        module: Any = self._module()
        called = module_called(sys._getframe(1), module)  # of Module.__call__
        if called is not module:  # it was given the module's __dict__, and is another one: operations lease
            return called._call_impl(*inputs, **options)
        for first in uses.first:
            first(module)
        if uses.keeps_frozen:
            uses.drop_gone()  # a layer in four bits makes other scales where it packs its weight anew
        leases = bool(uses.sets) and not (uses.packs_only and not _may_pack(module, inputs, options))
        casts = _casts_in(module, uses, (inputs, options)) if leases else None
        if uses.shards:
            return self._with_shards(module, inputs, options)
        pushed, entered = _enter(uses, casts) if leases else (push_over_others(), ())
        try:
            if leases and saves_unasked() and not is_compiled(module):
                with as_views(module, [one.parameter for one in uses.parameters if one.kind is nn.Parameter]):
                    return module._call_impl(*inputs, **options)
            if not leases or not uses.keeps_frozen or not torch.is_grad_enabled():
                return module._call_impl(*inputs, **options)
            before = sequence_number()
            made = module._call_impl(*inputs, **options)
            let_go(made, before)
            return made
        finally:
            try:
                if pushed:
                    pop()
            finally:
                if leases:
                    leave(entered)
                    if casts is not None:
                        casts.note()

    def _with_shards(self, module: nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Runs it with the shards leased, and the other parameters that it uses."""
        uses = self._uses
        check_not_compiled()
        store = uses.shards[0].store
        store.drop_unneeded()
        enter_shards(store, uses.shards)
        try:
            pushed, entered = _enter(uses, None)
            try:
                return module._call_impl(*inputs, **options)
            finally:
                if pushed:
                    pop()
                leave(entered)
        finally:
            leave_shards(uses.shards)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Copies and pickles of a module have None in its place: nn.Module leaves it out, but nn.LSTM, what is
        parametrized and whoever says what a pickle has copy the whole __dict__."""
        return type(None), ()

    @property
    def _torchscript_modifier(self) -> None:
        """What torch.jit asks of a module's code first."""
        raise FailedPrecondition(_TRANSLATED)


def _may_pack(encoder: nn.TransformerEncoder, inputs: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether an encoder may be going to pack a padded batch: it looks then whether its first layer's parameters are
    ordinary ones. In training it does not, nor if it is given no mask."""
    given = sum(isinstance(one, torch.Tensor) for one in (*inputs, *options.values()))
    return given > 1 and not encoder.layers[0].training


def _use(module: nn.Module, parameters: Sequence[ManagedParameter]) -> _Uses:
    uses = _uses[module] = _Uses(parameters)
    # Not by setattr(), which what torch.compile() gave hands on to the module that it was given.
    module.__dict__[COMPILED_CALL] = _Caller(module, uses)
    mark_hooked(module, _MARK)
    return uses


def call_first(module: nn.Module, first: Callable[[nn.Module], None]) -> None:
    """Calls a function, with the module, each time that it is about to run: before it leases, and before other such
    functions."""
    uses = _uses.get(module)
    (_use(module, []) if uses is None else uses).first.insert(0, first)


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
    if not whole:
        for below in part.children():
            found += below.parameters() if isinstance(below, _LISTS) else ()
    if isinstance(part, nn.TransformerEncoder):
        found += part.layers[:1].parameters()
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


def attach(module: nn.Module, managed: Mapping[int, ManagedParameter],
           pieces: Mapping[nn.Module, Sequence[ManagedParameter]] | None = None,
           shards: Mapping[int, ManagedShard] | None = None) -> None:
    """Leases these parameters of a module and all in it, by id, module by module, from now on, and no others.

    pieces: what modules have of frozen weights that is no parameter, and is leased with them; shards: by id, of parameters
        that are split over ranks; None: what they had."""
    for part, used in used_by_each(module).items():
        before = _uses.get(part)
        if pieces is not None:
            below = part.modules() if _is_whole(part) else (part,)
            beside = list(dict.fromkeys(one for owner in below for one in pieces.get(owner, ())))
        else:
            beside = [] if before is None else [one for one in before.pieces if not one.gone]
        own = [managed[id(parameter)] for parameter in used if id(parameter) in managed] + beside
        split = (() if before is None else before.shards) if shards is None else [
            shards[id(parameter)] for parameter in used if id(parameter) in shards]
        if before is None and not own and not split:
            continue
        for one in own if is_compiled(part) else ():
            one.compiled = True
        uses = _use(part, own)
        uses.pieces, uses.shards = beside, split
        uses.first = [] if before is None else before.first
        uses.names = {key: weakref.ref(one) for key, one in part.named_parameters(recurse=False, remove_duplicate=False)
                      if id(one) in managed}
        uses.keeps_frozen = not is_compiled(part) and any(not one.parameter.requires_grad for one in own)
        uses.packs_only = isinstance(part, nn.TransformerEncoder) and not uses.names


def detach(module: nn.Module) -> None:
    """Leases nothing for the module any more."""
    for part in module.modules():
        if _uses.pop(part, None) is not None:
            part.__dict__.pop(COMPILED_CALL, None)
            unmark_hooked(part, _MARK)


def is_called_by_us(module: nn.Module) -> bool:
    """Whether something is to happen when the module is called."""
    return module in _uses


def replaced(module: nn.Module) -> list[str]:
    """The names of parameters that a module was given in the place of those that are in Terrace, or in another shape."""
    return [f"{name}.{key}".lstrip(".")
            for name, part in module.named_modules() if (uses := _uses.get(part)) is not None
            for key, expected in uses.names.items()
            if (now := part._parameters.get(key)) is not None
            and (now is not expected() or not is_managed_parameter(now))]


def _called(name: str, part: nn.Module) -> str:
    """How a module is called where it leases too much."""
    called = f"the module '{name}'" if name else "the model"
    if is_compiled(part):
        called += ", which torch.compile made one module (compile its blocks instead),"
    return called


def largest(module: nn.Module, store: Store, place: Place) -> tuple[int, str]:
    """Bytes of the largest set of a store that is leased at once in one of its places, and whose it is."""
    found = [(sum(one.slot.room_bytes for one in (*uses.parameters, *uses.shards)
                  if one.store is store and store.place_of(one.slot) is place), _called(name, part))
             for name, part in module.named_modules() if (uses := _uses.get(part)) is not None]
    return max(found, default=(0, ""))

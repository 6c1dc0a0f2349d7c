# SPDX-License-Identifier: Apache-2.0
"""`offload`: moves what a script trains to Terrace."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn, optim

from ... import _checks
from ..._client import TIMEOUT_SECONDS, Client
from ..._errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from .._device.device import device_of
from .._device.streams import has_streams
from .._files.streamed import stream_saves
from .._leased.default_client import opened
from .._leased.store import Store
from .._model import modules, operations
from .._model.transforms import ask_transforms
from .._optimizer import kinds, trial
from .._optimizer.optimizer import ManagedOptimizer, inner_of, managed_optimizer
from .._parameters.masters import Masters
from .._parameters.parameter import ManagedParameter, built
from .._pytorch.split import is_split, local_of
from .._ranks.asked import check_alike, ranks_of
from .._ranks.frozen import Frozen
from .._ranks.fsdp import groups_of
from .._ranks.shards import Shards
from .._ranks.together import Ranks
from .._tensors.dlpack import lease_for_capsules
from .auto import choose, free_for, moves, say
from .grown import Grown, check_taken_fits, take_in
from .grown import find as find_grown
from .grown import finish as finish_grown
from .init import client_of
from .job import Job, begin, job_if_any, leave
from .moves import Names, destroy, divide, forget, give_back, make_gradients, move, move_parameters, take_over
from .other_optimizers import step_others
from .parts import ALL, AUTO, asked_parts, by_environment, wanted_parts, what_by_default
from .precision import Precision, check_precision, check_taken, renew_states, wanted_precision
from .quantized import Pieces
from .refusals import check_forwards, check_model, eligible, places_of_model, warn_of_another, warn_of_shown
from .room import check_room, check_shared_room
from .steppers import steppers
from .stepping import AUTO_STEP, check_step, decide, host_store, wanted_step
from .undo import Undo
from .where import Where

TENSOR_BYTES_MIN = 4096
_CALL = "terrace.torch.offload"
Module = TypeVar("Module", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=optim.Optimizer | Sequence[optim.Optimizer] | None)


def offload(model: Module, optimizer: AnyOptimizer = None, *, client: Client | None = None,  # type: ignore[assignment]
            what: str | Iterable[str] | None = None, place: str | None = None, masters: torch.dtype | None = None,
            gradients: torch.dtype | None = None, step: str | None = None, step_in_backward: bool = False, share_frozen: bool = False,
            tensor_bytes_min: int = TENSOR_BYTES_MIN,
            timeout: float = TIMEOUT_SECONDS) -> tuple[Module, AnyOptimizer]:
    """Moves a model's parameters, their gradients and the optimizer's states to Terrace; returns both as they came.

    From then on a module's parameters are leased while it runs, gradients are accumulated in leased memory, and the
    optimizer steps batch by batch: losses and weights are, bit for bit, those without Terrace. Whatever else uses a
    parameter, a gradient or a state leases it for that operation. Of what is split over ranks, this rank's shards
    are moved, and leased while fully_shard() (FSDP2) gathers them, or while their module runs (tensor parallelism).

    optimizer: that steps the model; a list or tuple of several that step parts of it; None: its states, and its steps, stay
        as they are. One that is not known is tried first on a small copy: it must come to the same numbers where it steps its
        parameters one by one (see declare()).
    client: the session to keep them in; None: the process's own, one for all calls that are not given one.
    what: "auto": what there is no room for where the model is goes to Terrace, states first, and a line on standard error
        says so; where there is room for all, nothing is offloaded. "all": all that there are. A set of "parameters",
        "gradients" and "states" (the optimizer's): these, while the others stay in memory. None: what the environment
        variable TERRACE_WHAT says (names are separated by commas), and "auto" where it is not set.
    place: where they are leased, and computed with: "host" for a model on the CPU (or an emulated device's "device:N"),
        and for one on a GPU the "device:N" that is that GPU's memory; None: by where the model is. Of a model on several
        devices, each parameter is leased in the memory of its own.
    masters: torch.float32: the optimizer steps a copy in float32 of each trained weight in bfloat16 or float16, which the
        weight is then rounded from. Masters are kept with the states ("states" in `what`), are leased by the optimizer's
        step alone, and are part of its state_dict(). What is written to a weight, its master takes over.
    gradients: torch.float32, with masters: gradients of these weights are accumulated in float32; None: in their type.
    step: "device": the optimizer's step runs where the model is; "host": on the CPU, and goes on in a thread of its own when
        step() has returned, beside the next forward pass. Whoever uses a weight, a gradient or a state waits until that one
        is stepped, and the numbers are the same. What the step fails with is raised where something waits for it. Of a model
        on a GPU masters and states are in the host's memory; gradients go down, and weights come back. Its weights are those
        that PyTorch's CPU optimizer comes to with the same gradients, bit for bit; a GPU's own arithmetic differs in last
        bits. "auto": where it takes less time, by the room that there is, a GPU's measured link, and a timed slice of the
        optimizer's step on the CPU; on the device where the CPU cannot step it. summary() says which, and why. None:
        "device", whose numbers are those without Terrace wherever the model is; or as the model's other optimizers.
    step_in_backward: steps parameters in the backward pass, as soon as the gradients that have come are 16 MiB together
        (a sixteenth of the guarantee, if that is less), so that gradients need no other room and never travel;
        optimizer.step() then steps only what is not in Terrace. With step="host" a thread steps them, beside the rest of that
        pass. The weights are the same, bit for bit. What needs all
        gradients first (accumulation, clipping, a GradScaler, DistributedDataParallel) raises FailedPrecondition, or
        InvalidArgument where it is seen here.
    share_frozen: keeps parameters that require no gradient once for all ranks of torch.distributed that use this
        daemon and have their models in the same memory (the host's, or that of one GPU), instead of once for each. All ranks
        call offload() with it, with the same values, or it raises on all of them. These parameters can be neither written to
        nor unfrozen from then on.
    tensor_bytes_min: smaller tensors stay in the process's memory; and so does, with a warning, a parameter whose memory
        something else shows.
    timeout: seconds that a lease may take, and that ranks wait for each other where all of them are to call this.

    Of a model that is offloaded already, a new optimizer is taken, beside those before or in their place: its states go
    to Terrace, those of optimizers that are gone are deleted there, and parameters stay where they are; timeout,
    share_frozen, masters, gradients and step are as they were given first. With step_in_backward, which is to be given again, a
    model has the optimizers of one call at a time. Parameters that the model was given since are taken in (a larger
    vocabulary, an adapter), also with an optimizer that is offloaded already, or without one; what they took the place of
    is deleted once nobody has it.

    Of a model that is split over ranks, and with share_frozen, all of these ranks call it at the same point and ask for the
    same. Where it fails on one it fails on all of them; DeadlineExceeded where one does not come.

    InvalidArgument for what cannot be offloaded, by name; ResourceExhausted if it does not fit, or a module alone needs
    more than the place holds. Then the model is as it was.
    """
    in_backward = _checks.flag("terrace.torch.offload", "step_in_backward", step_in_backward)
    shares = _checks.flag("terrace.torch.offload", "share_frozen", share_frozen)
    seconds = _checks.seconds(_CALL, "timeout", timeout)
    with Ranks(_CALL, ranks_of(model, shares), seconds) as ranks:
        precision = wanted_precision(_CALL, masters, gradients, optimizer)
        where = wanted_step(_CALL, step, optimizer)
        begin = functools.partial(_offload, model, optimizer, client=client, what=asked_parts(_CALL, what), place=place,
                                  precision=precision, step_in_backward=in_backward, ranks=ranks, shares=shares,
                                  tensor_bytes_min=tensor_bytes_min, seconds=seconds)
        try:
            return begin(step=where)
        except _NoRoomForStepError as error:  # all is as it was
            return begin(step=Where("device", f"there is no room for what the CPU would step ({error.__cause__})"))


class _NoRoomForStepError(Exception):
    """What the CPU would step finds no room, and nobody has asked for it to."""


def _offload(model: Module, optimizer: AnyOptimizer, *, client: Client | None, what: str | list[str] | None,
             place: str | None, precision: Precision, step: str | Where | None, step_in_backward: bool, ranks: Ranks, shares: bool,
             tensor_bytes_min: int, seconds: float) -> tuple[Module, AnyOptimizer]:
    """ranks: that all do this now. shares: and have what is frozen in common. step: Where: it is decided."""
    stream_saves()
    lease_for_capsules()
    ask_transforms()
    step_others()
    job = job_if_any(model)
    new = {} if job is None else job.new_in(model)
    steps = _check_asked(job, model, optimizer, step_in_backward, bool(new))
    for one in steps:
        warn_of_another(_CALL, model, one, 4)
    bytes_min = max(1, _checks.count(_CALL, "tensor_bytes_min", tensor_bytes_min, 1 << 40))
    asked = {**precision._asdict(), "step": AUTO_STEP if isinstance(step, Where) else step, "share_frozen": shares, "what": what}
    if job is not None:
        given = None if step == AUTO_STEP and (job.optimizers or job.masters) else step
        parts = _parts_of(_CALL, job, client, what, place, precision, given, step_in_backward, optimizer)
        grown = find_grown(_CALL, job, model, new, bytes_min)
        _check_parts(_CALL, job.parts, [grown.names[one.parameter][0] for one in built(list(grown.names))], {})
        check_alike(_CALL, ranks, model, asked)
        _take_more(job, model, steps, grown, parts, precision, given, bytes_min, ranks)
        return model, optimizer
    check_alike(_CALL, ranks, model, asked)
    devices = _devices_of(model)
    parts = _parts(model, optimizer, steps, what, devices, client, place, precision, step, step_in_backward, ranks, shares)
    if not parts:
        ranks.finish()
        leave(model)
        return model, optimizer
    pieces = Pieces(model, bytes_min, devices if "parameters" in parts else ())
    names, left = eligible(model, bytes_min, "parameters" in parts, pieces.shown_with)
    left += pieces.left
    check_precision(_CALL, precision, model, steps)
    chosen = _choose(model, names, parts, client, place, step_in_backward, ranks if shares else None)
    on_gpu = any(has_streams(device_of(chosen.client, place)) for place in chosen.places)
    if step == "host" and on_gpu:
        check_step(_CALL, model, steps, chosen.places)
    _try(steps, precision.masters)
    where = _where(model, steps, precision, step, parts, chosen.client, chosen.places)
    on_host = where.step == "host" and on_gpu
    warn_of_shown(left)
    store = Store(chosen.client, chosen.places, seconds,
                  4 * sum(local_of(parameter).nbytes for parameter in names) + (1 << 20), operations)
    store.left_alone = left
    with _no_room_for_step(on_host and step == AUTO_STEP), Undo() as undo:
        undo.by(functools.partial(destroy, store, names))
        host = host_store(_CALL, store, operations, _elements(steps)) if on_host else None
        if host is not None:
            undo.by(host.destroy)
        undo.by(chosen.frozen.undo)
        undo.by(functools.partial(give_back, chosen.buildings, store))
        undo.by(functools.partial(forget, names))
        shared = chosen.frozen.share(store)
        take_over(chosen.buildings, store, names)
        masters = Masters(store, *precision, in_terrace="states" in parts, host=host)
        shards = Shards(store, chosen.sharded, model, masters.gradient_like)
        own, in_memory = divide(store, chosen.whole, parts)
        beside = pieces.manage(store, [*shared, *own])
        managed = [*shared, *own, *beside]
        stepped = [ManagedOptimizer(one, store, shards, in_memory, parts, bytes_min, step_in_backward, masters, where.step == "host")
                   for one in steps]
        make_gradients(store, [*own, *in_memory], parts, masters, stepped)
        undo.by(masters.accumulate_as_before)
        for each in stepped:
            each.states.make_all_masters()
        undo.by(functools.partial(modules.detach, model))
        modules.attach(model, {id(one.parameter): one for one in managed}, pieces.by_module(beside), shards.alone)
        check_room(model, store, shards, in_memory if "gradients" in parts else [], stepped)
        check_shared_room(model, chosen.frozen.store)
        for one in steps:
            _renew_states(one, masters, undo)
        move(store, managed, in_memory, shards, stepped, ranks, undo)
        masters.accumulate_wide()
    chosen.frozen.finish()
    begin(model, store, chosen.frozen.store, managed, in_memory, shards, parts, masters, where, stepped)
    return model, optimizer


def _where(model: nn.Module, optimizers: list[optim.Optimizer], precision: Precision, step: str | Where | None,
           parts: frozenset[str], client: Client, places: Sequence[str]) -> Where:
    """Where the step runs: as the caller asked, or as is decided now."""
    if step == AUTO_STEP:
        return decide(_CALL, model, optimizers, precision, parts, client, places)
    return step if isinstance(step, Where) else Where(step or "device", "")


@contextlib.contextmanager
def _no_room_for_step(decided: bool) -> Iterator[None]:
    """decided: that the CPU steps, which nobody has asked for: where there is no room for that it is another decision."""
    try:
        yield
    except ResourceExhausted as error:
        if decided:
            raise _NoRoomForStepError from error
        raise


def _elements(optimizers: list[optim.Optimizer]) -> int:
    """Of all that they step."""
    return sum(one.numel() for optimizer in optimizers for group in optimizer.param_groups for one in group["params"])


def _devices_of(model: nn.Module) -> list[torch.device]:
    """Where a model is: its parameters, or its buffers if it has none; the first one's first."""
    return list(dict.fromkeys(one.device for one in model.parameters())) or [
        next((one.device for one in model.buffers()), torch.device("cpu"))]


def _check_asked(job: Job | None, model: nn.Module, optimizer: Any, in_backward: bool,
                 grown: bool) -> list[optim.Optimizer]:
    """The optimizers that step. Raises for a model or an optimizer that cannot be offloaded, or is. grown: the model is
    offloaded, and has new parameters, which its own optimizer may have, too."""
    if job is None:
        check_model(model, in_backward)
    elif optimizer is None and not grown:
        raise FailedPrecondition(f"{_CALL}: this model is offloaded already; offload(model, optimizer) takes another "
                                 "optimizer for it")
    steps = steppers(_CALL, optimizer)
    for one in steps:
        managed = managed_optimizer(one)
        if managed is not None and not (grown and job is not None and managed in job.optimizers):
            if job is not None and managed in job.optimizers:
                raise FailedPrecondition(f"{_CALL}: this model is offloaded already, with this optimizer, and what of them is in "
                                         "Terrace is as the first call has chosen")
            raise FailedPrecondition(f"{_CALL}: this optimizer is offloaded already; offload models that share one "
                                     "together, as a torch.nn.ModuleList of them")
    inner = [other for one in steps for other in inner_of(one)]
    if in_backward and inner:
        raise InvalidArgument(f"{_CALL}: step_in_backward=True cannot be had with a wrapper of another optimizer "
                              f"({type(inner[0]).__name__}): offload without it")
    for one in inner:
        kinds.check(one)
    return steps + [one for one in inner if managed_optimizer(one) is None]


def _try(optimizers: list[optim.Optimizer], masters: torch.dtype | None) -> None:
    """Tries those that are not known, once it is clear that they are given what they are to step."""
    for one in optimizers:
        trial.try_unknown(one, masters)


def _parts(model: nn.Module, optimizer: object, steps: list[optim.Optimizer], what: str | list[str] | None,
           devices: list[torch.device], client: Client | None, place: str | None, precision: Precision, step: str | Where | None,
           in_backward: bool, ranks: Ranks, shares: bool) -> frozenset[str]:
    """The parts that go to Terrace; none where all of them have room where the model is, and may stay there."""
    named = what_by_default(_CALL) if what is None else what
    if named != AUTO or devices[0].type == "meta":  # which is refused by name
        try:
            parts = _check_parts_asked(ALL if named == AUTO else named, optimizer, in_backward, shares)
        except InvalidArgument as error:
            raise error if what is not None else by_environment(error) from None
        moves(model)
        return parts
    _check_parts_asked(ALL, optimizer, in_backward, shares)
    check_precision(_CALL, precision, model, steps)
    _check_where(model, client, place)
    told = ranks.together(functools.partial(free_for, devices, client or opened(), model))
    least = [min(same) for same in zip(*told, strict=False)]
    free = [*least, *[min(least)] * (len(devices) - len(least))]  # ranks may be on more devices than others
    on_host = step == "host" and any(map(has_streams, devices))
    chosen = choose(model, steps, precision, devices, free, in_backward=in_backward, shares=shares, on_host=on_host)
    if not isinstance(step, Where):  # else it was said before where the step runs was decided anew
        say(model, chosen)
    return chosen.parts


def _check_where(model: nn.Module, client: Client | None, place: str | None) -> None:
    """Raises for a client, or a place, that could not be had if anything were to go there."""
    if place is not None:
        _checks.text(_CALL, "place", place)
    if client is not None:
        names = {parameter: name for name, parameter in model.named_parameters()}
        places_of_model(_CALL, client_of(_CALL, client, [], model), place, model, names)


def _check_parts_asked(what: Any, optimizer: object, in_backward: bool, shares: bool) -> frozenset[str]:
    """The parts that are to be in Terrace. InvalidArgument for what cannot be had together."""
    if in_backward and optimizer is None:
        raise InvalidArgument(f"{_CALL}: step_in_backward=True needs the optimizer that is to step")
    parts = wanted_parts(_CALL, what, optimizer, in_backward)
    if shares and "parameters" not in parts:
        raise InvalidArgument(f"{_CALL}: share_frozen=True shares parameters that are in Terrace: give what= 'parameters' "
                              "as well, or offload without it")
    return parts


class _Chosen(NamedTuple):
    """What of a model is to go to Terrace, and where."""

    client: Client
    places: list[str]
    sharded: Names  # what is split over ranks
    whole: Names  # what it has not, but for what is shared
    frozen: Frozen  # what is shared
    buildings: dict[ManagedParameter, Any]  # of what init() built, but for what is shared: where each is as yet


def _choose(model: nn.Module, names: Names, parts: frozenset[str], client: Client | None, place: str | None,
            in_backward: bool, ranks: Ranks | None) -> _Chosen:
    """Of the parameters that can be offloaded, how each one is to be. InvalidArgument for what cannot be had of them."""
    adopted = built(list(names))
    client = client_of(_CALL, client, adopted, model)
    places = places_of_model(_CALL, client, place, model, {parameter: name for parameter, (name, _) in names.items()})
    sharded = {parameter: name for parameter, name in names.items() if is_split(parameter)}
    if "parameters" in parts:
        gathered = {one.sharded_param for group in groups_of(model) for one in group.fsdp_params}
        check_forwards(model, names.keys() - gathered)
    if ranks is not None and len(places) > 1:
        raise InvalidArgument(f"{_CALL}: share_frozen=True shares what is in one place, and this model is in {' and '.join(places)}: "
                              "offload without it")
    frozen = Frozen(names, ranks)
    if in_backward and sharded:
        raise InvalidArgument(f"{_CALL}: step_in_backward=True cannot be had with parameters that are split over "
                              f"ranks, as '{next(iter(sharded.values()))[0]}'; offload without it")
    _check_parts(_CALL, parts, [names[one.parameter][0] for one in adopted], sharded)
    return _Chosen(client, places, sharded,
                   {one: name for one, name in names.items() if one not in sharded and one not in frozen.names}, frozen,
                   {one: one.building for one in adopted if one.parameter not in frozen.names})


def _parts_of(call: str, job: Job, client: Client | None, what: Any, place: str | None, precision: Precision,
              step: str | Where | None, in_backward: bool, optimizer: object) -> frozenset[str]:
    """What is to be in Terrace with another optimizer. Raises where a job would have to become another one."""
    parts = job.parts | {"states"} if what in (None, AUTO) else wanted_parts(call, what, optimizer, in_backward)
    other = ("client is of another session" if client is not None and client is not job.store.client else
             f"place is {place!r}" if place not in (None, "host", *(one.name for one in job.store.places)) else
             f"masters is {precision.masters}" if precision.masters not in (None, job.masters.dtype) and job.optimizers else
             f"gradients is {precision.gradients}" if precision.gradients not in (None, job.masters.gradients) else
             f"step is {step!r}" if step not in (None, job.where.step) and (job.optimizers or job.masters) else
             f"step_in_backward is {in_backward}" if in_backward != job.in_backward else
             f"what is {sorted(parts)}" if (parts ^ job.parts) - {"states"} else "")
    if other:
        raise InvalidArgument(
            f"{call}: this model is offloaded already, and {other}: with another optimizer its parameters and gradients "
            f"stay as they are (place={'+'.join(one.name for one in job.store.places)!r}, masters={job.masters.dtype}, gradients={job.masters.gradients}, "
            f"step={job.where.step!r}, step_in_backward={job.in_backward}, what={sorted(job.parts)}, with 'states' or without)")
    return parts


def _take_more(job: Job, model: nn.Module, optimizers: list[optim.Optimizer], grown: Grown, parts: frozenset[str],
               precision: Precision, step: str | Where | None, bytes_min: int, ranks: Ranks) -> None:
    """Takes other optimizers for a model that is offloaded, and parameters that it was given since."""
    for before in job.optimizers:
        before.wait()
    known = [one for one in map(managed_optimizer, optimizers) if one is not None]  # by which it is stepped already
    optimizers = [one for one in optimizers if managed_optimizer(one) is None]
    masters = job.masters
    places = [one.name for one in job.store.places]
    where = job.where if step is None else _where(model, optimizers, precision, step, parts, job.store.client, places)
    on_host = where.step == "host" and any(has_streams(one.device) for one in job.store.places)
    if (precision.masters is not None or on_host) and not masters:
        host = host_store(_CALL, job.store, operations, _elements(optimizers)) if on_host else None
        masters = Masters(job.store, precision.masters, in_terrace="states" in parts, host=host)
    if masters.dtype is not None:
        check_taken(_CALL, Precision(masters.dtype, masters.gradients), model, optimizers)
    if on_host:
        check_step(_CALL, model, optimizers, places)
    _try(optimizers, masters.dtype)
    job.drop_gone()
    if job.in_backward and optimizers and not all(one.states.gone for one in job.optimizers):
        raise FailedPrecondition(
            "terrace.torch.offload: this model is offloaded already, and with step_in_backward=True it has the optimizers of "
            "one call: let go of those before first, and of what refers to them, as a learning-rate scheduler does")
    stepped = [ManagedOptimizer(one, job.store, job.shards, job.in_memory, parts, bytes_min, job.in_backward, masters,
                                where.step == "host") for one in optimizers]
    with _no_room_for_step(on_host and step == AUTO_STEP), Undo() as undo:
        taken = take_in(job, model, grown, masters, stepped, undo)
        for one in stepped:
            undo.by(one.states.let_go)
            undo.by(one.states.give_back, "the optimizer's states")
        for one in (*known, *stepped):
            one.states.make_all_masters()
        for one in stepped:
            _renew_states(one.states.optimizer, masters, undo)
        check_taken_fits(job, model, grown, taken, [*known, *stepped])
        for of in (*job.parameters, *job.in_memory):
            if of.gradient is not None and of.parameter.requires_grad:
                of.gradient.reserve()
        move_parameters(taken.managed, taken.in_memory, undo)
        for one in (*known, *stepped):
            undo.by(one.states.bring_down())
            one.states.reserve()
            one.states.adopt_all()
        masters.accumulate_wide()
        ranks.finish()
    job.masters, job.where = masters, where
    finish_grown(job, model, grown, taken)
    if stepped:
        job.step_with(stepped)
    job.plan()


def _renew_states(optimizer: optim.Optimizer, masters: Masters, undo: Undo) -> None:
    """Makes for masters those states that a constructor has made for weights."""
    if masters.dtype is not None:
        undo.by(functools.partial(renew_states, optimizer, None))
        renew_states(optimizer, masters.dtype)


def _check_parts(call: str, parts: frozenset[str], adopted: list[str],
                 sharded: Names) -> None:
    """Raises InvalidArgument where parameters, or gradients, cannot stay in memory."""
    if adopted and "parameters" not in parts:
        raise InvalidArgument(f"{call}: the parameter '{adopted[0]}' was built in Terrace by terrace.torch.init(): give "
                              "what= 'parameters' as well")
    if sharded and not {"parameters", "gradients"} <= parts:
        raise InvalidArgument(f"{call}: of what is split over ranks, as '{next(iter(sharded.values()))[0]}', "
                              "parameters and gradients go together: give what= both")

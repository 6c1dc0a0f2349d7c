# SPDX-License-Identifier: Apache-2.0
"""`offload`: moves what a script trains to Terrace."""

import functools
import gc
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn, optim

from ... import _checks
from ..._client import TIMEOUT_SECONDS, Client
from ..._errors import Error, FailedPrecondition, InvalidArgument, ResourceExhausted
from .._device.device import device_of, give_back_free
from .._device.streams import has_streams
from .._files.streamed import stream_saves
from .._leased.store import Store
from .._model import modules, operations
from .._model.transforms import ask_transforms
from .._optimizer import kinds
from .._optimizer.optimizer import ManagedOptimizer, managed_optimizer, unwrapped
from .._parameters.gradient import Gradient, Room
from .._parameters.in_memory import ParameterInMemory
from .._parameters.parameter import ManagedParameter, built, managed_of
from .._pytorch.private import set_data
from .._pytorch.split import is_split, local_of
from .._ranks.ddp import check_running
from .._ranks.frozen import Frozen
from .._ranks.fsdp import groups_of
from .._ranks.shards import Shards
from .._ranks.shared import SharedStore
from .._ranks.together import Ranks
from .._tensors.offloaded import OffloadedParameter
from .init import Building, client_of
from .parts import wanted_parts
from .refusals import check_forwards, check_model, eligible, place_of_model, warn_of_another, warn_of_shown

TENSOR_BYTES_MIN = 4096
_FREED_BYTES_MAX = 256 << 20
Module = TypeVar("Module", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=optim.Optimizer | None)


class Job:
    """What belongs to one offloaded model."""

    def __init__(self, store: Store, shared: SharedStore | None, parameters: list[ManagedParameter],
                 in_memory: list[ParameterInMemory], shards: Shards, parts: frozenset[str], in_backward: bool,
                 stepped: Callable[[], None]):
        """parts: of PARTS, those that are in Terrace. in_backward: and are stepped in the backward pass. stepped: called
        after each step."""
        self.store = store
        self.shared = shared  # of frozen parameters that other ranks have as well
        self.parameters = parameters
        self.in_memory = in_memory
        self.shards = shards
        self.parts = parts
        self.in_backward = in_backward
        self.stepped = stepped
        self.optimizers: list[ManagedOptimizer] = []

    def step_with(self, optimizer: ManagedOptimizer) -> None:
        """Steps with one more optimizer from now on."""
        if self.in_backward:
            for one in self.parameters:
                if one.gradient is not None:
                    one.gradient.step_with(optimizer.step_soon)
        optimizer.attach(self.stepped)
        self.optimizers.append(optimizer)
        self.store.plan()

    def drop_gone(self) -> None:
        """Forgets parameters that are there no more, and deletes the states of optimizers that are not."""
        gc.collect()  # what is gone may be held by a cycle, as one of a Trainer is
        self.optimizers = [one for one in self.optimizers if not one.states.gone or one.states.let_go()]
        self.parameters = [one for one in self.parameters if not one.gone]
        self.in_memory = [one for one in self.in_memory if not one.gone]


_jobs: weakref.WeakKeyDictionary[nn.Module, Job] = weakref.WeakKeyDictionary()


def is_offloaded(model: nn.Module) -> bool:
    """Whether offload() was given this very model."""
    return model in _jobs


def job_of(model: nn.Module) -> Job:
    """What belongs to an offloaded model; FailedPrecondition for another one."""
    job = _jobs.get(model)
    if job is None:
        raise FailedPrecondition("this model was not offloaded: call terrace.torch.offload(model) first")
    return job


def jobs() -> list[tuple[nn.Module, Job]]:
    """All models of this process that are offloaded."""
    return list(_jobs.items())


def offload(model: Module, optimizer: AnyOptimizer = None, *, client: Client | None = None,  # type: ignore[assignment]
            what: str | Iterable[str] | None = None, place: str | None = None, step_in_backward: bool = False,
            share_frozen: bool = False, tensor_bytes_min: int = TENSOR_BYTES_MIN,
            timeout: float = TIMEOUT_SECONDS) -> tuple[Module, AnyOptimizer]:
    """Moves a model's parameters, their gradients and the optimizer's states to Terrace; returns both as they came.

    From then on a module's parameters are leased while it runs, gradients are accumulated in leased memory, and the
    optimizer steps batch by batch: losses and weights are, bit for bit, those without Terrace. Whatever else uses a
    parameter, a gradient or a state leases it for that operation. Of what fully_shard() (FSDP2) has split over ranks,
    this rank's shards are moved, and leased while FSDP gathers them.

    client: the session to keep them in; None: the process's own, one for all calls that are not given one.
    what: a set of "parameters", "gradients" and "states" (the optimizer's), which go to Terrace, while the others stay
        in memory; None: all that there are.
    place: where they are leased, and computed with: "host" for a model on the CPU (or an emulated device's "device:N"),
        and for one on a GPU the "device:N" that is that GPU's memory; None: by where the model is.
    step_in_backward: steps parameters in the backward pass, as soon as the gradients that have come are 16 MiB together
        (a sixteenth of the guarantee, if that is less), so that gradients need no other room and never travel;
        optimizer.step() then steps only what is not in Terrace. The weights are the same, bit for bit. What needs all
        gradients first (accumulation, clipping, a GradScaler, DistributedDataParallel) raises FailedPrecondition, or
        InvalidArgument where it is seen here.
    share_frozen: keeps parameters that require no gradient once for all ranks of torch.distributed that use this
        daemon, instead of once for each. All ranks call offload() with it, with the same values, or it raises on all of
        them. These parameters can be neither written to nor unfrozen from then on.
    tensor_bytes_min: smaller tensors stay in the process's memory; and so does, with a warning, a parameter whose memory
        something else shows.
    timeout: seconds that a lease may take.

    Of a model that is offloaded already, a new optimizer is taken, beside those before or in their place: its states go
    to Terrace, those of optimizers that are gone are deleted there, and parameters stay where they are; timeout and
    share_frozen are as they were given first. With step_in_backward, which is to be given again, a model has one
    optimizer at a time.

    InvalidArgument for what cannot be offloaded, by name; ResourceExhausted if it does not fit, or a module alone needs
    more than the place holds. Then the model is as it was.
    """
    in_backward = _checks.flag("terrace.torch.offload", "step_in_backward", step_in_backward)
    shares = _checks.flag("terrace.torch.offload", "share_frozen", share_frozen)
    with Ranks(shares) as ranks:
        return _offload(model, optimizer, client=client, what=what, place=place, step_in_backward=in_backward,
                        ranks=ranks if shares else None, tensor_bytes_min=tensor_bytes_min, timeout=timeout)


def _offload(model: Module, optimizer: AnyOptimizer, *, client: Client | None, what: str | Iterable[str] | None,
             place: str | None, step_in_backward: bool, ranks: Ranks | None, tensor_bytes_min: int,
             timeout: float) -> tuple[Module, AnyOptimizer]:
    """ranks: that all do this now, and have what is frozen in common."""
    call = "terrace.torch.offload"
    stream_saves()
    ask_transforms()
    job = _jobs.get(model) if isinstance(model, nn.Module) else None
    if job is None:
        check_model(model, step_in_backward)
    elif optimizer is None:
        raise FailedPrecondition(f"{call}: this model is offloaded already; offload(model, optimizer) takes another "
                                 "optimizer for it")
    steps = None if optimizer is None else unwrapped(optimizer)
    if steps is not None:
        kinds.check(steps)
        if managed_optimizer(steps) is not None:
            raise FailedPrecondition(f"{call}: this optimizer is offloaded already; offload models that share one "
                                     "together, as a torch.nn.ModuleList of them")
        warn_of_another(model, steps)
    bytes_min = max(1, _checks.count(call, "tensor_bytes_min", tensor_bytes_min, 1 << 40))
    seconds = _checks.seconds(call, "timeout", timeout)
    if job is not None:
        parts = _parts_of(call, job, client, what, place, step_in_backward, optimizer)
        _take_optimizer(job, steps, parts, bytes_min, ranks)
        return model, optimizer
    if step_in_backward and optimizer is None:
        raise InvalidArgument(f"{call}: step_in_backward=True needs the optimizer that is to step")
    parts = wanted_parts(call, what, optimizer, step_in_backward)
    if ranks is not None and "parameters" not in parts:
        raise InvalidArgument(f"{call}: share_frozen=True shares parameters that are in Terrace: give what= 'parameters' "
                              "as well, or offload without it")
    names, left = eligible(model, bytes_min, "parameters" in parts)
    warn_of_shown(left)
    adopted = built(list(names))
    client = client_of(call, client, adopted, model)
    place = place_of_model(call, client, place, model, {parameter: name for parameter, (name, _) in names.items()})
    sharded = {parameter: name for parameter, name in names.items() if is_split(parameter)}
    if ranks is not None and device_of(client, place).type != "cpu":
        raise InvalidArgument(f"{call}: share_frozen=True shares parameters in host memory, and this model is on a GPU: "
                              "offload without it")
    if "parameters" in parts:
        check_forwards(model, names.keys() - sharded.keys())
    frozen = Frozen(names, ranks)
    if step_in_backward and sharded:
        raise InvalidArgument(f"{call}: step_in_backward=True cannot be had with parameters that fully_shard() has "
                              f"split, as '{next(iter(sharded.values()))[0]}'; offload without it")
    _check_parts(call, parts, [names[one.parameter][0] for one in adopted], sharded)
    store = Store(client, place, seconds, 4 * sum(local_of(parameter).nbytes for parameter in names) + (1 << 20),
                  operations)
    store.left_alone = left
    buildings = {one: one.building for one in adopted if one.parameter not in frozen.names}
    try:
        managed = frozen.share(store)
        _take_over(buildings, store, names)
        shards = Shards(store, sharded, groups_of(model))
        whole = {one: name for one, name in names.items() if one not in sharded and one not in frozen.names}
        own = _manage(store, whole) if "parameters" in parts else []
        in_memory = [] if "parameters" in parts else [ParameterInMemory(*whole[one], one, store) for one in whole]
        stepped = (None if steps is None else
                   ManagedOptimizer(steps, store, shards, in_memory, parts, bytes_min, step_in_backward))
        _make_gradients(store, [*own, *in_memory], parts, stepped)
        managed += own
        modules.attach(model, {id(one.parameter): one for one in managed})
        _check_room(model, store, shards, in_memory if "gradients" in parts else [], stepped)
        if frozen.store is not None:
            _check_fits(frozen.store, *modules.largest(model, frozen.store))
        _move(store, managed, in_memory, shards, stepped, ranks)
    except BaseException:
        modules.detach(model)
        for parameter in names:
            if not isinstance(parameter, OffloadedParameter):
                parameter.__dict__.pop("terrace", None)
        _give_back(buildings, store)
        frozen.undo()
        if not any(isinstance(one, OffloadedParameter) and one.terrace.store is store for one in names):
            store.destroy()  # else there was no room to bring some back: they can be read yet
        raise
    frozen.finish()
    for one in in_memory:
        one.finish()
    job = _jobs[model] = Job(store, frozen.store, managed, in_memory, shards, parts, step_in_backward,
                             functools.partial(_name_replaced, weakref.ref(model), shards, set()))
    store.plan()
    if stepped is not None:
        job.step_with(stepped)
    if in_memory:
        modules.call_first(model, functools.partial(_watch, in_memory))
    modules.call_first(model, store.steps.forward)
    store.steps.begin()
    return model, optimizer


def _parts_of(call: str, job: Job, client: Client | None, what: Any, place: str | None, in_backward: bool,
              optimizer: object) -> frozenset[str]:
    """What is to be in Terrace with another optimizer. Raises where a job would have to become another one."""
    parts = job.parts | {"states"} if what is None else wanted_parts(call, what, optimizer, in_backward)
    other = ("client is of another session" if client is not None and client is not job.store.client else
             f"place is {place!r}" if place not in (None, "host", job.store.place) else
             f"step_in_backward is {in_backward}" if in_backward != job.in_backward else
             f"what is {sorted(parts)}" if (parts ^ job.parts) - {"states"} else "")
    if other:
        raise InvalidArgument(
            f"{call}: this model is offloaded already, and {other}: with another optimizer its parameters and gradients "
            f"stay as they are (place={job.store.place!r}, step_in_backward={job.in_backward}, what="
            f"{sorted(job.parts)}, with 'states' or without)")
    return parts


def _take_optimizer(job: Job, optimizer: optim.Optimizer, parts: frozenset[str], bytes_min: int,
                    ranks: Ranks | None) -> None:
    """Takes another optimizer for a model that is offloaded."""
    job.drop_gone()
    if job.in_backward and not all(one.states.gone for one in job.optimizers):
        raise FailedPrecondition(
            "terrace.torch.offload: this model is offloaded already, and with step_in_backward=True it has one optimizer: "
            "let go of the one before first, and of what refers to it, as its learning-rate scheduler does")
    stepped = ManagedOptimizer(optimizer, job.store, job.shards, job.in_memory, parts, bytes_min, job.in_backward)
    try:
        most, name = stepped.states.largest()
        _check_fits(job.store, most, f"the optimizer's step on '{name}'")
        for one in (*job.parameters, *job.in_memory):
            if one.gradient is not None and one.parameter.requires_grad:
                one.gradient.reserve()
        stepped.states.reserve()
        stepped.states.adopt_all()
        if ranks is not None:
            ranks.finish()
    except BaseException as failed:
        _give_states_back(stepped, failed)
        stepped.states.let_go()
        raise
    job.step_with(stepped)


def _check_parts(call: str, parts: frozenset[str], adopted: list[str],
                 sharded: dict[nn.Parameter, tuple[str, str]]) -> None:
    """Raises InvalidArgument where parameters, or gradients, cannot stay in memory."""
    if adopted and "parameters" not in parts:
        raise InvalidArgument(f"{call}: the parameter '{adopted[0]}' was built in Terrace by terrace.torch.init(): give "
                              "what= 'parameters' as well")
    if sharded and not {"parameters", "gradients"} <= parts:
        raise InvalidArgument(f"{call}: of what fully_shard() has split, as '{next(iter(sharded.values()))[0]}', "
                              "parameters and gradients go together: give what= both")


def _watch(in_memory: list[ParameterInMemory], _model: nn.Module) -> None:
    """Looks at parameters that stay in memory as the model begins to run, as modules do at those in Terrace."""
    check_running(in_memory)
    for one in in_memory:
        one.watch()


def _name_replaced(model: weakref.ref[nn.Module], shards: Shards, named: set[str]) -> None:
    """Warns, once of each, of parameters that were replaced."""
    found = model()
    for name in [] if found is None else [*modules.replaced(found), *shards.replaced()]:
        if name not in named:
            named.add(name)
            warnings.warn(f"terrace.torch: the parameter '{name}' was replaced after terrace.torch.offload(): the new "
                          "one is not in Terrace, and not the optimizer's unless it was added", stacklevel=2)


def _of_each(buildings: dict[ManagedParameter, Building]) -> dict[Building, list[ManagedParameter]]:
    return {building: [one for one, its in buildings.items() if its is building]
            for building in dict.fromkeys(buildings.values())}


def _take_over(buildings: dict[ManagedParameter, Building], store: Store,
               names: dict[nn.Parameter, tuple[str, str]]) -> None:
    """Takes what init() built into the job's store."""
    for building, parameters in _of_each(buildings).items():
        building.store.hand_over([one.slot for one in parameters], store)
        for one in parameters:
            one.building = None
            one.join(store, *names[one.parameter])


def _give_back(buildings: dict[ManagedParameter, Building], store: Store) -> None:
    """Leaves what init() built as it was."""
    for building, parameters in _of_each(buildings).items():
        taken = [one for one in parameters if one.building is None]
        store.hand_over([one.slot for one in taken], building.store)
        for one in taken:
            one.building = building
            one.gradient = None
            one.join(building.store, one.name, one.slot.owner)


def _manage(store: Store, names: dict[nn.Parameter, tuple[str, str]]) -> list[ManagedParameter]:
    """Makes room for parameters."""
    ordinary = [parameter for parameter in names if not isinstance(parameter, OffloadedParameter)]
    slots = store.create([(*names[parameter], parameter.detach()) for parameter in ordinary])
    for parameter, slot in zip(ordinary, slots, strict=True):
        parameter.terrace = ManagedParameter(names[parameter][0], parameter, slot, store)  # type: ignore[attr-defined]
    return [managed_of(parameter) for parameter in names]


def _make_gradients(store: Store, parameters: Sequence[ManagedParameter | ParameterInMemory], parts: frozenset[str],
                    stepped: ManagedOptimizer | None) -> None:
    """Makes room for gradients, where they are to have any."""
    if stepped is not None and stepped.in_backward:
        for one in parameters:
            one.gradient = Gradient(one.parameter, store, Room(one.like, []), stepped.step_soon)
        return
    if "gradients" not in parts:
        for one in parameters:
            one.gradient = Gradient(one.parameter, store, None)
        return
    trained = [one for one in parameters if one.parameter.requires_grad]
    room = store.create([(f"{one.name}/grad", one.like.owner, one.like.placeholder) for one in trained])
    slots = dict(zip(map(id, trained), room, strict=True))
    for one in parameters:
        one.gradient = Gradient(one.parameter, store, Room(one.like, [slots[id(one)]] if id(one) in slots else []))


def _move(store: Store, managed: list[ManagedParameter], in_memory: list[ParameterInMemory], shards: Shards,
          stepped: ManagedOptimizer | None, ranks: Ranks | None) -> None:
    """Moves parameters and states, and back again if that fails half way, or on another rank."""
    moved: list[ManagedParameter] = []
    freed_bytes = 0
    try:
        if stepped is not None:
            stepped.states.reserve()
        for one in managed:
            if not isinstance(one.parameter, OffloadedParameter):
                one.move_in()
                moved.append(one)
                freed_bytes += one.slot.nbytes
            one.watch()
            if has_streams(one.store.device) and freed_bytes > _FREED_BYTES_MAX:
                give_back_free(one.store.device)  # where it was is the same memory that it goes to
                freed_bytes = 0
        for other in in_memory:
            other.watch()
        shards.move_in()
        if stepped is not None:
            stepped.states.adopt_all()
        if ranks is not None:
            ranks.finish()
        give_back_free(store.device)
    except BaseException as failed:
        for watched in (*managed, *in_memory):
            if watched.gradient is not None:
                watched.gradient.unwatch()
        for one in moved:
            try:
                restore(one)
            except (Error, torch.OutOfMemoryError) as error:  # the others are to be restored in any case
                failed.add_note(f"the parameter '{one.name}' could not be brought back: {error}")
        if stepped is not None:
            _give_states_back(stepped, failed)
        for shard in shards.all:
            try:
                shard.restore()
            except Error as error:
                failed.add_note(f"the parameter '{shard.slot.name}' could not be brought back: {error}")
        raise


def _give_states_back(stepped: ManagedOptimizer, failed: BaseException) -> None:
    try:
        stepped.states.give_back()
    except Error as error:
        failed.add_note(f"the optimizer's states could not be brought back: {error}")


def restore(one: ManagedParameter) -> None:
    """Makes a parameter an ordinary one again."""
    found = one.parameter
    (shown,) = one.store.lease([one.slot])
    found.__class__ = nn.Parameter
    set_data(found, shown.clone(memory_format=torch.preserve_format))


def _check_room(model: nn.Module, store: Store, shards: Shards, in_memory: list[ParameterInMemory],
                stepped: ManagedOptimizer | None) -> None:
    """Looks at all that the job leases from its own session at once."""
    most, what = max(modules.largest(model, store), shards.largest(),
                     *((one.like.room_bytes, f"the gradient of '{one.name}'") for one in in_memory))
    if stepped is not None:
        of_step, name = stepped.states.largest()
        if of_step > most:
            most, what = of_step, f"the optimizer's step on '{name}'"
    _check_fits(store, most, what)


def _check_fits(store: Store, most: int, what: str) -> None:
    """Raises ResourceExhausted if what is leased at once can never be; warns, once, if it is more than guaranteed."""
    mib = math.ceil(most / (1 << 20))
    if most > store.capacity_bytes:
        raise ResourceExhausted(
            f"terrace.torch.offload: {what} leases {most} bytes at once, and {store.place} has {store.capacity_bytes}: "
            f"give the daemon at least {mib} MiB of memory, or make the module smaller")
    of_all = most if store.ranks == 1 else min(most * store.ranks, store.bytes)
    if of_all > store.guarantee_bytes:
        mib = math.ceil(of_all / (1 << 20))
        ranks = "" if store.ranks == 1 else f" of what {store.ranks} ranks share, each by itself"
        warnings.warn(
            f"terrace.torch.offload: {what} leases {most} bytes at once{ranks}, and this session is guaranteed "
            f"{store.guarantee_bytes} bytes of {store.place}: while other sessions want theirs it may be refused. "
            f"Connect with terrace.Client(guarantees={{'{store.place}': {mib} << 20}})", stacklevel=5)

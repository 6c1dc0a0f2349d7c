# SPDX-License-Identifier: Apache-2.0
"""`init`: models that are built straight into Terrace, and are never whole in the process's memory."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ... import _checks
from ..._client import TIMEOUT_SECONDS, Client
from ..._errors import InvalidArgument
from .._device.device import give_back_free
from .._files.streamed import stream_saves
from .._leased.default_client import client_for
from .._leased.store import Store
from .._model import operations
from .._model.transforms import ask_transforms
from .._parameters.parameter import ManagedParameter
from .._pytorch.private import set_data
from .._pytorch.storages import users_of
from .._tensors.offloaded import tell_of_copies
from .quantized import is_of_another_class
from .refusals import alone, are_statistics, check_offered, place_on

WAITING_BYTES_MAX = 64 << 20
_LEFT_BYTES_MIN = 8 << 20  # to look for free pages goes through the whole heap
_CALL = "terrace.torch.init"
_BYTES_MIN = 4096



class Building:
    """The parameters that were made within one init(). The newest wait in memory, where they get their first values;
    when they are many, the oldest of them go to Terrace."""

    def __init__(self, store: Store, bytes_min: int):
        self.store = store
        self.open = True  # its `with` is not over
        self._bytes_min = bytes_min
        self._waiting_bytes_max = min(store.guarantee_bytes // 4, WAITING_BYTES_MAX)
        self._waiting: dict[int, tuple[weakref.ref[nn.Parameter], str, int]] = {}  # by id, the oldest first
        self._aside: list[tuple[weakref.ref[nn.Parameter], str]] = []  # something else showed their memory
        self._bytes = 0  # that wait
        self._left_bytes = 0  # what was moved has left so much in the heap, since its pages were given back
        self._moved = 0  # since those that are gone were looked for

    def note(self, parameter: nn.Parameter, name: str) -> None:
        """A parameter was made. name: for people."""
        known = self._waiting.get(id(parameter))
        if not _may_wait(parameter) or (known is not None and known[0]() is parameter):
            return
        if parameter.device != self.store.device or alone(parameter, self._bytes_min) or are_statistics(name, parameter):
            return
        if known is not None:
            self._bytes -= self._waiting.pop(id(parameter))[2]  # of one that is gone, and had the same number
        self._waiting[id(parameter)] = (weakref.ref(parameter), name, parameter.nbytes)
        self._bytes += parameter.nbytes
        while self._bytes > self._waiting_bytes_max and len(self._waiting) > 1:
            self._move_oldest()

    def finish(self) -> None:
        """The `with` is over: nothing waits any more. What is still shown by something else stays in memory."""
        self.open = False
        while self._waiting:
            self._move_oldest()
        aside, self._aside = self._aside, []
        for reference, name in aside:
            self._move(reference(), name)
        self._forget_gone()
        give_back_free(self.store.device)

    def take_back(self, managed: ManagedParameter, value: torch.Tensor) -> None:
        """The parameter becomes an ordinary one again, with other data: it was cast."""
        found = managed.parameter
        del found.__dict__["terrace"]
        found.__class__ = managed.kind
        set_data(found, value)
        self.store.forget([managed.slot])
        self.note(found, managed.name)

    def _move_oldest(self) -> None:
        reference, name, size = self._waiting.pop(next(iter(self._waiting)))
        self._bytes -= size
        self._move(reference(), name)

    def _move(self, parameter: nn.Parameter | None, name: str) -> None:
        if parameter is None or not _may_wait(parameter) or alone(parameter, self._bytes_min):
            return
        if users_of(parameter) > 1:
            if self.open:
                self._aside.append((weakref.ref(parameter), name))
            return
        (slot,) = self.store.create([(name, "", parameter.detach())])
        managed = ManagedParameter(name, parameter, slot, self.store)
        managed.move_in()
        managed.building = self
        parameter.terrace = managed  # type: ignore[attr-defined]
        self._left_bytes += slot.nbytes
        if self._left_bytes > max(self._waiting_bytes_max, _LEFT_BYTES_MIN):
            self._left_bytes = 0
            give_back_free(self.store.device)
        self._moved += 1
        if 2 * self._moved > len(self.store.slots):
            self._forget_gone()

    def _forget_gone(self) -> None:
        """Gives back what parameters had that are gone."""
        self._moved = 0
        self.store.forget([slot for slot in self.store.slots if slot.parameter is None])


def _may_wait(parameter: nn.Parameter) -> bool:
    """Whether a parameter is one to move: an ordinary one, or a frozen one of another library's class, as a quantized weight."""
    return type(parameter) is nn.Parameter or (is_of_another_class(parameter) and not parameter.requires_grad)


class _Thread(threading.local):
    """The init() that this thread is in; with several, the innermost is the last."""

    def __init__(self) -> None:
        self.buildings: list[Building] = []


_thread = _Thread()
_lock = threading.Lock()
_entered = 0
_handle: Any = None
_deepcopy = nn.Parameter.__deepcopy__


def _note(parameter: nn.Parameter, name: str) -> None:
    if _thread.buildings:
        _thread.buildings[-1].note(parameter, name)


def _registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    if parameter is not None:
        _note(parameter, f"{type(module).__name__}.{name}")


def _copied(parameter: nn.Parameter, memo: dict[int, Any]) -> Any:
    """Copies of modules are made without registering anything."""
    made = _deepcopy(parameter, memo)
    _note(made, "copy")
    return made


@contextlib.contextmanager
def _noticed() -> Iterator[None]:
    """PyTorch tells us of parameters, in whatever thread, for as long as it is entered."""
    global _entered, _handle
    with _lock:
        _entered += 1
        if _entered == 1:
            _handle = register_module_parameter_registration_hook(_registered)
            nn.Parameter.__deepcopy__ = _copied  # type: ignore[method-assign]
            tell_of_copies(lambda made: _note(made, "copy"))
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered:
                _handle.remove()
                nn.Parameter.__deepcopy__ = _deepcopy  # type: ignore[method-assign]
                tell_of_copies(None)


@contextlib.contextmanager
def init(*, client: Client | None = None, place: str | None = None, tensor_bytes_min: int = _BYTES_MIN,
         timeout: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """What modules are built within the `with` has its parameters in Terrace, and is never whole in memory.

        with terrace.torch.init():
            model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer = terrace.torch.offload(model, optimizer)  # takes them as they are, without a copy

    The values are, bit for bit, those of a model built without it from the same seed. A quarter of the session's
    guarantee (64 MiB at most) is what parameters wait in while they get their first values, and the largest one more.
    Reading weights works as ever (load_state_dict(), from_pretrained() within the `with`, terrace.torch.load() after
    it). Casting does within the `with`. Buffers, small parameters, and those whose memory something else shows as well
    stay in memory. Of this thread's modules; others are left alone.

    client, place, tensor_bytes_min, timeout: as for offload(), which then needs no client. Without a place, that of
    PyTorch's default device: with `torch.device("cuda"), terrace.torch.init():`, of the GPU. Parameters on another
    device are left alone.
    ResourceExhausted, where the model's line raises it, if it does not fit.
    """
    bytes_min = max(1, _checks.count(_CALL, "tensor_bytes_min", tensor_bytes_min, 1 << 40))
    seconds = _checks.seconds(_CALL, "timeout", timeout)
    client = client_for(_CALL, client)
    if place is None:
        place = place_on(client, torch.empty(0).device) or "host"
    check_offered(_CALL, client, place)
    stream_saves()
    ask_transforms()
    building = Building(Store(client, place, seconds, 1, operations), bytes_min)
    with _noticed():
        _thread.buildings.append(building)
        try:
            yield
            building.finish()
        finally:
            building.open = False
            _thread.buildings.pop()


def client_of(call: str, client: Client | None, managed: list[ManagedParameter], model: nn.Module) -> Client:
    """The client to offload with what init() built: its own. InvalidArgument where another one is given."""
    clients = list({id(one.store.client): one.store.client for one in managed}.values())
    if len(clients) > 1 or (clients and client is not None and client is not clients[0]):
        name = next(name for name, one in model.named_parameters() if one is managed[0].parameter)
        raise InvalidArgument(f"{call}: the parameter '{name}' was built within terrace.torch.init() of "
                              "another client: use one client for all of a model")
    return client_for(call, clients[0] if clients else client)

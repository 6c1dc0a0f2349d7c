# SPDX-License-Identifier: Apache-2.0
"""Activations in Terrace: what autograd saves in the forward pass waits there for the backward pass."""

import sys
import threading
import warnings
import weakref
from types import TracebackType
from typing import Any, Self

import torch

from ... import _checks
from ..._client import BYTES_MAX, Client
from ..._errors import Error, InvalidArgument, ResourceExhausted
from .._device.heap import give_back_freed_memory
from .._device.streams import can_be_in_terrace, has_streams, is_captured
from .._leased.default_client import client_for
from .._leased.shown import is_managed
from .._parameters.saved import CastNote, Note, of_hidden
from .._pytorch.private import NO_BACKWARD, is_functorch_wrapped, is_saved_by_checkpoint, is_saved_by_rrelu, running_backward
from .._pytorch.storages import StorageReference, VersionCounter, may_be_statistics, number_of
from .._tensors.packed import Here, Source, View
from .backward_order import BackwardOrder, Saved
from .box import class_bytes
from .casts import Cast, cast_parameter
from .in_terrace import InTerrace
from .lanes import settle
from .made_again import MadeAgain, note_kept, recipe_of
from .shelf import Shelf

MIN_BYTES = 16 << 10
STORAGES_SWEPT_AT = 256
_CALL = "terrace.torch.activations"
_PACKERS_MAX = 3  # hooks of ours that hand a tensor on to each other



class _Storage:
    """What became of one version of a storage."""

    __slots__ = ("counter", "here", "parts", "source", "staying", "version", "weak")

    def __init__(self, storage: torch.UntypedStorage, tensor: torch.Tensor):
        self.weak = StorageReference(storage)
        self.counter = VersionCounter(tensor)
        self.version = tensor._version
        self.source: weakref.ref[Source] | None = None
        self.staying = False
        self.parts: dict[tuple[Any, ...], int] = {}  # bytes of the different views that were saved of it
        self.here: list[weakref.ref[Here]] = []


class _Keeper:
    """What lasts from step to step for one client."""

    def __init__(self, client: Client):
        give_back_freed_memory()
        self.shelf = Shelf(client, _CALL)
        self.order = BackwardOrder()
        self.warned = False
        self.refused_bytes = 0
        self._storages: dict[int, _Storage] = {}
        self._sweep_at = STORAGES_SWEPT_AT

    def of(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> _Storage:
        """What became of this version of the storage: the address alone would not tell, the weak reference does; and no
        version tells of what another counter counts, as that of a tensor whose `.data` this is."""
        known = self._storages.get(number_of(storage))
        if (known is None or known.version != tensor._version or known.weak.expired()
                or not known.counter.is_of(tensor)):
            if len(self._storages) >= self._sweep_at:
                self._sweep()
            known = self._storages[number_of(storage)] = _Storage(storage, tensor)
        return known

    def begin_step(self) -> None:
        """Called when one does: each step decides afresh what becomes of a storage that outlives it."""
        self._sweep()
        for known in list(self._storages.values()):
            known.staying = False
            known.source = None  # fused optimizers write to what was saved detached, and no version tells of it
            known.parts.clear()
        self.shelf.begin_step()

    def _sweep(self) -> None:
        for address in [address for address, known in list(self._storages.items()) if known.weak.expired()]:
            self._storages.pop(address, None)
        self._sweep_at = max(STORAGES_SWEPT_AT, 2 * len(self._storages))


_keepers: weakref.WeakKeyDictionary[Client, _Keeper] = weakref.WeakKeyDictionary()
_keepers_lock = threading.Lock()


def _keeper_of(client: Client) -> _Keeper:
    with _keepers_lock:
        keeper = _keepers.get(client)
        if keeper is None:
            keeper = _keepers[client] = _Keeper(client)
        return keeper


def shelves() -> list[Shelf]:
    """Where activations are: of each client that has had some one."""
    with _keepers_lock:
        return [keeper.shelf for keeper in _keepers.values()]


class Activations:
    """The context that activations() gives. May be entered again, and within itself or another.

    It counts what it did: see the attributes.
    """

    moved: int
    """Storages that went to Terrace."""
    moved_bytes: int
    """Their bytes."""
    duplicates: int
    """Saved tensors whose storage was there already, and went nowhere."""
    recast: int
    """Saved casts of parameters that backward makes again."""
    remade: int
    """Saved storages that backward makes again of others, by a cheap operation."""
    stayed: int
    """Saved tensors that stay in memory because moving them does not pay."""
    refused: int
    """Saved tensors that stay in memory because Terrace did not take them."""

    def __init__(self, client: Client, what: str, min_bytes: int, keep_bytes: int | None, recompute: bool, recompute_casts: bool):
        self.client = client
        self._checkpoints_alone = what == "checkpoints"
        self.moved = self.moved_bytes = self.duplicates = self.recast = self.remade = self.stayed = self.refused = 0
        self._min_bytes = min_bytes
        self._keep_bytes = keep_bytes
        self._recompute = recompute
        self._recompute_casts = recompute_casts
        self._keeper = _keeper_of(client)
        self._entered = threading.local()

    def __enter__(self) -> Self:
        client_for(_CALL, self.client)  # it may have been closed meanwhile
        entered = getattr(self._entered, "hooks", None)
        if entered is None:
            entered = self._entered.hooks = []
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        hooks.__enter__()
        entered.append(hooks)
        if len(entered) == 1 and self._keeper.order.begin_step(self._keep_bytes):
            self._keeper.begin_step()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._entered.hooks.pop().__exit__(kind, error, trace)
        settle()
        self._keeper.shelf.tidy()

    @property
    def slots(self) -> int:
        """Tensors in Terrace that the client's activations have, in use or waiting for the next step."""
        return self._keeper.shelf.boxes

    @property
    def slots_in_use(self) -> int:
        """Those of them whose content a graph needs, or a tensor shows."""
        return self._keeper.shelf.in_use()

    def clear(self) -> None:
        """Deletes the tensors in Terrace that wait for the next step; those in use stay."""
        self._keeper.shelf.clear()

    def _pack(self, tensor: torch.Tensor) -> Any:
        if type(tensor) is not torch.Tensor and (found := of_hidden(tensor)) is not None:
            return Here(found) if isinstance(found, torch.Tensor) else found
        if _stays_whole(tensor) or running_backward() != NO_BACKWARD:
            # What a backward pass saves (of what it computes again) it uses at once.
            return Here(tensor)
        if self._checkpoints_alone and not is_saved_by_checkpoint(sys._getframe(1), _PACKERS_MAX):
            return Here(tensor)
        if has_streams(tensor.device) and is_captured(tensor.device):
            return Here(tensor)  # a graph would copy into memory that is leased for this pass alone
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size < self._min_bytes or not _tells_of_storage(tensor, size):
            return Here(tensor)
        if tensor.grad_fn is None and (may_be_statistics(tensor) or (tensor._version == 0 and _is_filled_later())):
            return Here(tensor)
        known = self._keeper.of(storage, tensor)
        source = None if known.source is None or self._keeper.order.used else known.source()
        if source is not None:
            self.duplicates += 1
            return self._noted(View(tensor, source), tensor)
        if self._recompute_casts and (parameter := cast_parameter(tensor)) is not None:
            self.recast += 1
            cast = Cast(parameter, tensor.dtype)
            known.source = weakref.ref(cast)
            return View(tensor, cast)
        return self._noted(self._place(tensor, storage, size, known), tensor)

    def _noted(self, packed: View | Here, tensor: torch.Tensor) -> View | Here:
        if self._recompute:
            note_kept(packed, tensor)
        return packed

    def _place(self, tensor: torch.Tensor, storage: torch.UntypedStorage, size: int, known: _Storage) -> View | Here:
        """Moves the storage, or has it made again, if enough of it was saved by now and that pays."""
        if known.staying:
            return Here(tensor)
        part = (tensor.storage_offset(), tensor.shape, tensor.stride())
        known.parts[part] = tensor.numel() * tensor.element_size()
        if 2 * sum(known.parts.values()) < size:
            here = Here(tensor)
            known.here.append(weakref.ref(here))
            return here
        recipe = recipe_of(tensor) if self._recompute else None
        saved, begins = self._keeper.order.save(size, self._keep_bytes, recipe is not None)
        if begins:
            self._keeper.begin_step()
        source: Source | None = None
        if recipe is not None and saved.is_made_again and not saved.stays:
            self.remade += 1
            source = MadeAgain(tensor, recipe, saved, self._keeper.order)
        elif not saved.stays:
            source = self._move(storage, saved)
        if source is None:
            self.stayed += saved.stays
            known.staying = True
            return Here(tensor, lambda: self._note_use(saved))
        known.source = weakref.ref(source)
        for here_ref in known.here:
            if (earlier := here_ref()) is not None:
                earlier.move(source)
        known.here.clear()
        return View(tensor, source)

    def _move(self, storage: torch.UntypedStorage, saved: Saved) -> InTerrace | None:
        keeper = self._keeper
        try:
            source = InTerrace(storage, saved, keeper.shelf, keeper.order)
        except Error as error:
            self.refused += 1
            keeper.refused_bytes += class_bytes(saved.size)
            if not keeper.warned:
                keeper.warned = True
                warnings.warn(_refusal(error, saved.size, keeper.shelf), RuntimeWarning, stacklevel=5)
            return None
        self.moved += 1
        self.moved_bytes += saved.size
        return source

    def _note_use(self, saved: Saved) -> None:
        self._keeper.order.use(saved, 0)


def _unpack(packed: View | Here | Note | CastNote) -> torch.Tensor:
    return packed.unpack()


def _tells_of_storage(tensor: torch.Tensor, size: int) -> bool:
    """Whether its version is that of its whole storage. What unsafe_chunk() and its like give, as RNNs' cells use it, are
    parts of one storage that have a version each."""
    base = tensor._base
    whole = tensor if base is None else base
    return whole.numel() * whole.element_size() >= size


def _is_filled_later() -> bool:
    """Whether what is saved now is RReLU's noise (or its input): PyTorch saves it before its kernel fills it, and no
    version tells of that."""
    return is_saved_by_rrelu(sys._getframe(1).f_back, _PACKERS_MAX)


def _stays_whole(tensor: torch.Tensor) -> bool:
    """What is never moved: parameters and other leaves of the script's, views of them, what shows leased memory, and
    what is not plain bytes with strides on a CPU or a GPU."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor._is_zerotensor():
        return True
    if tensor.requires_grad and tensor.is_leaf:
        return True
    base = tensor._base
    if base is not None and (isinstance(base, torch.nn.Parameter) or (base.requires_grad and base.is_leaf)):
        return True
    if not can_be_in_terrace(tensor.device) or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return True
    return is_functorch_wrapped(tensor) or is_managed(tensor)


def _refusal(error: Error, size: int, shelf: Shelf) -> str:
    said = (f"{_CALL}: Terrace did not take a saved tensor of {size} bytes ({error.code}: {error}); it "
            f"stays in this process's memory, and so will others. {shelf.used_bytes} bytes of saved tensors are in "
            "Terrace")
    if isinstance(error, ResourceExhausted):
        if class_bytes(size) > shelf.guarantee_bytes:
            return said + (f'; open the session with terrace.Client(guarantees={{"host": {2 * class_bytes(size)}}}) or '
                           "more")
        return said + (f"; give the daemon's last tier room for at least {2 * (shelf.used_bytes + class_bytes(size))} "
                       "bytes of them, or look at the tenant's quota")
    return said


def activations(client: Client | None = None, *, what: str = "all", min_bytes: int = MIN_BYTES, keep_bytes: int | None = None,
                recompute: bool = False, recompute_casts: bool = False) -> Activations:
    """What autograd saves within the `with` waits in Terrace for the backward pass, which leases it.

        with terrace.torch.activations():
            loss = model(batch)
            loss.backward()

    Losses and gradients are the same bits as without. The backward pass may be inside the `with` or after it. What is
    left where it is: parameters and views of them, what `offload` manages, storages below min_bytes, what the script
    itself still holds, and what is saved last and used first. A storage that is saved several times goes once.

    client: None: one of the process, opened when first needed.
    what: "all", or "checkpoints": what torch.utils.checkpoint keeps, the inputs of blocks, alone.
    min_bytes: storages below it stay in memory; moving one takes about as long as copying this much.
    keep_bytes: how much of a step's saved tensors may stay in memory because moving them does not pay, as the steps
        before showed; None: a sixteenth; 0: nothing.
    recompute: what GELU, SiLU, Mish, Hardswish and LeakyReLU made of a tensor that is saved as well is made again of it
        in backward, the same bits, where the steps before showed that this takes less time than moving it. Right only if
        nothing writes to what they made unseen, through `.data` or NumPy.
    recompute_casts: casts of parameters, which autocast makes, are made again in backward instead of being moved. Right
        only if no parameter changes between the forward pass that made the cast and the backward pass: autocast keeps
        casts until its region ends, and fused optimizers and writes through `.data` cannot be noticed.

    Where Terrace has no room the tensor stays in memory, and a RuntimeWarning says, once a client, what number to
    change. FailedPrecondition for a closed client; Unavailable where no daemon is there.
    """
    if _checks.text(_CALL, "what", what) not in ("all", "checkpoints"):
        raise InvalidArgument(f"{_CALL}: what is {what!r}; it is 'all', or 'checkpoints' (inputs of checkpointed blocks alone)")
    least = max(1, _checks.count(_CALL, "min_bytes", min_bytes, BYTES_MAX))
    kept = None if keep_bytes is None else _checks.count(_CALL, "keep_bytes", keep_bytes, BYTES_MAX)
    again = _checks.flag(_CALL, "recompute", recompute), _checks.flag(_CALL, "recompute_casts", recompute_casts)
    return Activations(client_for(_CALL, client), what, least, kept, *again)

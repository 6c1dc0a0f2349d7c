# SPDX-License-Identifier: Apache-2.0
"""The part of an optimizer's step that goes on in a thread of its own when step() has returned; or, where parameters are stepped
in the backward pass, what has come of it so far, beside the rest of that pass.

What the script may change meanwhile is fixed as step() comes to it: the groups' options, and which gradients there are. The
step is given parameters of its own, over leased memory, so that nothing that the script has is another thing meanwhile. Who
leases a weight, a gradient, a state or a master of it waits until that one is stepped. What cannot be so is left to step():
what is in the process's memory, where nobody could be made to wait; what is leased at the time, or would take room that what runs
meanwhile may want; what is stepped first, so that its states or its master are yet to be made; and optimizers whose step asks for
more than this.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn, optim

from .._device.streams import Mark, beside, has_streams
from .._leased.updates import Work
from .._parameters.parameter import ManagedParameter
from .._pytorch.private import raw, unhooked
from .._tensors.offloaded import OffloadedTensor
from . import kinds
from .before import Before, copied
from .later_batch import LaterBatch, Member
from .slices import Casts
from .sound_later import ELEMENT_BY_ELEMENT
from .states import States
from .trace import PLAIN

_BYTES_MAX = 16 << 20  # that are stepped together: who waits for one of them waits for all
_PARTS = 16  # of the guarantee
_IN_MEMORY_BYTES_MAX = 4096  # of a state: it is copied
_COUNT = "step"  # of a state of PyTorch's optimizers, which each step makes one more
_PARTS_ALONE = 4  # of it, of which one parameter may take one: the rest is for what runs meanwhile

Group = dict[str, Any]


def later_class(kind: type[optim.Optimizer]) -> type[optim.Optimizer]:
    """A class of what the later part is given in its optimizer's place: the same, but for its groups and its states."""
    return type(kind.__name__, (kind,), {"param_groups": property(lambda proxy: proxy.terrace_run.groups),
                                         "state": property(lambda proxy: proxy.terrace_run.states),
                                         "terrace_proxy": True, "__slots__": ("terrace_run",)})


class Later:
    """The later part of one step: it is gathered, and then begun."""

    def __init__(self, states: States, proxy_kind: type[optim.Optimizer], in_backward: bool = False):
        """in_backward: gradients are in memory, as a backward pass has made them. It is made before the step begins."""
        self._of = states
        self._proxy_kind = proxy_kind
        self._in_backward = in_backward
        self._after: Work | None = None  # what is to end first
        self._optimizer: optim.Optimizer | None = None  # once it has begun, until its end
        self._before = Before(states.optimizer) if kinds.tried(states.optimizer) is not None else None
        self._known: dict[str, Any] = {}  # what the optimizer has itself
        self._records = torch.is_grad_enabled()
        self._left: deque[tuple[Group, LaterBatch]] = deque()  # to be stepped, each with its group's options
        self._mark: Mark | None = None
        self.states: MutableMapping[Any, Any] = {}  # of what is at hand, as the step finds them
        self.groups: Iterable[Group] = self  # as it finds them
        self.work = Work()
        self.begun = False
        self.gathered = False  # the step has looped over its groups
        self._claim = threading.Lock()  # held by who sees to its end
        self._groups: Generator[Group] | None = None

    # ---- Gathering, within step()

    def take(self, group: Group, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Takes of a group's parameters, as the step would see them, what can be stepped later. The others."""
        now: list[nn.Parameter] = []
        members: list[Member] = []
        if group.get("capturable"):
            return list(parameters)
        for parameter in parameters:
            member = self._member(group, parameter)
            if member is None:
                now.append(parameter)
            else:
                members.append(member)
        if self._before is not None and members and not self._has_gradient(now):
            least = min(members, key=lambda one: one.weight_bytes)  # with it the step writes to its group, and to itself
            members = [one for one in members if one is not least]
            now.append(self._of.masters.stepped_as(least.weight))
        if members:
            options = {name: copied(value) for name, value in group.items() if name != "params"}
            if self._before is not None:
                options = self._before.options(self._of.optimizer, group)
            self._left += ((options, batch) for batch in self._batches(members))
        return now

    def _has_gradient(self, parameters: Iterable[nn.Parameter]) -> bool:
        with raw():
            return any(self._of.masters.own(one).grad is not None for one in parameters)

    def _member(self, group: Group, stepped: nn.Parameter) -> Member | None:
        """What is known of a parameter that can be stepped later; None: it cannot be."""
        states = self._of
        weight = states.masters.own(stepped)
        managed = states.managed_of(weight)
        with raw():
            gradient: Any = weight.grad
        if managed is None or managed.kind is not nn.Parameter or managed.twins or not _is_at_rest(managed):
            return None
        managed.slot.wait()  # its last step is over
        if not self._is_at_hand(gradient):
            return None
        master = states.masters.of(weight)
        if master is not None and (master.managed is None or not _is_at_rest(master.managed) or not master.is_current()):
            return None
        state = states.state_of(weight)
        kept = {name: value for name, value in state.items() if isinstance(value, OffloadedTensor)}
        if not self._has_all(group, stepped, state, kept):
            return None
        managed.check()
        member = Member(weight, managed, master, gradient, state, kept)
        return member if self._leaves_room(member) else None

    def _has_all(self, group: Group, stepped: nn.Parameter, state: dict[str, Any], kept: dict[str, OffloadedTensor]) -> bool:
        """Whether a parameter has been stepped before, and of its state all that is large is in Terrace, and at rest."""
        states, tried = self._of, kinds.tried(self._of.optimizer)
        named = kinds.states(states.optimizer, group, stepped.dim())
        if tried is None:
            begun = set(named) <= kept.keys() and (bool(state) or not kinds.may_keep_more(states.optimizer))
        else:
            number = next((number for number, one in enumerate(states.optimizer.param_groups) if one is group), -1)
            begun = bool(state) or number in tried.keeps_nothing
        return begun and all(one.terrace_store is states.own_store and not one.terrace_slot.shown for one in kept.values()) and all(
            name in kept or isinstance(value, PLAIN) or (type(value) is torch.Tensor and value.nbytes < _IN_MEMORY_BYTES_MAX)
            for name, value in state.items())

    def _is_at_hand(self, gradient: Any) -> bool:
        """Whether nobody else has the memory of a gradient."""
        if self._in_backward:
            return type(gradient) is torch.Tensor
        return (type(gradient) is OffloadedTensor and gradient.terrace_store is self._of.store
                and not gradient.terrace_slot.shown)

    def _leaves_room(self, member: Member) -> bool:
        weights, own = self._of.store, self._of.own_store
        if own is weights:
            return member.weight_bytes + member.own_bytes <= own.guarantee_bytes // _PARTS_ALONE
        return (member.weight_bytes <= weights.guarantee_bytes // _PARTS_ALONE
                and member.own_bytes <= own.guarantee_bytes // _PARTS_ALONE)

    def _batches(self, members: Sequence[Member]) -> Iterator[LaterBatch]:
        bytes_max = max(1, min(self._of.own_store.guarantee_bytes // _PARTS, self._of.store.guarantee_bytes // _PARTS, _BYTES_MAX))
        batch: list[Member] = []
        total = 0
        for member in members:
            size = member.weight_bytes + member.own_bytes
            if batch and total + size > bytes_max:
                yield LaterBatch(self._of, batch)
                batch, total = [], 0
            batch.append(member)
            total += size
        yield LaterBatch(self._of, batch)

    @property
    def members(self) -> list[Member]:
        """What is to be stepped."""
        return [member for _, batch in self._left for member in batch.members]

    def begin(self, after: Work | None = None) -> None:
        """All that step() itself does is done: begins the rest, if there is any. after: what is to end first."""
        self.gathered = True
        if not self._left:
            return
        self._after = after
        try:
            self.begun = True
            self._optimizer = self._of.optimizer
            self._known = dict(vars(self._optimizer))
            counted = None if self._before is not None else _COUNT
            for _, batch in self._left:
                batch.update = self.work.update(batch.slots)
                for member in batch.members:
                    member.note_stepped(counted)
            if has_streams(self._of.store.device):
                self._mark = Mark(self._of.store.device)
            if after is not None:
                self._left[0][1].fetch()
            self._of.store.client._before_close.add(self.work.wait)
            # a new thread, which has PyTorch's settings as they are now, and which the interpreter waits for
            threading.Thread(target=self._run, name="terrace step", daemon=False).start()
        except RuntimeError:  # there can be no more threads, as when the interpreter ends
            self._run()
            self.work.tell()
        except BaseException:
            if self._claim.acquire(blocking=False):  # the thread does not run, nor will it
                self._end(None)
            raise

    # ---- In the thread

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        self.work.thread = threading.get_ident()
        if self._after is not None:
            self._after.await_end()
            self._after = None
        error: BaseException | None = None
        try:
            torch.get_num_threads()  # has this thread have as many as others
            with beside(self._of.store.device, self._mark), torch.set_grad_enabled(self._records):
                if self._before is None:
                    self._step(self._known)
                else:
                    self._step_each(self._before)
        except BaseException as failed:
            left = [member.managed.name for member in self.members]
            failed.add_note("terrace.torch: this is of optimizer.step(), which had returned and went on meanwhile. Of its "
                            f"parameters it had not stepped all of {', '.join(left[:4])}{', ...' if len(left) > 4 else ''}")
            error = failed
            if self._groups is not None:
                self._groups.close()  # the error's traceback has it
        self._end(error)

    def _step(self, known: dict[str, Any]) -> None:
        """Runs the optimizer's step. known: what the optimizer has itself."""
        proxy: Any = object.__new__(self._proxy_kind)
        object.__setattr__(proxy, "terrace_run", self)
        proxy.__dict__ = known
        unhooked(type(self._optimizer).step)(proxy)

    def _step_each(self, before: Before) -> None:
        """Runs it for each part, which finds what there was before the step; and what it writes that is of no parameter is
        what the step itself has written."""
        for group in self:
            self.groups = [before.copied(group)]
            self.states.update(before.states())
            self._step(before.own())
            self._left[0][1].check_gradients(type(self._optimizer).__name__)

    def _end(self, error: BaseException | None) -> None:
        for _, batch in self._left:
            batch.give_up()
        self._left.clear()
        self.states, self.groups = {}, ()
        self._before = None
        self._known.clear()  # an optimizer that the script has no more goes, though its last step is known
        self._optimizer = self._groups = None
        if error is None:  # else whoever closes it may be the next to be told
            self._of.store.client._before_close.discard(self.work.wait)
        self.work.end(error)

    def __iter__(self) -> Iterator[Group]:
        """The groups, as the step finds them: in parts, each of which is leased while the step is at it."""
        self._groups = self._shown()
        return self._groups

    def _shown(self) -> Generator[Group]:
        by_element, casts = type(self._optimizer) in ELEMENT_BY_ELEMENT, Casts()
        while self._left:
            options, batch = self._left[0]
            try:
                batch.enter()
                if len(self._left) > 1:
                    self._left[1][1].fetch()
                for stepped, self.states in batch.shown(by_element, bool(options.get("fused")), casts):
                    yield {**options, "params": stepped}
                batch.write_back()
            finally:
                self.states = {}
                batch.leave()
            self._left.popleft()


def _is_at_rest(managed: ManagedParameter) -> bool:
    """Whether nothing uses a parameter, or has its memory."""
    return not (managed.uses or managed.slot.shown)

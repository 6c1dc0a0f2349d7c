# SPDX-License-Identifier: Apache-2.0
"""What PyTorch is asked privately, each name with the reason: the one file to look at for another PyTorch.

All of it was tried with PyTorch 2.13 on the CPU, and with 2.11 on an H100. Other modules take these from here; the style
tests see to it. Of FSDP2 its classes are named here, and what they hold is read in `_ranks`, which refuses a PyTorch that
keeps it in another way.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim
from torch._functorch import eager_transforms, predispatch
from torch._functorch.pyfunctorch import (
    GradInterpreter,
    retrieve_all_functorch_interpreters,
    temporarily_clear_interpreter_stack,
)
from torch.autograd.function import BackwardCFunction
from torch.nn.modules import module as _modules
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import CheckpointFunction

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam as FSDPParam
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup as FSDPParamGroup

_C: Any = torch._C  # its stubs lack most of these

# ---- Tensors

# Runs PyTorch's functions on our subclasses as on ordinary tensors: within __torch_function__, and where it would lease.
raw = torch._C.DisableTorchFunctionSubclass
# What a subclass has as __torch_function__ that PyTorch's functions are to take for an ordinary tensor.
no_torch_function: Any = torch._C._disabled_torch_function_impl
# `tensor.data`, by which a parameter is given other memory: as a property it would ask __torch_function__.
get_data = torch.Tensor.data.__get__  # type: ignore[attr-defined]
set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]
# A tensor of a class of ours over memory that is there; as_subclass() would ask __torch_function__.
make_subclass: Callable[..., Any] = torch.Tensor._make_subclass
# What a saved tensor is seen as whose negative bit is set: there is no public way to set it.
neg_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
# Sets what counts the writes to tensors, so that it can be asked whether two have one counter.
set_versions: Callable[[Sequence[torch.Tensor], Sequence[int]], None] = _C._autograd._unsafe_set_version_counter
# A tensor of a DLPack capsule: torch.from_dlpack() takes an object, and asks it for the stream by itself.
from_capsule: Callable[[Any], torch.Tensor] = _C._from_dlpack
# The current stream's number, for DLPack, without making an object of it. Not of a PyTorch without CUDA.
raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# Clipping runs its functions of lists on tensors of these types, and one by one on others.
foreach_types: list[type[torch.Tensor]] = torch.utils._foreach_utils._foreach_supported_types
# What optimizer.zero_grad(set_to_none=False) runs on a list of gradients.
foreach_zero: Callable[[list[torch.Tensor]], None] = torch._foreach_zero_
# What a module that is moved asks of each tensor, before and after: whether one may be given the other's memory.
may_have_data_of: Callable[[torch.Tensor, torch.Tensor], bool] = torch._has_compatible_shallow_copy_type


def split_alike(whole: Any, local: torch.Tensor) -> Any:
    """A DTensor that is split as another one is, over a local tensor of any type and on any device. DTensor.from_local() would
    move it to the mesh's device; fully_shard() does not either, with a CPUOffloadPolicy."""
    spec = whole._spec
    meta = spec.tensor_meta._replace(dtype=local.dtype)
    return type(whole)(local, dataclasses.replace(spec, tensor_meta=meta), requires_grad=False)


# ---- Storages: weak references to them, which Python's own cannot be, since PyTorch makes the object anew

_storages: Any = torch.UntypedStorage
storage_expired: Callable[[int], bool] = _storages._expired
storage_revived: Callable[[int], torch.UntypedStorage | None] = _storages._new_with_weak_ptr
weak_reference: Callable[[torch.UntypedStorage], int] = _storages._weak_ref
free_weak_reference: Callable[[int], None] = _storages._free_weak_ref
storage_uses: Callable[[int], int] = _C._storage_Use_Count  # tells whether something else shows a parameter's memory


def storage_number(storage: torch.UntypedStorage) -> int:
    """Its address in C++, which tells it from other storages while it is there."""
    number: int = storage._cdata
    return number


# ---- Autograd

# Which backward pass this thread runs, NO_BACKWARD if none: steps are due by pass, and what one saves it uses at once.
running_backward: Callable[[], int] = _C._current_graph_task_id
NO_BACKWARD = -1
# Calls something at the end of the backward pass that goes on, and drops it where the pass fails.
call_at_end: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
# Hooks of saved tensors. torch.autograd.graph.saved_tensors_hooks does not say what is below, and takes two calls to leave.
top_hooks: Callable[[bool], Any] = _C._autograd._top_saved_tensors_default_hooks
push_hooks: Callable[..., None] = _C._autograd._push_saved_tensors_default_hooks
pop_hooks: Callable[[], None] = _C._autograd._pop_saved_tensors_default_hooks
hooks_allowed: Callable[[], bool] = _C._autograd._saved_tensors_hooks_is_enabled
# Numbers the nodes that this thread makes: whether a cast is older than the last look at its parameter.
sequence_number: Callable[[], int] = _C._autograd._get_sequence_nr
# Whose hooks they are, by name: torch.utils.checkpoint counts what is saved, so that nothing may be withheld from it.
CHECKPOINT_HOOK, RECOMPUTATION_HOOK = "_checkpoint_hook", "_recomputation_hook"

# ---- Modes and transforms: where nothing may be hooked or leased

functorch_interpreter: Callable[[], Any] = _C._functorch.peek_interpreter_stack  # None: no transform of torch.func runs
is_functorch_wrapped: Callable[[torch.Tensor], bool] = _C._functorch.is_functorch_wrapped_tensor
leave_functorch = temporarily_clear_interpreter_stack
leave_dispatch_modes = _disable_current_modes
dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack


class DispatchMode(TorchDispatchMode):
    """A mode of ours, which sees operators below autograd and autocast."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would have the compiler leave its code alone, and import the compiler for that: it never compiles it."""
        return False


compiler_of_thread: Callable[[], Any] = _C._dynamo.eval_frame.get_eval_frame_callback  # is_compiling() is of traced code

COMPILER = "torch._dynamo"  # takes seconds to import: whether something compiles already is asked of sys.modules


def is_traced_by_make_fx() -> bool:
    """Whether make_fx notes down what runs; torch.jit.is_tracing() tells of torch.jit alone."""
    return _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None


def grad_was_enabled_around() -> bool:
    """Whether recording was on around each transform that differentiates: within it, it always is."""
    return all(one.prev_grad_mode() for one in retrieve_all_functorch_interpreters() if isinstance(one, GradInterpreter))


# The Python functions that hand tensors to C++ which does not ask __torch_function__: holder, name.
WRAP_FOR_GRAD = eager_transforms, "_wrap_for_grad"
WRAP_FUNCTIONAL = eager_transforms, "_wrap_functional_tensor"
ASSERT_FUNCTIONAL = eager_transforms, "_assert_wrapped_functional"
PROPAGATE_FUNCTIONAL = eager_transforms, "_propagate_functional_input_mutation"
ADD_BATCH_DIMENSION = predispatch, "_add_batch_dim_impl"
MAKE_DUAL = predispatch, "_make_dual_impl"
MAKE_GRADIENTS = torch.autograd, "_make_grads"
BACKWARD_APPLY = BackwardCFunction, "apply"
BACKWARD_APPLY_BOXED = BackwardCFunction, "apply_boxed"

# ---- Operators, as C++ names them

Overload = torch._ops.OpOverload
OverloadPacket = torch._ops.OpOverloadPacket


def overload_for(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Of an operator's name (torch.ops.aten.mul) the overload that these arguments choose: it says what it writes to."""
    name = _C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
    found: Callable[..., Any] = getattr(packet, name or "default")
    return found


# ---- Pickles: what PyTorch's own have for an ordinary tensor or parameter, so that any script loads them

rebuild_parameter: Callable[..., Any] = torch._utils._rebuild_parameter
rebuild_parameter_with_state: Callable[..., Any] = torch._utils._rebuild_parameter_with_state
rebuild_tensor: Callable[..., Any] = torch._utils._rebuild_tensor_v2
rebuild_tensor_of_new_type: Callable[..., Any] = torch._utils._rebuild_tensor_v3  # of those without a typed storage
new_dtypes: Callable[[], Any] = torch.storage._new_dtypes


def fused_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
                    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                    enable_gqa: bool = False) -> torch.Tensor:
    """Attention as GPUs run it, of tensors on the meta device, where PyTorch takes the form that keeps all weights."""
    if enable_gqa and query.shape[1] != key.shape[1]:  # which one kernel alone takes as they are, and takes no mask
        if attn_mask is not None:
            return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal,
                                                              scale=scale, enable_gqa=True)
        grouped: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal,
                                                                                   scale=scale)[0]
        return grouped
    bias = None if attn_mask is None else torch.empty_like(attn_mask, dtype=query.dtype)
    made: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]
    return made


def _operations_of_groups(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    """Of products of matrices by groups, as experts' are, by shapes."""
    return 2 * left[-2] * left[-1] * right[-1] * (left[0] if len(left) == len(right) == 3 else 1)


# What PyTorch's counter of operations does not know.
COUNTED: dict[Any, Callable[..., int]] = {torch.ops.aten._grouped_mm: _operations_of_groups}
# Runs a backward pass without asking the modes that are on; with the roots, their gradients, and four flags.
run_backward: Callable[..., Any] = torch.autograd.graph._engine_run_backward


def fused_norm(given: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None) -> torch.Tensor:
    """RMS norm as GPUs run it, of a tensor on the meta device."""
    made: torch.Tensor = torch.ops.aten._fused_rms_norm(given, shape, weight, eps)[0]
    return made


def typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """What pickles as a storage of a type; made by itself it warns."""
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


# ---- Optimizers

# What load_state_dict() makes of a state: it is cast to its parameter's type, where ours is to be a master's.
cast_as_loaded: Callable[..., torch.Tensor] = optim.Optimizer._process_value_according_to_param_policy

# ---- Ranks


def store_of_ranks() -> Any:
    """The store that init_process_group() was given, or has made, by which ranks can wait for each other a limited time."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


# ---- Modules

# What PyTorch calls in the place of a module, if it is there (decision 0021); copies of a module leave it out.
COMPILED_CALL = "_compiled_call_impl"


def has_hooks(module: nn.Module) -> bool:
    """Whether functions of a script's run before or after the module's forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks or _modules._global_forward_hooks
                or _modules._global_forward_pre_hooks)


def asks_torch_function() -> bool:
    """Whether PyTorch's functions ask the classes of what they are given: a `with` may have switched that off."""
    return bool(_C._is_torch_function_enabled())


def mark_hooked(module: nn.Module, mark: Any) -> None:
    """Seeing an entry here, torch.compile does not go straight to forward(); PyTorch itself looks only hooks up in it."""
    module._forward_hooks_with_kwargs[mark] = False


def unmark_hooked(module: nn.Module, mark: Any) -> None:
    """Undoes mark_hooked()."""
    del module._forward_hooks_with_kwargs[mark]


def active_wrapper() -> DistributedDataParallel | None:
    """The DistributedDataParallel that runs its module now: one that was built after offload() tells nobody else."""
    found: DistributedDataParallel | None = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return found


# ---- Replaced for good, from the first use on, since there is no hook: holder, name, and what of it is awaited

SCALE = torch.amp.GradScaler, "scale"  # what is scaled must not be stepped in its backward pass
UNSCALE = torch.amp.GradScaler, "unscale_"  # what masters are stepped with is unscaled in their type
TO_DLPACK = (torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack")  # what is made a capsule is to be leased
STAGER_MODULE, STAGER, STAGER_COPY = "torch.distributed.checkpoint._state_dict_stager", "StateDictStager", "_offload_tensor"

# ---- Frames that are looked at

_APPLY = nn.Module._apply.__code__
_RRELU = nn.functional.rrelu.__code__
_CHECKPOINT_FILE = CheckpointFunction.forward.__code__.co_filename
_HOOKED_STEP = optim.Optimizer.profile_hook_step(lambda: None).__code__


def _runs(code: CodeType, frame: FrameType | None, calls_max: int) -> bool:
    """Whether some code is that of a frame, or of one of so many that called it."""
    for _ in range(calls_max):
        if frame is None or frame.f_code is code:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is code


def is_moved_by_module(frame: FrameType | None, calls_max: int) -> bool:
    """Whether Module.to(), .half() and their like called: what they swap a parameter for is not asked of it."""
    return _runs(_APPLY, frame, calls_max)


def is_saved_by_rrelu(frame: FrameType | None, calls_max: int) -> bool:
    """Whether rrelu() called, which saves its noise before its kernel fills it, and no version tells of that."""
    return _runs(_RRELU, frame, calls_max)


def is_saved_by_checkpoint(frame: FrameType | None, calls_max: int) -> bool:
    """Whether torch.utils.checkpoint saves what a checkpointed block is given. frame: what called a hook; up to so many calls
    are hooks that hand a tensor on. A block of its own kind saves what is in it by its own hooks."""
    for _ in range(calls_max):
        if frame is None or frame.f_code.co_filename == _CHECKPOINT_FILE:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == _CHECKPOINT_FILE


def module_called(frame: FrameType, otherwise: nn.Module) -> Any:
    """The module whose __call__() a frame is: one that was given another one's __dict__ runs what stands there."""
    return frame.f_locals.get("self", otherwise)


def unhooked(step: Any) -> Any:
    """An optimizer class's step without PyTorch's hooks around it, which the class's first optimizer puts there."""
    return step.__wrapped__ if getattr(step, "__code__", None) is _HOOKED_STEP else step


def complete_hooks(optimizer: optim.Optimizer) -> None:
    """Has a wrapper of another optimizer, which was not made by PyTorch's constructor, have the hooks that this makes."""
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_load_state_dict_pre_hooks",
                 "_optimizer_load_state_dict_post_hooks", "_optimizer_state_dict_post_hooks"):
        if not hasattr(optimizer, name):
            setattr(optimizer, name, OrderedDict())
    optimizer._patch_step_function()


def code_of_step(kind: type[optim.Optimizer]) -> CodeType:
    """Of an optimizer class's step what runs within all that PyTorch has put around it."""
    code: CodeType = inspect.unwrap(kind.step).__code__
    return code


def is_run_of(code: CodeType, frame: FrameType) -> bool:
    """Whether a frame runs this very code: a step of PyTorch's own can be shown its groups in parts, as no other can."""
    return frame.f_code is code


def has_collecting_of(kind: type[optim.Optimizer], optimizer: optim.Optimizer) -> bool:
    """Whether an optimizer collects its parameters as a class of PyTorch's does, whose step calls this to do so."""
    name = "_init_group"
    return getattr(type(optimizer), name, None) is getattr(kind, name, None) and name not in vars(optimizer)


def is_asked_by_call(asks: FrameType) -> bool:
    """Whether what asks for an iterator is a function that was called there, as enumerate() and zip() are, and no loop."""
    return "CALL" in dis.opname[asks.f_code.co_code[asks.f_lasti]]

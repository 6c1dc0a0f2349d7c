# SPDX-License-Identifier: Apache-2.0
"""What cannot be offloaded, said by name, and which parameters are."""

import gc
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from ... import _checks
from ..._client import Client
from ..._errors import FailedPrecondition, InvalidArgument
from .._device.device import device_of
from .._device.streams import can_be_in_terrace
from .._leased.place import Place
from .._leased.placeholder import elements_spanned
from .._leased.slot import dtype_in_terrace
from .._model.modules import is_called_by_us, is_compiled, used_by_each
from .._parameters.in_memory import is_of_a_job
from .._parameters.parameter import managed_of
from .._pytorch.private import COMPILED_CALL
from .._pytorch.split import is_made_of_others, is_split, local_of
from .._pytorch.storages import may_be_statistics, users_of
from .._pytorch.storages import number_of as number_of_storage
from .._ranks.ddp import wrong_with
from .._ranks.fsdp import check_groups, groups_of
from .._tensors.offloaded import OffloadedParameter, OffloadedTensor

_SHOWN = "something else shows its memory"
_RANKS = "with several ranks, use DistributedDataParallel(model) or fully_shard(model), and offload that on each"


def _is_a(value: object, module: str, name: str) -> bool:
    """Whether it is of a class of PyTorch's. Where the class's module was not imported, nothing is."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def places_of_model(call: str, client: Client, place: str | None, model: nn.Module,
                    names: Mapping[nn.Parameter, str]) -> list[str]:
    """Where to lease parameters: in the memory of each device that they are on, that of the first one first. InvalidArgument, by
    name, where they are not there.

    call: how the caller is named in errors. place: None: to be found. names: of those that are to be leased."""
    on = {parameter.device: name for parameter, name in reversed(names.items())}  # the first one on each
    devices = list(reversed(on)) or [_device_of_first(model)]
    if place is None:
        return [_place_of(call, client, device, on.get(device)) for device in devices]
    check_offered(call, client, place)
    there = device_of(client, place)
    for device in devices:
        if device != there:
            what = f"the parameter '{on[device]}'" if len(devices) > 1 else "the model"
            raise InvalidArgument(f"{call}: place is {place!r}, which is memory of {there}, and {what} is on {device}: move "
                                  f"it there (.to('{there}')), or leave place out")
    return [place]


def _device_of_first(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _place_of(call: str, client: Client, device: torch.device, name: str | None) -> str:
    found = place_on(client, device)
    if found is None:
        what = "the model" if name is None else f"the parameter '{name}'"
        raise InvalidArgument(f"{call}: {what} is on {device}, and none of this session's places "
                              f"({', '.join(offer.name for offer in client.places())}) is that GPU's memory: give the daemon a "
                              "tier of it (docs/guides/gpus.md), or move the model to the CPU")
    return found


def check_in_places(call: str, places: Sequence[Place], names: Mapping[nn.Parameter, str]) -> None:
    """Raises InvalidArgument for a parameter on another device than those of a model that is offloaded already."""
    devices = [place.device for place in places]
    for parameter, name in names.items():
        if parameter.device not in devices:
            raise InvalidArgument(f"{call}: the parameter '{name}', which is new, is on {parameter.device}, and the model was "
                                  f"offloaded on {', '.join(map(str, devices))}: move it there")


def check_offered(call: str, client: Client, place: str) -> None:
    """Raises InvalidArgument for a place that this session cannot lease in."""
    offers = [offer.name for offer in client.places()]
    if _checks.text(call, "place", place) not in offers:
        raise InvalidArgument(f"{call}: place is {place!r}; this session can lease in {', '.join(offers)}")


def place_on(client: Client, device: torch.device) -> str | None:
    """The place that is a device's memory; None where there is none."""
    if device.type == "cpu":
        return "host"
    return next((offer.name for offer in client.places() if offer.gpu and _is_on(client, offer.name, device)), None)


def _is_on(client: Client, place: str, device: torch.device) -> bool:
    try:
        return device_of(client, place) == device
    except FailedPrecondition:  # a GPU that this process cannot see
        return False


def check_model(model: nn.Module, in_backward: bool, new: Container[nn.Parameter] | None = None) -> None:
    """Raises InvalidArgument for a model that cannot be offloaded. in_backward: and be stepped in the backward pass. new:
    which of its parameters are not offloaded yet; None: all."""
    call = "terrace.torch.offload"
    _checks.is_a(call, "model", model, nn.Module, "a torch.nn.Module")
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise InvalidArgument(
                f"{call}: the module '{name}' is a {type(part).__name__} of torch.jit, whose code would not lease; "
                "offload the module that it was made from")
        if isinstance(part, nn.parallel.DistributedDataParallel) and (wrong := wrong_with(part, in_backward)):
            raise InvalidArgument(f"{call}: {wrong}")
        if _is_a(part, "torch.distributed.fsdp", "FullyShardedDataParallel"):
            raise InvalidArgument(
                f"{call}: FullyShardedDataParallel keeps parameters in flat pieces of its own, which cannot be "
                f"offloaded; {_RANKS}")
        if getattr(part, COMPILED_CALL, None) is not None and not is_called_by_us(part):
            raise InvalidArgument(
                f"{call}: the module '{name}' was compiled in place by .compile(), and its compiled code would not "
                "lease; use its place torch.compile(module) instead")
    check_groups(model)
    sharded = {one.sharded_param for group in groups_of(model) for one in group.fsdp_params}
    for name, part in model.named_modules() if new is None else ():
        if is_compiled(part) and any(is_split(one) and one not in sharded for one in part.parameters()):
            raise InvalidArgument(f"{call}: the module '{name}' is compiled, and has parameters that are split over ranks (tensor "
                                  "parallelism), which compiled code would not lease: use it as it was before torch.compile()")
    for name, parameter in model.named_parameters():
        if new is not None and parameter not in new:
            continue
        if new is not None and is_split(parameter):
            raise InvalidArgument(f"{call}: the parameter '{name}' is new in this model, which is offloaded already, and "
                                  "is split over ranks: build and split all of the model, then offload it")
        if parameter not in sharded:
            _check_parameter(name, parameter)
        elif not can_be_in_terrace(parameter.device):
            raise _elsewhere(name, parameter)


def check_forwards(model: nn.Module, leased: Container[nn.Parameter]) -> None:
    """Raises InvalidArgument where a forward is compiled that runs modules which are to lease: they would do so within
    compiled code. leased: parameters that modules are going to lease."""
    used = used_by_each(model)
    for name, part in model.named_modules():
        forward = getattr(part, "forward", None)
        if is_compiled(part) or not hasattr(forward, "_torchdynamo_orig_callable"):
            continue
        if getattr(forward, "_torchdynamo_disable", False):
            continue  # what torch.compiler.disable gave has it, too
        below = [parameter for one in part.modules() if one is not part for parameter in used.get(one, ())]
        if any(parameter in leased for parameter in below):
            raise InvalidArgument(
                f"terrace.torch.offload: the forward of the module '{name}' is compiled, and the modules in it would "
                "not lease in compiled code: leave its forward as it was, and use torch.compile(module) in the place "
                "of the module")


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    call = "terrace.torch.offload"
    if nn.parameter.is_lazy(parameter):
        raise InvalidArgument(f"{call}: the parameter '{name}' has no shape yet; run the model once, then offload it")
    if isinstance(parameter, OffloadedParameter):
        if managed_of(parameter).building is not None:
            return
    if isinstance(parameter, OffloadedParameter) or is_of_a_job(parameter):
        raise FailedPrecondition(f"{call}: the parameter '{name}' is offloaded already, with another model: offload models "
                                 "that share one together, as a torch.nn.ModuleList of them, or give offload() the model that "
                                 "was offloaded, where this one is built around it")
    if is_split(parameter):
        _check_split(name, parameter)
        return
    if type(parameter) is not nn.Parameter and parameter.requires_grad:
        raise InvalidArgument(f"{call}: the parameter '{name}' is a {type(parameter).__name__} that requires a gradient; of "
                              "parameters that are not ordinary ones, as quantized weights, frozen ones can be offloaded: "
                              "requires_grad_(False), and train adapters over it (docs/guides/qlora.md)")
    if not can_be_in_terrace(parameter.device):
        raise _elsewhere(name, parameter)


def _check_split(name: str, parameter: nn.Parameter) -> None:
    """The same of one that is split over ranks, and not by fully_shard()."""
    what = f"terrace.torch.offload: the parameter '{name}' is split over ranks (tensor parallelism, distribute_tensor)"
    local = local_of(parameter)
    if isinstance(local, OffloadedTensor):
        raise FailedPrecondition(f"{what}, and offloaded already, with another model: offload models that share one together, as "
                                 "a torch.nn.ModuleList of them")
    if type(local) is not torch.Tensor:
        raise InvalidArgument(f"{what}, and its part is a {type(local).__name__}; ordinary tensors can be offloaded")
    if not can_be_in_terrace(local.device):
        raise _elsewhere(name, parameter)


def _elsewhere(name: str, parameter: nn.Parameter) -> InvalidArgument:
    return InvalidArgument(f"terrace.torch.offload: the parameter '{name}' is on {parameter.device}; parameters on the CPU, or "
                           "on a GPU of CUDA's, can be offloaded")


def eligible(model: nn.Module, bytes_min: int, moves: bool,
             shown_with: Callable[[nn.Parameter], int]) -> tuple[dict[nn.Parameter, tuple[str, str]], list[tuple[str, str]]]:
    """The parameters to offload, with their names and modules; and those left alone, each with the reason. Not those that are
    made of other tensors, and have no memory themselves.

    moves: they are to be in Terrace themselves, and not only their gradients or states. shown_with: how many other tensors
        show a parameter's memory, and are going to be where it is."""
    chosen: dict[nn.Parameter, tuple[str, str]] = {}
    left: list[tuple[str, str]] = []
    storages: dict[int, int] = {}
    buffered = {buffer.untyped_storage().data_ptr() for buffer in model.buffers()
                if buffer.layout == torch.strided and not is_made_of_others(buffer)}
    parameters = [(name, one) for name, one in model.named_parameters() if not is_made_of_others(one)]
    for _, parameter in parameters:
        if not isinstance(parameter, OffloadedParameter):
            address = local_of(parameter).untyped_storage().data_ptr()
            storages[address] = storages.get(address, 0) + 1
    shown = _shown_elsewhere(model, (parameter for _, parameter in parameters), shown_with) if moves else set()
    for name, parameter in parameters:
        reason = ""
        if not isinstance(parameter, OffloadedParameter):  # of init(): it is in Terrace already
            local = local_of(parameter)
            reason = alone(local, bytes_min)
            if not reason and storages[local.untyped_storage().data_ptr()] > 1:
                reason = "shares its memory with another parameter"
            elif not reason and local.untyped_storage().data_ptr() in buffered:
                reason = "shares its memory with a buffer"
            elif not reason and parameter in shown:
                reason = _SHOWN
            elif not reason and are_statistics(name, parameter):
                reason = "are statistics, which a kernel writes to unseen"
        if reason:
            left.append((name, reason))
        else:
            dtype_in_terrace(parameter.dtype)
            chosen[parameter] = (name, name.rpartition(".")[0])
    return chosen, left


def alone(parameter: torch.Tensor, bytes_min: int) -> str:
    """Why a parameter stays in memory whatever else there is; empty where it need not."""
    if parameter.nbytes < bytes_min:
        return f"smaller than {bytes_min} bytes"
    if parameter.layout != torch.strided or not _dense(parameter):
        return "its elements overlap or have gaps"
    if parameter.is_quantized:
        return "has its scales in itself (torch.quantize_per_tensor)"
    if parameter.is_inference():
        return "was made in inference mode, outside of which it cannot be given other memory"
    if parameter.device.type == "cpu" and parameter.is_shared():  # all of a GPU's can be
        return "is in memory that processes share"
    return ""


def are_statistics(name: str, parameter: torch.Tensor) -> bool:
    """Whether it is what batch norm's kernel writes to, and says nothing: a frozen vector of the name that these have."""
    named = name.rpartition(".")[2].startswith("running_")
    return named and not parameter.requires_grad and may_be_statistics(parameter)


def _shown_elsewhere(model: nn.Module, parameters: Iterable[nn.Parameter],
                     shown_with: Callable[[nn.Parameter], int]) -> set[nn.Parameter]:
    """Those whose memory something else shows, which would go on to show what was there as they were moved."""
    expected = _shown_by_hooks(model)

    def shown(parameter: nn.Parameter) -> bool:
        return users_of(parameter) > 1 + shown_with(parameter) + expected[number_of_storage(parameter.untyped_storage())]

    found = [one for one in parameters if not isinstance(one, OffloadedParameter) and not is_split(one) and shown(one)]
    if found:
        gc.collect()  # what is gone may be held by a cycle
    return {one for one in found if shown(one)}


def _shown_by_hooks(model: nn.Module) -> Counter[int]:
    """How many attributes of modules show a storage until the first forward pass makes them anew."""
    found: Counter[int] = Counter()
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm) and isinstance(made := module.__dict__.get(hook.name), torch.Tensor):
                found[number_of_storage(made.untyped_storage())] += 1
    return found


def warn_of_shown(left: Iterable[tuple[str, str]]) -> None:
    """Warns, at the line that called offload(), of parameters that stay in memory because something else shows theirs."""
    names = [name for name, reason in left if reason == _SHOWN]
    if names:
        warnings.warn(
            f"terrace.torch.offload: {len(names)} parameters stay in memory, since something else shows theirs, and would "
            f"show old numbers if they were moved: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}. Let go of it "
            "before offload(), or clone() it: a state_dict() that is kept, or was given to load_state_dict(assign=True), a "
            "view or an array of a weight (.data, .detach(), .numpy()), an output whose graph is kept", stacklevel=4)


def warn_of_another(call: str, model: nn.Module, optimizer: torch.optim.Optimizer, level: int) -> None:
    """Warns, at the line that is so many calls above, of an optimizer that steps nothing of the model."""
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if stepped.isdisjoint(map(id, model.parameters())):
        warnings.warn(
            f"{call}: the optimizer has none of this model's parameters, and will step none of them: was it built for another "
            "model, or before this one was built anew?", stacklevel=level)


def _dense(parameter: torch.Tensor) -> bool:
    """Whether it has one element for each address that it spans."""
    return elements_spanned(parameter.shape, parameter.stride()) == parameter.numel()

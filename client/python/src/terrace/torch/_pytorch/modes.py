# SPDX-License-Identifier: Apache-2.0
"""Makes tensors over leased memory ordinary ones, whatever modes the caller is in, and tells modes in which nothing can
be leased."""

import contextlib
from collections.abc import Iterator

import torch

from ..._errors import FailedPrecondition
from .private import (
    compiler_of_thread,
    dispatch_modes,
    functorch_interpreter,
    is_traced_by_make_fx,
    leave_dispatch_modes,
    leave_functorch,
)


def in_functorch() -> bool:
    """Whether a transform of torch.func is running: saved tensors may not be hooked then."""
    return functorch_interpreter() is not None


_MODULE = ("an offloaded module would lease in compiled code: what is compiled is a function that runs it, or was compiled "
           "after terrace.torch.offload(). Use torch.compile(module) in the place of the module, before "
           "terrace.torch.offload()")
_EXPORTED = ("an offloaded module would lease in what is exported: export a copy of it, which is not offloaded, by "
             "torch.export.export(copy.deepcopy(model), ...)")


def is_traced() -> bool:
    """Whether torch.jit.trace or make_fx notes down what runs."""
    return torch.jit.is_tracing() or is_traced_by_make_fx()


def check_not_compiled(refusal: str = _MODULE) -> None:
    """Raises FailedPrecondition in compiled and exported code, and where such code is being made."""
    if torch.compiler.is_exporting():
        raise FailedPrecondition(_EXPORTED)
    if torch.compiler.is_compiling() or compiler_of_thread() is not None:
        raise FailedPrecondition(refusal)


@contextlib.contextmanager
def _left() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if in_functorch():
            stack.enter_context(leave_functorch())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(leave_dispatch_modes())
        yield


_nothing = contextlib.nullcontext()


def ordinary() -> contextlib.AbstractContextManager[None]:
    """Leaves inference mode, dispatch modes and the transforms of torch.func for as long as it is entered."""
    if torch.is_inference_mode_enabled() or dispatch_modes() or in_functorch():
        return _left()
    return _nothing

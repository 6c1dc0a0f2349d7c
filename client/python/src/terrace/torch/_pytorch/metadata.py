# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions that ask a tensor only for what its placeholder knows, or that make another from its shape.

They run on the placeholder itself. Whatever is not named here leases the tensor first, and so is right in any case.
"""

from collections.abc import Callable
from typing import Any

import torch

_GETTERS = ("shape", "dtype", "device", "layout", "requires_grad", "grad", "grad_fn", "is_leaf", "_version", "names",
            "ndim", "itemsize", "nbytes", "is_cuda", "is_cpu", "is_sparse", "is_sparse_csr", "is_mkldnn",
            "is_quantized", "is_meta", "is_nested", "is_mps", "is_mtia", "is_xpu", "is_xla", "is_ipu", "is_maia",
            "is_vulkan", "retains_grad", "output_nr", "_backward_hooks", "_post_accumulate_grad_hooks", "volatile",
            "_grad", "_grad_fn", "_base", "grad_dtype", "name")
_SETTERS = ("grad", "_grad", "_backward_hooks", "_post_accumulate_grad_hooks", "grad_dtype")
_METHODS = ("size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "is_contiguous",
            "storage_offset", "is_floating_point", "is_complex", "is_signed", "is_inference", "get_device", "dim_order",
            "has_names", "_is_view", "_is_zerotensor", "is_conj", "is_neg", "register_hook",
            "register_post_accumulate_grad_hook", "__len__", "__hash__", "retain_grad", "is_shared", "is_pinned",
            "is_same_size", "is_distributed", "new_empty", "new_zeros", "new_ones",
            "is_coalesced", "sparse_dim")
_FUNCTIONS = ("numel", "is_floating_point", "is_complex", "is_conj", "is_neg", "is_signed", "is_same_size",
              "is_inference", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like",
              "randint_like", "result_type", "is_tensor", "is_storage", "is_distributed")


def _gather() -> frozenset[Callable[..., Any]]:
    found: set[Callable[..., Any]] = set()
    attributes: list[tuple[tuple[str, ...], str]] = [(_GETTERS, "__get__"), (_SETTERS, "__set__"),
                                                     (("grad",), "__delete__")]
    for names, kind in attributes:
        found.update(getattr(attribute, kind) for name in names
                     if hasattr(attribute := getattr(torch.Tensor, name, None), kind))
    functions: list[tuple[Any, tuple[str, ...]]] = [(torch.Tensor, _METHODS), (torch, _FUNCTIONS)]
    for holder, names in functions:
        found.update(getattr(holder, name) for name in names if hasattr(holder, name))
    return frozenset(found)


METADATA = _gather()

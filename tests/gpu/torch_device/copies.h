// SPDX-License-Identifier: Apache-2.0
// Copies to, from and between test devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace terrace::torch_device {

// As PyTorch's _copy_from. On the current stream of `to`'s device, or of `from`'s where `to` is the host's. Between
// devices it is behind what both hold, and both are behind it. Pageable memory is read before this returns, and was
// written when it does; pinned memory is waited for unless non_blocking.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

}  // namespace terrace::torch_device

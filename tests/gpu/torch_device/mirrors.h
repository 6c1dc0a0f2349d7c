// SPDX-License-Identifier: Apache-2.0
// Tensors of the test device as the CPU's kernels see them, and as PyTorch's shape functions do.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <unordered_map>
#include <vector>

#include "gpu/torch_device/runtime.h"

namespace terrace::torch_device {

// CPU tensors over the mirrors of devices' memory, of which they own nothing. What shares a storage shares one here.
class Mirrors {
 public:
  // The same tensor where it is none of a device's. written: the kernel writes to it.
  at::Tensor of(const at::Tensor& tensor, bool written = false);
  const std::vector<Touched>& touched() const { return touched_; }

 private:
  std::unordered_map<const void*, c10::Storage> storages_;
  std::unordered_map<const void*, at::Tensor> tensors_;
  std::vector<Touched> touched_;
};

// A CPU tensor over the same memory of the host, which it does not own.
at::Tensor borrowed(const at::Tensor& host);

// A tensor of a device with a shape function's geometry.
at::Tensor empty_like_meta(const at::Tensor& meta, c10::Device device);

using Each = std::function<at::Tensor(const at::Tensor&)>;
// A value with each tensor in it, or in a list in it, replaced.
c10::IValue with_tensors(const c10::IValue& value, const Each& each);

// Runs an operator, or what is written with operators, as below autograd.
void below_autograd(const std::function<void()>& work);

}  // namespace terrace::torch_device

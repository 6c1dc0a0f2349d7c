// SPDX-License-Identifier: Apache-2.0
// A process group of the test device: gloo over the mirrors, on a stream of its own, as NCCL has one.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace terrace::torch_device {

c10::intrusive_ptr<c10d::Backend> collectives_over(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size);

}  // namespace terrace::torch_device

// SPDX-License-Identifier: Apache-2.0
// What PyTorch's core asks of a backend outside of it: guards of devices and streams, events, random numbers, storages.
#pragma once

#include <ATen/core/Generator.h>

namespace terrace::torch_device {

// A device's random numbers: a seed, and how many kernels have had some, as a counter-based generator counts.
const at::Generator& default_generator(int device);
// The CPU's generator for one kernel, which counts.
at::Generator generator_for_kernel(const at::Generator& of_device);

}  // namespace terrace::torch_device

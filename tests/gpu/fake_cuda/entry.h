// SPDX-License-Identifier: Apache-2.0
// What the fake's entry points are written with.
#pragma once

#include "gpu/fake_cuda/state.h"

namespace terrace::fake_cuda {

using Status = cuda::Status;

// What Terrace does not tell apart.
inline constexpr Status kCaptureInvalidated = 901;
inline constexpr Status kCapturedEvent = 907;
inline constexpr Status kCaptureWrongThread = 908;

// begin(), and the end of it where the device is lost.
inline Status begin(Call call, int device) {
  if (const Status failed = begin(call)) return failed;
  return control().lost[static_cast<std::size_t>(device)].load();
}

}  // namespace terrace::fake_cuda

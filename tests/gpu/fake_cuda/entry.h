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

// begin(), and the end of it where the device is lost, or this process's context on it has ended.
inline Status begin(Call call, int device) {
  if (const Status failed = begin(call)) return failed;
  return broken(device);
}

}  // namespace terrace::fake_cuda

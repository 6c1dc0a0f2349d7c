// SPDX-License-Identifier: Apache-2.0
// Which GPUs the CUDA driver gives this process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "terrace/error.h"

namespace terrace::topology {

struct CudaDevice {
  std::string name;        // "NVIDIA H100 80GB HBM3"
  std::string pci_bus_id;  // "0000:3B:00.0", as the driver prints it
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;    // while this process had a context there
  std::uint64_t identity = 0;      // from its uuid: the same whatever its number; 0: not known
  std::optional<Error> failure{};  // why it does not work, with the driver's call and code; none: it does
};

struct Cuda {
  std::vector<CudaDevice> devices;           // by ordinal
  std::string why_not;                       // where there are none: what is missing, or what fails
  bool broken = false;                       // there is a driver, and it fails: whether there are GPUs is not known
  ErrorCode code = ErrorCode::kUnavailable;  // of that failure
};

// GPUs that a former daemon had, up to `count` of them, and that the driver does not give any more: each of them
// counts, and fails.
void add_missing(Cuda& cuda, std::size_t count);

// Loads the driver and asks each device whose ordinal is `wanted` for its memory, for which it makes and gives back a
// context there: up to some hundred milliseconds a device. The others are not touched, and their identity alone is
// said.
Cuda probe_cuda(const std::function<bool(int)>& wanted);

}  // namespace terrace::topology

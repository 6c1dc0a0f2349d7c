// SPDX-License-Identifier: Apache-2.0
// Which GPUs the CUDA driver gives this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::topology {

struct CudaDevice {
  std::string name;        // "NVIDIA H100 80GB HBM3"
  std::string pci_bus_id;  // "0000:3B:00.0", as the driver prints it
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // while this process had a context there
};

struct Cuda {
  std::vector<CudaDevice> devices;  // by ordinal
  std::string why_not;              // where there are none: what is missing
};

// Loads the driver and asks each device for its memory, for which it makes and gives back a context there: up to some
// hundred milliseconds a device.
Cuda probe_cuda();

}  // namespace terrace::topology

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

// Is there while the kernel's driver is loaded, and says which it is.
inline constexpr const char* kNvidiaDriver = "/proc/driver/nvidia/version";

// The identity of a GPU that does not say who it is.
inline constexpr std::uint64_t kUnknownGpu = 1;

struct CudaDevice {
  std::string name;        // "NVIDIA H100 80GB HBM3"
  std::string pci_bus_id;  // "0000:3B:00.0", as the driver prints it
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;          // while this process had a context there
  std::uint64_t identity = kUnknownGpu;  // from its uuid: the same whatever its number
  std::optional<Error> failure{};        // why it does not work, with the driver's call and code; none: it does.
                                         // DataLoss: the driver says that it is lost
};

struct Cuda {
  std::vector<CudaDevice> devices;  // by ordinal
  std::string why_not;              // where there are none: what is missing, or what fails
  bool broken = false;              // there is a driver, and it fails: whether there are GPUs is not known
  // Which of them were tiers of a former daemon, in their order; none: nobody has sessions of it.
  std::optional<std::vector<std::size_t>> former{};
};

// Has the sessions of a former daemon go on with its GPUs, known by their identities, in the order of its tiers: each
// is one of the devices, once. Those that the driver does not give any more are added, and fail.
void go_on_with(Cuda& cuda, const std::vector<std::uint64_t>& former);

// Loads the driver and asks each device that is `wanted`, by ordinal and identity, for its memory, for which it makes
// and gives back a context there: up to some hundred milliseconds a device. The others are not touched, and their
// identity alone is said.
Cuda probe_cuda(const std::function<bool(int, std::uint64_t)>& wanted);

}  // namespace terrace::topology

// SPDX-License-Identifier: Apache-2.0
// How much of a GPU's memory is taken, by anybody. Asked of the driver's management library (NVML), which needs no
// context for that and so takes nothing itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace terrace::tier {

// None where the library is not to be had ($TERRACE_NVML_LIBRARY, for tests, else libnvidia-ml.so.1), or does not say
// (of a part of a GPU, as MIG makes them).
std::optional<std::uint64_t> used_gpu_bytes(const std::string& pci_bus_id);

}  // namespace terrace::tier

// SPDX-License-Identifier: Apache-2.0
#include "topology/cuda_probe.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "cuda/driver.h"

namespace terrace::topology {
namespace {

Result<CudaDevice> look(const cuda::Api& api, int ordinal) {
  CudaDevice found;
  cuda::Device device = 0;
  std::array<char, 256> text{};
  constexpr int kTextSize = static_cast<int>(text.size());
  if (auto done = api.device(&device, ordinal); !done) return std::unexpected(std::move(done.error()));
  if (auto done = api.device_name(text.data(), kTextSize, device); !done)
    return std::unexpected(std::move(done.error()));
  found.name = text.data();
  if (auto done = api.device_pci_bus_id(text.data(), kTextSize, device); !done)
    return std::unexpected(std::move(done.error()));
  found.pci_bus_id = text.data();
  cuda::Context context = nullptr;
  if (auto done = api.primary_retain(&context, device); !done) return std::unexpected(std::move(done.error()));
  std::size_t free = 0;
  std::size_t total = 0;
  Result<void> asked;
  {
    const cuda::Current current(api, context);
    asked = current.result();
    if (asked) asked = api.memory_info(&free, &total);
  }
  static_cast<void>(api.primary_release.status(device));
  if (!asked) return std::unexpected(std::move(asked.error()));
  found.free_bytes = free;
  found.total_bytes = total;
  return found;
}

}  // namespace

Cuda probe_cuda() {
  Cuda found;
  const Result<const cuda::Api*> api = cuda::load();
  int count = 0;
  Result<void> counted = api ? (*api)->device_count(&count) : std::unexpected(api.error());
  for (int ordinal = 0; counted && ordinal < count; ++ordinal) {
    Result<CudaDevice> device = look(**api, ordinal);
    if (device) {
      found.devices.push_back(std::move(*device));
    } else {
      counted = fail(device.error().code, fmt::format("cuda:{}: {}", ordinal, device.error().message));
    }
  }
  if (!counted) {
    found.devices.clear();
    found.why_not = counted.error().message;
  } else if (count == 0) {
    found.why_not = "the CUDA driver gives this process no device";
  }
  return found;
}

}  // namespace terrace::topology

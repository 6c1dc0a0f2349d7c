// SPDX-License-Identifier: Apache-2.0
#include "topology/cuda_probe.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "cuda/driver.h"

namespace terrace::topology {
namespace {

Result<void> look(const cuda::Api& api, int ordinal, CudaDevice& found) {
  cuda::Device device = 0;
  std::array<char, 256> text{};
  constexpr int kTextSize = static_cast<int>(text.size());
  if (auto done = api.device(&device, ordinal); !done) return done;
  if (auto done = api.device_name(text.data(), kTextSize, device); !done) return done;
  found.name = text.data();
  if (auto done = api.device_pci_bus_id(text.data(), kTextSize, device); !done) return done;
  found.pci_bus_id = text.data();
  cuda::Context context = nullptr;
  if (auto done = api.primary_retain(&context, device); !done) return done;
  std::size_t free = 0;
  std::size_t total = 0;
  Result<void> asked;
  {
    const cuda::Current current(api, context);
    asked = current.result();
    if (asked) asked = api.memory_info(&free, &total);
  }
  static_cast<void>(api.primary_release.status(device));
  found.free_bytes = free;
  found.total_bytes = total;
  return asked;
}

CudaDevice probe(const cuda::Api& api, int ordinal) {
  CudaDevice found;
  const Result<void> looked = look(api, ordinal, found);
  if (!looked)
    found.failure =
        Error{looked.error().code,
              fmt::format("cuda:{}{}: {}", ordinal, found.name.empty() ? "" : fmt::format(" ({})", found.name),
                          looked.error().message),
              0};
  return found;
}

}  // namespace

Cuda probe_cuda(const std::function<bool(int)>& wanted) {
  Cuda found;
  const Result<const cuda::Api*> api = cuda::load();
  int count = 0;
  const Result<void> counted = api ? (*api)->device_count(&count) : std::unexpected(api.error());
  for (int ordinal = 0; counted && ordinal < count; ++ordinal)
    found.devices.push_back(wanted(ordinal) ? probe(**api, ordinal) : CudaDevice{});
  if (!counted) {
    found.why_not = counted.error().message;
    found.code = counted.error().code;
    found.broken = counted.error().code != ErrorCode::kFailedPrecondition;  // that is: no driver, or no device
  } else if (count == 0) {
    found.why_not = "the CUDA driver gives this process no device";
  }
  return found;
}

}  // namespace terrace::topology

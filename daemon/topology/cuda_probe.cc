// SPDX-License-Identifier: Apache-2.0
#include "topology/cuda_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "cuda/driver.h"

namespace terrace::topology {
namespace {

// Uuids are random: half as many bits still tell them apart.
std::uint64_t identity_of(const cuda::Api& api, int ordinal) {
  cuda::Device device = 0;
  cuda::Uuid uuid{};
  if (api.device.status(&device, ordinal) != cuda::kSuccess) return kUnknownGpu;
  if (api.device_uuid.status(&uuid, device) != cuda::kSuccess) return kUnknownGpu;
  const auto halves = std::bit_cast<std::array<std::uint64_t, 2>>(uuid);
  return std::max(halves[0] ^ halves[1], kUnknownGpu + 1);
}

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

// Whoever has its memory may have it still.
CudaDevice missing_from(const Cuda& cuda) {
  const std::size_t there = cuda.devices.size();
  const std::string why =
      there != 0 || cuda.why_not.empty() ? fmt::format("the CUDA driver gives this process {}", there) : cuda.why_not;
  CudaDevice missing;
  missing.failure = Error{ErrorCode::kFailedPrecondition,
                          fmt::format("a GPU that a former daemon had is not there any more: {}", why), 0};
  return missing;
}

bool says_nothing(const CudaDevice& device) { return device.identity == kUnknownGpu && device.failure; }

}  // namespace

void go_on_with(Cuda& cuda, std::vector<std::uint64_t> former, std::size_t named) {
  const CudaDevice missing = missing_from(cuda);
  for (const std::uint64_t identity : former) {
    const auto known = std::ranges::find(cuda.devices, identity, &CudaDevice::identity);
    if (identity == kUnknownGpu || known != cuda.devices.end()) continue;
    const auto sick = std::ranges::find_if(cuda.devices, says_nothing);
    CudaDevice& device = sick != cuda.devices.end() ? *sick : cuda.devices.emplace_back(missing);
    device.identity = identity;
  }
  if (!former.empty() && cuda.devices.size() < named) cuda.devices.resize(named, missing);
  cuda.former = std::move(former);
}

Cuda probe_cuda(const std::function<bool(int)>& wanted) {
  Cuda found;
  const Result<const cuda::Api*> api = cuda::load();
  int count = 0;
  const Result<void> counted = api ? (*api)->device_count(&count) : std::unexpected(api.error());
  for (int ordinal = 0; counted && ordinal < count; ++ordinal) {
    found.devices.push_back(wanted(ordinal) ? probe(**api, ordinal) : CudaDevice{});
    found.devices.back().identity = identity_of(**api, ordinal);
  }
  if (!counted) {
    found.why_not = counted.error().message;
    found.broken = counted.error().code != ErrorCode::kFailedPrecondition;  // that is: no driver, or no device
  } else if (count == 0) {
    found.why_not = "the CUDA driver gives this process no device";
  }
  return found;
}

}  // namespace terrace::topology

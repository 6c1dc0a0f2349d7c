// SPDX-License-Identifier: Apache-2.0
#include "topology/cuda_probe.h"

#include <fmt/format.h>

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
  if (api.device.status(&device, ordinal) != cuda::kSuccess) return 0;
  if (api.device_uuid.status(&uuid, device) != cuda::kSuccess) return 0;
  const auto halves = std::bit_cast<std::array<std::uint64_t, 2>>(uuid);
  return halves[0] ^ halves[1];
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

}  // namespace

void add_missing(Cuda& cuda, std::size_t count) {
  const std::size_t there = cuda.devices.size();
  const std::string why =
      there != 0 || cuda.why_not.empty() ? fmt::format("the CUDA driver gives this process {}", there) : cuda.why_not;
  CudaDevice missing;
  missing.failure = Error{cuda.code, fmt::format("a GPU that a former daemon had is not there any more: {}", why), 0};
  if (there < count) cuda.devices.resize(count, missing);
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
    found.code = counted.error().code;
    found.broken = counted.error().code != ErrorCode::kFailedPrecondition;  // that is: no driver, or no device
  } else if (count == 0) {
    found.why_not = "the CUDA driver gives this process no device";
  }
  return found;
}

}  // namespace terrace::topology

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

// Its memory may be there still.
CudaDevice failing(std::uint64_t identity, const std::string& why) {
  CudaDevice device;
  device.identity = identity;
  device.failure = Error{ErrorCode::kFailedPrecondition, why, 0};
  return device;
}

std::string why_missing(const Cuda& cuda) {
  const std::size_t there = cuda.devices.size();
  return fmt::format(
      "a GPU that a former daemon had is not there any more: {}",
      there != 0 || cuda.why_not.empty() ? fmt::format("the CUDA driver gives this process {}", there) : cuda.why_not);
}

}  // namespace

void go_on_with(Cuda& cuda, const std::vector<std::uint64_t>& former) {
  const std::size_t there = cuda.devices.size();
  const std::string missing = why_missing(cuda);
  cuda.former.emplace();
  std::vector<bool> taken(there);
  const auto find = [&](auto is_it) {
    std::size_t at = 0;
    while (at < there && (taken[at] || !is_it(cuda.devices[at]))) ++at;
    return at;
  };
  for (const std::uint64_t identity : former) {
    std::size_t at = there;
    if (identity != kUnknownGpu) at = find([&](const CudaDevice& device) { return device.identity == identity; });
    if (at == there && identity != kUnknownGpu) {  // then one that does not say who it is, for want of a better one
      at = find([](const CudaDevice& device) { return device.identity == kUnknownGpu && device.failure; });
      if (at != there) cuda.devices[at] = failing(identity, cuda.devices[at].failure->message);
    }
    if (at == there) {
      at = cuda.devices.size();
      cuda.devices.push_back(failing(identity, identity != kUnknownGpu
                                                   ? missing
                                                   : "a former daemon could not tell which GPU this "
                                                     "was; it is used once its sessions have "
                                                     "ended and the daemon is started again"));
    } else {
      taken[at] = true;
    }
    cuda.former->push_back(at);
  }
}

Cuda probe_cuda(const std::function<bool(int, std::uint64_t)>& wanted) {
  Cuda found;
  const Result<const cuda::Api*> api = cuda::load();
  int count = 0;
  const Result<void> counted = api ? (*api)->device_count(&count) : std::unexpected(api.error());
  for (int ordinal = 0; counted && ordinal < count; ++ordinal) {
    const std::uint64_t identity = identity_of(**api, ordinal);
    found.devices.push_back(wanted(ordinal, identity) ? probe(**api, ordinal) : CudaDevice{});
    found.devices.back().identity = identity;
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

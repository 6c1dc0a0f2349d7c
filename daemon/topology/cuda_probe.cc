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

constexpr const char* kCouldNotTell =
    "a former daemon could not tell which GPU this was; it is used once its sessions have ended and the daemon is "
    "started again";

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

std::size_t add(Cuda& cuda, CudaDevice device) {
  cuda.devices.push_back(std::move(device));
  return cuda.devices.size() - 1;
}

// Which device is that one, of those that are no other tier's: one that does not say who it is, for want of a better
// one.
std::size_t ordinal_of(std::uint64_t identity, const std::vector<std::size_t>& taken, const std::string& missing,
                       Cuda& cuda) {
  if (identity == kUnknownGpu) return add(cuda, failing(identity, kCouldNotTell));
  std::optional<std::size_t> nameless;
  for (std::size_t at = 0; at < cuda.devices.size(); ++at) {
    if (std::ranges::find(taken, at) != taken.end()) continue;
    const CudaDevice& device = cuda.devices[at];
    if (device.identity == identity) return at;
    if (device.identity == kUnknownGpu && device.failure && !nameless) nameless = at;
  }
  if (!nameless) return add(cuda, failing(identity, missing));
  cuda.devices[*nameless] = failing(identity, cuda.devices[*nameless].failure->message);
  return *nameless;
}

}  // namespace

void go_on_with(Cuda& cuda, const std::vector<std::uint64_t>& former) {
  const std::string missing = why_missing(cuda);
  std::vector<std::size_t> ordinals;
  for (const std::uint64_t identity : former) ordinals.push_back(ordinal_of(identity, ordinals, missing, cuda));
  cuda.former = std::move(ordinals);
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

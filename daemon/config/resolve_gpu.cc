// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "config/capacity.h"
#include "config/resolve_parts.h"

namespace terrace::config {
namespace {

std::optional<topology::CudaDevice> gpu_of(const TierConfig& tier, const topology::Cuda& cuda) {
  const auto ordinal = static_cast<std::size_t>(tier.gpu().value_or(0));
  if (ordinal < cuda.devices.size()) return cuda.devices[ordinal];
  if (!cuda.broken) return std::nullopt;
  topology::CudaDevice unknown{};
  unknown.failure = Error{ErrorCode::kFailedPrecondition, cuda.why_not, 0};
  return unknown;
}

std::string why_none(const topology::Cuda& cuda) {
  if (!cuda.devices.empty()) return fmt::format("the CUDA driver gives this process {}", cuda.devices.size());
  return cuda.why_not.empty() ? "no CUDA device was found" : cuda.why_not;
}

// What a GPU that does not say so has: what the others do.
std::uint64_t likely_bytes(const topology::Cuda& cuda) {
  std::uint64_t most = 0;
  for (const topology::CudaDevice& gpu : cuda.devices) most = std::max(most, gpu.total_bytes);
  return most;
}

void resolve_failed_gpu(TierConfig& tier, const topology::Cuda& cuda, const Error& failure, Findings& findings) {
  tier.failure = failure;
  if (tier.capacity.percent)
    tier.capacity.bytes = std::max(part_of(likely_bytes(cuda), *tier.capacity.percent), kSegmentUnitBytes);
  round_to_segments(tier, findings);
  findings.warn(tier.origin, "device",
                fmt::format("is \"{}\", which does not serve, while all else does: {}", tier.device, failure.message));
}

void check_room(const TierConfig& tier, const topology::CudaDevice& gpu, Findings& findings) {
  if (tier.capacity.bytes > gpu.total_bytes)
    return findings.complain(tier.origin, "capacity",
                             fmt::format("is {}, and {} has {}; write less, or a part such as \"50%\"",
                                         exact(tier.capacity.bytes), tier.device_name, exact(gpu.total_bytes)));
  if (tier.capacity.bytes > gpu.free_bytes)
    findings.warn(tier.origin, "capacity",
                  fmt::format("is {}, and of {} on {}, {} are free: unless it is this daemon that has the rest, the "
                              "tier cannot grow to its capacity",
                              exact(tier.capacity.bytes), format_bytes(gpu.total_bytes), tier.device_name,
                              exact(gpu.free_bytes)));
  if (gpu.total_bytes - tier.capacity.bytes < gpu.total_bytes / 10)
    findings.warn(tier.origin, "capacity",
                  fmt::format("is {} of {} on {}: what is left, {}, is all that trainers have there for contexts, "
                              "libraries and PyTorch's own allocator",
                              exact(tier.capacity.bytes), format_bytes(gpu.total_bytes), tier.device_name,
                              format_bytes(gpu.total_bytes - tier.capacity.bytes)));
}

}  // namespace

std::size_t gpu_count(const topology::Cuda& cuda) {
  return std::max<std::size_t>(cuda.devices.size(), cuda.broken ? 1 : 0);
}

void resolve_gpu(TierConfig& tier, const topology::Cuda& cuda, Findings& findings) {
  if (tier.device == "cuda:all") return;  // complained of
  const auto gpu = gpu_of(tier, cuda);
  if (!gpu)
    return findings.complain(
        tier.origin, "device",
        fmt::format("is \"{}\": {}; write \"auto\" for what is there", tier.device, why_none(cuda)));
  for (const auto& [set, key] : {std::pair(tier.numa_node.has_value(), "numa_node"),
                                 std::pair(tier.huge_pages != HugePages::kAuto, "huge_pages")})
    if (set) findings.complain(tier.origin, key, "is a key of emulated devices and of memory; remove it here");
  tier.gpu_identity = gpu->identity;
  if (tier.take_back == TakeBack::kGiveUp)
    findings.warn(
        tier.origin, "take_back",
        "is \"give_up\": whenever the daemon is started again, what it cannot take back of a GPU is lost, also "
        "where it could later; remove it once that GPU is given up");
  if (gpu->failure) return resolve_failed_gpu(tier, cuda, *gpu->failure, findings);
  tier.device_name = fmt::format("{} at {}", gpu->name, gpu->pci_bus_id);
  if (tier.capacity.percent) tier.capacity.bytes = part_of(gpu->total_bytes, *tier.capacity.percent);
  round_to_segments(tier, findings);
  check_room(tier, *gpu, findings);
}

}  // namespace terrace::config

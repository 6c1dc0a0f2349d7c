// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "config/resolve.h"
#include "config/resolve_parts.h"

namespace terrace::config {
namespace {

struct NearGpu {
  std::string name;                   // "cuda:0 at 0000:3B:00.0"
  std::optional<unsigned> numa_node;  // none: not known, or not one
};

// The driver writes a bus id in large letters, the kernel in small ones.
bool same_bus_id(const std::string& left, const std::string& right) {
  const auto small = [](unsigned char letter) { return std::tolower(letter); };
  return std::ranges::equal(left, right, {}, small, small);
}

std::optional<unsigned> node_of(const topology::CudaDevice& gpu, const topology::Machine& machine) {
  for (const topology::Gpu& each : machine.gpus)
    if (same_bus_id(each.pci_bus_id, gpu.pci_bus_id)) return each.numa_node;
  return std::nullopt;
}

// The GPUs that are tiers and work.
std::vector<NearGpu> gpus_of(const Config& config, const topology::Machine& machine) {
  std::vector<NearGpu> gpus;
  for (const TierConfig& tier : config.tiers) {
    const auto ordinal = static_cast<std::size_t>(tier.gpu().value_or(-1));
    if (ordinal >= machine.cuda.devices.size() || tier.failure) continue;
    const topology::CudaDevice& gpu = machine.cuda.devices[ordinal];
    gpus.push_back({fmt::format("{} at {}", tier.device, gpu.pci_bus_id), node_of(gpu, machine)});
  }
  return gpus;
}

void warn_of_far_gpus(const TierConfig& tier, const std::vector<NearGpu>& gpus, Findings& findings) {
  std::vector<std::string> far;
  for (const NearGpu& gpu : gpus)
    if (gpu.numa_node && *gpu.numa_node != *tier.numa_node)
      far.push_back(fmt::format("{} (node {})", gpu.name, *gpu.numa_node));
  if (far.empty()) return;
  findings.warn(tier.origin, "numa_node",
                fmt::format("is {}, which is not near {}: what is copied between this memory and there crosses from "
                            "socket to socket; write \"auto\", or the node of the GPUs",
                            *tier.numa_node, fmt::join(far, ", ")));
}

}  // namespace

void place_near_gpus(Config& config, const topology::Machine& machine, Findings& findings) {
  const auto has_processors = [](const topology::NumaNode& node) { return !node.cpu_less(); };
  if (std::ranges::count_if(machine.numa_nodes, has_processors) < 2) return;
  const std::vector<NearGpu> gpus = gpus_of(config, machine);
  if (gpus.empty()) return;
  const std::optional<unsigned> first = gpus.front().numa_node;
  const bool are_together = std::ranges::all_of(gpus, [&](const NearGpu& gpu) { return gpu.numa_node == first; });
  for (TierConfig& tier : config.tiers) {
    if (tier.kind != TierKind::kMemory) continue;
    const topology::NumaNode* const own = tier.numa_node ? machine.numa_node(*tier.numa_node) : nullptr;
    if (!tier.numa_node && are_together) tier.near_node = first;
    if (own != nullptr && !own->cpu_less()) warn_of_far_gpus(tier, gpus, findings);
  }
}

std::vector<unsigned> processors_near_memory(const Config& config, const topology::Machine& machine) {
  for (const TierConfig& tier : config.tiers) {
    const std::optional<unsigned> number = tier.numa_node ? tier.numa_node : tier.near_node;
    const topology::NumaNode* const node = number ? machine.numa_node(*number) : nullptr;
    if (tier.kind == TierKind::kMemory && node != nullptr) return node->cpus;
  }
  return {};
}

}  // namespace terrace::config

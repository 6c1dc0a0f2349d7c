// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/tiers.h"

#include "base/bytes.h"
#include "config/capacity.h"

namespace terrace::rehearsal {
namespace {

constexpr std::uint64_t kSpareBytes = 4 * kGiB;  // beside all tensors, of a tier that never fills

engine::TierOptions tier(const char* name, tier::Kind kind, std::uint64_t capacity, std::uint64_t all) {
  engine::TierOptions options;
  options.name = name;
  options.kind = kind;
  if (capacity == workload::kUnlimited) capacity = all + kSpareBytes;
  const bool mapped = kind != tier::Kind::kBlock;
  options.capacity_bytes = mapped ? config::whole_segments(capacity) : align_down(capacity, config::kStripeBytes);
  options.segment_bytes = mapped ? config::segment_bytes(capacity) : 0;
  return options;
}

foresight::LinkPace pace(const workload::LinkSpeed& link, workload::Direction direction) {
  return {static_cast<double>(link.bytes_per_s(direction)), link.latency.count()};
}

}  // namespace

std::vector<engine::TierOptions> tiers_of(const workload::Node& node, const workload::Workload& workload,
                                          std::size_t jobs) {
  std::uint64_t all = 0;
  for (const workload::Tensor& tensor : workload.tensors) all += align_up(tensor.bytes, kPageBytes) * jobs;
  std::vector<engine::TierOptions> tiers{tier("device:0", tier::Kind::kDevice, node.hbm_bytes, all)};
  if (node.host_bytes > 0) tiers.push_back(tier("memory", tier::Kind::kMemory, node.host_bytes, all));
  if (node.block_bytes > 0) tiers.push_back(tier("block", tier::Kind::kBlock, node.block_bytes, all));
  return tiers;
}

std::vector<engine::Guarantee> parts_of(const std::vector<engine::TierOptions>& tiers, std::size_t jobs) {
  std::vector<engine::Guarantee> parts;
  for (const engine::TierOptions& tier : tiers) {
    if (tier.kind == tier::Kind::kBlock) continue;
    const std::uint32_t place = tier.kind == tier::Kind::kDevice ? shm::kPlaceDevice0 : shm::kPlaceHost;
    parts.push_back({place, tier.capacity_bytes / jobs / tier.segment_bytes * tier.segment_bytes});
  }
  return parts;
}

foresight::Machine machine_of(const workload::Node& node, const std::vector<engine::TierOptions>& tiers) {
  using workload::Direction;
  foresight::Machine machine;
  if (tiers.size() == 1) return machine;
  const workload::LinkSpeed& below = node.host_bytes > 0 ? node.hbm : node.block;
  machine.devices.push_back(
      foresight::with_room_left({shm::kPlaceDevice0, tiers[0].capacity_bytes, pace(below, Direction::kIn),
                                 pace(below, Direction::kOut), below.both_ways().toll()}));
  machine.has_memory = node.host_bytes > 0 && node.block_bytes > 0;
  if (machine.has_memory)
    machine.memory = {shm::kPlaceHost, tiers[1].capacity_bytes, pace(node.block, Direction::kIn),
                      pace(node.block, Direction::kOut), node.block.both_ways().toll()};
  return machine;
}

}  // namespace terrace::rehearsal

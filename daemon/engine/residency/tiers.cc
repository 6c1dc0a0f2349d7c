// SPDX-License-Identifier: Apache-2.0
#include "engine/residency/tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace terrace::engine {

Tiers::Tiers(const Options& options) {
  for (const TierOptions& tier : options.tiers) {
    Tier made{.options = tier};
    made.level = static_cast<Level>(tier.kind);
    if (made.level == Level::kDevice) {
      made.unit = static_cast<std::uint8_t>(all_.size());
      made.place = shm::kPlaceDevice0 + made.unit;
      made.leases.name = fmt::format("device:{}", made.unit);
    } else if (made.level == Level::kMemory) {
      memory = TierId(all_.size());
      made.place = shm::kPlaceHost;
      made.leases.name = "host";
    } else {
      block = TierId(all_.size());
      made.place = shm::kPlaceBlock;
      made.leases.name = "block";
    }
    made.leases.place = made.place;
    made.high_mark_bytes = static_cast<std::uint64_t>(static_cast<double>(tier.capacity_bytes) * tier.high_mark);
    all_.push_back(std::move(made));
  }
  home_level = home().level;
}

TierId Tiers::tier_index(const Tensor& tensor, Level level) const {
  if (level == Level::kBlock) return block;
  if (level == Level::kMemory) return memory;
  return TierId{tensor.device};
}

Place& Tiers::place_of(Holdings& session, const Tensor& tensor, Level level) const {
  return *session.places[tier_index(tensor, level)];
}

// Whether the copy of the tier's kind, if there is one, lies in this very tier.
bool Tiers::at_tier(const Tensor& tensor, TierId tier) const {
  const Level level = (*this)[tier].level;
  return tensor.has(level) && tier_index(tensor, level) == tier;
}

tier::Location Tiers::location(const Holdings& session, const Tensor& tensor, Level level) const {
  TERRACE_CHECK(tensor.has(level));
  tier::Location at{.tier = tier_index(tensor, level), .session = session.id, .pieces = {}};
  if (level != Level::kBlock) {
    at.pieces.push(tensor.extent(level));
    return at;
  }
  at.pieces = tensor.home();
  at.first_checksum = tensor.first_checksum;
  return at;
}

Placement Tiers::placement(const Tensor& tensor, Level level) const {
  const std::uint32_t place = (*this)[tier_index(tensor, level)].place;
  return {place, level == Level::kBlock ? 0 : tensor.offset[index(level)], tensor.bytes};
}

std::vector<mover::Link> Tiers::links() const {
  std::vector<mover::Link> all;
  for (const Tier& tier : all_) {
    if (tier.level == Level::kDevice && all_.size() > 1) {
      all.push_back({mover::LinkKind::kHostToDevice, tier.unit});
      all.push_back({mover::LinkKind::kDeviceToHost, tier.unit});
    }
    if (tier.level == Level::kBlock) {
      all.push_back({mover::LinkKind::kBlockRead, 0});
      all.push_back({mover::LinkKind::kBlockWrite, 0});
    }
  }
  all.push_back({mover::LinkKind::kMemcpy, 0});
  return all;
}

mover::Link Tiers::link_between(const Tensor& tensor, Level from, Level to) const {
  if (to == Level::kBlock) return {mover::LinkKind::kBlockWrite, 0};
  if (from == Level::kNone || from == to) return {mover::LinkKind::kMemcpy, 0};
  if (from == Level::kBlock) return {mover::LinkKind::kBlockRead, 0};
  const std::uint8_t unit = (*this)[TierId{tensor.device}].unit;
  return {to == Level::kDevice ? mover::LinkKind::kHostToDevice : mover::LinkKind::kDeviceToHost, unit};
}

Result<TierId> Tiers::tier_of_place(std::uint32_t place, bool with_block) const {
  for (const TierId tier : ids())
    if ((*this)[tier].place == place && ((*this)[tier].mapped() || with_block)) return tier;
  const std::string wanted = place == shm::kPlaceHost    ? "host"
                             : place == shm::kPlaceBlock ? "block"
                                                         : fmt::format("device:{}", place - shm::kPlaceDevice0);
  return fail(ErrorCode::kNotFound,
              fmt::format("there is no place {} here: this daemon has {}", wanted, place_names(with_block)));
}

std::string Tiers::place_names(bool with_block) const {
  std::string names;
  for (const Tier& tier : all_) {
    if (!tier.mapped() && !with_block) continue;
    names += (names.empty() ? "" : ", ") + tier.leases.name;
  }
  return names;
}

// Whether nobody can reach what the tensor would have at this offset of its device, in part at least.
bool Tiers::is_gone_at(const Holdings& session, const Tensor& tensor, std::uint64_t offset) const {
  if ((*this)[TierId{tensor.device}].failed) return true;
  return std::ranges::any_of(session.places[TierId{tensor.device}]->gone, [&](const tier::Extent& gone) {
    return offset < gone.end() && gone.offset < offset + tensor.extent_bytes();
  });
}

// Whether the tensor's copy in a device is one that nobody can read any more, in part at least. Before the first step
// of a slide is done, all of it is where it was.
bool Tiers::is_gone(const Holdings& session, const Tensor& tensor) const {
  if (!tensor.has(Level::kDevice)) return false;
  if (is_gone_at(session, tensor, tensor.offset[index(Level::kDevice)])) return true;
  return tensor.sliding == Level::kDevice && tensor.slide().bytes > 0 &&
         is_gone_at(session, tensor, tensor.slide().offset);
}

bool Tiers::is_shown_where_gone(const Holdings& session, const Tensor& tensor) const {
  return tensor.published == Level::kDevice && is_gone(session, tensor);
}

bool Tiers::is_behind_fence(const Holdings& session, const Tensor& tensor, Level level) const {
  const Place& place = *session.places[tier_index(tensor, level)];
  return place.fence != kNoFence && place.reaches(tensor.extent(level), place.fence);
}

}  // namespace terrace::engine

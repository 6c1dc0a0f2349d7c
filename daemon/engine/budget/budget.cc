// SPDX-License-Identifier: Apache-2.0
// Guarantees: in every mapped tier the sum over sessions of max(floor, mapped segments) stays within the capacity
// (docs/decisions). Here segments come.
#include "engine/budget/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/values/planted.h"

namespace terrace::engine {

std::uint64_t Budget::claimed_bytes(TierId tier) const {
  std::uint64_t sum = 0;
  for (const auto& [id, session] : registry_.all) sum += session->places[tier]->claimed_bytes();
  return sum;
}

std::uint64_t Budget::floors_bytes(TierId tier, const Holdings* except) const {
  std::uint64_t sum = 0;
  for (const auto& [id, session] : registry_.all)
    if (session.get() != except) sum += session->places[tier]->floor_bytes;
  return sum;
}

// What the session could have in the tier, were all its own copies to go.
std::uint64_t Budget::limit_bytes(const Holdings& session, TierId tier) const {
  const Place& place = *session.places[tier];
  if (place.fence != kNoFence) return place.fence;
  std::uint64_t others = claimed_bytes(tier) - place.claimed_bytes();
  if (!opens.empty()) others += opens.front().floors[index(tier)];
  const std::uint64_t capacity = tiers_[tier].options.capacity_bytes;
  const std::uint64_t left = capacity - std::min(capacity, others);
  return std::max({left, place.floor_bytes, place.space.capacity_bytes()}) - place.stuck_bytes -
         place.space.retired_bytes();
}

bool Budget::can_grow(const Holdings& session, TierId tier) const {
  const Place& place = *session.places[tier];
  if (place.fence != kNoFence || place.removing_bytes > 0 || place.stuck_bytes > 0 || place.add_failed) return false;
  const std::uint64_t capacity = tiers_[tier].options.capacity_bytes;
  const std::uint64_t grown = place.mapped_bytes() + tiers_[tier].options.segment_bytes;
  if (place.adding_bytes > 0 || grown > capacity) return false;
  if (grown <= place.floor_bytes) return true;
  std::uint64_t others = claimed_bytes(tier) - place.claimed_bytes();
  if (!opens.empty()) others += opens.front().floors[index(tier)];
  return grown + others <= capacity || planted(Plant::kFloorIgnored);
}

bool Budget::grow(Holdings& session, TierId tier) {
  if (!can_grow(session, tier)) return false;
  Place& place = *session.places[tier];
  place.adding_bytes = tiers_[tier].options.segment_bytes;
  turn_.output.segment_orders.push_back(
      {mover::SegmentOrder::Kind::kAdd, session.id, tier, {place.space.capacity_bytes(), place.adding_bytes}});
  return true;
}

Error Budget::full(const Holdings& session, TierId tier, const std::string& what) const {
  const Place& place = *session.places[tier];
  return {ErrorCode::kResourceExhausted,
          fmt::format(
              "{} in '{}': the session can have {} of {} bytes there, has mapped {} and uses {}; other sessions "
              "are guaranteed {}; the largest free extent has {}{}",
              what, tiers_[tier].options.name, limit_bytes(session, tier), tiers_[tier].options.capacity_bytes,
              place.mapped_bytes(), place.used_bytes(), floors_bytes(tier, &session), place.space.largest_free_bytes(),
              place.add_failed ? fmt::format("; the system had no more memory ({})", place.add_error) : ""),
          0};
}

}  // namespace terrace::engine

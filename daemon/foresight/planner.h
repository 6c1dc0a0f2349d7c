// SPDX-License-Identifier: Apache-2.0
// Templates in, plan out. Pure, and O(n log n): for a thread of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "foresight/plan.h"
#include "foresight/sweep.h"
#include "foresight/template.h"

namespace terrace::foresight {

// A tier that is planned, with the way to the one below it. Bytes that may be planned with, less than there are where
// extents do not pack, and how many are left; of memory all of them: how it is filled, the plan knows.
struct PlannedTier {
  std::uint32_t place = 0;
  std::uint64_t capacity_bytes = 0;
  LinkPace in;
  LinkPace out;
  double toll = 0;               // BothWays's, of the two
  std::uint64_t left_bytes = 0;  // of a device; `capacity_bytes` are without
};

// Of a tier's bytes, those that may be planned with, whatever the extents are.
constexpr std::uint64_t usable_bytes(std::uint64_t capacity_bytes) {
  return static_cast<std::uint64_t>(static_cast<double>(capacity_bytes) * 0.97);
}

// A device's.
constexpr PlannedTier with_room_left(PlannedTier tier) {
  const std::uint64_t all = tier.capacity_bytes;
  tier.capacity_bytes = usable_bytes(all);
  tier.left_bytes = all - tier.capacity_bytes;
  return tier;
}

// What a session can have. Tiers in which the homes are need no plan.
struct Machine {
  std::vector<PlannedTier> devices;
  bool has_memory = false;  // above the homes
  PlannedTier memory;
  std::int64_t lead_ns = 100'000'000;  // that much before they must, fetches may begin
};

// Of the step `templates[window]`, which comes after those before it and before those behind it.
Plan plan(const Machine& machine, const std::vector<const Template*>& templates, std::size_t window);

}  // namespace terrace::foresight

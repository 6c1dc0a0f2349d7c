// SPDX-License-Identifier: Apache-2.0
// Which copies may go for room in a tier, and which of them were found.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/ids.h"

namespace terrace::engine {

// Which copies may go.
struct Choice {
  std::uint64_t enough_bytes = 0;
  bool spare_hinted = false;
  bool at_once = false;                                                   // those alone that cost no transfer
  std::int64_t used_after_ns = std::numeric_limits<std::int64_t>::min();  // of those that are foreseen
};

// Copies that stand in the way of an admission, in the policy's order.
struct Survey {
  std::vector<Slot> victims;  // could be given up now
  std::vector<Slot> leased;
  std::uint64_t victim_bytes = 0;
  std::uint64_t leased_bytes = 0;
  std::uint64_t busy_bytes = 0;    // moving, or held by another admission, but not leaving
  std::uint64_t pinned_bytes = 0;  // neither in the set
};

}  // namespace terrace::engine

// SPDX-License-Identifier: Apache-2.0
// What the catalog keeps of the node, and what is free in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "engine/catalog/records.h"
#include "tier/extent.h"
#include "tier/extent_allocator.h"

namespace terrace::engine {

struct Ledger {
  std::uint32_t next_session = 1;
  std::uint64_t next_number = 1;
  std::uint64_t next_seam = tier::kSeamsBegin;
  std::uint64_t steps = 0;
  std::vector<tier::Extent> retired;            // of the block tier; those that are tried next come last
  std::size_t retired_recorded = 0;             // the first ones, which stand so in the catalog
  std::set<std::size_t> free_records;           // of sessions
  std::vector<std::size_t> freed_records;       // likewise, since the last commit
  tier::ExtentAllocator texts{kTextUnitBytes};  // names and shapes

  // From there on they will be others.
  void change_retired(std::vector<tier::Extent>::const_iterator first) {
    retired_recorded = std::min(retired_recorded, static_cast<std::size_t>(first - retired.cbegin()));
  }
};

}  // namespace terrace::engine

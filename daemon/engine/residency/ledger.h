// SPDX-License-Identifier: Apache-2.0
// What the catalog keeps of the node, and what is free in it.
#pragma once

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
  std::vector<tier::Extent> retired;            // of the block tier
  std::set<std::size_t> free_records;           // of sessions
  std::vector<std::size_t> freed_records;       // likewise, since the last commit
  tier::ExtentAllocator texts{kTextUnitBytes};  // names and shapes
};

}  // namespace terrace::engine

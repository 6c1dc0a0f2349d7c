// SPDX-License-Identifier: Apache-2.0
// What makes a record of the catalog one that no engine wrote. Whether records agree with each other (extents that
// overlap, names that are there twice) is for Engine::restore() to see.
#pragma once

#include <cstdint>
#include <string>

#include "engine/catalog/memory.h"
#include "engine/values/level.h"

namespace terrace::engine {

// Where a tensor's home lies.
struct HomeTier {
  Level level{};
  std::uint64_t capacity_bytes = 0;
};

// What is wrong with the record of a live tensor, as a clause ("its size is 0 bytes"); empty: nothing. Any bytes may be
// given.
std::string damage_of(const TensorRecord& record, const HomeTier& home);

}  // namespace terrace::engine

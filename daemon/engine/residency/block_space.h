// SPDX-License-Identifier: Apache-2.0
// What is free of the block tier.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "tier/extent_allocator.h"

namespace terrace::engine {

struct BlockSpace {
  tier::ExtentAllocator space{kPageBytes};
  tier::ExtentAllocator checksums{1};
  std::uint64_t spare_bytes = 0;  // kept back for regions that are retired
};

}  // namespace terrace::engine

// SPDX-License-Identifier: Apache-2.0
// DRAM: sealed memfds, bound to a NUMA node.
#pragma once

#include "tier/memory/memfd_segments.h"

namespace terrace::tier {

class MemoryTier final : public MemfdSegments {
 public:
  explicit MemoryTier(const MemfdOptions& options) : MemfdSegments(Kind::kMemory, "terrace-memory", options) {}
};

}  // namespace terrace::tier

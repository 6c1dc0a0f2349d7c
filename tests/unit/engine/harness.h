// SPDX-License-Identifier: Apache-2.0
// Drives an engine as the daemon does, without one: the simulator's node, and the tiers that most tests use.
#pragma once

#include <gtest/gtest.h>

#include "sim/node.h"

namespace terrace::engine {

using sim::kDevice;
using sim::kHost;
using sim::kSegment;
using sim::spec_of;
using sim::tier_of;
using Harness = sim::Node;

// Bytes that a link has moved.
inline std::uint64_t link_bytes(Harness& harness, mover::LinkKind kind) {
  for (const LinkStatus& link : harness.status().links)
    if (link.link.kind == kind) return link.bytes;
  return 0;
}

inline Options three_tiers(std::uint64_t device = 4 * kMiB, std::uint64_t memory = 8 * kMiB,
                           std::uint64_t block = 64 * kMiB) {
  Options options;
  options.tiers = {tier_of("device:0", tier::Kind::kDevice, device), tier_of("memory", tier::Kind::kMemory, memory),
                   tier_of("block", tier::Kind::kBlock, block)};
  return options;
}

}  // namespace terrace::engine

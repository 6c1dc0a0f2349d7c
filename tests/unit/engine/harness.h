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

inline Options three_tiers(std::uint64_t device = 4 * kMiB, std::uint64_t memory = 8 * kMiB,
                           std::uint64_t block = 64 * kMiB) {
  Options options;
  options.tiers = {tier_of("device:0", tier::Kind::kDevice, device), tier_of("memory", tier::Kind::kMemory, memory),
                   tier_of("block", tier::Kind::kBlock, block)};
  return options;
}

}  // namespace terrace::engine

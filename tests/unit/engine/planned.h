// SPDX-License-Identifier: Apache-2.0
// A session that a plan is given to: six tensors, all of them on the block tier alone when it begins.
#pragma once

#include <gtest/gtest.h>

#include "unit/engine/harness.h"

namespace terrace::engine {

inline constexpr std::uint32_t kTensors = 6;  // the device tier has room for four
inline constexpr std::int64_t kApartNs = 1'000'000'000;

inline Options planned_options() {
  Options options = three_tiers();
  options.make_policy = make_next_use_policy;
  options.observe = true;
  return options;
}

struct Planned {
  Harness harness;
  Harness::Client& client = *harness.open();
  std::vector<Handle> tensors;

  explicit Planned(const Options& options = planned_options()) : harness(options) {
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      tensors.push_back(harness.create(client, std::to_string(i), kMiB));
      harness.write(client, tensors.back(), i);
    }
    for (const Handle tensor : tensors) EXPECT_TRUE(harness.ask(client.id, Evict{{tensor}}));
  }

  void mark_step() { ASSERT_TRUE(harness.ask(client.id, MarkStep{})); }
  void read(std::uint32_t tensor) { EXPECT_EQ(harness.read(client, tensors[tensor]), tensor); }
  bool is_in_device(std::uint32_t tensor) {
    harness.settle();
    return client.slots[index(tensors[tensor].slot)].place == kDevice;
  }
  // Reads of the tensors in this order, a second apart.
  foresight::Plan plan_of(const std::vector<std::uint32_t>& order) const {
    foresight::Plan plan;
    plan.number = 7;
    for (const std::uint32_t tensor : order)
      plan.uses.push_back({.slot = tensors[tensor].slot,
                           .place = kDevice,
                           .at_ns = static_cast<std::int64_t>(plan.uses.size()) * kApartNs});
    plan.period_ns = static_cast<std::int64_t>(order.size()) * kApartNs;
    return plan;
  }
  void plan(foresight::Plan plan) {
    harness.engine->plan(harness.now, client.id, std::make_shared<const foresight::Plan>(std::move(plan)));
    harness.drain();
  }
  SessionStatus session() { return harness.status().sessions.front(); }
};

}  // namespace terrace::engine

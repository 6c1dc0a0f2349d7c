// SPDX-License-Identifier: Apache-2.0
// What is kept where nothing is foreseen: loops and scans do not flush it, whatever each tensor is used for at a time,
// and what is used anew takes the place of what is not.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/random.h"
#include "engine/policy/policy.h"
#include "unit/engine/victims.h"

namespace terrace::engine {
namespace {

constexpr std::size_t kLoopCopies = 32;

// A tier of equal copies under a policy.
class Cache {
 public:
  explicit Cache(std::unique_ptr<Policy> policy) : policy_(std::move(policy)) {}

  // Whether it was there.
  bool use(std::uint32_t slot) {
    if (slot >= here_.size()) here_.resize(slot + 1);
    const bool hit = here_[slot];
    if (!hit) bring(slot);
    policy_->used(Slot{slot}, Time{});
    return hit;
  }
  bool has(std::uint32_t slot) const { return slot < here_.size() && here_[slot]; }

 private:
  void bring(std::uint32_t slot) {
    if (copies_ == kLoopCopies) {
      std::optional<Slot> victim;
      policy_->offer_victims([&](Slot offered) {
        victim = offered;
        return false;
      });
      ASSERT_TRUE(victim.has_value());
      policy_->left(*victim);
      here_[index(*victim)] = false;
    } else {
      ++copies_;
    }
    policy_->arrived(Slot{slot}, Time{});
    here_[slot] = true;
  }

  std::unique_ptr<Policy> policy_;
  std::vector<bool> here_;
  std::size_t copies_ = 0;
};

// Share of hits in the tenth round of a loop, each tensor of which is used `uses` times at once.
double hits_of_loop(std::unique_ptr<Policy> policy, std::uint32_t tensors, int uses) {
  Cache cache(std::move(policy));
  int hits = 0;
  for (int round = 0; round < 10; ++round) {
    hits = 0;
    for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
      hits += cache.use(tensor) ? 1 : 0;
      for (int again = 1; again < uses; ++again) cache.use(tensor);
    }
  }
  return static_cast<double>(hits) / tensors;
}

TEST(ScanResistantPolicy, ALoopOfAnyLengthKeepsNearlyAllThatCanBeKept) {
  for (const std::uint32_t tensors : {33U, 36U, 48U, 64U, 128U, 1024U})
    EXPECT_GE(hits_of_loop(make_scan_resistant_policy(), tensors, 1), 0.9 * kLoopCopies / tensors) << tensors;
}

TEST(ScanResistantPolicy, SoDoesOneThatUsesEachTensorMoreThanOnce) {
  EXPECT_GE(hits_of_loop(make_scan_resistant_policy(), 48, 2), 0.9 * kLoopCopies / 48);
  EXPECT_GE(hits_of_loop(make_scan_resistant_policy(), 48, 5), 0.9 * kLoopCopies / 48);
}

TEST(ScanResistantPolicy, AScanFlushesNothingThatIsUsed) {
  Cache cache(make_scan_resistant_policy());
  for (int round = 0; round < 4; ++round)
    for (std::uint32_t tensor = 0; tensor < kLoopCopies - 4; ++tensor) cache.use(tensor);
  for (std::uint32_t scanned = 100; scanned < 1'100; ++scanned) cache.use(scanned);
  std::size_t kept = 0;
  for (std::uint32_t tensor = 0; tensor < kLoopCopies - 4; ++tensor) kept += cache.has(tensor) ? 1 : 0;
  EXPECT_GE(kept, kLoopCopies - 6);
}

TEST(ScanResistantPolicy, WhatIsUsedNowTakesThePlaceOfWhatWas) {
  Cache cache(make_scan_resistant_policy());
  const auto use_all = [&](std::uint32_t first) {
    std::size_t hits = 0;
    for (std::uint32_t tensor = first; tensor < first + kLoopCopies - 4; ++tensor) hits += cache.use(tensor) ? 1 : 0;
    return hits;
  };
  for (int round = 0; round < 10; ++round) use_all(0);
  for (int round = 0; round < 3; ++round) use_all(100);
  EXPECT_EQ(use_all(100), kLoopCopies - 4) << "all of the new ones fit, and nobody uses the former ones";
}

TEST(ScanResistantPolicy, VictimsAreTheNewOnesThenTheLeastRecentlyUsed) {
  const auto policy = make_scan_resistant_policy();
  for (std::uint32_t slot = 0; slot < 4; ++slot) {
    policy->arrived(Slot{slot}, Time{});
    policy->used(Slot{slot}, Time{});
  }
  policy->used(Slot{0}, Time{});
  policy->used(Slot{1}, Time{});
  EXPECT_EQ(victims(*policy), (std::vector<std::uint32_t>{0, 2, 3, 1}))
      << "the first one is new, however often it is used";
}

TEST(ScanResistantPolicy, ToNumberUsesAnewChangesNothing) {
  const auto usual = make_scan_resistant_policy();
  const auto anew = make_scan_resistant_policy_counting_to(4 * kLoopCopies);
  Random random(1);
  std::vector<bool> here(2 * kLoopCopies);
  for (int round = 0; round < 10'000; ++round) {
    const Slot slot{static_cast<std::uint32_t>(random.below(here.size()))};
    const bool leaves = here[index(slot)] && random.one_in(4);
    for (Policy* policy : {usual.get(), anew.get()}) {
      if (leaves)
        policy->left(slot);
      else if (here[index(slot)])
        policy->used(slot, Time{});
      else
        policy->arrived(slot, Time{});
    }
    here[index(slot)] = !leaves;
    ASSERT_EQ(victims(*usual), victims(*anew)) << "after " << round << " calls";
  }
}

}  // namespace
}  // namespace terrace::engine

// SPDX-License-Identifier: Apache-2.0
// The order in which copies go: what the plan gives up, what nothing is foreseen of, then the farthest next use.
#include <gmock/gmock.h>

#include "engine/policy/policy.h"
#include "unit/engine/victims.h"

namespace terrace::engine {
namespace {

using testing::ElementsAre;

std::unique_ptr<Policy> with_copies(std::uint32_t copies) {
  auto policy = make_next_use_policy();
  for (std::uint32_t slot = 0; slot < copies; ++slot) policy->arrived(Slot{slot}, Time{});
  return policy;
}

TEST(NextUsePolicy, WithoutAPlanItsOrderIsThatOfItsFallback) {
  const auto policy = with_copies(4);
  const auto fallback = make_scan_resistant_policy();
  for (std::uint32_t slot = 0; slot < 4; ++slot) fallback->arrived(Slot{slot}, Time{});
  for (const std::uint32_t slot : {1U, 0U, 1U, 2U}) {
    policy->used(Slot{slot}, Time{});
    fallback->used(Slot{slot}, Time{});
  }
  EXPECT_THAT(victims(*policy), testing::ElementsAreArray(victims(*fallback)));
  policy->left(Slot{2});
  fallback->left(Slot{2});
  EXPECT_THAT(victims(*policy), testing::ElementsAreArray(victims(*fallback)));
}

TEST(NextUsePolicy, TheFartherNextUseGoesFirst) {
  const auto policy = with_copies(4);
  policy->expect(Slot{0}, {.next_ns = 10});
  policy->expect(Slot{1}, {.next_ns = 30});
  policy->expect(Slot{2}, {.next_ns = 20});
  EXPECT_THAT(victims(*policy), ElementsAre(3, 1, 2, 0)) << "3 is not foreseen to be used at all";
  policy->expect(Slot{0}, {.next_ns = 5, .give_up = true});
  EXPECT_THAT(victims(*policy), ElementsAre(0, 3, 1, 2)) << "the plan brings it back";
}

TEST(NextUsePolicy, WhatIsForeseenStandsWhileTheCopyIsAway) {
  const auto policy = with_copies(2);
  policy->expect(Slot{0}, {.next_ns = 10});
  policy->left(Slot{0});
  EXPECT_EQ(policy->expected(Slot{0}).next_ns, 10);
  policy->expect(Slot{0}, {.next_ns = 40});
  policy->arrived(Slot{0}, Time{});
  EXPECT_THAT(victims(*policy), ElementsAre(1, 0));
}

TEST(NextUsePolicy, WhatIsForeseenNoLongerIsAsIfItNeverWas) {
  const auto policy = with_copies(2);
  policy->expect(Slot{0}, {.next_ns = 5});
  policy->expect(Slot{1}, {.next_ns = 10});
  EXPECT_THAT(victims(*policy), ElementsAre(1, 0));
  policy->expect(Slot{0}, {});
  EXPECT_THAT(victims(*policy), ElementsAre(0, 1)) << "nothing is foreseen of it";
}

TEST(NextUsePolicy, WhatWasThereBeforeTheFirstPlanGoesByItToo) {
  const auto policy = with_copies(4);
  for (std::uint32_t slot = 0; slot < 4; ++slot) policy->expect(Slot{slot}, {.next_ns = 10});
  EXPECT_THAT(victims(*policy), ElementsAre(0, 1, 2, 3)) << "all of them are used at the same time";
  policy->used(Slot{1}, Time{});
  EXPECT_THAT(victims(*policy), ElementsAre(0, 2, 3, 1)) << "by their last use since there is a plan";
  policy->left(Slot{2});
  EXPECT_THAT(victims(*policy), ElementsAre(0, 3, 1));
}

TEST(NextUsePolicy, OfferingEndsWhenEnoughWasTaken) {
  const auto policy = with_copies(3);
  policy->expect(Slot{0}, {.next_ns = 10, .give_up = true});
  policy->expect(Slot{1}, {.next_ns = 10});
  for (std::size_t enough = 1; enough <= 3; ++enough) {
    std::size_t offered = 0;
    policy->offer_victims([&](Slot) { return ++offered < enough; });
    EXPECT_EQ(offered, enough);
  }
}

}  // namespace
}  // namespace terrace::engine

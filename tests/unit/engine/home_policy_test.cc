// SPDX-License-Identifier: Apache-2.0
// Shows that homes are offered by slot, whatever they were used for, and that those which left are not.
#include <gtest/gtest.h>

#include <vector>

#include "engine/policy/policy.h"
#include "unit/engine/victims.h"

namespace terrace::engine {
namespace {

TEST(HomePolicy, OffersWhatIsThereBySlot) {
  const auto policy = make_home_policy();
  for (const std::uint32_t slot : {7u, 2u, 900u, 3u}) policy->arrived(Slot{slot}, Time{});
  policy->used(Slot{2}, Time{});
  policy->left(Slot{3});
  EXPECT_EQ(victims(*policy), (std::vector<std::uint32_t>{2, 7, 900}));
  policy->arrived(Slot{3}, Time{});
  policy->left(Slot{900});
  EXPECT_EQ(victims(*policy), (std::vector<std::uint32_t>{2, 3, 7}));
}

TEST(HomePolicy, ForeseesNothing) {
  const auto policy = make_home_policy();
  policy->arrived(Slot{1}, Time{});
  policy->expect(Slot{1}, {.next_ns = 5, .give_up = true});
  EXPECT_EQ(policy->expected(Slot{1}), Expectation{});
}

}  // namespace
}  // namespace terrace::engine

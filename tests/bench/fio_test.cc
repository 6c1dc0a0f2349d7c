// SPDX-License-Identifier: Apache-2.0
// Shows which of fio's loads a row is compared with: the least deep of those that are as good as the best.
#include "bench/fio.h"

#include <gtest/gtest.h>

namespace terrace::bench {
namespace {

TEST(FioLoads, TheFirstThatIsWithinTwoPercentOfTheBestIsTaken) {
  EXPECT_EQ(first_of_the_best(std::vector{1.0, 2.97, 3.0, 3.03, 2.5}), 1U);
  EXPECT_EQ(first_of_the_best(std::vector{1.0, 2.96, 3.0, 3.03, 2.5}), 2U);
  EXPECT_EQ(first_of_the_best(std::vector{1.0}), 0U);
  EXPECT_EQ(first_of_the_best(std::vector{1.0, 2.0, 3.0}), 2U);
}

TEST(FioLoads, AreTriedUntilTwoDepthsGiveNoMore) {
  const std::vector<unsigned> depths{4, 8, 8, 16, 16, 16, 32};
  const auto over = [&](const std::vector<double>& speeds) {
    return levels_off(std::span(depths).first(speeds.size()), speeds);
  };
  EXPECT_FALSE(over({3.0}));
  EXPECT_FALSE(over({3.0, 2.9, 2.9})) << "one depth that gives no more";
  EXPECT_TRUE(over({3.0, 2.9, 3.05, 2.8, 2.7, 2.6}));
  EXPECT_FALSE(over({3.0, 2.9, 2.9, 2.8, 2.7, 3.1})) << "a thread more gives more";
  EXPECT_FALSE(over({3.0, 3.3, 3.3, 3.3, 3.3, 3.3})) << "the first of two gave more";
  EXPECT_TRUE(over({3.0, 3.3, 3.2, 3.3, 3.3, 3.3, 3.3}));
}

}  // namespace
}  // namespace terrace::bench

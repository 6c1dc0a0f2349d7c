// SPDX-License-Identifier: Apache-2.0
// Shows how long drives last.
#include "forecast/endurance.h"

#include <gtest/gtest.h>

#include <cmath>

namespace terrace::forecast {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint64_t kGigabyte = 1'000'000'000;

TEST(Endurance, AnOptimizerWrittenEveryMinuteEndsFourDrivesWithinSevenWeeks) {
  const Drives drives{.count = 4};
  const Wear worn = wear(drives, 847 * kGigabyte, minutes(1));
  EXPECT_NEAR(worn.years * 365, 46, 0.1);
  EXPECT_NEAR(worn.bytes_a_day, 1.22e15, 0.01e15);
  EXPECT_NEAR(worn.writes_a_day, 39.7, 0.1);
  EXPECT_NEAR(worn.drives, 158.8, 0.1);
  EXPECT_FALSE(worn.lasts(drives));
}

TEST(Endurance, LastsAsRatedAtItsRate) {
  const Drives drives{.count = 3, .capacity_bytes = 3840 * kGigabyte, .writes_a_day = 3, .rated_years = 4};
  const Wear worn = wear(drives, static_cast<std::uint64_t>(drives.rated_bytes_per_s() * 1000), seconds(1000));
  EXPECT_NEAR(worn.years, 4, 1e-6);
  EXPECT_NEAR(worn.writes_a_day, 3, 1e-6);
  EXPECT_NEAR(worn.drives, 3, 1e-6);
}

TEST(Endurance, IsNotSpentByNothing) {
  const Drives drives{.count = 1};
  const Wear worn = wear(drives, 0, seconds(1));
  EXPECT_TRUE(std::isinf(worn.years));
  EXPECT_TRUE(worn.lasts(drives));
}

TEST(Endurance, DrivesHoldWhatTheyAreFor) {
  EXPECT_EQ(drives_for(1, {}), 1u);
  EXPECT_EQ(drives_for(4 * 7680 * kGigabyte, {}), 4u);
  EXPECT_EQ(drives_for(4 * 7680 * kGigabyte + 1, {}), 5u);
}

}  // namespace
}  // namespace terrace::forecast

// SPDX-License-Identifier: Apache-2.0
// A link's free time is given out once, within the window, from its early or its late end.
#include "foresight/timeline.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace terrace::foresight {
namespace {

TEST(Timeline, TakesTheEarliestFreeTimeAndGoesOnBehindWhatIsTaken) {
  Timeline link;
  const auto first = link.take_earliest({100, 200}, 30);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->begin_ns, 100);
  EXPECT_EQ(first->end_ns, 130);
  const auto around = link.take_earliest({90, 200}, 30);  // 90 to 100, then 130 to 150
  ASSERT_TRUE(around);
  EXPECT_EQ(around->begin_ns, 90);
  EXPECT_EQ(around->end_ns, 150);
  EXPECT_FALSE(link.take_earliest({90, 170}, 30)) << "20 are left there";
  EXPECT_TRUE(link.take_earliest({90, 170}, 20)) << "a refusal takes nothing";
}

TEST(Timeline, TakesTheLatestFreeTime) {
  Timeline link;
  const auto last = link.take_latest({100, 200}, 30);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->begin_ns, 170);
  const auto around = link.take_latest({100, 210}, 30);  // 200 to 210, then 150 to 170
  ASSERT_TRUE(around);
  EXPECT_EQ(around->begin_ns, 150);
  EXPECT_EQ(around->end_ns, 210);
  EXPECT_FALSE(link.take_latest({140, 210}, 11));
}

TEST(Timeline, AgreesWithOneThatLooksAtEveryNanosecond) {
  constexpr std::int64_t kEnd = 300;
  std::mt19937 random(7);
  Timeline link;
  std::vector<bool> taken(kEnd, false);
  for (int round = 0; round < 400; ++round) {
    const auto begin = static_cast<std::int64_t>(random() % kEnd);
    const auto end = begin + static_cast<std::int64_t>(random() % static_cast<unsigned>(kEnd - begin + 1));
    const auto work = static_cast<std::int64_t>(1 + random() % 6);
    std::vector<std::int64_t> free;
    for (std::int64_t at = begin; at < end; ++at)
      if (!taken[static_cast<std::size_t>(at)]) free.push_back(at);
    const bool late = random() % 2 == 0;
    const auto given = late ? link.take_latest({begin, end}, work) : link.take_earliest({begin, end}, work);
    ASSERT_EQ(given.has_value(), static_cast<std::int64_t>(free.size()) >= work) << "round " << round;
    if (!given) continue;
    if (late) free.erase(free.begin(), free.end() - work);
    free.resize(static_cast<std::size_t>(work));
    EXPECT_EQ(given->begin_ns, free.front());
    EXPECT_EQ(given->end_ns, free.back() + 1);
    for (const std::int64_t at : free) taken[static_cast<std::size_t>(at)] = true;
  }
}

}  // namespace
}  // namespace terrace::foresight

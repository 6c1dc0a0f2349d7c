// SPDX-License-Identifier: Apache-2.0
// Shows that the group under way at a time is found from whichever other one the look begins.
#include "foresight/group_at.h"

#include <gtest/gtest.h>

#include <vector>

namespace terrace::foresight {
namespace {

TEST(GroupAt, IsTheLastThatHasBegunWhereverTheLookBegins) {
  for (const std::vector<std::int64_t>& begins :
       {std::vector<std::int64_t>{0, 10}, {5, 5, 5, 8}, {0, 1, 2, 3, 5, 8, 8, 13, 21, 21, 34, 55, 89, 90}}) {
    const auto groups = static_cast<std::uint32_t>(begins.size() - 1);
    for (std::int64_t time = begins.front() - 2; time <= begins.back() + 2; ++time) {
      std::uint32_t expected = 0;
      for (std::uint32_t group = 0; group < groups; ++group)
        if (begins[group] <= time) expected = group;
      for (std::uint32_t near = 0; near <= groups; ++near)
        EXPECT_EQ(group_at(begins, time, near), expected) << "at " << time << ", from " << near;
    }
  }
}

}  // namespace
}  // namespace terrace::foresight

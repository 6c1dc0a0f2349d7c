// SPDX-License-Identifier: Apache-2.0
// Two directions that slow each other down keep their proportion; the toll is what that costs whoever plans well.
#include "base/both_ways.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(BothWays, DoNotSlowEachOtherDownUnlessItIsSaid) {
  for (const double both : {0.0, 30.0, 40.0}) {
    EXPECT_EQ((BothWays{20, 10, both}.slowness()), 1) << both;
    EXPECT_EQ((BothWays{20, 10, both}.toll()), 0) << both;
  }
}

TEST(BothWays, ShareWhatTheyHaveTogether) {
  EXPECT_EQ((BothWays{20, 10, 24}.slowness()), 1.25);
  EXPECT_EQ((BothWays{20, 10, 24}.toll()), 0.25);
  EXPECT_EQ((BothWays{20, 10, 15}.toll()), 1);
  EXPECT_EQ((BothWays{20, 10, 10}.slowness()), 3);
  EXPECT_EQ((BothWays{20, 10, 10}.toll()), 1) << "taking turns is faster";
}

}  // namespace
}  // namespace terrace

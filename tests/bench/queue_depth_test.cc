// SPDX-License-Identifier: Apache-2.0
// Shows what is made of a disk's queue that was looked at: the depth that it held, and how often it had one.
#include "bench/queue_depth.h"

#include <gtest/gtest.h>

namespace terrace::bench {
namespace {

TEST(DepthHeld, LeavesOutTheTimeBeforeTheFirstRequestAndAfterTheLast) {
  std::vector<unsigned> seen(100, 16);
  seen.insert(seen.begin(), 50, 0);
  seen.insert(seen.end(), 50, 0);
  EXPECT_EQ(depth_held(seen, 0.97), 16u);
}

TEST(DepthHeld, IsWhatAllButTheRestOfTheLooksHad) {
  std::vector<unsigned> seen(97, 16);
  seen.insert(seen.begin() + 10, 3, 2);
  EXPECT_EQ(depth_held(seen, 0.97), 16u);
  seen.insert(seen.begin() + 10, 2);
  EXPECT_EQ(depth_held(seen, 0.97), 2u) << "of 101 looks three may be less";
  EXPECT_EQ(depth_held({4, 0, 4}, 0.97), 1u);
  EXPECT_EQ(depth_held({}, 0.97), 0u);
  EXPECT_EQ(depth_held({0, 0}, 0.97), 0u);
}

TEST(ShareAt, CountsEveryLook) {
  EXPECT_DOUBLE_EQ(share_at({0, 16, 17, 15}, 16), 0.5);
  EXPECT_DOUBLE_EQ(share_at({}, 1), 0);
}

TEST(QueueSampler, ComesToAnEndWhereThereIsNothingToSee) {
  QueueSampler sampler("/proc");
  EXPECT_TRUE(sampler.stop().empty());
}

}  // namespace
}  // namespace terrace::bench

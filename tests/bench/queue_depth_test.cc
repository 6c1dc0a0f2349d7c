// SPDX-License-Identifier: Apache-2.0
// Shows what is made of a disk's queue that was looked at: how it compares to a reference's.
#include "bench/queue_depth.h"

#include <gtest/gtest.h>

namespace terrace::bench {
namespace {

TEST(QueueKept, LeavesOutTheTimeBeforeTheFirstRequestAndAfterTheLastOnBothSides) {
  std::vector<unsigned> late(100, 16);
  late.insert(late.begin(), 50, 0);
  late.insert(late.end(), 150, 0);
  const std::vector<unsigned> steady(100, 16);
  for (const auto& [ours, reference] : {std::pair(late, steady), {steady, late}}) {
    const QueueKept kept = queue_kept({ours, ours}, {reference, steady});
    EXPECT_EQ(kept.reference_depth, 16U);
    EXPECT_EQ(kept.depth, 16U);
    EXPECT_DOUBLE_EQ(kept.share, 1);
  }
}

TEST(QueueKept, CountsIdleTimeBetweenRequests) {
  const QueueKept kept = queue_kept({{4, 0, 4, 0, 4, 0, 4}}, {{4, 4, 4}});
  EXPECT_DOUBLE_EQ(kept.share, 4.0 / 7);
}

TEST(QueueKept, AsksForTheReferencesMedianDepthAsOftenAsTheReferenceHadIt) {
  const std::vector<std::vector<unsigned>> reference{{1, 8, 8}, {8, 9}};
  EXPECT_EQ(queue_kept({{8}}, reference).reference_depth, 8U);
  EXPECT_DOUBLE_EQ(queue_kept({{8, 8, 8, 8, 7}}, reference).share, 1) << "four of five, as the reference";
  EXPECT_DOUBLE_EQ(queue_kept({{64, 64, 64}}, reference).share, 1) << "no more than the reference";
  EXPECT_DOUBLE_EQ(queue_kept({{8, 8, 7, 7, 7}}, reference).share, 0.5);
  EXPECT_EQ(queue_kept({{8, 8, 7, 7, 7}}, reference).depth, 7U);
  EXPECT_DOUBLE_EQ(queue_kept({{7, 7}}, reference).share, 0);
}

TEST(QueueKept, AsksForOneRequestOfAReferenceThatIsMostlyIdle) {
  EXPECT_EQ(queue_kept({{1}}, {{3, 0, 0, 0, 3}}).reference_depth, 1U);
}

TEST(QueueKept, IsNothingWhereNothingWasSeen) {
  for (const QueueKept& kept : {queue_kept({}, {{1}}), queue_kept({{1}}, {{}}), queue_kept({{0, 0}}, {{1}})}) {
    EXPECT_EQ(kept.reference_depth, 0U);
    EXPECT_DOUBLE_EQ(kept.share, 0);
  }
}

TEST(QueueSampler, ComesToAnEndWhereThereIsNothingToSee) {
  QueueSampler sampler("/proc");
  EXPECT_TRUE(sampler.stop().empty());
}

}  // namespace
}  // namespace terrace::bench

// SPDX-License-Identifier: Apache-2.0
// Shows what is made of a disk's queue that was looked at: how it compares to a reference's.
#include "bench/queue_depth.h"

#include <gtest/gtest.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// A run with so many bytes a request.
QueueSeen seen(std::vector<unsigned> depths, std::uint64_t request_bytes = kMiB) {
  return {.depths = std::move(depths), .requests = 10, .bytes = 10 * request_bytes};
}

TEST(QueueKept, LeavesOutTheTimeBeforeTheFirstRequestAndAfterTheLastOnBothSides) {
  std::vector<unsigned> late(100, 16);
  late.insert(late.begin(), 50, 0);
  late.insert(late.end(), 150, 0);
  const std::vector<unsigned> steady(100, 16);
  for (const auto& [ours, reference] : {std::pair(late, steady), {steady, late}}) {
    const QueueKept kept = queue_kept({seen(ours), seen(ours)}, {seen(reference), seen(steady)});
    EXPECT_DOUBLE_EQ(kept.reference_bytes, 16 * kMiB);
    EXPECT_EQ(kept.depth, 16U);
    EXPECT_DOUBLE_EQ(kept.share, 1);
  }
}

TEST(QueueKept, CountsIdleTimeBetweenRequests) {
  const QueueKept kept = queue_kept({seen({4, 0, 4, 0, 4, 0, 4})}, {seen({4, 4, 4})});
  EXPECT_DOUBLE_EQ(kept.share, 4.0 / 7);
}

TEST(QueueKept, AsksForTheReferencesMedianAsOftenAsTheReferenceHadIt) {
  const std::vector<QueueSeen> reference{seen({1, 8, 8}), seen({8, 9})};
  EXPECT_DOUBLE_EQ(queue_kept({seen({8})}, reference).reference_bytes, 8 * kMiB);
  EXPECT_DOUBLE_EQ(queue_kept({seen({8, 8, 8, 8, 7})}, reference).share, 1) << "four of five, as the reference";
  EXPECT_DOUBLE_EQ(queue_kept({seen({64, 64, 64})}, reference).share, 1) << "no more than the reference";
  EXPECT_DOUBLE_EQ(queue_kept({seen({8, 8, 7, 7, 7})}, reference).share, 0.5);
  EXPECT_EQ(queue_kept({seen({8, 8, 7, 7, 7})}, reference).depth, 7U);
  EXPECT_DOUBLE_EQ(queue_kept({seen({7, 7})}, reference).share, 0);
}

TEST(QueueKept, ComparesBytesWhereRequestsAreMerged) {
  const std::vector<QueueSeen> reference{seen({64, 64, 64})};
  const QueueKept merged = queue_kept({seen({17, 16, 15, 16}, 4 * kMiB)}, reference);
  EXPECT_DOUBLE_EQ(merged.reference_bytes, 64 * kMiB);
  EXPECT_DOUBLE_EQ(merged.request_bytes, 4 * kMiB);
  EXPECT_DOUBLE_EQ(merged.reference_request_bytes, kMiB);
  EXPECT_DOUBLE_EQ(merged.share, 0.75) << "60 MiB are not enough";
  EXPECT_DOUBLE_EQ(queue_kept({seen({64, 64}, kMiB / 4)}, reference).share, 0) << "as many, and smaller";
  EXPECT_DOUBLE_EQ(queue_kept({seen({64}, kMiB - 4096)}, reference).share, 1) << "an average says no more";
}

TEST(QueueKept, TakesEachRunsOwnRequests) {
  const QueueKept kept = queue_kept({seen({4, 4}, 2 * kMiB), seen({4, 4}, kMiB)}, {seen({8, 8})});
  EXPECT_DOUBLE_EQ(kept.share, 0.5);
  EXPECT_DOUBLE_EQ(kept.request_bytes, 1.5 * kMiB);
}

TEST(QueueKept, AsksForOneRequestOfAReferenceThatIsMostlyIdle) {
  EXPECT_DOUBLE_EQ(queue_kept({seen({1})}, {seen({3, 0, 0, 0, 3})}).reference_bytes, kMiB);
}

TEST(QueueKept, IsNothingWhereNothingWasSeen) {
  for (const QueueKept& kept : {queue_kept({}, {seen({1})}), queue_kept({seen({1})}, {QueueSeen{}}),
                                queue_kept({seen({0, 0})}, {seen({1})}), queue_kept({seen({1}, 0)}, {seen({1}, 0)})}) {
    EXPECT_DOUBLE_EQ(kept.reference_bytes, 0);
    EXPECT_DOUBLE_EQ(kept.share, 0);
  }
}

TEST(DeviceStatistics, AreReadsAndWritesTogether) {
  DeviceStatistics statistics;
  ASSERT_TRUE(read_statistics("  605   173   3260   977   589   164   3730   1209   12   251   220\n", statistics));
  EXPECT_EQ(statistics.requests, 605U + 589U);
  EXPECT_EQ(statistics.bytes, (3260U + 3730U) * 512U);
  EXPECT_EQ(statistics.in_flight, 12U);
  EXPECT_FALSE(read_statistics("605 173", statistics));
}

TEST(QueueSampler, ComesToAnEndWhereThereIsNothingToSee) {
  QueueSampler sampler("/proc");
  EXPECT_TRUE(sampler.stop().depths.empty());
}

}  // namespace
}  // namespace terrace::bench

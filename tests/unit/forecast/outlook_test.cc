// SPDX-License-Identifier: Apache-2.0
// Shows that what is foretold of a workload is what its rehearsal did, and that its classes are its parts.
#include "forecast/outlook.h"

#include <gmock/gmock.h>

#include "base/bytes.h"
#include "unit/rehearsal/made_workloads.h"

namespace terrace::forecast {
namespace {

using testing::HasSubstr;
using workload::Class;
using workload::Limit;

constexpr std::uint64_t kSpeed = 10'000'000'000;

workload::Workload small() {
  workload::Workload made = rehearsal::training(16, 64 * kMiB, 96 * kMiB, std::chrono::milliseconds(20));
  for (workload::Tensor& tensor : made.tensors) tensor.tensor_class = tensor.home ? Class::kParam : Class::kAct;
  return made;
}

const ClassOutlook& of(const Outlook& outlook, Class tensor_class) {
  return outlook.classes.at(static_cast<std::size_t>(tensor_class));
}

TEST(Outlook, ClassesAreItsParts) {
  const auto outlook = rehearse(small(), rehearsal::node_of(kGiB, kGiB, 8 * kGiB, kSpeed));
  ASSERT_TRUE(outlook) << outlook.error().message;
  rehearsal::Traffic sum;
  for (const ClassOutlook& of_class : outlook->classes) sum += of_class.traffic;
  for (std::size_t way = 0; way < 2; ++way) {
    EXPECT_GT(sum.hbm_bytes[way], 0u);
    EXPECT_NEAR(static_cast<double>(sum.hbm_bytes[way]), static_cast<double>(outlook->traffic.hbm_bytes[way]),
                static_cast<double>(192 * kMiB))
        << "transfers under way at a step's ends";
  }
  EXPECT_EQ(of(*outlook, Class::kParam).held_bytes, 16 * 64 * kMiB);
  EXPECT_EQ(of(*outlook, Class::kAct).born_bytes, 16 * 96 * kMiB);
  EXPECT_EQ(of(*outlook, Class::kOptim), ClassOutlook{});
}

TEST(Outlook, WhatIsHeldLiesSomewhereAllTheTime) {
  const auto outlook = rehearse(small(), rehearsal::node_of(kGiB, kGiB, 8 * kGiB, kSpeed));
  ASSERT_TRUE(outlook);
  double lies = 0;
  for (const double mean : of(*outlook, Class::kParam).mean_bytes) lies += mean;
  EXPECT_NEAR(lies, 16.0 * 64 * static_cast<double>(kMiB), 1);
  EXPECT_LE(of(*outlook, Class::kParam).mean_bytes[0] + of(*outlook, Class::kAct).mean_bytes[0],
            static_cast<double>(kGiB));
}

TEST(Outlook, MoreMemoryMovesNothing) {
  const workload::Node node = rehearsal::node_of(8 * kGiB, 8 * kGiB, 0, kSpeed);
  const auto outlook = rehearse(small(), node);
  ASSERT_TRUE(outlook);
  EXPECT_EQ(outlook->traffic, rehearsal::Traffic{});
  EXPECT_EQ(outlook->step, outlook->compute);
  EXPECT_EQ(busiest(*outlook, node).what, Limit::kCompute);
}

TEST(Outlook, IsNeverBetterThanTheBound) {
  for (const std::uint64_t host : {kGiB / 2, kGiB, 4 * kGiB}) {
    const workload::Node node = rehearsal::node_of(kGiB / 2, host, 8 * kGiB, kSpeed / 10);
    const auto outlook = rehearse(small(), node);
    const auto least = bounded(small(), node);
    ASSERT_TRUE(outlook && least);
    EXPECT_GE(outlook->step, least->step);
    EXPECT_EQ(least->source, Source::kBound);
    for (const ClassOutlook& of_class : least->classes) EXPECT_EQ(of_class, ClassOutlook{});
  }
}

TEST(Outlook, NamesTheLinkThatIsLongestAtWork) {
  workload::Node node = rehearsal::node_of(kGiB / 2, kGiB / 2, 8 * kGiB, kSpeed);
  node.block.out_bytes_per_s = kSpeed / 100;
  const auto outlook = rehearse(small(), node);
  ASSERT_TRUE(outlook);
  const Busy longest = busiest(*outlook, node);
  EXPECT_EQ(longest.what, Limit::kBlockOut);
  EXPECT_NEAR(std::chrono::duration<double>(longest.time).count(),
              static_cast<double>(outlook->traffic.block_bytes[1]) / (kSpeed / 100), 1e-6);
}

TEST(Outlook, SaysWhatDoesNotRun) {
  const auto outlook = rehearse(small(), rehearsal::node_of(128 * kMiB, kGiB, 8 * kGiB, kSpeed));
  ASSERT_FALSE(outlook);
  EXPECT_THAT(outlook.error().message, HasSubstr("run '"));
}

}  // namespace
}  // namespace terrace::forecast

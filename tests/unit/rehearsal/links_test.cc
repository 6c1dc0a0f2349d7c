// SPDX-License-Identifier: Apache-2.0
// Shows when transfers are done: one after the other in a direction, beside each other in two, and slower there where
// the node says that the directions slow each other down.
#include "rehearsal/links.h"

#include <gtest/gtest.h>

namespace terrace::rehearsal {
namespace {

using mover::LinkKind;
using std::chrono::microseconds;

constexpr std::uint64_t kLinkSpeed = 1'000'000'000;
constexpr std::uint64_t kMoved = 1'000'000;  // a millisecond
constexpr Time kBegin{1'000'000};
constexpr Duration kLatency = microseconds(30);
constexpr Duration kTolerance{100};

workload::Node node(std::uint64_t both_bytes_per_s) {
  workload::Node node;
  node.hbm = {.in_bytes_per_s = kLinkSpeed, .out_bytes_per_s = kLinkSpeed, .latency = kLatency};
  node.hbm.both_bytes_per_s = both_bytes_per_s;
  node.block = {.in_bytes_per_s = kLinkSpeed, .out_bytes_per_s = kLinkSpeed / 2};
  return node;
}

class LinksTest : public testing::Test {
 protected:
  void start(Links& links, LinkKind kind, std::uint64_t bytes, Time now = kBegin) {
    mover::Transfer transfer;
    transfer.id = TransferId{++last_};
    transfer.link.kind = kind;
    transfer.bytes = bytes;
    links.start(now, transfer, false);
  }
  // The next one is this, after so many microseconds.
  static void expect(Links& links, std::uint64_t id, std::int64_t after_us) {
    const Duration off = links.next() - (kBegin + microseconds(after_us));
    EXPECT_LT(std::chrono::abs(off), kTolerance) << id << ": off by " << off.count() << " ns";
    EXPECT_EQ(links.take(), TransferId{id});
  }
  std::uint64_t last_ = 0;
};

TEST_F(LinksTest, ADirectionTakesOneAfterTheOther) {
  const workload::Node speeds = node(0);
  Links links(speeds);
  EXPECT_EQ(links.next(), kNever);
  start(links, LinkKind::kHostToDevice, kMoved);
  start(links, LinkKind::kHostToDevice, kMoved);
  start(links, LinkKind::kBlockWrite, kMoved);
  expect(links, 1, 1030);
  expect(links, 3, 2000);
  expect(links, 2, 2030);
  EXPECT_EQ(links.next(), kNever);
}

// What drains leaves the link to the next one, and a small one is not done before a large one that it follows.
TEST_F(LinksTest, AReadDrainsBySizeAndInOrder) {
  constexpr std::uint64_t kWhole = workload::kDrainBytes;
  workload::Node speeds = node(0);
  speeds.block.in_drain = microseconds(800);
  speeds.block.in_bytes_per_s = speeds.block.out_bytes_per_s = kWhole * 1000;  // a millisecond of kDrainBytes
  Links links(speeds);
  start(links, LinkKind::kBlockRead, kWhole / 2);
  start(links, LinkKind::kBlockRead, kWhole * 2);
  start(links, LinkKind::kBlockRead, kWhole / 8);
  expect(links, 1, 500 + 400);
  expect(links, 2, 2500 + 800);
  expect(links, 3, 2500 + 800);
  start(links, LinkKind::kBlockRead, kWhole / 8, kBegin + microseconds(10'000));
  start(links, LinkKind::kBlockWrite, kWhole, kBegin + microseconds(10'000));
  expect(links, 4, 10'000 + 125 + 100);
  expect(links, 5, 10'000 + 1000);
}

TEST_F(LinksTest, DirectionsDoNotSlowEachOtherDownUnlessTheNodeSaysSo) {
  for (const std::uint64_t both : {std::uint64_t{0}, 2 * kLinkSpeed}) {
    const workload::Node speeds = node(both);
    Links links(speeds);
    last_ = 0;
    start(links, LinkKind::kHostToDevice, kMoved);
    start(links, LinkKind::kDeviceToHost, kMoved);
    expect(links, 1, 1030);
    expect(links, 2, 1030);
  }
}

TEST_F(LinksTest, TwoDirectionsShareWhatTheyHaveTogether) {
  const workload::Node speeds = node(kLinkSpeed);
  Links links(speeds);
  start(links, LinkKind::kHostToDevice, kMoved);
  start(links, LinkKind::kDeviceToHost, 2 * kMoved);
  start(links, LinkKind::kBlockRead, kMoved);
  expect(links, 3, 1000);  // another link
  expect(links, 1, 2030);  // at half the speed
  expect(links, 2, 3030);  // the second half of it alone
}

TEST_F(LinksTest, ATierIsCompactedAtItsOwnSpeed) {
  workload::Node speeds = node(0);
  speeds.hbm_within_bytes_per_s = kLinkSpeed / 2;
  Links links(speeds);
  start(links, LinkKind::kMemcpy, kMoved);
  start(links, LinkKind::kHostToDevice, kMoved);
  expect(links, 2, 1030);
  expect(links, 1, 2000);
}

TEST_F(LinksTest, WhatComesLaterSlowsDownWhatIsUnderWay) {
  const workload::Node speeds = node(kLinkSpeed);
  Links links(speeds);
  start(links, LinkKind::kHostToDevice, 2 * kMoved);
  start(links, LinkKind::kDeviceToHost, kMoved, kBegin + microseconds(1000));
  expect(links, 1, 3030);
  expect(links, 2, 3030);
  start(links, LinkKind::kDeviceToHost, kMoved, kBegin + microseconds(5000));
  expect(links, 3, 6030);
}

}  // namespace
}  // namespace terrace::rehearsal

// SPDX-License-Identifier: Apache-2.0
// Shows that nobody waits behind write-backs that were begun for nobody: those whose turn on their link has not come
// are withdrawn for whoever needs the tensor or the room, and what leaves already goes on in the class of who waits.
#include <gtest/gtest.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

constexpr Duration kCleanPeriod = std::chrono::milliseconds(100);
const TierId kFirstTier{0};

// Two sessions whose part of the device is full of what is dirty, and a link that takes one at a time: what the first
// one has cleaned is under way, what the other has waits its turn behind it.
class BusyLink : public ::testing::Test {
 protected:
  static Options options(bool writes_back_early = true) {
    Options options = three_tiers(8 * kMiB);
    options.tiers[0].write_back_early = writes_back_early;
    options.write_back_period = kCleanPeriod;
    options.transfers_in_flight_max = 1;
    return options;
  }
  explicit BusyLink(const Options& given = options()) : node_(given) {
    for (int each = 0; each < 4; ++each) bulk_.push_back(node_.create(client_, std::to_string(each), kMiB));
    for (int each = 0; each < 4; ++each) dirty_.push_back(node_.create(other_, std::to_string(each), kMiB));
    fresh_ = node_.create(other_, "fresh", kMiB);
    for (const Handle tensor : bulk_) node_.write(client_, tensor, 1);
    for (std::uint64_t each = 0; each < dirty_.size(); ++each) node_.write(other_, dirty_[each], each);
  }
  void SetUp() override { fill_the_link(); }
  void fill_the_link() {
    for (int each = 0; each < 8; ++each) {  // for a segment of memory, each waits for the next look
      node_.advance(node_.now + kCleanPeriod);
      node_.complete_orders();
    }
    ASSERT_EQ(node_.transfers.size(), 1U);
    ASSERT_EQ(node_.transfers[0].from.session, client_.space);
    ASSERT_EQ(queued(mover::LinkKind::kDeviceToHost), 7U);
  }
  std::uint64_t queued(mover::LinkKind kind) {
    std::uint64_t sum = 0;
    for (const LinkStatus& link : node_.status().links) sum += link.link.kind == kind ? link.queued : 0;
    return sum;
  }
  // Of one who asks for room that is taken: one copy leaves for it, before all that waits.
  void expect_that_room_goes_first() {
    const RequestId needs = node_.send(other_.id, Acquire{kDevice, shm::Mode::kOverwrite, {fresh_}});
    EXPECT_FALSE(node_.answered(needs));
    node_.complete_transfer(0);
    ASSERT_EQ(node_.transfers.size(), 1U);
    EXPECT_EQ(node_.transfers[0].urgency, mover::Class::kAwaitedWriteBack);
    EXPECT_EQ(node_.transfers[0].from.session, other_.space);
    node_.complete_transfer(0);
    EXPECT_TRUE(node_.answered(needs));
  }
  std::uint64_t device_bytes() { return node_.status().tiers[0].used_bytes; }

  Harness node_;
  Harness::Client& client_ = *node_.open();
  Harness::Client& other_ = *node_.open();
  std::vector<Handle> bulk_;
  std::vector<Handle> dirty_;
  Handle fresh_;
};

TEST_F(BusyLink, WhoNeedsTheRoomOfOneGoesBeforeAllOfThem) {
  expect_that_room_goes_first();
  node_.fill(other_, fresh_, 9);
  node_.release(other_, fresh_, shm::Mode::kOverwrite);
  node_.settle();
  for (std::uint64_t each = 0; each < dirty_.size(); ++each) EXPECT_EQ(node_.read(other_, dirty_[each]), each);
  EXPECT_EQ(node_.read(other_, fresh_), 9U);
}

TEST_F(BusyLink, APrefetchThatNeedsTheRoomDoesToo) {
  node_.write(other_, fresh_, 9, kDevice);
  node_.settle();
  ASSERT_TRUE(node_.ask(other_.id, Evict{{fresh_}}));
  for (const Handle tensor : bulk_) node_.write(client_, tensor, 1);
  for (const Handle tensor : dirty_) node_.write(other_, tensor, 1);
  fill_the_link();
  node_.send(other_.id, Prefetch{kDevice, {fresh_}});
  node_.complete_transfer(0);
  ASSERT_FALSE(node_.transfers.empty());
  EXPECT_EQ(node_.transfers[0].urgency, mover::Class::kPrefetch);
  EXPECT_EQ(node_.transfers[0].from.session, other_.space);
}

TEST_F(BusyLink, WhoNeedsTheRoomThatOneIsToFillHasItAtOnce) {
  const RequestId needs = node_.send(other_.id, Acquire{kHost, shm::Mode::kOverwrite, {fresh_}});
  EXPECT_TRUE(node_.answered(needs)) << "its part of memory is kept for write-backs that nobody waits for";
  node_.release(other_, fresh_, shm::Mode::kOverwrite);
  node_.settle();
  for (std::uint64_t each = 0; each < dirty_.size(); ++each) EXPECT_EQ(node_.read(other_, dirty_[each]), each);
}

TEST_F(BusyLink, WhatIsDeletedIsGoneAtOnce) {
  const std::uint64_t before = device_bytes();
  ASSERT_TRUE(node_.reply(node_.send(other_.id, DeleteTensors{{dirty_[1]}})));
  EXPECT_EQ(device_bytes(), before - kMiB);
  EXPECT_EQ(queued(mover::LinkKind::kDeviceToHost), 6U);
}

TEST_F(BusyLink, WhatIsDeletedWhileItIsLeasedIsNotWrittenBack) {
  ASSERT_TRUE(node_.reply(node_.send(other_.id, Acquire{kDevice, shm::Mode::kRead, {dirty_[1]}})));
  ASSERT_TRUE(node_.reply(node_.send(other_.id, DeleteTensors{{dirty_[1]}})));
  EXPECT_EQ(queued(mover::LinkKind::kDeviceToHost), 6U);
  const std::uint64_t before = device_bytes();
  node_.release(other_, dirty_[1], shm::Mode::kRead);
  EXPECT_EQ(device_bytes(), before - kMiB);
}

TEST_F(BusyLink, WhatIsNotNeededIsGoneAtOnce) {
  const std::uint64_t before = device_bytes();
  ASSERT_TRUE(node_.reply(node_.send(other_.id, DontNeed{{dirty_[1]}})));
  EXPECT_EQ(device_bytes(), before - kMiB);
}

TEST_F(BusyLink, WhatIsGivenUpIsWrittenHomeInstead) {
  ASSERT_TRUE(node_.reply(node_.send(other_.id, Evict{{dirty_[1]}})));
  ASSERT_EQ(node_.transfers.size(), 2U);
  EXPECT_EQ(node_.transfers[1].link.kind, mover::LinkKind::kBlockWrite);
  const std::uint64_t before = device_bytes();
  node_.complete_transfer(1);
  EXPECT_EQ(device_bytes(), before - kMiB);
  node_.settle();
  EXPECT_EQ(node_.read(other_, dirty_[1]), 1U);
}

TEST_F(BusyLink, WhatIsLeasedForWritingIsNotWrittenBackMeanwhile) {
  ASSERT_TRUE(node_.reply(node_.send(other_.id, Acquire{kDevice, shm::Mode::kWrite, {dirty_[1]}})));
  EXPECT_EQ(queued(mover::LinkKind::kDeviceToHost), 6U);
  node_.fill(other_, dirty_[1], 8);
  node_.release(other_, dirty_[1], shm::Mode::kWrite);
  node_.settle();
  node_.advance(node_.now + kCleanPeriod);
  EXPECT_EQ(node_.transfers.size(), 1U) << "but afterwards";
  node_.settle();
  node_.engine->tier_failed(node_.now, kFirstTier, {ErrorCode::kUnavailable, "cuda:0 is lost", 0});
  node_.drain();
  EXPECT_EQ(node_.read(other_, dirty_[1], kHost), 8U);
}

TEST_F(BusyLink, WhoOverwritesItElsewhereHasItAtOnce) {
  const RequestId writes = node_.send(other_.id, Acquire{kHost, shm::Mode::kOverwrite, {dirty_[1]}});
  EXPECT_TRUE(node_.answered(writes));
}

TEST_F(BusyLink, WhoReadsItElsewhereIsServedAsAnybodyElse) {
  const RequestId reads = node_.send(other_.id, Acquire{kHost, shm::Mode::kRead, {dirty_[1]}});
  node_.complete_transfer(0);
  ASSERT_EQ(node_.transfers.size(), 1U);
  EXPECT_EQ(node_.transfers[0].urgency, mover::Class::kDemand);
  node_.complete_transfer(0);
  ASSERT_TRUE(node_.answered(reads));
  EXPECT_EQ(node_.look(other_, dirty_[1]), 1U);
}

// What was asked to leave, and is in nobody's way yet.
class BusyLinkOfHints : public BusyLink {
 protected:
  BusyLinkOfHints() : BusyLink(options(false)) {}
  void SetUp() override {
    ASSERT_TRUE(node_.reply(node_.send(client_.id, Evict{bulk_})));
    ASSERT_TRUE(node_.reply(node_.send(other_.id, Evict{dirty_})));
    ASSERT_EQ(queued(mover::LinkKind::kBlockWrite), 7U);
  }
};

TEST_F(BusyLinkOfHints, WhoNeedsTheRoomOfOneGoesBeforeAllOfThem) {
  expect_that_room_goes_first();
  ASSERT_EQ(node_.transfers.size(), 1U);
  EXPECT_EQ(node_.transfers[0].urgency, mover::Class::kCleaning) << "no more of them than it needs";
}

TEST_F(BusyLinkOfHints, WhoNeedsOneOfThemGoesBeforeAllOfThem) {
  const RequestId reads = node_.send(other_.id, Acquire{kDevice, shm::Mode::kRead, {dirty_[2]}});
  EXPECT_FALSE(node_.answered(reads));
  node_.complete_transfer(0);
  ASSERT_EQ(node_.transfers.size(), 1U);
  EXPECT_EQ(node_.transfers[0].urgency, mover::Class::kAwaitedWriteBack);
  node_.complete_transfer(0);
  node_.settle();
  ASSERT_TRUE(node_.answered(reads));
  EXPECT_EQ(node_.look(other_, dirty_[2]), 2U);
}

TEST_F(BusyLink, OfADeviceThatFailedNoneIsHandedDown) {
  node_.engine->tier_failed(node_.now, kFirstTier, {ErrorCode::kUnavailable, "cuda:0 is lost", 0});
  node_.drain();
  EXPECT_EQ(queued(mover::LinkKind::kDeviceToHost), 0U);
}

TEST(BusyLinks, WhoComesForTheMemoryOfACopyGoesBeforeIt) {
  Harness::Client newcomer(8);
  Options options = three_tiers(4 * kMiB);
  options.tiers[0].write_back_early = true;
  options.write_back_period = kCleanPeriod;
  options.transfers_in_flight_max = 1;
  OpenSession open;
  open.guarantees = {{kDevice, 2 * kMiB}, {kHost, 4 * kMiB}};
  Harness node(options);
  Harness::Client& client = *node.open(open);
  std::vector<Handle> tensors;
  for (const char* name : {"a", "b", "c", "d"}) tensors.push_back(node.create(client, name, kMiB));
  for (const Handle tensor : tensors) node.write(client, tensor, 7);
  for (int each = 0; each < 4; ++each) {
    node.advance(node.now + kCleanPeriod);
    node.complete_orders();
  }
  ASSERT_EQ(node.transfers.size(), 1U);
  open.table = newcomer.table;
  const RequestId opens = node.send(SessionId{}, open);
  for (int each = 0; each < 2; ++each) {
    node.complete_transfer(0);
    ASSERT_EQ(node.transfers.size(), 1U);
    EXPECT_EQ(node.transfers[0].urgency, mover::Class::kAwaitedWriteBack);
  }
  node.complete_transfer(0);
  node.complete_orders();
  EXPECT_TRUE(node.answered(opens));
  node.settle();
  for (const Handle tensor : tensors) EXPECT_EQ(node.read(client, tensor), 7U);
}

TEST(BusyDrives, HaveBackInTheirBudgetWhatIsNotWrittenAfterAll) {
  Options options = three_tiers(4 * kMiB);
  options.tiers.erase(options.tiers.begin() + 1);
  options.tiers[0].write_back_early = true;
  options.tiers[1].write_budget_bytes_per_day = 24 * kGiB;
  options.write_back_period = kCleanPeriod;
  options.transfers_in_flight_max = 1;
  Harness node(options);
  Harness::Client& client = *node.open();
  std::vector<Handle> tensors;
  for (const char* name : {"a", "b"}) tensors.push_back(node.create(client, name, kMiB));
  for (const Handle tensor : tensors) node.write(client, tensor, 1);
  node.advance(node.now + kCleanPeriod);
  ASSERT_EQ(node.transfers.size(), 1U);
  const auto left = [&] { return node.status().tiers[1].write_budget_left_bytes; };
  const std::int64_t before = left();
  ASSERT_TRUE(node.reply(node.send(client.id, DeleteTensors{{tensors[1]}})));
  EXPECT_EQ(left(), before + static_cast<std::int64_t>(kMiB));
}

}  // namespace
}  // namespace terrace::engine

// SPDX-License-Identifier: Apache-2.0
// Shows what is written down early from a device whose memory may be lost: whatever is dirty and nobody writes, however
// empty the tier is, to memory where there is room and else home, behind everything that somebody waits for; and that
// a device that fails then costs nothing.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::IsEmpty;

constexpr Duration kPeriod = std::chrono::milliseconds(100);
const TierId kUpperTier{0};
const Error kWhyLost{ErrorCode::kUnavailable, "cuda:0 is lost", 0};

constexpr std::uint64_t kBudgetEnough = 24 * kGiB;  // a day

Options early(Options options) {
  options.tiers[0].write_back_early = true;
  options.write_back_period = kPeriod;
  return options;
}

class WriteBack : public ::testing::Test {
 protected:
  explicit WriteBack(const Options& options = early(three_tiers(8 * kMiB))) : node_(options) {}

  // The next look; what it begins is not done yet.
  const std::vector<mover::Transfer>& look() {
    node_.advance(node_.now + kPeriod);
    node_.complete_orders();  // memory for it, for which the next look does not wait
    if (node_.transfers.empty()) node_.advance(node_.now + kPeriod);
    return node_.transfers;
  }
  std::uint64_t lost_with_the_device() {
    node_.engine->tier_failed(node_.now, kUpperTier, kWhyLost);
    node_.drain();
    return node_.status().tiers[0].lost_tensors;
  }
  std::uint64_t transfers_to(mover::LinkKind kind) {
    std::uint64_t sum = 0;
    for (const LinkStatus& link : node_.status().links) sum += link.link.kind == kind ? link.transfers : 0;
    return sum;
  }

  Harness node_;
  Harness::Client& client_ = *node_.open();
};

TEST_F(WriteBack, WhatIsDirtyIsSafeInMemory) {
  const Handle a = node_.create(client_, "a", kMiB);
  node_.write(client_, a, 7);
  EXPECT_THAT(node_.transfers, IsEmpty()) << "a request begins none: trainers do not wait for it";
  ASSERT_EQ(look().size(), 1U);
  EXPECT_EQ(node_.transfers[0].link.kind, mover::LinkKind::kDeviceToHost);
  EXPECT_EQ(node_.transfers[0].urgency, mover::Class::kCleaning);
  EXPECT_TRUE(shm::acquire(client_.table.word(a.slot), a.incarnation, shm::Mode::kRead).outcome == shm::Outcome::kDone)
      << "it stays where it is";
  node_.release(client_, a, shm::Mode::kRead);
  node_.settle();
  EXPECT_THAT(look(), IsEmpty()) << "once";
  EXPECT_EQ(lost_with_the_device(), 0U);
  EXPECT_EQ(node_.read(client_, a, kHost), 7U);
}

TEST_F(WriteBack, WhatIsWrittenAgainIsWrittenDownAgain) {
  const Handle a = node_.create(client_, "a", kMiB);
  for (const std::uint64_t value : {1U, 2U, 3U}) {
    node_.write(client_, a, value);
    ASSERT_EQ(look().size(), 1U);
    node_.settle();
  }
  node_.write(client_, a, 4);
  ASSERT_EQ(look().size(), 1U);
  ASSERT_EQ(shm::acquire(client_.table.word(a.slot), a.incarnation, shm::Mode::kWrite).outcome, shm::Outcome::kDone);
  node_.fill(client_, a, 5);  // meanwhile, so that it does not count
  node_.release(client_, a, shm::Mode::kWrite);
  node_.complete_transfer(0);
  ASSERT_EQ(look().size(), 1U);
  node_.settle();
  EXPECT_EQ(lost_with_the_device(), 0U);
  EXPECT_EQ(node_.read(client_, a, kHost), 5U);
}

TEST_F(WriteBack, NothingIsWhileSomebodyWritesIt) {
  const Handle a = node_.create(client_, "a", kMiB);
  ASSERT_TRUE(node_.acquire(client_, kDevice, shm::Mode::kOverwrite, {a}));
  EXPECT_THAT(look(), IsEmpty());
  node_.fill(client_, a, 6);
  node_.release(client_, a, shm::Mode::kOverwrite);
  ASSERT_TRUE(node_.acquire(client_, kDevice, shm::Mode::kRead, {a}));
  ASSERT_EQ(look().size(), 1U) << "readers do not matter";
  node_.settle();
  EXPECT_EQ(lost_with_the_device(), 0U);
  node_.release(client_, a, shm::Mode::kRead);
  EXPECT_EQ(node_.read(client_, a, kHost), 6U);
}

TEST_F(WriteBack, APinnedCopyIsTooAndKeepsItsPlace) {
  const Handle a = node_.create(client_, "a", kMiB);
  node_.write(client_, a, 1);
  ASSERT_TRUE(node_.ask(client_.id, Pin{kDevice, {a}}));
  ASSERT_EQ(look().size(), 1U);
  node_.settle();
  EXPECT_EQ(lost_with_the_device(), 0U);
}

TEST_F(WriteBack, ManyGoOneAfterTheOtherAndAFewAtATime) {
  std::vector<Handle> tensors;
  for (int each = 0; each < 100; ++each) tensors.push_back(node_.create(client_, std::to_string(each), 4 * kPageBytes));
  for (const Handle tensor : tensors) node_.write(client_, tensor, 9);
  EXPECT_EQ(look().size(), 4U);
  while (!node_.transfers.empty()) {
    EXPECT_LE(node_.transfers.size(), 4U);
    node_.complete_transfer(0);
  }
  EXPECT_EQ(transfers_to(mover::LinkKind::kDeviceToHost), 100U) << "in one round";
  EXPECT_EQ(lost_with_the_device(), 0U);
}

TEST_F(WriteBack, SomebodyWhoWaitsForOneOfThemDoesNotWaitBehindTheRest) {
  const Handle a = node_.create(client_, "a", kMiB);
  node_.write(client_, a, 3);
  ASSERT_EQ(look().size(), 1U);
  const RequestId moves = node_.send(client_.id, Acquire{kHost, shm::Mode::kRead, {a}});
  EXPECT_FALSE(node_.answered(moves));
  node_.complete_transfer(0);
  EXPECT_TRUE(node_.answered(moves)) << "its bytes are in memory by now";
  EXPECT_EQ(node_.look(client_, a), 3U);
}

class WriteBackOnABudget : public WriteBack {
 protected:
  static Options options(std::uint64_t bytes_per_day) {
    Options options = early(three_tiers(8 * kMiB));
    options.tiers.back().write_budget_bytes_per_day = bytes_per_day;
    return options;
  }
  explicit WriteBackOnABudget(const Options& given = options(kBudgetEnough)) : WriteBack(given) {}
};

TEST_F(WriteBack, NothingIsWrittenToDrivesThatMayWearOut) {
  for (int each = 0; each < 8; ++each)
    node_.write(client_, node_.create(client_, "host " + std::to_string(each), kMiB), 1, kHost);
  node_.settle();
  node_.write(client_, node_.create(client_, "a", kMiB), 7);
  EXPECT_THAT(look(), IsEmpty());
  EXPECT_EQ(lost_with_the_device(), 1U);
}

TEST_F(WriteBack, OneSessionThatWritesAllTheTimeKeepsNoOtherFromIt) {
  Harness::Client& other = *node_.open();
  const Handle busy = node_.create(client_, "busy", kMiB);
  const Handle rare = node_.create(other, "rare", kMiB);
  node_.write(other, rare, 7);
  for (std::uint64_t round = 0; round < 3; ++round) {
    node_.write(client_, busy, round);
    look();
    node_.settle();
  }
  EXPECT_EQ(lost_with_the_device(), 0U);
  EXPECT_EQ(node_.read(other, rare, kHost), 7U);
}

TEST_F(WriteBackOnABudget, WhereMemoryIsFullItIsSafeAtHome) {
  for (int each = 0; each < 8; ++each)
    node_.write(client_, node_.create(client_, "host " + std::to_string(each), kMiB), 1, kHost);
  node_.settle();
  const auto evictions = node_.status().tiers[1].evictions;
  const auto blocks = transfers_to(mover::LinkKind::kBlockWrite);
  const Handle a = node_.create(client_, "a", kMiB);
  node_.write(client_, a, 7);
  ASSERT_EQ(look().size(), 1U);
  EXPECT_EQ(node_.transfers[0].link.kind, mover::LinkKind::kBlockWrite);
  node_.settle();
  EXPECT_EQ(transfers_to(mover::LinkKind::kBlockWrite), blocks + 1);
  EXPECT_EQ(node_.status().tiers[1].evictions, evictions) << "nothing is given up for it";
  EXPECT_EQ(lost_with_the_device(), 0U);
  EXPECT_EQ(node_.read(client_, a, kHost), 7U);
}

TEST_F(WriteBack, WhatFailedIsTriedAgainMuchLater) {
  const Handle a = node_.create(client_, "a", kMiB);
  node_.write(client_, a, 7);
  ASSERT_EQ(look().size(), 1U);
  node_.complete_transfer(0, Error{ErrorCode::kInternal, "a bad copy", 1}, kUpperTier);
  EXPECT_THAT(node_.transfers, IsEmpty());
  node_.advance(node_.now + 10 * kPeriod);
  EXPECT_THAT(node_.transfers, IsEmpty());
  node_.advance(node_.now + 50 * kPeriod);
  EXPECT_EQ(node_.transfers.size(), 1U);
  node_.settle();
  EXPECT_EQ(lost_with_the_device(), 0U);
}

TEST_F(WriteBack, ATickIsAskedForWhileSomethingIsThere) {
  EXPECT_EQ(node_.engine->next_deadline(), kNever);
  const Handle a = node_.create(client_, "a", kMiB);
  node_.write(client_, a, 7);
  EXPECT_LE(node_.engine->next_deadline(), node_.now + kPeriod);
  look();
  EXPECT_GT(node_.engine->next_deadline(), node_.now);
  node_.settle();
  lost_with_the_device();
  EXPECT_EQ(node_.engine->next_deadline(), kNever);
}

TEST_F(WriteBack, WhatASuccessorFindsIsSafeToo) {
  OpenSession open;
  open.maps_segments = true;
  Harness::Client& client = *node_.open(open);
  const Handle a = node_.create(client, "a", kMiB);
  node_.write(client, a, 7);
  ASSERT_EQ(look().size(), 1U);
  node_.settle();
  const LostSegment first{client.space, kUpperTier, {0, kSegment}, "it cannot be imported"};
  node_.restart([] { return true; }, false, {&first, 1});
  node_.settle();
  EXPECT_EQ(node_.status().tiers[0].lost_tensors, 0U);
  EXPECT_EQ(node_.read(client, a, kHost), 7U);
}

class WriteBackLate : public WriteBack {
 protected:
  WriteBackLate() : WriteBack(three_tiers(8 * kMiB)) {}
};

TEST_F(WriteBackLate, IsWhatATierDoesUnlessItIsAsked) {
  node_.write(client_, node_.create(client_, "a", kMiB), 7);
  EXPECT_EQ(node_.engine->next_deadline(), kNever);
  EXPECT_THAT(look(), IsEmpty());
  EXPECT_EQ(lost_with_the_device(), 1U);
}

TEST_F(WriteBackOnABudget, WhatTheDriveRefusedIsTriedAgainMuchLaterToo) {
  for (int each = 0; each < 8; ++each)
    node_.write(client_, node_.create(client_, "host " + std::to_string(each), kMiB), 1, kHost);
  node_.settle();
  node_.write(client_, node_.create(client_, "a", kMiB), 7);
  ASSERT_EQ(look().size(), 1U);
  node_.complete_transfer(0, Error{ErrorCode::kInternal, "a bad write", 5}, TierId{2});
  node_.advance(node_.now + 60 * kPeriod);
  EXPECT_EQ(node_.transfers.size(), 1U);
  node_.settle();
  EXPECT_EQ(lost_with_the_device(), 0U);
}

class WriteBackWithoutMemory : public WriteBackOnABudget {
 protected:
  static constexpr std::uint64_t kBudget = 24 * kMiB;  // a day, and so 1 MiB at once
  WriteBackWithoutMemory()
      : WriteBackOnABudget([] {
          Options given = options(kBudget);
          given.tiers.erase(given.tiers.begin() + 1);
          return given;
        }()) {}
};

TEST_F(WriteBackWithoutMemory, HomeIsTheBlockTierAndItsBudgetIsKept) {
  const Handle a = node_.create(client_, "a", 2 * kMiB);
  const Handle b = node_.create(client_, "b", kMiB);
  node_.write(client_, a, 1);
  node_.write(client_, b, 2);
  ASSERT_EQ(look().size(), 1U);
  EXPECT_EQ(node_.transfers[0].link.kind, mover::LinkKind::kBlockWrite);
  node_.settle();
  EXPECT_THAT(look(), IsEmpty());
  EXPECT_EQ(lost_with_the_device(), 1U);
}

class WriteBackToDrivesAlone : public WriteBack {
 protected:
  WriteBackToDrivesAlone()
      : WriteBack([] {
          Options options = early(three_tiers(4 * kMiB));
          options.tiers.erase(options.tiers.begin() + 1);
          return options;
        }()) {}
};

TEST_F(WriteBackToDrivesAlone, IsThatOfATierThatIsNearlyFull) {
  node_.write(client_, node_.create(client_, "a", kMiB), 7);
  EXPECT_EQ(node_.engine->next_deadline(), kNever);
  EXPECT_THAT(look(), IsEmpty());
  for (const char* name : {"b", "c", "d"}) node_.write(client_, node_.create(client_, name, kMiB), 7);
  node_.settle();
  EXPECT_GT(transfers_to(mover::LinkKind::kBlockWrite), 0U) << "the coldest are clean before their room is needed";
}

class WriteBackToHomesInMemory : public WriteBack {
 protected:
  WriteBackToHomesInMemory()
      : WriteBack([] {
          Options options = three_tiers(8 * kMiB);
          options.tiers.pop_back();
          return early(options);
        }()) {}
};

TEST_F(WriteBackToHomesInMemory, IsDone) {
  const Handle a = node_.create(client_, "a", kMiB);
  node_.write(client_, a, 7);
  ASSERT_EQ(look().size(), 1U);
  node_.settle();
  EXPECT_EQ(lost_with_the_device(), 0U);
  EXPECT_EQ(node_.read(client_, a, kHost), 7U);
}

TEST(WriteBackOptions, AreOfDevicesAlone) {
  for (const std::size_t tier : {1U, 2U}) {
    Options options = three_tiers();
    options.tiers[tier].write_back_early = true;
    EXPECT_THROW(Harness{options}, sim::Violation);
  }
  Options options = early(three_tiers());
  options.write_back_period = Duration(0);
  EXPECT_THROW(Harness{options}, sim::Violation);
  options.tiers.resize(1);  // there is nowhere to write to
  options.write_back_period = kPeriod;
  Harness alone(options);
  Harness::Client& client = *alone.open();
  alone.write(client, alone.create(client, "a", kMiB), 1);
  EXPECT_EQ(alone.engine->next_deadline(), kNever);
}

}  // namespace
}  // namespace terrace::engine

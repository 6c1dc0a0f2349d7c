// SPDX-License-Identifier: Apache-2.0
// Shows which tensors a successor counts as lost with segments that it cannot take back, before it gives them up: just
// those that it then loses.
#include "engine/stake.h"

#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

class Stake : public ::testing::Test {
 protected:
  static constexpr tier::Extent kAll{0, 4 * kMiB};

  std::vector<LostSegment> lost(tier::Extent extent = kAll) const {
    return {{client_->space, TierId{0}, extent, "no room"}};
  }
  std::size_t at_stake(tier::Extent extent = kAll) const {
    const auto by_space = tensors_at_stake(harness_.catalog, harness_.survivors(), lost(extent));
    const auto found = by_space.find(client_->space);
    EXPECT_LE(by_space.size(), 1U);
    return found == by_space.end() ? 0 : found->second;
  }
  // By a successor that goes on without them.
  std::uint64_t loses() {
    harness_.restart([] { return true; }, false, lost());
    return harness_.status().tiers[0].lost_tensors;
  }

  Harness harness_{three_tiers()};
  Harness::Client* client_ = [this] {
    OpenSession open;
    open.maps_segments = true;
    return harness_.open(open);
  }();
};

TEST_F(Stake, IsWhatLiesThereAlone) {
  const Handle alone = harness_.create(*client_, "alone", kMiB);
  const Handle copied = harness_.create(*client_, "copied", kMiB);
  const Handle host = harness_.create(*client_, "host", kMiB);
  harness_.create(*client_, "never written", kMiB);
  EXPECT_EQ(at_stake(), 0U);
  harness_.write(*client_, alone, 1);
  harness_.write(*client_, copied, 2);
  harness_.write(*client_, host, 3, kHost);
  EXPECT_EQ(at_stake(), 2U);
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {copied}}));
  ASSERT_EQ(harness_.read(*client_, copied), 2U);
  EXPECT_EQ(at_stake(), 1U);
  EXPECT_EQ(loses(), 1U);
}

TEST_F(Stake, StaysWhatItIsOnceItIsLent) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1);
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {a}}));
  ASSERT_EQ(harness_.read(*client_, a), 1U);
  ASSERT_EQ(at_stake(), 0U);
  lend_at_stake(harness_.catalog, harness_.survivors(), lost({2 * kMiB, 2 * kMiB}));
  const auto write_without_an_engine = [&] {
    return shm::acquire(client_->table.word(a.slot), a.incarnation, shm::Mode::kWrite).outcome;
  };
  EXPECT_EQ(write_without_an_engine(), shm::Outcome::kDone) << "it lies elsewhere";
  shm::release(client_->table.word(a.slot), a.incarnation, shm::Mode::kWrite);
  lend_at_stake(harness_.catalog, harness_.survivors(), lost());
  EXPECT_EQ(write_without_an_engine(), shm::Outcome::kAskDaemon);
}

TEST_F(Stake, IsWhatWasWrittenThereSince) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1);
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {a}}));
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kRead, {a}));
  EXPECT_EQ(at_stake(), 0U);
  harness_.release(*client_, a, shm::Mode::kRead);
  EXPECT_EQ(at_stake(), 0U);
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kWrite, {a}));
  EXPECT_EQ(at_stake(), 1U) << "or is being written";
  harness_.release(*client_, a, shm::Mode::kWrite);
  EXPECT_EQ(at_stake(), 1U);
  EXPECT_EQ(loses(), 1U);
}

// Whatever became of it itself: its bytes are its siblings'.
TEST_F(Stake, IsWhatAMemberOfAShareWrote) {
  OpenSession open;
  open.maps_segments = true;
  open.share = ShareAccess{.name = "weights", .create = true, .write = true};
  client_ = harness_.open(open);
  open.share->create = false;
  Harness::Client* const sibling = harness_.open(open);
  ASSERT_EQ(client_->space, sibling->space);
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1);
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {a}}));
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kWrite, {a}));
  EXPECT_EQ(at_stake(), 1U);
  harness_.release(*client_, a, shm::Mode::kWrite);
  EXPECT_EQ(at_stake(), 1U) << "by the word of the one alone that wrote it";
  EXPECT_EQ(loses(), 1U);
}

TEST_F(Stake, IsNoContentThatIsTorn) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1);
  EXPECT_EQ(at_stake(), 1U);
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {a}));
  shm::tear(client_->table.word(a.slot), a.incarnation);
  EXPECT_EQ(at_stake(), 0U);
}

TEST_F(Stake, IsOfThoseSegmentsAlone) {
  const Handle first = harness_.create(*client_, "first", 2 * kMiB);
  const Handle second = harness_.create(*client_, "second", kMiB);
  harness_.write(*client_, first, 1);
  harness_.write(*client_, second, 2);
  EXPECT_EQ(at_stake(), 2U);
  EXPECT_EQ(at_stake({0, 2 * kMiB}), 1U);
  EXPECT_EQ(at_stake({2 * kMiB, 2 * kMiB}), 1U);
  std::vector<LostSegment> others = lost();
  others[0].space = SessionId{99};
  EXPECT_THAT(tensors_at_stake(harness_.catalog, harness_.survivors(), others), testing::IsEmpty());
  EXPECT_THAT(tensors_at_stake(harness_.catalog, {}, lost()), testing::IsEmpty())
      << "of a session that did not survive";
}

}  // namespace
}  // namespace terrace::engine

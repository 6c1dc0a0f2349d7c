// SPDX-License-Identifier: Apache-2.0
// Shows sets whose tensors are leased each in its own mode: all or nothing, each fetched, filled with zeros or neither
// as its mode says, refused by name, released and undone as they were taken, and never in their own way.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;
using enum shm::Mode;

class ModesOfASet : public ::testing::Test {
 protected:
  explicit ModesOfASet(Options options = three_tiers()) : harness_(std::move(options)) {
    OpenSession open;
    open.maps_segments = true;
    client_ = harness_.open(open);
    for (const char* name : {"read", "written", "overwritten"}) set_.push_back(harness_.create(*client_, name, kMiB));
  }
  void fill_all() {
    for (std::uint64_t i = 0; i < set_.size(); ++i) harness_.write(*client_, set_[i], 100 * (i + 1));
  }
  Result<ReplyBody> acquire() { return harness_.acquire(*client_, kDevice, modes_, set_); }
  shm::Word word(std::size_t at) const { return client_->table.load(set_[at].slot); }

  Harness harness_;
  Harness::Client* client_ = nullptr;
  std::vector<Handle> set_;
  std::vector<shm::Mode> modes_{kRead, kWrite, kOverwrite};
};

TEST_F(ModesOfASet, AreGrantedTogetherAndEachAsAskedFor) {
  fill_all();
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, set_}));
  const std::uint64_t before = link_bytes(harness_, mover::LinkKind::kBlockRead);
  ASSERT_TRUE(acquire());
  EXPECT_EQ(link_bytes(harness_, mover::LinkKind::kBlockRead) - before, 2 * kMiB) << "what is overwritten stays away";
  EXPECT_TRUE(word(0).readers == 1 && word(0).writers == 0 && !word(0).dirty);
  EXPECT_TRUE(word(1).readers == 0 && word(1).writers == 1 && word(1).dirty);
  EXPECT_TRUE(word(2).readers == 0 && word(2).writers == 1 && word(2).dirty);
  EXPECT_EQ(harness_.look(*client_, set_[0]), 100u);
  EXPECT_EQ(harness_.look(*client_, set_[1]), 200u);
  ASSERT_TRUE(harness_.ask(client_->id, Release{modes_, set_}));
  for (std::size_t at = 0; at < set_.size(); ++at) EXPECT_FALSE(word(at).leased());
}

TEST_F(ModesOfASet, OfWhatIsThereAlready) {
  fill_all();
  ASSERT_TRUE(acquire());
  for (std::size_t at = 0; at < set_.size(); ++at) harness_.release(*client_, set_[at], modes_[at]);
  ASSERT_TRUE(acquire()) << "again, with all of them in place";
  EXPECT_TRUE(word(0).readers == 1 && word(1).writers == 1 && word(2).writers == 1);
}

TEST_F(ModesOfASet, NewTensorsAreZeroWhereTheyAreWritten) {
  harness_.write(*client_, set_[0], 7);
  ASSERT_TRUE(acquire());
  EXPECT_EQ(harness_.look(*client_, set_[1]), 0u);
}

TEST_F(ModesOfASet, ARefusalLeasesNothingAndGivesNothingUp) {
  harness_.write(*client_, set_[1], 200);
  harness_.write(*client_, set_[2], 300);
  const auto refused = acquire();
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("'read' was never written"));
  for (std::size_t at = 0; at < set_.size(); ++at) EXPECT_FALSE(word(at).leased());
  EXPECT_EQ(harness_.read(*client_, set_[2]), 300u) << "it was not overwritten";
}

TEST_F(ModesOfASet, AreAsManyAsTensors) {
  fill_all();
  modes_.pop_back();
  const auto refused = acquire();
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "2 modes for 3 tensors: give one for all of them, or one for each");
  EXPECT_EQ(harness_.ask(client_->id, Release{modes_, set_}).error().code, ErrorCode::kInvalidArgument);
  modes_ = {kRead, kRead, kWrite};
  const auto passing = harness_.ask(client_->id, Acquire{kDevice, modes_, set_, true});
  EXPECT_EQ(passing.error().code, ErrorCode::kInvalidArgument) << "one of them is a use";
}

TEST_F(ModesOfASet, GivenUpOnlyWhatWasOverwrittenIsTorn) {
  fill_all();
  ASSERT_TRUE(acquire());
  ASSERT_TRUE(harness_.ask(client_->id, Release{modes_, set_, true}));
  EXPECT_EQ(harness_.read(*client_, set_[0]), 100u);
  EXPECT_EQ(harness_.read(*client_, set_[1]), 200u);
  EXPECT_THAT(harness_.read(*client_, set_[2]).error().message, HasSubstr("'overwritten' is torn"));
}

TEST_F(ModesOfASet, WhatWasTornMeanwhileFailsOnlyWhoReadsIt) {
  fill_all();
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, kOverwrite, {set_[2]}));
  ASSERT_TRUE(harness_.ask(client_->id, Release{kOverwrite, {set_[2]}, true}));
  ASSERT_TRUE(acquire()) << "it is overwritten";
  for (std::size_t at = 0; at < set_.size(); ++at) harness_.release(*client_, set_[at], modes_[at]);
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, kOverwrite, {set_[0]}));
  ASSERT_TRUE(harness_.ask(client_->id, Release{kOverwrite, {set_[0]}, true}));
  EXPECT_THAT(acquire().error().message, HasSubstr("'read' is torn"));
}

// The daemon grants it and ends before it says so: each lease is undone as it was taken, and only what it gave the old
// content of up for has none.
TEST_F(ModesOfASet, AreUndoneOneByOneAfterARestart) {
  fill_all();
  ASSERT_TRUE(harness_.ask(client_->id, Move{kHost, {set_[2]}}));
  harness_.engine->submit(harness_.now, {RequestId{1'000'000}, client_->id, kNever, Acquire{kDevice, modes_, set_}});
  harness_.engine->take_output();
  ASSERT_TRUE(word(0).readers == 1 && word(1).writers == 1 && word(2).writers == 1);
  harness_.restart([] { return true; });
  for (std::size_t at = 0; at < set_.size(); ++at) EXPECT_FALSE(word(at).leased()) << at;
  EXPECT_EQ(harness_.read(*client_, set_[0]), 100u);
  EXPECT_EQ(harness_.read(*client_, set_[1]), 200u);
  EXPECT_THAT(harness_.read(*client_, set_[2]).error().message, HasSubstr("'overwritten' is torn"));
}

// It is torn while the set that reads another one, and overwrites it, is on its way; and while one that reads it is.
TEST_F(ModesOfASet, OnItsWayFailsByATearOfWhatItReadsAlone) {
  fill_all();
  for (const std::size_t torn : {2U, 0U}) {
    for (std::size_t at = 0; at < set_.size(); ++at)
      harness_.write(*client_, set_[at], 100 * (at + 1), at == torn ? kDevice : kHost);
    ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {set_[1], set_[torn == 2 ? 0 : 2]}}));
    ASSERT_TRUE(harness_.acquire(*client_, kDevice, kOverwrite, {set_[torn]}));
    const RequestId asked = harness_.send(client_->id, Acquire{kDevice, modes_, set_});
    ASSERT_FALSE(harness_.transfers.empty()) << "something of it is fetched";
    ASSERT_TRUE(harness_.reply(harness_.send(client_->id, Release{kOverwrite, {set_[torn]}, true})).has_value());
    harness_.settle();
    const auto reply = harness_.reply(asked);
    ASSERT_EQ(reply.has_value(), torn == 2) << (reply ? "" : reply.error().message);
    if (!reply) continue;
    for (std::size_t at = 0; at < set_.size(); ++at) harness_.release(*client_, set_[at], modes_[at]);
  }
}

// Four quarters less a bit: those that are read lie so that the others have no room side by side, and nothing but this
// set is leased.
TEST(Modes, WhatIsReadMovesForWhatIsOverwritten) {
  Harness harness(three_tiers(4 * kMiB));
  const auto& client = *harness.open();
  const Handle read = harness.create(client, "read", kMiB);
  const Handle filler = harness.create(client, "filler", kMiB);
  const Handle other = harness.create(client, "other", kMiB);
  const Handle wide = harness.create(client, "wide", 2 * kMiB);
  for (const Handle each : {filler, read, other}) harness.write(client, each, 50);
  ASSERT_TRUE(harness.ask(client.id, DontNeed{{filler}}));
  ASSERT_TRUE(harness.acquire(client, kDevice, std::vector{kRead, kRead, kOverwrite}, {read, other, wide}));
  EXPECT_EQ(harness.look(client, read), 50u);
}

}  // namespace
}  // namespace terrace::engine

// SPDX-License-Identifier: Apache-2.0
// Shows what a device that fails costs: tensors whose only bytes were there are lost and named, those with bytes
// elsewhere are read from there, and nobody waits for it or is sent to it any more.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const TierId kDeviceTier{0};
const Error kWhy{ErrorCode::kUnavailable, "cuda:0 is lost", 0};

class Losses : public ::testing::Test {
 protected:
  // Names of what is lost by it.
  std::vector<std::string> fail_device() {
    harness_.engine->tier_failed(harness_.now, kDeviceTier, kWhy);
    return lost();
  }
  std::vector<std::string> lost() {
    Output output = harness_.engine->take_output();
    EXPECT_TRUE(output.transfers.empty() && output.segment_orders.empty());
    std::vector<std::string> names;
    for (const Loss& loss : output.losses) {
      EXPECT_EQ(loss.tier, kDeviceTier);
      names.push_back(loss.name);
    }
    harness_.engine->check_invariants({});
    return names;
  }
  std::string refusal(Handle handle, std::uint32_t place, shm::Mode mode, ErrorCode code) {
    const auto result = harness_.acquire(*client_, place, mode, {handle});
    if (result) return "none";
    EXPECT_EQ(result.error().code, code) << result.error().message;
    return result.error().message;
  }

  Harness harness_{three_tiers()};
  Harness::Client* client_ = [this] {
    OpenSession open;
    open.maps_segments = true;
    return harness_.open(open);
  }();
};

TEST_F(Losses, WhatWasThereAloneIsLostAndNamed) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  const Handle b = harness_.create(*client_, "b", kMiB);
  harness_.write(*client_, a, 1);
  harness_.write(*client_, b, 2, kHost);
  EXPECT_THAT(fail_device(), testing::ElementsAre("a"));
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 1U);
  EXPECT_THAT(refusal(a, kHost, shm::Mode::kRead, ErrorCode::kDataLoss),
              AllOf(HasSubstr("'a'"), HasSubstr("are lost with device:0 (cuda:0 is lost)")));
  EXPECT_EQ(harness_.read(*client_, b, kHost), 2U);
  harness_.write(*client_, a, 3, kHost);
  EXPECT_EQ(harness_.read(*client_, a, kHost), 3U) << "until it is overwritten";
  EXPECT_THAT(fail_device(), testing::IsEmpty()) << "once";
}

TEST_F(Losses, WhatHasBytesElsewhereIsReadFromThere) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 7);
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {a}}));
  ASSERT_EQ(harness_.read(*client_, a), 7U);
  EXPECT_THAT(fail_device(), testing::IsEmpty());
  EXPECT_EQ(harness_.status().tiers[0].used_bytes, 0U);
  EXPECT_EQ(harness_.read(*client_, a, kHost), 7U);
}

TEST_F(Losses, NobodyIsSentThereAnyMore) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1, kHost);
  ASSERT_EQ(harness_.read(*client_, a), 1U);
  fail_device();
  for (const shm::Mode mode : {shm::Mode::kRead, shm::Mode::kOverwrite})
    EXPECT_THAT(refusal(a, kDevice, mode, ErrorCode::kUnavailable),
                AllOf(HasSubstr("'a'"), HasSubstr("device:0"), HasSubstr("cuda:0 is lost")));
  ASSERT_TRUE(harness_.ask(client_->id, Prefetch{kDevice, {a}}));
  EXPECT_TRUE(harness_.transfers.empty() && harness_.orders.empty());
  EXPECT_EQ(harness_.read(*client_, a, kHost), 1U);
}

TEST_F(Losses, ALeaseStandsAndItsTensorGoesWithIt) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {a}));
  EXPECT_THAT(fail_device(), testing::IsEmpty());
  EXPECT_EQ(shm::acquire(client_->table.word(a.slot), a.incarnation, shm::Mode::kRead).outcome,
            shm::Outcome::kAskDaemon)
      << "not without the daemon any more";
  ASSERT_TRUE(Harness::release_in_table(*client_, a, shm::Mode::kOverwrite)) << "it rings";
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 0U);
  harness_.engine->lease_ended(harness_.now, client_->id);
  EXPECT_THAT(lost(), testing::ElementsAre("a")) << "before anybody asks for it";
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 1U);
  EXPECT_THAT(refusal(a, kHost, shm::Mode::kRead, ErrorCode::kDataLoss), HasSubstr("with device:0"));
}

TEST_F(Losses, TheLastOfSeveralLeasesIsItsEnd) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1);
  for (int each = 0; each < 2; ++each) ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kRead, {a}));
  EXPECT_THAT(fail_device(), testing::IsEmpty());
  EXPECT_FALSE(Harness::release_in_table(*client_, a, shm::Mode::kRead));
  harness_.engine->lease_ended(harness_.now, client_->id);
  EXPECT_THAT(lost(), testing::IsEmpty());
  harness_.send(client_->id, Release{shm::Mode::kRead, {a}});
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 1U) << "over a request too";
}

TEST_F(Losses, TheCopyThatIsLeftIsNotGivenUpForALeaseThere) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1, kHost);
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kRead, {a}));
  EXPECT_THAT(fail_device(), testing::IsEmpty());
  for (int each = 0; each < 12; ++each)  // more than the memory tier holds
    harness_.write(*client_, harness_.create(*client_, "other " + std::to_string(each), kMiB), 2, kHost);
  harness_.release(*client_, a, shm::Mode::kRead);
  EXPECT_EQ(harness_.read(*client_, a, kHost), 1U);
}

TEST_F(Losses, WhatWasOnItsWayThereOrBackComesToRest) {
  const Handle up = harness_.create(*client_, "up", kMiB);
  const Handle down = harness_.create(*client_, "down", kMiB);
  harness_.write(*client_, up, 1, kHost);
  harness_.write(*client_, down, 2);
  const RequestId going = harness_.send(client_->id, Acquire{kDevice, shm::Mode::kRead, {up}});
  const RequestId coming = harness_.send(client_->id, Move{kHost, {down}});
  ASSERT_EQ(harness_.transfers.size(), 2U);
  EXPECT_THAT(fail_device(), testing::IsEmpty());
  while (!harness_.transfers.empty()) harness_.complete_transfer(0, kWhy, kDeviceTier);
  EXPECT_FALSE(harness_.reply(going));
  EXPECT_FALSE(harness_.reply(coming));
  EXPECT_EQ(harness_.read(*client_, up, kHost), 1U);
  EXPECT_THAT(refusal(down, kHost, shm::Mode::kRead, ErrorCode::kDataLoss), HasSubstr("'down'"));
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 1U);
}

TEST_F(Losses, WhatArrivesThereAllTheSameIsGivenUp) {
  const Handle leased = harness_.create(*client_, "leased", kMiB);
  const Handle moved = harness_.create(*client_, "moved", kMiB);
  for (const Handle each : {leased, moved}) harness_.write(*client_, each, 1, kHost);
  const RequestId acquire = harness_.send(client_->id, Acquire{kDevice, shm::Mode::kWrite, {leased}});
  const RequestId move = harness_.send(client_->id, Move{kDevice, {moved}});
  harness_.complete_orders();
  ASSERT_EQ(harness_.transfers.size(), 2U);
  EXPECT_THAT(fail_device(), testing::IsEmpty());
  while (!harness_.transfers.empty()) harness_.complete_transfer(0);
  EXPECT_TRUE(harness_.reply(acquire));
  EXPECT_TRUE(harness_.reply(move));
  EXPECT_NE(client_->slots[index(moved.slot)].place, kDevice);
  EXPECT_EQ(harness_.read(*client_, moved, kHost), 1U);
  ASSERT_EQ(client_->slots[index(leased.slot)].place, kDevice);
  ASSERT_TRUE(Harness::release_in_table(*client_, leased, shm::Mode::kWrite)) << "it rings";
  harness_.engine->lease_ended(harness_.now, client_->id);
  EXPECT_THAT(lost(), testing::ElementsAre("leased")) << "before anybody asks for it";
}

// A successor need not wait for what is lost: the catalog says so, and takes it back where the device serves again.
TEST_F(Losses, TheCatalogSaysThatADeviceHasLostWhatItHad) {
  harness_.write(*client_, harness_.create(*client_, "a", kMiB), 1);
  EXPECT_EQ(harness_.catalog.tiers()[0].lost, 0u);
  harness_.engine->tier_failed(harness_.now, kDeviceTier, {ErrorCode::kDataLoss, "cuda:0 is lost", 0});
  EXPECT_THAT(lost(), testing::ElementsAre("a"));
  EXPECT_EQ(harness_.catalog.tiers()[0].lost, 1u);
}

TEST_F(Losses, WhoWaitsForRoomThereIsTold) {
  const Handle a = harness_.create(*client_, "a", 4 * kMiB);
  const Handle b = harness_.create(*client_, "b", 4 * kMiB);
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {a}));
  const RequestId waits = harness_.send(client_->id, Acquire{kDevice, shm::Mode::kOverwrite, {b}});
  EXPECT_FALSE(harness_.answered(waits));
  harness_.engine->tier_failed(harness_.now, kDeviceTier, kWhy);
  harness_.drain();
  const auto refused = harness_.reply(waits);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("'b'"));
}

TEST_F(Losses, NobodyIsGuaranteedMemoryThereAnyMore) {
  harness_.write(*client_, harness_.create(*client_, "a", 4 * kMiB), 1);  // the first session has mapped all of it
  fail_device();
  OpenSession open;
  open.guarantees = {{kDevice, kSegment}};
  ASSERT_EQ(harness_.open(open), nullptr) << "at once";
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kUnavailable);
  EXPECT_THAT(
      harness_.refusal.message,
      HasSubstr("a guarantee of 2097152 bytes in device:0 cannot be had, which does not serve (cuda:0 is lost)"));
  open.guarantees = {{kDevice, 0}, {kHost, 0}};
  EXPECT_NE(harness_.open(open), nullptr);
  const Harness::Client* second = harness_.open();
  ASSERT_NE(second, nullptr) << "it need not wait for memory that nobody can use";
  const Handle b = harness_.create(*second, "b", kMiB);
  harness_.write(*second, b, 2, kHost);
  EXPECT_EQ(harness_.read(*second, b, kHost), 2U);
}

TEST_F(Losses, WhoWaitsForAGuaranteeThereIsTold) {
  const Handle a = harness_.create(*client_, "a", 4 * kMiB);
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {a}));
  std::vector<std::unique_ptr<Harness::Client>> waiting;
  const auto opens = [&](std::vector<Guarantee> guarantees) {
    waiting.push_back(std::make_unique<Harness::Client>(8));
    OpenSession open;
    open.table = waiting.back()->table;
    open.guarantees = std::move(guarantees);
    const RequestId id = harness_.send(SessionId{}, open);
    harness_.settle();
    EXPECT_FALSE(harness_.answered(id));
    return id;
  };
  const RequestId asks = opens({{kDevice, kSegment}, {kHost, 0}});
  const RequestId does_not = opens({{kHost, 0}});
  EXPECT_TRUE(client_->table.load(a.slot).lent) << "it is asked back";
  harness_.engine->tier_failed(harness_.now, kDeviceTier, kWhy);
  harness_.drain();
  const auto refused = harness_.reply(asks);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("in device:0 cannot be had"));
  const auto opened = harness_.reply(does_not);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(std::get<SessionOpened>(*opened).places[0].guarantee_bytes, 0U);
}

class LostSegments : public Losses {
 protected:
  // The daemon ends, and its successor has all but the first segment of the device.
  void restart_without_first() {
    const LostSegment first{client_->space, kDeviceTier, {0, kSegment}, "it cannot be imported"};
    harness_.restart([] { return true; }, false, {&first, 1});
    harness_.settle();
  }
  std::uint64_t offset(Handle handle) const { return client_->slots[index(handle.slot)].offset; }

  const Handle first_ = harness_.create(*client_, "first", kSegment);
  const Handle second_ = harness_.create(*client_, "second", kSegment);
};

TEST_F(LostSegments, OnlyWhatLayThereIsLost) {
  const Handle straddles = harness_.create(*client_, "straddles", kSegment + kMiB);
  const Handle host = harness_.create(*client_, "host", kMiB);
  harness_.write(*client_, first_, 1);
  harness_.write(*client_, second_, 2);
  harness_.write(*client_, host, 3, kHost);
  ASSERT_EQ(offset(first_), 0U);
  ASSERT_EQ(offset(second_), kSegment);
  restart_without_first();
  EXPECT_THAT(refusal(first_, kHost, shm::Mode::kRead, ErrorCode::kDataLoss),
              AllOf(HasSubstr("'first'"), HasSubstr("with device:0 (it cannot be imported)")));
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 1U);
  EXPECT_EQ(harness_.read(*client_, second_, kHost), 2U);
  EXPECT_EQ(harness_.read(*client_, host, kHost), 3U);
  for (const Handle each : {first_, second_, host}) {
    harness_.write(*client_, each, 4);
    EXPECT_GE(offset(each), kSegment) << "nothing is given out there any more";
    EXPECT_EQ(harness_.read(*client_, each, kHost), 4U);
  }
  EXPECT_FALSE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {straddles}));
  harness_.restart([] { return true; });
  EXPECT_EQ(harness_.read(*client_, second_, kHost), 4U);
  EXPECT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {straddles})) << "it came back";
}

TEST_F(LostSegments, WhatHasBytesElsewhereIsReadFromThere) {
  harness_.write(*client_, first_, 5);
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {first_}}));
  ASSERT_EQ(harness_.read(*client_, first_), 5U);
  ASSERT_EQ(offset(first_), 0U);
  restart_without_first();
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 0U);
  EXPECT_EQ(harness_.read(*client_, first_, kHost), 5U);
}

TEST_F(LostSegments, APlaceThatIsKeptThereIsWrittenByNobody) {
  harness_.write(*client_, first_, 1);
  ASSERT_TRUE(harness_.ask(client_->id, Pin{kDevice, {first_}}));
  restart_without_first();
  EXPECT_THAT(refusal(first_, kDevice, shm::Mode::kOverwrite, ErrorCode::kUnavailable),
              AllOf(HasSubstr("'first'"), HasSubstr("it cannot be imported"), HasSubstr("unpin it")));
  ASSERT_TRUE(harness_.ask(client_->id, Unpin{{first_}}));
  harness_.write(*client_, first_, 2);
  EXPECT_EQ(offset(first_), kSegment);
  EXPECT_EQ(harness_.read(*client_, first_, kHost), 2U);
}

// Its trainer may not have had the answer to an earlier try, and would not know what to unpin.
TEST_F(LostSegments, WhoIsRefusedAPlaceThereHasNone) {
  for (const bool whole : {false, true}) {
    harness_.write(*client_, first_, 5, kHost);
    ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {first_}}));
    ASSERT_TRUE(harness_.ask(client_->id, Pin{kDevice, {first_}}));
    if (whole)
      harness_.engine->tier_failed(harness_.now, kDeviceTier, kWhy);
    else
      restart_without_first();
    EXPECT_EQ(harness_.read(*client_, first_, kHost).error().code, ErrorCode::kFailedPrecondition) << "it is pinned";
    EXPECT_EQ(harness_.ask(client_->id, Pin{kDevice, {first_}}).error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(harness_.read(*client_, first_, kHost), 5U);
  }
}

// Homes in a device are moved when room is there and not side by side.
class LostTargets : public ::testing::Test {
 protected:
  // Of tensors of these sizes, in MiB, which lie side by side, the one before the last goes, and the last slides down
  // for one of `room` MiB, which a restart without the first segment breaks off. What is read of the last one then.
  static Result<std::uint64_t> slide_into_nothing(const std::vector<std::uint64_t>& sizes, std::uint64_t room) {
    Options options = three_tiers(6 * kMiB);
    options.tiers.resize(1);
    Harness harness(options);
    OpenSession open;
    open.maps_segments = true;
    Harness::Client& client = *harness.open(open);
    std::vector<Handle> tensors;
    for (const std::uint64_t size : sizes)
      tensors.push_back(harness.create(client, std::to_string(tensors.size()), size * kMiB));
    harness.write(client, tensors.back(), 7);
    EXPECT_TRUE(harness.ask(client.id, DeleteTensors{{tensors[tensors.size() - 2]}}));
    harness.send(client.id, CreateTensors{{spec_of("large", room * kMiB)}});
    harness.complete_orders();
    EXPECT_EQ(harness.transfers.size(), 1U);
    EXPECT_LT(harness.transfers[0].to.pieces.span()[0].offset, kSegment);
    EXPECT_GE(harness.transfers[0].from.pieces.span()[0].offset, kSegment);
    const LostSegment first{client.space, kDeviceTier, {0, kSegment}, "it cannot be imported"};
    harness.restart([] { return true; }, false, {&first, 1});
    harness.settle();
    EXPECT_EQ(harness.status().tiers[0].lost_tensors, 0U);
    return harness.read(client, tensors.back());
  }
};

TEST_F(LostTargets, OfASlideCostNothing) {
  const auto apart = slide_into_nothing({2, 1}, 4);
  ASSERT_TRUE(apart) << apart.error().message;
  EXPECT_EQ(*apart, 7U);
  const auto overlapping = slide_into_nothing({1, 1, 2}, 3);
  ASSERT_TRUE(overlapping) << overlapping.error().message;
  EXPECT_EQ(*overlapping, 7U);
}

TEST_F(LostSegments, ALeaseThereStands) {
  harness_.write(*client_, first_, 6);
  const shm::Step leased = shm::acquire(client_->table.word(first_.slot), first_.incarnation, shm::Mode::kRead);
  ASSERT_EQ(leased.outcome, shm::Outcome::kDone);
  restart_without_first();
  EXPECT_EQ(harness_.look(*client_, first_), 6U);
  EXPECT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kRead, {first_})) << "another one beside it too";
  harness_.release(*client_, first_, shm::Mode::kRead);
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 0U);
  harness_.release(*client_, first_, shm::Mode::kRead);
  EXPECT_EQ(harness_.status().tiers[0].lost_tensors, 1U);
  EXPECT_THAT(refusal(first_, kHost, shm::Mode::kRead, ErrorCode::kDataLoss), HasSubstr("'first'"));
  harness_.write(*client_, first_, 7);
  EXPECT_EQ(offset(first_), kSegment);
}

}  // namespace
}  // namespace terrace::engine

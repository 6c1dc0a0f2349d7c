// SPDX-License-Identifier: Apache-2.0
// Shows that a failing transfer costs no bytes: a failed write-back leaves the source in place and retires the region,
// a lost tensor says so and harms no other, and what a writer did during a cleaning is not taken for written back.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

const TierId kBlockTier{2};

TEST(Failures, AFailedWriteBackKeepsTheSourceAndRetiresTheRegion) {
  Options options = three_tiers();
  options.spare_share = 0.25;
  Harness harness(options);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 21);
  const RequestId move = harness.send(client.id, Move{shm::kPlaceBlock, {a}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  const auto bad = harness.transfers[0].to.pieces;
  harness.complete_transfer(0, Error{ErrorCode::kInternal, "write failed", 5}, kBlockTier);
  const auto failed = harness.reply(move);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("write failed"));
  EXPECT_EQ(harness.read(client, a), 21u);
  const TierStatus block = harness.status().tiers[2];
  EXPECT_EQ(block.io_errors, 1u);
  EXPECT_EQ(block.retired_bytes, kMiB);
  EXPECT_EQ(block.used_bytes, kMiB) << "it has another home now";
  harness.send(client.id, Move{shm::kPlaceBlock, {a}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  EXPECT_NE(harness.transfers[0].to.pieces, bad);
  harness.settle();
  EXPECT_EQ(harness.read(client, a), 21u);
}

TEST(Failures, AnAdmissionLearnsThatTheWriteBackItWaitedForFailed) {
  Options options = three_tiers(2 * kMiB, 2 * kMiB);
  options.tiers.erase(options.tiers.begin() + 1);
  Harness harness(options);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", 2 * kMiB);
  const Handle b = harness.create(client, "b", 2 * kMiB);
  harness.write(client, a, 1);
  const RequestId waits = harness.send(client.id, Acquire{kDevice, shm::Mode::kOverwrite, {b}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.complete_transfer(0, Error{ErrorCode::kInternal, "write failed", 5}, TierId{1});
  const auto failed = harness.reply(waits);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("'a'"));
  EXPECT_EQ(harness.read(client, a), 1u);
  EXPECT_TRUE(harness.acquire(client, kDevice, shm::Mode::kOverwrite, {b})) << "the region was replaced";
}

TEST(Failures, OfADiskThatRefusesEveryWriteWhoeverWaitsHearsByItsDeadline) {
  Harness harness(three_tiers(2 * kMiB, 2 * kMiB));
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", 2 * kMiB);
  const Handle b = harness.create(client, "b", 2 * kMiB);
  const Handle c = harness.create(client, "c", 2 * kMiB);
  const auto settle_failing = [&] {
    for (int i = 0; i < 50 && !(harness.transfers.empty() && harness.orders.empty()); ++i) {
      harness.complete_orders();
      if (harness.transfers.empty()) continue;
      if (harness.transfers[0].link.kind == mover::LinkKind::kBlockWrite)
        harness.complete_transfer(0, Error{ErrorCode::kInternal, "write failed", 5}, kBlockTier);
      else
        harness.complete_transfer(0);
    }
    EXPECT_TRUE(harness.transfers.empty()) << "not tried for ever";
  };
  harness.send(client.id, Acquire{kHost, shm::Mode::kOverwrite, {a}});
  settle_failing();
  harness.fill(client, a, 1);
  harness.release(client, a, shm::Mode::kOverwrite);
  harness.send(client.id, Acquire{kDevice, shm::Mode::kOverwrite, {b}});
  settle_failing();
  harness.fill(client, b, 2);
  harness.release(client, b, shm::Mode::kOverwrite);
  const Time deadline = harness.now + Duration(10);
  const RequestId waits = harness.send(client.id, Acquire{kDevice, shm::Mode::kOverwrite, {c}}, deadline);
  settle_failing();
  EXPECT_FALSE(harness.answered(waits)) << "it may work again until then";
  harness.advance(deadline);
  const auto failed = harness.reply(waits);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("write failed"));
  EXPECT_EQ(harness.read(client, b), 2u);
  EXPECT_EQ(harness.read(client, a, kHost), 1u);
}

TEST(Failures, BitRotIsDataLossForThatTensorAlone) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  const Handle b = harness.create(client, "b", kMiB);
  harness.write(client, a, 1);
  harness.write(client, b, 2);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  harness.corrupt_disk();
  const auto set = harness.acquire(client, kDevice, shm::Mode::kRead, {a, b});
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, ErrorCode::kDataLoss);
  EXPECT_THAT(set.error().message, HasSubstr("'a'"));
  EXPECT_FALSE(client.table.load(b.slot).leased());
  EXPECT_EQ(harness.read(client, b), 2u);
  EXPECT_EQ(harness.read(client, a).error().code, ErrorCode::kDataLoss) << "until it is overwritten";
  EXPECT_EQ(harness.acquire(client, kDevice, shm::Mode::kWrite, {a}).error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(harness.status().tiers[2].checksum_failures, 1u);
  harness.write(client, a, 3);
  EXPECT_EQ(harness.read(client, a), 3u);
}

TEST(Failures, BytesThatTheDeviceGivesUpAreLostAndItsRegionIsRetired) {
  Options options = three_tiers();
  options.spare_share = 0.25;
  Harness harness(options);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  const Handle b = harness.create(client, "b", kMiB);
  harness.write(client, a, 1);
  harness.write(client, b, 2);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a, b}}));
  const RequestId reads = harness.send(client.id, Acquire{kDevice, shm::Mode::kRead, {a}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  const auto bad = harness.transfers[0].from.pieces;
  harness.complete_transfer(0, Error{ErrorCode::kDataLoss, "the device has lost them", 5}, kBlockTier);
  EXPECT_EQ(harness.reply(reads).error().code, ErrorCode::kDataLoss);
  const TierStatus block = harness.status().tiers[2];
  EXPECT_EQ(block.io_errors, 1u);
  EXPECT_EQ(block.checksum_failures, 0u);
  EXPECT_EQ(block.retired_bytes, kMiB);
  EXPECT_EQ(harness.read(client, b), 2u) << "nobody else is harmed";
  harness.write(client, a, 3);
  harness.send(client.id, Move{shm::kPlaceBlock, {a}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  EXPECT_NE(harness.transfers[0].to.pieces, bad);
  harness.settle();
  EXPECT_EQ(harness.read(client, a), 3u);
}

TEST(Failures, ADeviceThatDoesNotAnswerLosesNothing) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 1);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  const RequestId reads = harness.send(client.id, Acquire{kDevice, shm::Mode::kRead, {a}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.complete_transfer(0, Error{ErrorCode::kInternal, "read failed", 5}, kBlockTier);
  EXPECT_EQ(harness.reply(reads).error().code, ErrorCode::kInternal);
  EXPECT_EQ(harness.read(client, a), 1u);
}

TEST(Failures, ZerosThatCouldNotBeWrittenLoseNothing) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  const RequestId writes = harness.send(client.id, Acquire{kDevice, shm::Mode::kWrite, {a}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  ASSERT_TRUE(harness.transfers[0].zero_fill);
  harness.complete_transfer(0, Error{ErrorCode::kDataLoss, "no answer", 0}, TierId{0});
  EXPECT_THAT(harness.reply(writes).error().message, HasSubstr("tensor 'a': no answer"));
  EXPECT_EQ(harness.read(client, a).error().code, ErrorCode::kFailedPrecondition) << "never written, and not lost";
  ASSERT_TRUE(harness.acquire(client, kDevice, shm::Mode::kWrite, {a}));
  EXPECT_EQ(harness.look(client, a), 0u);
}

TEST(Failures, AWriteDuringACleaningIsNotTakenForWrittenBack) {
  Harness harness(three_tiers(2 * kMiB, 4 * kMiB));
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (const Handle tensor : tensors) {
    const RequestId leased = harness.send(client.id, Acquire{kHost, shm::Mode::kOverwrite, {tensor}});
    harness.complete_orders();
    ASSERT_TRUE(harness.reply(leased));
    harness.fill(client, tensor, 7);
    harness.release(client, tensor, shm::Mode::kOverwrite);
  }
  harness.advance(harness.now + Duration(1));
  ASSERT_FALSE(harness.transfers.empty()) << "the coldest is being cleaned";
  const Handle cold = tensors[0];
  LeaseTable table = client.table;
  ASSERT_EQ(shm::acquire(table.word(cold.slot), cold.incarnation, shm::Mode::kWrite).outcome, shm::Outcome::kDone)
      << "the fast path stays open meanwhile";
  harness.fill(client, cold, 8);
  harness.release(client, cold, shm::Mode::kWrite);
  harness.settle();
  ASSERT_TRUE(harness.ask(client.id, Evict{{cold}}));
  EXPECT_EQ(harness.read(client, cold), 8u);
}

// A tensor whose bytes on the block tier are others; what became of the proof that follows.
std::uint64_t retired_after(std::optional<Error> proof) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 5000);
  EXPECT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  harness.corrupt_disk();
  const RequestId read = harness.send(client.id, Acquire{kHost, shm::Mode::kRead, {a}});
  harness.complete_orders();
  harness.complete_transfer(0);
  EXPECT_EQ(harness.reply(read).error().code, ErrorCode::kDataLoss) << "before anything is proved";
  EXPECT_EQ(harness.transfers.size(), 1u);
  EXPECT_TRUE(harness.transfers.at(0).prove);
  const RequestId write = harness.send(client.id, Acquire{kHost, shm::Mode::kOverwrite, {a}});
  EXPECT_FALSE(harness.answered(write)) << "it waits for where its bytes will be";
  harness.complete_transfer(0, std::move(proof), kBlockTier);
  harness.settle();
  EXPECT_TRUE(harness.reply(write).has_value());
  harness.fill(client, a, 7000);
  harness.release(client, a, shm::Mode::kOverwrite);
  EXPECT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  EXPECT_EQ(harness.read(client, a), 7000u);
  return harness.status().tiers[2].retired_bytes;
}

TEST(Failures, ARegionWhoseBytesAreOthersIsProvedAndKept) { EXPECT_EQ(retired_after({}), 0u); }

TEST(Failures, ARegionThatFailsItsProofIsRetired) {
  EXPECT_EQ(retired_after(Error{ErrorCode::kInternal, "came back otherwise", 5}), kMiB);
}

TEST(Failures, WithNoSpareLeftTheHomeStands) {
  Harness harness(three_tiers(4 * kMiB, 8 * kMiB, kMiB));
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 5);
  harness.send(client.id, Move{shm::kPlaceBlock, {a}});
  harness.complete_transfer(0, Error{ErrorCode::kInternal, "write failed", 5}, kBlockTier);
  EXPECT_EQ(harness.status().tiers[2].retired_bytes, 0u);
  EXPECT_EQ(harness.read(client, a), 5u);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}})) << "it may work the next time";
  EXPECT_EQ(harness.read(client, a), 5u);
}

TEST(Failures, WithoutRoomForANoteNothingIsGranted) {
  Harness harness(three_tiers());
  OpenSession open;
  open.maps_segments = true;
  const auto& client = *harness.open(open);
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 21);
  const std::vector<GrantedSlot> many(65536);
  const GrantRecord grant{.kind = GrantRecord::Kind::kLeases, .count = static_cast<std::uint32_t>(many.size())};
  while (harness.catalog.has_room_for_note(many.size())) harness.catalog.note(grant, many);
  while (harness.catalog.has_room_for_note(0)) harness.catalog.note({.kind = GrantRecord::Kind::kStep}, {});
  const auto refused = [&](Body body) {
    const auto result = harness.ask(client.id, std::move(body));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(result.error().message, HasSubstr("ask again"));
  };
  refused(Acquire{kDevice, shm::Mode::kOverwrite, {a}});
  refused(CreateTensors{{spec_of("b", kMiB)}});
  refused(MarkStep{});
  EXPECT_EQ(harness.status().steps, 0u);
  harness.catalog.forget_notes();
  EXPECT_EQ(harness.read(client, a), 21u) << "no lease was taken, and the content is not given up";
  harness.create(client, "b", kMiB);
}

TEST(Failures, ASuccessorSaysWhatItsPredecessorWasKilledIn) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  const Handle b = harness.create(client, "b", kMiB);
  harness.write(client, a, 1);
  harness.write(client, b, 2);
  harness.send(client.id, Move{shm::kPlaceBlock, {a}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.restart([] { return true; });
  const Restored restored = harness.status().restored;
  EXPECT_EQ(restored.sessions, 1u);
  EXPECT_EQ(restored.tensors, 2u);
  EXPECT_EQ(restored.transfers, 1u);
  harness.settle();
  harness.restart([] { return true; });
  EXPECT_EQ(harness.status().restored.transfers, 0u) << "of the last death alone";
  EXPECT_EQ(harness.read(client, a), 1u);
}

}  // namespace
}  // namespace terrace::engine

// SPDX-License-Identifier: Apache-2.0
// Shows what a block tier that takes no writes, for a reason that is not a region's, costs: nobody a byte, and nothing
// of the capacity once the reason has passed. It is told from a bad region, said once, tried with growing pauses, and
// ends by itself. Retired regions are tested while the tier is idle, and given back. All by a clock that the test
// moves.
#include "engine/links/outage.h"

#include <gmock/gmock.h>

#include <cerrno>

#include "harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

constexpr TierId kBlockTier{2};
constexpr Pauses kTries{Duration(10), Duration(40)};
constexpr Pauses kTests{Duration(100), Duration(400)};

Error full() { return {ErrorCode::kResourceExhausted, "No space left on device", ENOSPC}; }
Error bad() { return {ErrorCode::kInternal, "Input/output error", EIO}; }

// On which tensors of a mebibyte are written, and fail to be written down.
class Outages : public ::testing::Test {
 protected:
  static Options options() {
    Options options = three_tiers(2 * kMiB, 6 * kMiB, 64 * kMiB);
    options.outage_pauses = kTries;
    options.retired_pauses = kTests;
    options.spare_share = 0.25;
    return options;
  }
  Handle written(const std::string& name, std::uint64_t value) {
    const Handle handle = harness_.create(client_, name, kMiB);
    harness_.write(client_, handle, value, kHost);
    return handle;
  }
  // Whether it was begun to be written down.
  bool begins_out(Handle tensor) {
    asked_ = harness_.send(client_.id, Move{shm::kPlaceBlock, {tensor}});
    return harness_.transfers.size() == 1;
  }
  Result<ReplyBody> fails_out(Handle tensor, const Error& error) {
    EXPECT_TRUE(begins_out(tensor));
    harness_.complete_transfer(0, error, kBlockTier);
    return harness_.reply(asked_);
  }
  TierStatus block() { return harness_.status().tiers[2]; }
  bool is_out() { return !block().write_failure.empty(); }
  // The next try is due, and nothing else: it is under way.
  void expect_try_after(Duration pause) {
    harness_.advance(harness_.now + (pause - Duration(1)));
    EXPECT_TRUE(harness_.transfers.empty()) << "not before";
    harness_.advance(harness_.now + Duration(1));
    ASSERT_EQ(harness_.transfers.size(), 1u);
    EXPECT_TRUE(harness_.transfers[0].prove);
  }

  Harness harness_{options()};
  const Harness::Client& client_ = *harness_.open();
  RequestId asked_{};
};

TEST_F(Outages, OfAFullFileSystemKeepEveryCopyAndEndByThemselves) {
  const Handle a = written("a", 1);
  const Handle b = written("b", 2);
  EXPECT_EQ(fails_out(a, full()).error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(block().write_failure, HasSubstr("No space left"));
  EXPECT_EQ(block().write_outages, 1u);
  EXPECT_FALSE(begins_out(b)) << "nothing is written meanwhile";
  const auto refused = harness_.reply(asked_);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("'b'"));
  EXPECT_EQ(block().retired_bytes, kMiB) << "where it is tried, and no more";
  harness_.create(client_, "c", kMiB);
  for (const Duration pause : {Duration(10), Duration(20), Duration(40), Duration(40)}) {
    expect_try_after(pause);
    harness_.complete_transfer(0, full(), kBlockTier);
    EXPECT_TRUE(is_out());
  }
  expect_try_after(Duration(40));
  harness_.settle();
  EXPECT_FALSE(is_out());
  EXPECT_EQ(block().retired_bytes, 0u) << "nothing of the capacity is gone";
  EXPECT_TRUE(harness_.ask(client_.id, Move{shm::kPlaceBlock, {a, b}}));
  EXPECT_EQ(harness_.read(client_, a), 1u);
  EXPECT_EQ(harness_.read(client_, b), 2u);
}

TEST_F(Outages, OfADeviceAreToldFromABadRegion) {
  const Handle good = written("good", 9);
  std::vector<Handle> tensors;
  for (int i = 0; i < 3; ++i) tensors.push_back(written(std::to_string(i), 10 + static_cast<std::uint64_t>(i)));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(fails_out(tensors[0], bad()).error().code, ErrorCode::kInternal);
    EXPECT_FALSE(is_out()) << "one place fails, and others work";
    harness_.write(client_, good, 9, kHost);
    EXPECT_TRUE(harness_.ask(client_.id, Move{shm::kPlaceBlock, {good}}));
  }
  EXPECT_EQ(block().retired_bytes, 4 * kMiB);
  for (const Handle tensor : tensors) {
    EXPECT_FALSE(is_out());
    fails_out(tensor, bad());
  }
  EXPECT_TRUE(is_out()) << "three places, one after the other";
  harness_.advance(harness_.now + Duration(10));
  ASSERT_EQ(harness_.transfers.size(), 1u);
  EXPECT_TRUE(harness_.transfers[0].prove);
  harness_.settle();
  EXPECT_FALSE(is_out());
  harness_.settle();
  EXPECT_EQ(block().retired_bytes, 0u) << "they were tested as soon as it was over";
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(harness_.read(client_, tensors[i]), 10 + i);
}

TEST_F(Outages, HoldUpWhoNeedsRoomNoLongerThanItsDeadline) {
  std::vector<Handle> tensors;
  for (std::uint64_t i = 0; i < 6; ++i) {
    tensors.push_back(written(std::to_string(i), 5 + i));
    if (i == 0) fails_out(tensors[0], full());
  }
  const Handle fresh = harness_.create(client_, "fresh", 2 * kMiB);
  const Handle other = harness_.create(client_, "other", 2 * kMiB);
  const auto wants = [&](Handle handle, Duration patience) {
    const RequestId id =
        harness_.send(client_.id, Acquire{kHost, shm::Mode::kOverwrite, {handle}}, harness_.now + patience);
    harness_.complete_orders();
    return id;
  };
  const RequestId hasty = wants(fresh, Duration(5));
  harness_.advance(harness_.now + Duration(5));
  const auto late = harness_.reply(hasty);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.error().message, HasSubstr("No space left"));
  const RequestId patient = wants(other, Duration(1000));
  EXPECT_FALSE(harness_.answered(patient));
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(harness_.read(client_, tensors[i], kHost), 5 + i);
  harness_.advance(harness_.now + Duration(5));
  harness_.settle();
  EXPECT_TRUE(harness_.reply(patient).has_value()) << "it goes on by itself";
  harness_.release(client_, other, shm::Mode::kOverwrite);
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(harness_.read(client_, tensors[i]), 5 + i);
}

TEST_F(Outages, EndWhatWasQueuedAndLoseNothingThatReadsFindGone) {
  const Handle below = written("below", 4);
  ASSERT_TRUE(harness_.ask(client_.id, Move{shm::kPlaceBlock, {below}}));
  const Handle a = written("a", 1);
  const Error gone{ErrorCode::kInternal, "No such device", ENODEV};
  fails_out(a, gone);
  const RequestId reads = harness_.send(client_.id, Acquire{kHost, shm::Mode::kRead, {below}});
  harness_.complete_orders();
  ASSERT_EQ(harness_.transfers.size(), 1u) << "what is there may still be read";
  harness_.complete_transfer(0, Error{ErrorCode::kDataLoss, "Input/output error", EIO}, kBlockTier);
  EXPECT_EQ(harness_.reply(reads).error().code, ErrorCode::kUnavailable);
  harness_.advance(harness_.now + Duration(10));
  harness_.settle();
  EXPECT_EQ(harness_.read(client_, below), 4u) << "a device that came back";
}

TEST_F(Outages, OfADeviceThatFailsEveryReadLoseNoMoreThanItTakesToKnow) {
  std::vector<Handle> tensors;
  for (std::uint64_t i = 0; i < 5; ++i) tensors.push_back(written(std::to_string(i), 20 + i));
  ASSERT_TRUE(harness_.ask(client_.id, Move{shm::kPlaceBlock, tensors}));
  const Error lost{ErrorCode::kDataLoss, "Input/output error", EIO};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const RequestId reads = harness_.send(client_.id, Acquire{kHost, shm::Mode::kRead, {tensors[i]}});
    harness_.complete_orders();
    ASSERT_EQ(harness_.transfers.size(), 1u);
    harness_.complete_transfer(0, lost, kBlockTier);
    EXPECT_EQ(harness_.reply(reads).error().code, i < 2 ? ErrorCode::kDataLoss : ErrorCode::kUnavailable) << i;
  }
  EXPECT_TRUE(is_out());
  harness_.advance(harness_.now + Duration(10));
  harness_.settle();
  EXPECT_FALSE(is_out());
  for (std::size_t i = 2; i < tensors.size(); ++i) EXPECT_EQ(harness_.read(client_, tensors[i]), 20 + i);
}

TEST_F(Outages, WithNoRoomToTryAreTriedByWhateverIsToBeWritten) {
  Options small = options();
  small.tiers[2].capacity_bytes = kMiB;
  small.spare_share = 0;
  Harness harness(small);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 3, kHost);
  harness.send(client.id, Move{shm::kPlaceBlock, {a}});
  harness.complete_transfer(0, full(), kBlockTier);
  EXPECT_FALSE(harness.status().tiers[2].write_failure.empty());
  harness.advance(harness.now + Duration(10));
  EXPECT_TRUE(harness.transfers.empty());
  EXPECT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}})) << "this is the try";
  EXPECT_TRUE(harness.status().tiers[2].write_failure.empty());
  EXPECT_EQ(harness.read(client, a), 3u);
}

TEST_F(Outages, AreSaidOnceAsTheyBeginAndAsTheyEnd) {
  const Handle a = written("a", 1);
  begins_out(a);
  const TransferId transfer = harness_.transfers[0].id;
  harness_.transfers.clear();
  harness_.engine->transfer_done(harness_.now, {transfer, std::unexpected(full()), kBlockTier});
  Output output = harness_.engine->take_output();
  ASSERT_EQ(output.outages.size(), 1u);
  EXPECT_TRUE(output.outages[0].begins);
  EXPECT_EQ(output.outages[0].why.system_error, ENOSPC);
  harness_.now = harness_.now + Duration(10);
  harness_.engine->tick(harness_.now);
  output = harness_.engine->take_output();
  ASSERT_EQ(output.transfers.size(), 1u);
  EXPECT_TRUE(output.outages.empty());
  harness_.engine->transfer_done(harness_.now, {output.transfers[0].id, {}, {}});
  output = harness_.engine->take_output();
  ASSERT_EQ(output.outages.size(), 1u);
  EXPECT_FALSE(output.outages[0].begins);
  EXPECT_EQ(output.outages[0].lasted, Duration(10));
}

TEST_F(Outages, OfARegionThatWorksAgainItIsGivenBackInIdleTime) {
  const Handle a = written("a", 1);
  fails_out(a, bad());
  EXPECT_EQ(block().retired_bytes, kMiB);
  const Handle b = written("b", 2);
  begins_out(b);
  harness_.advance(harness_.now + Duration(100));
  ASSERT_EQ(harness_.transfers.size(), 1u) << "not beside others";
  harness_.complete_transfer(0);
  ASSERT_EQ(harness_.transfers.size(), 1u);
  EXPECT_TRUE(harness_.transfers[0].prove);
  harness_.complete_transfer(0, bad(), kBlockTier);
  EXPECT_EQ(block().retired_bytes, kMiB) << "it stays out of use";
  EXPECT_FALSE(is_out());
  expect_try_after(Duration(200));
  harness_.restart([] { return true; });
  EXPECT_EQ(block().retired_bytes, kMiB) << "over a restart too";
  harness_.advance(harness_.now + Duration(400));
  harness_.settle();
  EXPECT_EQ(block().retired_bytes, 0u);
  EXPECT_EQ(harness_.read(client_, a), 1u);
}

TEST(Outage, OfWritesThatSucceedBetweenThereIsNone) {
  Outage outage(kTries);
  for (std::uint64_t place = 0; place < 10; ++place) {
    EXPECT_EQ(outage.failed(Time{1}, Outage::Way::kWrite, place, bad()), Outage::Verdict::kRegion);
    EXPECT_FALSE(outage.succeeded(Time{1}, Outage::Way::kWrite));
  }
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(outage.failed(Time{1}, Outage::Way::kWrite, 7, bad()), Outage::Verdict::kRegion) << "one place";
  EXPECT_FALSE(outage.lasts());
}

TEST(Outage, OfWritesThatFailIsSeenBesideReadsThatDoNot) {
  Outage outage(kTries);
  for (std::uint64_t place = 0; place < 2; ++place) {
    EXPECT_EQ(outage.failed(Time{1}, Outage::Way::kWrite, place, bad()), Outage::Verdict::kRegion);
    outage.succeeded(Time{1}, Outage::Way::kRead);
  }
  EXPECT_EQ(outage.failed(Time{1}, Outage::Way::kWrite, 2, bad()), Outage::Verdict::kBegins);
}

TEST(Outage, SoonAfterAnotherIsTriedAsRarely) {
  Outage outage(kTries);
  EXPECT_EQ(outage.failed(Time{100}, Outage::Way::kWrite, 0, full()), Outage::Verdict::kBegins);
  EXPECT_EQ(outage.failed(Time{101}, Outage::Way::kWrite, 1, bad()), Outage::Verdict::kGoesOn);
  EXPECT_EQ(outage.next_try(), Time{110});
  outage.end(Time{110});
  outage.failed(Time{120}, Outage::Way::kWrite, 0, full());
  EXPECT_EQ(outage.next_try(), Time{140});
  outage.end(Time{140});
  outage.failed(Time{300}, Outage::Way::kWrite, 0, full());
  EXPECT_EQ(outage.next_try(), Time{310}) << "long after";
  EXPECT_EQ(outage.count(), 3u);
}

}  // namespace
}  // namespace terrace::engine

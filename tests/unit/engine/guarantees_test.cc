// SPDX-License-Identifier: Apache-2.0
// Shows that floors are backed by memory: what is handed out beyond them comes back when another session needs its own,
// two ranks that each hold what the other needs do not deadlock, and who cannot be served learns who holds what.
#include <gmock/gmock.h>

#include <algorithm>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

OpenSession with_floors(std::uint64_t device, std::uint64_t host) {
  OpenSession open;
  open.guarantees = {{kDevice, device}, {kHost, host}};
  return open;
}

std::uint64_t mapped(Harness& harness, std::size_t session, std::uint32_t place) {
  const Status status = harness.status();
  for (const auto& at : status.sessions[session].places)
    if (at.place == place) return at.mapped_bytes;
  return UINT64_MAX;
}

TEST(Guarantees, DefaultsAreHalfTheCapacityByTheRanks) {
  Harness harness(three_tiers(16 * kMiB, 64 * kMiB, 128 * kMiB));
  OpenSession open;
  open.local_world_size = 2;
  auto client = std::make_unique<Harness::Client>(8);
  open.table = client->table;
  const auto opened = harness.ask(SessionId{}, open);
  ASSERT_TRUE(opened);
  const auto& places = std::get<SessionOpened>(*opened).places;
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].place, kDevice);
  EXPECT_EQ(places[0].guarantee_bytes, 4 * kMiB);
  EXPECT_EQ(places[0].range_bytes, 16 * kMiB);
  EXPECT_EQ(places[1].guarantee_bytes, 16 * kMiB);
}

TEST(Guarantees, DefaultsAreByTheTenantsWeights) {
  Options options = three_tiers(16 * kMiB, 64 * kMiB, 128 * kMiB);
  options.weights = {1, 3};
  Harness harness(options);
  const auto floors = [&](std::uint32_t socket) {
    OpenSession open;
    open.tenant.socket = socket;
    const auto* client = harness.open(open);
    const SessionStatus last = harness.status().sessions.back();
    EXPECT_NE(client, nullptr);
    return std::vector<std::uint64_t>{last.places[0].guarantee_bytes, last.places[1].guarantee_bytes};
  };
  EXPECT_EQ(floors(0), (std::vector<std::uint64_t>{4 * kMiB, 16 * kMiB}));
  EXPECT_EQ(floors(1), (std::vector<std::uint64_t>{12 * kMiB, 48 * kMiB}));
}

TEST(Guarantees, AHeavyTenantLeavesTheOthersTheirs) {
  Options options = three_tiers(16 * kMiB, 64 * kMiB, 128 * kMiB);
  options.weights = {100, 1, 1};
  Harness harness(options);
  for (const std::uint32_t socket : {0u, 1u, 2u}) {
    OpenSession open;
    open.tenant.socket = socket;
    EXPECT_NE(harness.open(open), nullptr) << harness.refusal.message;
  }
}

TEST(Guarantees, NonsenseIsNamed) {
  Harness harness(three_tiers());
  EXPECT_EQ(harness.open(with_floors(5 * kMiB, 0)), nullptr);
  EXPECT_EQ(harness.refusal.code, ErrorCode::kResourceExhausted);
  OpenSession open;
  open.guarantees = {{9, 1}};
  EXPECT_EQ(harness.open(open), nullptr);
  EXPECT_EQ(harness.refusal.code, ErrorCode::kNotFound);
  open.guarantees = {{kHost, 1}, {kHost, 2}};
  EXPECT_EQ(harness.open(open), nullptr);
  EXPECT_EQ(harness.refusal.code, ErrorCode::kInvalidArgument);
}

TEST(Guarantees, ASessionAloneHasEverythingAndGivesItBack) {
  Harness harness(three_tiers());
  const auto& first = *harness.open(with_floors(2 * kMiB, 2 * kMiB));
  std::vector<Handle> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(harness.create(first, std::to_string(i), kMiB));
  for (const Handle tensor : tensors) harness.write(first, tensor, 50);
  EXPECT_EQ(mapped(harness, 0, kDevice), 4 * kMiB);
  for (const Handle tensor : tensors) EXPECT_FALSE(first.table.load(tensor.slot).lent);
  const auto* second = harness.open(with_floors(2 * kMiB, 2 * kMiB));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(mapped(harness, 0, kDevice), 2 * kMiB);
  const Handle a = harness.create(*second, "a", 2 * kMiB);
  harness.write(*second, a, 60);
  EXPECT_EQ(harness.read(*second, a), 60u);
  for (const Handle tensor : tensors) EXPECT_EQ(harness.read(first, tensor), 50u);
  EXPECT_GT(harness.status().tiers[0].evictions[static_cast<std::size_t>(EvictionReason::kTakenBack)], 0u);
}

TEST(Guarantees, OpenWaitsForLeasesBeyondTheFloor) {
  Harness harness(three_tiers());
  const auto& first = *harness.open(with_floors(2 * kMiB, 0));
  const Handle a = harness.create(first, "a", 2 * kMiB);
  const Handle b = harness.create(first, "b", 2 * kMiB);
  for (const Handle tensor : {a, b}) {
    harness.write(first, tensor, 1);
    ASSERT_TRUE(harness.acquire(first, kDevice, shm::Mode::kRead, {tensor}));
  }
  Harness::Client waiting(8);
  OpenSession open = with_floors(2 * kMiB, 0);
  open.table = waiting.table;
  const RequestId opens = harness.send(SessionId{}, open, harness.now + Duration(100));
  harness.settle();
  EXPECT_FALSE(harness.answered(opens));
  const bool b_behind = first.slots[index(b.slot)].offset >= 2 * kMiB;
  const Handle behind = b_behind ? b : a;
  EXPECT_TRUE(first.table.load(behind.slot).lent);
  EXPECT_TRUE(first.table.load(behind.slot).wanted);
  EXPECT_FALSE(first.table.load((b_behind ? a : b).slot).lent) << "the floor itself stays on the fast path";
  const Handle c = harness.create(first, "c", 2 * kMiB);
  const auto beyond = harness.acquire(first, kDevice, shm::Mode::kOverwrite, {c});
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kResourceExhausted) << "beyond its guarantee: at once, without a wait";
  harness.release(first, behind, shm::Mode::kRead);
  harness.settle();
  EXPECT_TRUE(harness.reply(opens));
}

TEST(Guarantees, AnOpenThatCannotBeServedNamesWhoHoldsWhat) {
  Harness harness(three_tiers());
  OpenSession greedy = with_floors(4 * kMiB, 0);
  greedy.label = "rank 3";
  greedy.pid = 4711;
  ASSERT_NE(harness.open(greedy), nullptr);
  Harness::Client waiting(8);
  OpenSession open = with_floors(2 * kMiB, 0);
  open.table = waiting.table;
  const RequestId opens = harness.send(SessionId{}, open, harness.now + Duration(10));
  EXPECT_FALSE(harness.answered(opens));
  harness.advance(harness.now + Duration(10));
  const auto refused = harness.reply(opens);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("pid 4711, rank 3"));
  const RequestId again = harness.send(SessionId{}, open, harness.now + Duration(10));
  ASSERT_TRUE(harness.ask(harness.clients[0]->id, CloseSession{}));
  EXPECT_TRUE(harness.reply(again)) << "a session that closes lets the next one in";
}

TEST(Guarantees, WhoNeverGivesMemoryBackCostsOthersTheirDeadlineUntilItDies) {
  Harness harness(three_tiers());
  const auto& mute = *harness.open(with_floors(2 * kMiB, 2 * kMiB));
  std::vector<Handle> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(harness.create(mute, std::to_string(i), kMiB));
  for (const Handle tensor : tensors) harness.write(mute, tensor, 50);
  ASSERT_EQ(mapped(harness, 0, kDevice), 4 * kMiB);
  Harness::Client waiting(8);
  OpenSession open = with_floors(2 * kMiB, 2 * kMiB);
  open.table = waiting.table;
  const RequestId opens = harness.send(SessionId{}, open, harness.now + std::chrono::seconds(2));
  while (!harness.transfers.empty()) harness.complete_transfer(0);
  ASSERT_FALSE(harness.orders.empty()) << "it is asked to unmap, and does not answer";
  harness.advance(harness.now + std::chrono::milliseconds(1999));
  EXPECT_FALSE(harness.answered(opens));
  harness.advance(harness.now + std::chrono::milliseconds(1));
  const auto refused = harness.reply(opens);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted) << refused.error().message;
  EXPECT_EQ(mapped(harness, 0, kDevice), 4 * kMiB) << "what it may still map is nobody else's";
  harness.engine->session_died(harness.now, mute.id);
  harness.settle();
  EXPECT_NE(harness.open(with_floors(2 * kMiB, 2 * kMiB)), nullptr);
}

TEST(Guarantees, TwoRanksThatEachHoldHalfDoNotDeadlock) {
  Harness harness(three_tiers());
  const auto& one = *harness.open(with_floors(2 * kMiB, 4 * kMiB));
  const auto& two = *harness.open(with_floors(2 * kMiB, 4 * kMiB));
  std::vector<Handle> ones;
  std::vector<Handle> twos;
  for (int i = 0; i < 4; ++i) {
    ones.push_back(harness.create(one, std::to_string(i), kMiB));
    twos.push_back(harness.create(two, std::to_string(i), kMiB));
    harness.write(one, ones.back(), 1);
    harness.write(two, twos.back(), 2);
  }
  ASSERT_TRUE(harness.acquire(one, kDevice, shm::Mode::kRead, {ones[0]}));
  ASSERT_TRUE(harness.acquire(two, kDevice, shm::Mode::kRead, {twos[0]}));
  EXPECT_TRUE(harness.acquire(one, kDevice, shm::Mode::kRead, {ones[1]})) << "within the floor, whoever holds what";
  EXPECT_TRUE(harness.acquire(two, kDevice, shm::Mode::kRead, {twos[1]}));
  const auto third = harness.acquire(one, kDevice, shm::Mode::kRead, {ones[2]}, harness.now + Duration(1));
  EXPECT_FALSE(third) << "its own leases are in the way";
}

TEST(Guarantees, AFloorHoldsAgainstFragmentation) {
  Harness harness(three_tiers(4 * kMiB, 8 * kMiB));
  const auto& client = *harness.open(with_floors(4 * kMiB, 8 * kMiB));
  std::vector<Handle> small;
  for (int i = 0; i < 8; ++i) small.push_back(harness.create(client, std::to_string(i), kMiB / 2));
  const Handle big = harness.create(client, "big", 3 * kMiB);
  for (const Handle tensor : small) harness.write(client, tensor, 3);
  EXPECT_TRUE(harness.acquire(client, kDevice, shm::Mode::kOverwrite, {small[3], big}))
      << "3.5 of 4 MiB, though what is resident lies in the middle";
}

TEST(Guarantees, MemoryThatTheSystemDoesNotHaveIsNamed) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  const RequestId first = harness.send(client.id, Acquire{kDevice, shm::Mode::kOverwrite, {a}});
  ASSERT_EQ(harness.orders.size(), 1u);
  harness.complete_order(0, Error{ErrorCode::kResourceExhausted, "no memory left", 12});
  const auto refused = harness.reply(first);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("no memory left"));
  EXPECT_TRUE(harness.acquire(client, kDevice, shm::Mode::kOverwrite, {a})) << "the next one asks again";
}

TEST(Guarantees, MemoryThatCameTooLateAndNotAtAllIsNoMatterOfTheNextOnes) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  const RequestId late =
      harness.send(client.id, Acquire{kDevice, shm::Mode::kOverwrite, {a}}, harness.now + Duration(5));
  ASSERT_EQ(harness.orders.size(), 1u);
  harness.advance(harness.now + Duration(6));
  EXPECT_FALSE(harness.reply(late));
  harness.complete_order(0, Error{ErrorCode::kResourceExhausted, "no memory left", 12});
  EXPECT_TRUE(harness.acquire(client, kDevice, shm::Mode::kOverwrite, {a}));
}

TEST(Guarantees, MemoryThatTheSystemDoesNotTakeBackStillCounts) {
  Harness harness(three_tiers());
  const auto& first = *harness.open(with_floors(2 * kMiB, 2 * kMiB));
  std::vector<Handle> tensors;
  for (int i = 0; i < 2; ++i) tensors.push_back(harness.create(first, std::to_string(i), 2 * kMiB));
  for (const Handle tensor : tensors) harness.write(first, tensor, 50);
  ASSERT_EQ(mapped(harness, 0, kDevice), 4 * kMiB);
  Harness::Client waiting(8);
  OpenSession open = with_floors(2 * kMiB, 2 * kMiB);
  open.table = waiting.table;
  const RequestId opens = harness.send(SessionId{}, open, harness.now + Duration(10));
  const auto removes = [](const mover::SegmentOrder& order) {
    return order.kind == mover::SegmentOrder::Kind::kRemove;
  };
  while (std::ranges::none_of(harness.orders, removes)) {
    ASSERT_TRUE(!harness.transfers.empty() || !harness.orders.empty());
    harness.orders.empty() ? harness.complete_transfer(0) : harness.complete_order(0);
  }
  const auto order = static_cast<std::size_t>(std::ranges::find_if(harness.orders, removes) - harness.orders.begin());
  EXPECT_FALSE(harness.answered(opens)) << "not before it is back";
  EXPECT_EQ(mapped(harness, 0, kDevice), 4 * kMiB);
  harness.complete_order(order, Error{ErrorCode::kInternal, "it would not go", 16});
  harness.settle();
  EXPECT_EQ(mapped(harness, 0, kDevice), 4 * kMiB);
  harness.advance(harness.now + Duration(10));
  const auto refused = harness.reply(opens);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("is guaranteed 2097152 and has mapped 4194304"));
  for (const Handle tensor : tensors) EXPECT_EQ(harness.read(first, tensor), 50u) << "in what it has left";
  const auto beyond = harness.acquire(first, kDevice, shm::Mode::kRead, tensors);
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message, HasSubstr("the session can have 2097152 of 4194304 bytes"));
}

TEST(Guarantees, MemoryThatComesBackAfterItsSessionIsNobodysLoss) {
  Harness harness(three_tiers());
  const auto& client = *harness.open(with_floors(2 * kMiB, 2 * kMiB));
  const mover::SegmentOrder late{mover::SegmentOrder::Kind::kRemove, client.id, TierId{0}, {0, kSegment}};
  ASSERT_TRUE(harness.ask(client.id, CloseSession{}));
  ASSERT_TRUE(client.gone);
  harness.engine->segment_done(harness.now, {late, {}});
  harness.drain();
  EXPECT_EQ(harness.status().tiers[0].segment_bytes, 0u);
  EXPECT_NE(harness.open(with_floors(4 * kMiB, 8 * kMiB)), nullptr);
}

TEST(Sessions, ADeathEndsWhatWaitsAndFreesEverythingAfterTheTransfers) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 1);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  const RequestId waits = harness.send(client.id, Acquire{kDevice, shm::Mode::kRead, {a}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.engine->session_died(harness.now, client.id);
  harness.drain();
  EXPECT_EQ(harness.reply(waits).error().code, ErrorCode::kAborted);
  EXPECT_FALSE(client.gone) << "a transfer still reads its home";
  EXPECT_GT(harness.status().tiers[2].used_bytes, 0u);
  harness.settle();
  EXPECT_TRUE(client.gone);
  for (const TierStatus& tier : harness.status().tiers) EXPECT_EQ(tier.used_bytes, 0u);
  const auto& next = *harness.open();
  EXPECT_NE(next.id, client.id) << "ids are never used twice";
}

TEST(Sessions, TheirNumberIsBounded) {
  Options options = three_tiers();
  options.sessions_max = 1;
  Harness harness(options);
  const auto& one = *harness.open(with_floors(0, 0));
  EXPECT_EQ(harness.open(with_floors(0, 0)), nullptr);
  EXPECT_EQ(harness.refusal.code, ErrorCode::kResourceExhausted);
  ASSERT_TRUE(harness.ask(one.id, CloseSession{}));
  EXPECT_NE(harness.open(with_floors(0, 0)), nullptr);
}

}  // namespace
}  // namespace terrace::engine

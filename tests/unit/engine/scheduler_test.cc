// SPDX-License-Identifier: Apache-2.0
// Shows the order of transfers on a link: classes first, tenants and their sessions in turn by bytes, deadlines within
// a session; how much goes down at a time; and that the least recently used copy is offered first.
#include "engine/links/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "engine/policy/policy.h"

namespace terrace::engine {
namespace {

constexpr mover::Link kReadLink{mover::LinkKind::kBlockRead, 0};
constexpr mover::Link kWriteLink{mover::LinkKind::kBlockWrite, 0};
constexpr SessionId kFirst{1};
constexpr SessionId kSecond{2};

mover::Transfer transfer(std::uint64_t id, mover::Class urgency, std::int64_t deadline = 100,
                         std::uint64_t bytes = kMiB, mover::Link link = kReadLink) {
  mover::Transfer made;
  made.id = TransferId{id};
  made.link = link;
  made.urgency = urgency;
  made.deadline = Time{deadline};
  made.bytes = bytes;
  return made;
}

class Order : public ::testing::Test {
 protected:
  // Hands down and completes one after the other.
  std::vector<std::uint64_t> ids() {
    std::vector<std::uint64_t> order;
    std::vector<mover::Transfer> out;
    while (true) {
      out.clear();
      scheduler.dispatch(out);
      if (out.empty()) return order;
      for (const auto& down : out) {
        order.push_back(static_cast<std::uint64_t>(down.id));
        scheduler.finished(down.link, down.bytes);
      }
    }
  }

  Scheduler scheduler{{kReadLink, kWriteLink}, 1};
  Tenant one{.socket = 1, .uid = 0};
  Tenant two{.socket = 2, .uid = 0};
};

using Ids = std::vector<std::uint64_t>;

TEST_F(Order, ClassThenDeadlineThenAge) {
  scheduler.push(one, kFirst, transfer(1, mover::Class::kCleaning, 1));
  scheduler.push(one, kFirst, transfer(2, mover::Class::kDemand, 9));
  scheduler.push(one, kFirst, transfer(3, mover::Class::kDemand, 5));
  scheduler.push(one, kFirst, transfer(4, mover::Class::kDemand, 5));
  scheduler.push(one, kFirst, transfer(5, mover::Class::kPrefetch, 1));
  EXPECT_EQ(ids(), (Ids{3, 4, 2, 5, 1}));
}

TEST_F(Order, TenantsTakeTurnsByBytes) {
  for (std::uint64_t i = 0; i < 4; ++i)
    scheduler.push(one, kFirst, transfer(10 + i, mover::Class::kDemand, 1, 16 * kMiB));
  for (std::uint64_t i = 0; i < 4; ++i)
    scheduler.push(two, kSecond, transfer(20 + i, mover::Class::kDemand, 9, 8 * kMiB));
  const Ids order = ids();
  ASSERT_EQ(order.size(), 8u);
  std::uint64_t ones = 0;
  for (std::size_t i = 0; i < 6; ++i) ones += order[i] < 20 ? 1 : 0;
  EXPECT_EQ(ones, 2u) << "two of 16 MiB to four of 8 MiB, though every deadline of the first is earlier";
}

TEST_F(Order, AHeavierTenantSendsSoManyTimesTheBytesOfALighterOne) {
  Scheduler weighted({kReadLink}, 1, {1, 1, 3});  // by socket: tenant one has 1, and tenant two 3
  for (std::uint64_t i = 0; i < 60; ++i) {
    weighted.push(one, kFirst, transfer(100 + i, mover::Class::kDemand, 1, 5 * kMiB));
    weighted.push(two, kSecond, transfer(200 + i, mover::Class::kDemand, 9, 7 * kMiB));
  }
  std::uint64_t bytes[2] = {0, 0};
  std::vector<mover::Transfer> out;
  while (bytes[0] + bytes[1] < 400 * kMiB) {
    out.clear();
    weighted.dispatch(out);
    for (const auto& down : out) {
      bytes[static_cast<std::uint64_t>(down.id) < 200 ? 0 : 1] += down.bytes;
      weighted.finished(down.link, down.bytes);
    }
  }
  EXPECT_NEAR(static_cast<double>(bytes[0]) / kMiB, 100, 16 + 5) << "a quarter, but for a turn";
}

TEST_F(Order, AHeavyTenantHasItsShareInTurnsThatAreNotLong) {
  Scheduler weighted({kReadLink}, 1, {1, 1, 100});
  for (std::uint64_t i = 0; i < 1000; ++i) {
    if (i < 20) weighted.push(one, kFirst, transfer(1 + i, mover::Class::kDemand, 1, kMiB));
    weighted.push(two, kSecond, transfer(100 + i, mover::Class::kDemand, 9, kMiB));
  }
  std::uint64_t sent[2] = {0, 0};
  std::uint64_t in_a_row = 0;
  std::uint64_t longest = 0;
  std::vector<mover::Transfer> out;
  while (sent[1] < 900) {
    out.clear();
    weighted.dispatch(out);
    for (const auto& down : out) {
      const bool heavy = static_cast<std::uint64_t>(down.id) >= 100;
      ++sent[heavy ? 1 : 0];
      in_a_row = heavy ? in_a_row + 1 : 0;
      longest = std::max(longest, in_a_row);
      weighted.finished(down.link, down.bytes);
    }
  }
  EXPECT_NEAR(static_cast<double>(sent[0]), 9, 1) << "a hundredth of the other's";
  EXPECT_LE(longest, 2u * 64) << "MiB: two turns, since one of the lesser's is less than its transfer";
}

TEST_F(Order, SessionsOfATenantTakeTurnsByBytes) {
  for (std::uint64_t i = 0; i < 8; ++i)
    scheduler.push(one, kFirst, transfer(10 + i, mover::Class::kDemand, 1, 2 * kMiB));
  for (std::uint64_t i = 0; i < 4; ++i)
    scheduler.push(one, kSecond, transfer(20 + i, mover::Class::kDemand, 9, 4 * kMiB));
  const Ids order = ids();
  ASSERT_EQ(order.size(), 12u);
  std::uint64_t firsts = 0;
  for (std::size_t i = 0; i < 6; ++i) firsts += order[i] < 20 ? 1 : 0;
  EXPECT_EQ(firsts, 4u) << "four of 2 MiB to two of 4 MiB, though every deadline of the first is earlier";
}

TEST_F(Order, ManySessionsAreStillOneTenant) {
  for (std::uint64_t i = 0; i < 8; ++i)
    scheduler.push(one, SessionId{static_cast<std::uint32_t>(i)},
                   transfer(10 + i, mover::Class::kDemand, 1, 16 * kMiB));
  for (std::uint64_t i = 0; i < 4; ++i)
    scheduler.push(two, kSecond, transfer(20 + i, mover::Class::kDemand, 9, 16 * kMiB));
  const Ids order = ids();
  ASSERT_EQ(order.size(), 12u);
  std::uint64_t ones = 0;
  for (std::size_t i = 0; i < 8; ++i) ones += order[i] < 20 ? 1 : 0;
  EXPECT_EQ(ones, 4u);
}

TEST_F(Order, NothingGoesDownOnALinkThatIsHeld) {
  scheduler.hold(kReadLink, true);
  scheduler.push(one, kFirst, transfer(1, mover::Class::kDemand));
  scheduler.push(one, kFirst, transfer(2, mover::Class::kDemand, 100, kMiB, kWriteLink));
  EXPECT_EQ(ids(), (Ids{2}));
  EXPECT_EQ(scheduler.queued(kReadLink), 1u);
  scheduler.hold(kReadLink, false);
  EXPECT_EQ(ids(), (Ids{1}));
}

TEST_F(Order, ARaisedTransferGoesFirstAndAWithdrawnOneNever) {
  scheduler.push(one, kFirst, transfer(1, mover::Class::kDemand));
  scheduler.push(one, kFirst, transfer(2, mover::Class::kPrefetch));
  scheduler.push(one, kFirst, transfer(3, mover::Class::kPrefetch));
  scheduler.push(one, kFirst, transfer(4, mover::Class::kPrefetch));
  scheduler.raise(TransferId{3}, mover::Class::kLatePrefetch, kNever);
  EXPECT_TRUE(scheduler.waits(TransferId{2}));
  EXPECT_TRUE(scheduler.withdraw(TransferId{2}));
  EXPECT_FALSE(scheduler.withdraw(TransferId{2}));
  EXPECT_FALSE(scheduler.waits(TransferId{2}));
  EXPECT_EQ(scheduler.queued(kReadLink), 3u);
  EXPECT_EQ(ids(), (Ids{1, 3, 4}));
}

TEST_F(Order, RaisingNeverLowers) {
  scheduler.push(one, kFirst, transfer(1, mover::Class::kDemand, 50));
  scheduler.push(one, kFirst, transfer(2, mover::Class::kPrefetch, 50));
  scheduler.push(one, kFirst, transfer(3, mover::Class::kLatePrefetch, 60));
  scheduler.push(one, kFirst, transfer(4, mover::Class::kLatePrefetch, 50));
  scheduler.raise(TransferId{1}, mover::Class::kLatePrefetch, kNever);
  scheduler.raise(TransferId{3}, mover::Class::kPrefetch, Time{40});  // earlier, but still as urgent as it was
  scheduler.raise(TransferId{9}, mover::Class::kDemand, Time{1});     // is not there
  EXPECT_EQ(ids(), (Ids{1, 3, 4, 2}));
}

TEST_F(Order, OneAloneIsRaisedWithdrawnAndSeenAsIfItWereAmongOthers) {
  scheduler.hold(kReadLink, true);
  scheduler.push(one, kFirst, transfer(1, mover::Class::kPrefetch));
  EXPECT_EQ(scheduler.queued(kReadLink), 1u);
  EXPECT_TRUE(scheduler.has_before(kReadLink, mover::Class::kCleaning));
  EXPECT_FALSE(scheduler.has_before(kReadLink, mover::Class::kPrefetch));
  scheduler.raise(TransferId{1}, mover::Class::kDemand, Time{7});
  EXPECT_TRUE(scheduler.has_before(kReadLink, mover::Class::kPrefetch));
  scheduler.push(two, kSecond, transfer(2, mover::Class::kLatePrefetch, 1));
  scheduler.hold(kReadLink, false);
  EXPECT_EQ(ids(), (Ids{1, 2}));
  scheduler.push(one, kFirst, transfer(3, mover::Class::kCleaning));
  EXPECT_TRUE(scheduler.withdraw(TransferId{3}));
  EXPECT_FALSE(scheduler.withdraw(TransferId{3}));
  EXPECT_EQ(scheduler.queued(kReadLink), 0u);
  EXPECT_EQ(ids(), Ids{});
}

TEST_F(Order, LinksAreIndependentAndBounded) {
  scheduler.push(one, kFirst, transfer(1, mover::Class::kDemand));
  scheduler.push(one, kFirst, transfer(2, mover::Class::kDemand));
  scheduler.push(one, kFirst, transfer(3, mover::Class::kDemand, 1, kMiB, kWriteLink));
  std::vector<mover::Transfer> out;
  scheduler.dispatch(out);
  EXPECT_EQ(out.size(), 2u);
  EXPECT_EQ(scheduler.in_flight(kReadLink), 1u);
  EXPECT_EQ(scheduler.in_flight(kWriteLink), 1u);
  EXPECT_EQ(scheduler.queued(kReadLink), 1u);
}

TEST(Bounds, SmallOnesAreBoundedByNumberAndLargeOnesByBytesButForTwo) {
  Scheduler scheduler({kReadLink, kWriteLink}, 8);
  const auto handed_down = [&] {
    std::vector<mover::Transfer> out;
    scheduler.dispatch(out);
    return out.size();
  };
  const Tenant tenant{.socket = 1, .uid = 0};
  for (std::uint64_t i = 0; i < 20; ++i) scheduler.push(tenant, kFirst, transfer(i, mover::Class::kDemand, 1, 4096));
  for (std::uint64_t i = 20; i < 30; ++i)
    scheduler.push(tenant, kFirst, transfer(i, mover::Class::kDemand, 1, 256 * kMiB, kWriteLink));
  EXPECT_EQ(handed_down(), 8u + 2u);
  EXPECT_EQ(scheduler.in_flight(kReadLink), 8u);
  EXPECT_EQ(scheduler.in_flight(kWriteLink), 2u);
  scheduler.finished(kWriteLink, 256 * kMiB);
  EXPECT_EQ(handed_down(), 1u);
  scheduler.finished(kReadLink, 4096);
  scheduler.finished(kReadLink, 4096);
  EXPECT_EQ(handed_down(), 2u);
}

// How many go down at first and after each of the quarters of kInFlightBytes that are done, where 32 wait.
std::vector<std::size_t> quarters_handed_down(mover::Class urgency, std::size_t done) {
  Scheduler scheduler({kReadLink}, 32);
  const std::uint64_t quarter = Scheduler::kInFlightBytes / 4;
  for (std::uint64_t i = 0; i < 32; ++i)
    scheduler.push({.socket = 1, .uid = 0}, kFirst, transfer(i, urgency, 1, quarter));
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i <= done; ++i) {
    if (i > 0) scheduler.finished(kReadLink, quarter);
    std::vector<mover::Transfer> out;
    scheduler.dispatch(out);
    counts.push_back(out.size());
  }
  return counts;
}

TEST(Bounds, AreReachedByBytesFromManyOfThem) {
  EXPECT_EQ(quarters_handed_down(mover::Class::kLatePrefetch, 2), (std::vector<std::size_t>{4, 1, 1}));
}

TEST(Bounds, GrowToTwiceAsManyBytesForDemandsOfABusyLink) {
  EXPECT_EQ(quarters_handed_down(mover::Class::kDemand, 6), (std::vector<std::size_t>{4, 2, 2, 2, 2, 1, 1}));
}

TEST(Bounds, AreWhatTheyWereOnceALinkWasIdle) {
  Scheduler scheduler({kReadLink}, 32);
  const std::uint64_t half = Scheduler::kInFlightBytes / 2;
  std::vector<mover::Transfer> out;
  for (std::uint64_t round = 0; round < 2; ++round) {
    for (std::uint64_t i = 0; i < 8; ++i)
      scheduler.push({.socket = 1, .uid = 0}, kFirst, transfer(8 * round + i, mover::Class::kDemand, 1, half));
    out.clear();
    scheduler.dispatch(out);
    EXPECT_EQ(out.size(), 2u);
    for (std::uint64_t done = 0; done < 8; ++done) {
      scheduler.finished(kReadLink, half);
      scheduler.dispatch(out);
    }
  }
}

TEST(LruPolicy, OffersTheLeastRecentlyUsedFirst) {
  const auto policy = make_lru_policy();
  const auto offered = [&](std::size_t most) {
    std::vector<std::uint32_t> order;
    policy->offer_victims([&](Slot slot) {
      order.push_back(static_cast<std::uint32_t>(slot));
      return order.size() < most;
    });
    return order;
  };
  using Slots = std::vector<std::uint32_t>;
  for (const std::uint32_t slot : {5u, 1u, 900u}) policy->arrived(Slot{slot}, Time{});
  EXPECT_EQ(offered(9), (Slots{5, 1, 900}));
  policy->used(Slot{5}, Time{});
  policy->used(Slot{7}, Time{});  // is not there
  policy->used(Slot{1'000'000}, Time{});
  EXPECT_EQ(offered(9), (Slots{1, 900, 5}));
  EXPECT_EQ(offered(1), (Slots{1}));
  policy->left(Slot{900});
  EXPECT_EQ(offered(9), (Slots{1, 5}));
  policy->left(Slot{1});
  policy->left(Slot{5});
  EXPECT_EQ(offered(9), Slots{});
}

}  // namespace
}  // namespace terrace::engine

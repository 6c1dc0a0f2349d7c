// SPDX-License-Identifier: Apache-2.0
// Shows that writing ahead of need keeps to its budget a day, and that what must be written does not wait for one.
#include <chrono>

#include "engine/links/write_budget.h"
#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using std::chrono::hours;

constexpr std::uint64_t kADay = 24 * kMiB;  // so that an hour's share is 1 MiB

TEST(WriteBudget, WithoutOneEverythingIsAllowed) {
  WriteBudget none(0);
  none.spend(Time{1}, UINT64_MAX);
  EXPECT_TRUE(none.allows_early(Time{1}));
}

TEST(WriteBudget, ComesBackWithTime) {
  const Time begin{0};
  WriteBudget budget(kADay);
  EXPECT_EQ(budget.left_bytes(begin + hours(100)), 1 * kMiB) << "an hour's share, however long nothing was written";
  budget.spend(begin, 3 * kMiB);
  EXPECT_EQ(budget.left_bytes(begin), -2 * static_cast<std::int64_t>(kMiB));
  EXPECT_FALSE(budget.allows_early(begin + hours(2)));
  EXPECT_TRUE(budget.allows_early(begin + hours(2) + std::chrono::minutes(1)));
}

TEST(WriteBudget, HasBackWhatIsNotWrittenAfterAll) {
  const Time begin{0};
  WriteBudget budget(kADay);
  budget.spend(begin, 3 * kMiB);
  budget.give_back(begin, 3 * kMiB);
  EXPECT_EQ(budget.left_bytes(begin), static_cast<std::int64_t>(kMiB));
}

TEST(WriteBudget, OwesADayAtMost) {
  WriteBudget budget(kADay);
  budget.spend(Time{0}, 1000 * kADay);
  EXPECT_EQ(budget.left_bytes(Time{0}), -static_cast<std::int64_t>(kADay));
}

class WithABudget : public ::testing::Test {
 protected:
  static Options options() {
    Options options = three_tiers(2 * kMiB, 4 * kMiB);
    options.tiers[2].write_budget_bytes_per_day = kADay;
    return options;
  }
  // Leases it to write, and lets go of it again.
  void overwrite(Handle tensor, std::uint64_t value) {
    const RequestId leased = harness_.send(client_.id, Acquire{kHost, shm::Mode::kOverwrite, {tensor}});
    harness_.complete_orders();
    ASSERT_TRUE(harness_.reply(leased));
    harness_.fill(client_, tensor, value);
    harness_.release(client_, tensor, shm::Mode::kOverwrite);
  }
  // Memory as full as it is before copies are cleaned, and the engine's next look at it.
  void fill_memory() {
    for (int i = 0; i < 4; ++i) {
      tensors_.push_back(harness_.create(client_, std::to_string(i), kMiB));
      overwrite(tensors_.back(), 7);
    }
    harness_.advance(harness_.now + Duration(1));
  }
  bool is_cleaning() const { return !harness_.transfers.empty(); }
  std::int64_t left() { return harness_.status().tiers[2].write_budget_left_bytes; }
  Harness harness_{options()};
  const Harness::Client& client_ = *harness_.open();
  std::vector<Handle> tensors_;
};

TEST_F(WithABudget, NothingIsWrittenAheadOfNeedOnceItIsSpent) {
  const Handle first = harness_.create(client_, "first", kMiB);
  overwrite(first, 5);
  ASSERT_TRUE(harness_.ask(client_.id, Move{shm::kPlaceBlock, {first}}));
  EXPECT_LE(left(), 0);
  fill_memory();
  EXPECT_FALSE(is_cleaning());
  harness_.advance(harness_.now + hours(2));
  overwrite(tensors_.back(), 8);
  EXPECT_TRUE(is_cleaning());
  harness_.settle();
  EXPECT_EQ(harness_.read(client_, first, kHost), 5u);
}

TEST_F(WithABudget, WhatMustBeWrittenIsWritten) {
  fill_memory();
  harness_.settle();
  for (const Handle tensor : tensors_) ASSERT_TRUE(harness_.ask(client_.id, Move{shm::kPlaceBlock, {tensor}}));
  EXPECT_LT(left(), 0);
  for (const Handle tensor : tensors_) EXPECT_EQ(harness_.read(client_, tensor, kHost), 7u);
}

}  // namespace
}  // namespace terrace::engine

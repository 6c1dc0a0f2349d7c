// SPDX-License-Identifier: Apache-2.0
// Shows whose ring is polled before the reactor sleeps, on a clock of the test's own, and what a region says of it.
#include "front/sessions/busy_poll.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "front/sessions/session_region.h"

namespace terrace::front {
namespace {

using namespace std::chrono_literals;

// A trainer, and the reactor that polls for it as soon as that is worth it.
class BusyPollTest : public testing::Test {
 protected:
  void ask_after(Duration pause) {
    now_ = now_ + pause;
    poll_.asked(now_);
    if (poll_.is_worth()) poll_.begin();
  }
  // Polls until a request could have come no more; whether it polled at all.
  bool wait_in_vain() {
    if (!poll_.polls()) return false;
    EXPECT_FALSE(poll_.was_in_vain(now_ + poll_.patience()));
    now_ = now_ + poll_.patience() + 1ns;
    EXPECT_TRUE(poll_.was_in_vain(now_));
    poll_.end(true);
    return true;
  }
  // Requests 50 us apart until it is polled for; how many.
  unsigned asks_until_polled() {
    unsigned asks = 0;
    for (; !poll_.polls() && asks < 3 * BusyPoll::kNeededMax; ++asks) ask_after(50us);
    return asks;
  }

  BusyPoll poll_;
  Time now_{1'000'000'000};
};

TEST_F(BusyPollTest, WhoAsksEveryFewMillisecondsIsNotPolledFor) {
  for (int i = 0; i < 10'000; ++i) {
    ask_after(2ms);
    ASSERT_FALSE(poll_.polls());
  }
}

TEST_F(BusyPollTest, RequestsInARowAreWorthIt) {
  ask_after(2ms);
  ask_after(BusyPoll::kClose);
  EXPECT_FALSE(poll_.polls());
  ask_after(BusyPoll::kClose);
  EXPECT_TRUE(poll_.polls());
}

TEST_F(BusyPollTest, ARequestThatIsNotCloseBeginsTheRowAnew) {
  ask_after(2ms);
  ask_after(50us);
  ask_after(BusyPoll::kClose + 1ns);
  ask_after(50us);
  EXPECT_FALSE(poll_.polls());
  ask_after(50us);
  EXPECT_TRUE(poll_.polls());
}

TEST_F(BusyPollTest, WhatWasInVainIsTriedLessOften) {
  ask_after(2ms);
  unsigned before = asks_until_polled();
  EXPECT_EQ(before, BusyPoll::kNeeded);
  for (unsigned needed = 2 * BusyPoll::kNeeded; needed <= BusyPoll::kNeededMax; needed *= 2) {
    ASSERT_TRUE(wait_in_vain());
    ask_after(2ms);
    EXPECT_EQ(asks_until_polled(), needed);
  }
  ASSERT_TRUE(wait_in_vain());
  ask_after(2ms);
  EXPECT_EQ(asks_until_polled(), BusyPoll::kNeededMax);
}

TEST_F(BusyPollTest, ARequestWhilePollingMakesUpForIt) {
  ask_after(2ms);
  asks_until_polled();
  ASSERT_TRUE(wait_in_vain());
  ask_after(2ms);
  EXPECT_EQ(asks_until_polled(), 2 * BusyPoll::kNeeded);
  ask_after(3us);
  ASSERT_TRUE(wait_in_vain());
  ask_after(2ms);
  EXPECT_EQ(asks_until_polled(), 2 * BusyPoll::kNeeded);
}

TEST_F(BusyPollTest, WaitsTwiceAsLongAsTheLastOneTookToCome) {
  ask_after(2ms);
  ask_after(40us);
  EXPECT_EQ(poll_.patience(), 80us);
  ask_after(BusyPoll::kClose);
  EXPECT_EQ(poll_.patience(), BusyPoll::kClose);
  ask_after(2us);
  EXPECT_EQ(poll_.patience(), BusyPoll::kPatienceMin);
}

TEST_F(BusyPollTest, WhatEndedForAnotherReasonGoesOnWithTheNextRequest) {
  ask_after(2ms);
  asks_until_polled();
  poll_.end(false);
  ask_after(50us);
  EXPECT_TRUE(poll_.polls());
}

TEST(PolledRegion, BeginsEachEpochWithTheDoorbell) {
  auto region = SessionRegion::create(64);
  ASSERT_TRUE(region) << region.error().message;
  auto trainers = AddressRange::map(region->descriptor(), region->bytes(), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(trainers) << trainers.error().message;
  const auto view = shm::open_region(trainers->data(), trainers->size());
  ASSERT_TRUE(view) << view.error().message;
  region->set_polled(true);  // and the daemon is killed
  EXPECT_EQ(view->submission_index->polled.load(), 1u);
  region->begin_epoch();
  EXPECT_EQ(view->submission_index->polled.load(), 0u);
}

}  // namespace
}  // namespace terrace::front

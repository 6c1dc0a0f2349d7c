// SPDX-License-Identifier: Apache-2.0
// Shows that a trainer whose ring is polled is answered without its doorbell, and that no request is lost between
// polling and sleeping, whatever the pace.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "front/sessions/busy_poll.h"
#include "unit/front/raw_session.h"
#include "unit/front/served_host.h"

namespace terrace::front {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLimit{60};

// Asks as the library does, one request after the other.
class PolledSession : public testing::Test {
 protected:
  PolledSession() : session_(host_.socket()), welcome_(session_.greet()) {}
  void SetUp() override { ASSERT_TRUE(welcome_); }

  bool is_polled() const { return session_.region().submission_index->polled.load() != 0; }
  // Asks, and waits for the answer; whether it came within a minute.
  bool ask() {
    const shm::RegionView& region = session_.region();
    const std::uint32_t tail = region.submission_index->tail.load();
    const shm::Submission submission{.id = tail, .operation = shm::Operation::kMarkStep, .block_bytes = 512};
    std::memcpy(static_cast<void*>(&region.submissions[tail % shm::kRingEntries]), &submission, sizeof submission);
    region.submission_index->tail.store(tail + 1);
    const bool rings = !is_polled();
    if (rings) session_.ring();
    if (!rings) ++without_doorbell_;
    const auto limit = SteadyClock::now() + kLimit;
    while (region.completion_index->tail.load() != tail + 1)
      if (SteadyClock::now() >= limit) return false;
    region.completion_index->head.store(tail + 1);
    return true;
  }

  ServedHost host_;
  RawSession session_;
  bool welcome_;
  int without_doorbell_ = 0;
};

TEST_F(PolledSession, WhoAsksOneAfterTheOtherNeedsNoDoorbell) {
  if (!may_busy_poll()) GTEST_SKIP() << "one processor: nothing is polled";
  const auto limit = SteadyClock::now() + kLimit;
  while (without_doorbell_ < 100) {
    ASSERT_TRUE(ask());
    ASSERT_LT(SteadyClock::now(), limit);
  }
  while (is_polled()) ASSERT_LT(SteadyClock::now(), limit);
  ASSERT_TRUE(ask());
}

// Pauses about as long as it is polled, so that many requests come just as that ends. It goes on until that was seen:
// while the scheduler has both sides on one processor, nobody is polled for.
TEST_F(PolledSession, NoRequestIsLostBetweenPollingAndSleeping) {
  if (!may_busy_poll()) GTEST_SKIP() << "one processor: nothing is polled";
  const auto seed = std::random_device{}();
  std::mt19937 random(seed);
  int ended = 0;  // so often the daemon polled no more
  const auto pause_max = 2 * BusyPoll::kPatienceMin;
  const auto limit = SteadyClock::now() + kLimit;
  for (int i = 0; i < 20'000 || ended == 0 || without_doorbell_ == 0; ++i) {
    ASSERT_TRUE(i < 20'000 || SteadyClock::now() < limit) << "seed " << seed << ": never polled, or never no more";
    const bool closely = i % 8 != 0;
    const auto until = SteadyClock::now() +
                       std::chrono::nanoseconds(closely ? 0 : random() % static_cast<unsigned>(pause_max.count()));
    const bool polled = is_polled();
    while (SteadyClock::now() < until) {
    }
    if (polled && !is_polled()) ++ended;
    ASSERT_TRUE(ask()) << "seed " << seed << ", request " << i;
  }
}

}  // namespace
}  // namespace terrace::front

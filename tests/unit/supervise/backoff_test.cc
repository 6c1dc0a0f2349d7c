// SPDX-License-Identifier: Apache-2.0
// Shows that a daemon which dies is started at once at first, then ever later up to a bound, for ever.
#include "supervise/backoff.h"

#include <gtest/gtest.h>

namespace terrace::supervise {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Backoff, GrowsUpToItsBoundAndNeverEnds) {
  Backoff backoff(seconds(1));
  for (int i = 0; i < Backoff::kAtOnce; ++i) EXPECT_EQ(backoff.after(Duration::zero()), Duration::zero());
  for (const auto expected : {milliseconds(100), milliseconds(200), milliseconds(400), milliseconds(800)})
    EXPECT_EQ(backoff.after(Duration::zero()), expected);
  for (int i = 0; i < 1'000'000; ++i) ASSERT_EQ(backoff.after(milliseconds(50)), seconds(1));
}

TEST(Backoff, BeginsAnewAfterALongLife) {
  Backoff backoff(seconds(1));
  for (int i = 0; i < 10; ++i) backoff.after(Duration::zero());
  EXPECT_EQ(backoff.after(Backoff::kLivedLong - Duration(1)), seconds(1));
  for (int i = 0; i < Backoff::kAtOnce; ++i)
    EXPECT_EQ(backoff.after(i == 0 ? Backoff::kLivedLong : Duration::zero()), Duration::zero());
  EXPECT_EQ(backoff.after(Duration::zero()), Backoff::kFirstWait);
}

TEST(Backoff, ASmallBoundHoldsFromTheFirstWait) {
  Backoff backoff(milliseconds(5));
  for (int i = 0; i < Backoff::kAtOnce; ++i) backoff.after(Duration::zero());
  EXPECT_EQ(backoff.after(Duration::zero()), milliseconds(5));
}

}  // namespace
}  // namespace terrace::supervise

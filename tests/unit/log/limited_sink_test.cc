// SPDX-License-Identifier: Apache-2.0
// Shows that lines of one kind have a limit, with a count of what was left out, and that others are heard beside them.
// By a clock that the test moves.
#include "log/limited_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace terrace::log {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class HandClock final : public Clock {
 public:
  Time now() const override { return at; }
  Time at{1'000'000'000};
};

class LimitedSinkTest : public ::testing::Test {
 protected:
  LimitedSinkTest() { logger_->set_level(spdlog::level::trace); }
  // Of connections that come one after the other, `apart` from each other.
  void refuse(std::uint64_t connections, Duration apart = {}) {
    for (std::uint64_t i = 0; i < connections; ++i) {
      logger_->warn("a connection of pid {}, uid {} was closed: garbage", 1000 + i, i % 7);
      clock_.at = clock_.at + apart;
      if (i % 100 == 0) logger_->flush();  // as the reactor does
    }
  }
  std::int64_t lines() const { return std::ranges::count(said_.str(), '\n'); }

  HandClock clock_;
  std::ostringstream said_;
  std::shared_ptr<LimitedSink> sink_ =
      std::make_shared<LimitedSink>(clock_, std::make_shared<spdlog::sinks::ostream_sink_mt>(said_));
  std::shared_ptr<spdlog::logger> logger_ = std::make_shared<spdlog::logger>("test", sink_);
};

TEST_F(LimitedSinkTest, AHundredThousandBadConnectionsAreAFewLinesAndTheirCount) {
  refuse(100'000);
  EXPECT_EQ(lines(), 20);
  logger_->info("others are heard");
  EXPECT_THAT(said_.str(), HasSubstr("others are heard"));
  clock_.at = clock_.at + LimitedSink::kPeriod;
  logger_->flush();
  EXPECT_THAT(said_.str(), HasSubstr("99980 lines were left out like this one: a connection of pid 100999"));
  EXPECT_EQ(lines(), 22);
}

TEST_F(LimitedSinkTest, OverTenMinutesTheyAreFewToo) {
  refuse(100'000, std::chrono::milliseconds(6));
  EXPECT_LE(lines(), 100);
  EXPECT_GE(lines(), 30) << "that they go on is heard as well";
}

TEST_F(LimitedSinkTest, ALineThatComesThroughAgainSaysHowManyDidNot) {
  refuse(25);
  EXPECT_EQ(lines(), 20);
  clock_.at = clock_.at + LimitedSink::kPeriod;
  logger_->warn("a connection of pid {}, uid {} was closed: garbage", 1, 2);
  EXPECT_THAT(said_.str(), HasSubstr("garbage (5 lines like it were left out before)"));
}

TEST_F(LimitedSinkTest, WhatWasQuietForLongHasItsWholeLimitAgain) {
  refuse(20);
  clock_.at = clock_.at + 20 * LimitedSink::kPeriod;
  refuse(21);
  EXPECT_EQ(lines(), 40);
}

TEST_F(LimitedSinkTest, KindsWithoutNumberAreAsOne) {
  for (std::size_t i = 0; i < 10 * LimitedSink::kKindsMax; ++i)
    logger_->error("a name that somebody chose: {}", std::string(i + 1, 'x'));
  EXPECT_LE(lines(), static_cast<std::int64_t>(LimitedSink::kKindsMax + LimitedSink::kBurst));
}

TEST_F(LimitedSinkTest, WhatIsLookedForHasNoLimit) {
  for (int i = 0; i < 100; ++i) logger_->debug("plan {}", i);
  EXPECT_EQ(lines(), 100);
}

TEST_F(LimitedSinkTest, TheLastWordIsWhatWasLeftOut) {
  refuse(30);
  EXPECT_THAT(said_.str(), Not(HasSubstr("left out")));
  logger_.reset();
  sink_.reset();
  EXPECT_THAT(said_.str(), HasSubstr("10 lines were left out"));
}

}  // namespace
}  // namespace terrace::log

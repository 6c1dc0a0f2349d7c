// SPDX-License-Identifier: Apache-2.0
// Shows what an HTTP/2 client may send on: all that clients send, however it is cut into pieces; and that what gRPC
// would take without a bound stops at one: header blocks, calls before our settings are known, resets.
#include "front/http2/inspector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <string>

#include "unit/front/http2/http2_bytes.h"

namespace terrace::front {
namespace {

using testing::HasSubstr;

constexpr Time kStart{1'000'000'000};

class InspectorTest : public testing::Test {
 protected:
  Result<std::size_t> admit(std::string bytes) {
    return inspector_.admit(std::as_writable_bytes(std::span(bytes)), now_);
  }
  // Whether all of it may go on.
  bool admits(const std::string& bytes) {
    const auto count = admit(bytes);
    return count && *count == bytes.size();
  }
  std::string refusal(const std::string& bytes) {
    const auto count = admit(bytes);
    return count ? "" : count.error().message;
  }

  Time now_ = kStart;
  Http2Inspector inspector_{kStart};
};

TEST_F(InspectorTest, ThePrefaceComesFirstAndWhole) {
  for (std::size_t bytes = 0; bytes < kPreface.size(); ++bytes) {
    EXPECT_EQ(admit(kPreface.substr(0, bytes)), 0u);
    EXPECT_FALSE(inspector_.greeted());
  }
  EXPECT_TRUE(admits(kPreface));
  EXPECT_TRUE(inspector_.greeted());
}

TEST_F(InspectorTest, WhatIsNoPrefaceIsRefusedByItsFirstWrongByte) {
  for (std::size_t wrong = 0; wrong < kPreface.size(); ++wrong) {
    std::string bytes = kPreface.substr(0, wrong + 1);
    bytes[wrong] ^= 1;
    const auto admitted = Http2Inspector(kStart).admit(std::as_writable_bytes(std::span(bytes)), now_);
    ASSERT_FALSE(admitted.has_value());
    EXPECT_EQ(admitted.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST_F(InspectorTest, PaddedDataIsRefused) {
  ASSERT_TRUE(admits(kPreface + frame(kHeaders, kEndsHeaders, 1)));
  EXPECT_THAT(refusal(frame(kData, 8, 1, "padded")), testing::HasSubstr("padded"));
}

TEST_F(InspectorTest, FramesGoOnHoweverTheyAreCut) {
  std::string all = kPreface + frame(kSettings, 0, 0) + frame(kSettings, kAcknowledges, 0);
  for (std::uint32_t call = 1; call < 4001; call += 2)
    all += frame(kHeaders, kEndsHeaders, call, "headers") + frame(kData, 1, call, std::string(call % 100, 'd')) +
           frame(kWindowUpdate, 0, 0, "1234") + frame(kPing, 0, 0, "12345678") + frame(77, 0xFF, call, "unknown");
  std::random_device fresh;
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{fresh()}}) {
    std::cout << "seed " << seed << "\n";
    std::mt19937_64 random(seed);
    Http2Inspector inspector(kStart);
    std::size_t shown = 0;
    std::size_t passed = 0;
    while (passed < all.size()) {
      shown = std::min(all.size(), shown + 1 + random() % (random() % 2 == 0 ? 12 : 3000));
      const auto count = inspector.admit(std::as_writable_bytes(std::span(all).subspan(passed, shown - passed)), now_);
      ASSERT_TRUE(count.has_value()) << count.error().message;
      passed += *count;
      ASSERT_LT(shown - passed, Http2Inspector::kPrefaceBytes) << "what is held back is a preface or a frame's header";
    }
  }
}

TEST_F(InspectorTest, AHeaderBlockHasAnEnd) {
  ASSERT_TRUE(admits(kPreface));
  const std::string piece(16 * 1024, 'h');
  EXPECT_TRUE(admits(frame(kHeaders, 0, 1, piece) + frame(kContinuation, 0, 1, piece) +
                     frame(kContinuation, 0, 1, piece) + frame(kContinuation, kEndsHeaders, 1, piece)));
  EXPECT_TRUE(admits(frame(kHeaders, 0, 3, piece))) << "the next one begins anew";
  for (int more = 0; more < 3; ++more) EXPECT_TRUE(admits(frame(kContinuation, 0, 3, piece)));
  EXPECT_THAT(refusal(frame(kContinuation, 0, 3, "h")), HasSubstr("header block"));
}

TEST_F(InspectorTest, AHeaderBlockHasFewFrames) {
  ASSERT_TRUE(admits(kPreface + frame(kHeaders, 0, 1)));
  for (std::uint32_t more = 1; more < Http2Inspector::kHeaderBlockFramesMax; ++more)
    EXPECT_TRUE(admits(frame(kContinuation, 0, 1)));
  EXPECT_THAT(refusal(frame(kContinuation, 0, 1)), HasSubstr("header block"));
}

TEST_F(InspectorTest, AHeaderFrameThatClaimsTooMuchIsRefusedBeforeItComes) {
  ASSERT_TRUE(admits(kPreface));
  EXPECT_THAT(refusal(frame_header(0xFFFFFF, kHeaders, kEndsHeaders, 1)), HasSubstr("header block"));
}

TEST_F(InspectorTest, CallsBeforeOurSettingsAreAcknowledgedAreBounded) {
  ASSERT_TRUE(admits(kPreface + frame(kSettings, 0, 0)));
  for (std::uint32_t call = 0; call < Http2Inspector::kUnacknowledgedMax; ++call)
    ASSERT_TRUE(admits(frame(kHeaders, kEndsHeaders, 2 * call + 1)));
  EXPECT_THAT(refusal(frame(kHeaders, kEndsHeaders, 9999)), HasSubstr("acknowledgement"));
}

TEST_F(InspectorTest, CallsAfterwardsAreBoundedAtOnce) {
  ASSERT_TRUE(admits(kPreface + frame(kSettings, kAcknowledges, 0)));
  std::uint32_t call = 1;
  for (; call < 20'000; call += 2) ASSERT_TRUE(admits(frame(kHeaders, kEndsHeaders | kEndsStream, call, "ended")));
  for (std::size_t count = 0; count < Http2Inspector::kCallsMax; ++count, call += 2)
    ASSERT_TRUE(admits(frame(kHeaders, kEndsHeaders, call)));
  ASSERT_TRUE(admits(frame(kHeaders, kEndsHeaders, call - 2, "trailers"))) << "no call of its own";
  EXPECT_THAT(refusal(frame(kHeaders, kEndsHeaders, call)), HasSubstr("calls at once"));
}

TEST_F(InspectorTest, CallsHaveOddNumbers) {
  ASSERT_TRUE(admits(kPreface));
  EXPECT_THAT(refusal(frame(kHeaders, kEndsHeaders, 0x7FFFFFFE)), HasSubstr("number"));
}

TEST_F(InspectorTest, ResetsAreTakenAtAPace) {
  ASSERT_TRUE(admits(kPreface + frame(kSettings, kAcknowledges, 0)));
  const std::string call = frame(kHeaders, kEndsHeaders, 1) + frame(kReset, 0, 1, "1234");
  for (int at_once = 0; at_once < Http2Inspector::kResetsMax; ++at_once) ASSERT_TRUE(admits(call));
  const std::string both = frame(kData, 0, 1, "data") + call;
  EXPECT_EQ(admit(both), frame(kData, 0, 1, "data").size()) << "all before the call goes on";
  EXPECT_TRUE(inspector_.paced());
  EXPECT_EQ(admit(call), 0u);
  now_ = now_ + Http2Inspector::kResetPeriod;
  EXPECT_TRUE(admits(call));
  EXPECT_FALSE(inspector_.paced());
  EXPECT_EQ(admit(call), 0u);
  now_ = now_ + std::chrono::hours(1);
  for (int at_once = 0; at_once < Http2Inspector::kResetsMax; ++at_once) ASSERT_TRUE(admits(call));
  EXPECT_EQ(admit(call), 0u) << "time that passes unused is not saved up";
}

std::string message_of(std::uint32_t length) {
  std::string prefix(1, '\0');
  for (const int shift : {24, 16, 8, 0}) prefix += static_cast<char>(length >> shift);
  return prefix;
}

TEST_F(InspectorTest, LengthsOfMessagesBeyondTheLimitAreCutToOneBeyondIt) {
  for (const std::uint32_t length :
       {1u, 0x80u, 0xFFFFFFu, 0x1000000u, 0x1000001u, 0x40000000u, 0xFF00FFu, 0xFFFFFFFFu}) {
    for (std::size_t cut = 0; cut <= 5; ++cut) {  // the prefix can lie across two frames
      Http2Inspector inspector(kStart);
      const std::string prefix = message_of(length);
      std::string bytes = kPreface + frame(kHeaders, kEndsHeaders, 1) + frame(kData, 0, 1, prefix.substr(0, cut)) +
                          frame(kData, 0, 1, prefix.substr(cut) + "m");
      const std::string expected = kPreface + frame(kHeaders, kEndsHeaders, 1) +
                                   frame(kData, 0, 1, message_of(std::min(length, 0x1000000u)).substr(0, cut)) +
                                   frame(kData, 0, 1, message_of(std::min(length, 0x1000000u)).substr(cut) + "m");
      const auto count = inspector.admit(std::as_writable_bytes(std::span(bytes)), now_);
      ASSERT_EQ(count, bytes.size());
      EXPECT_EQ(bytes, expected) << length << " cut at " << cut;
    }
  }
}

TEST_F(InspectorTest, WhatFollowsAMessageBeyondTheLimitWaitsForItsRefusal) {
  ASSERT_TRUE(admits(kPreface + frame(kHeaders, kEndsHeaders, 1) + frame(kHeaders, kEndsHeaders, 3)));
  const std::string rest = frame(kData, 0, 1, "rest");
  ASSERT_TRUE(admits(frame(kData, 0, 1, message_of(0x40000000))));
  for (int piece = 0; piece < 1024; ++piece) ASSERT_TRUE(admits(frame(kData, 0, 1, std::string(16 * 1024, 'm'))));
  EXPECT_EQ(inspector_.incomplete_bytes(), 0u);
  EXPECT_TRUE(admits(frame(kData, 0, 3, message_of(1) + "x"))) << "another call's";
  EXPECT_EQ(admit(rest), 0u);
  EXPECT_TRUE(inspector_.paced());
  const std::string refusal = frame(kHeaders, kEndsHeaders | kEndsStream, 1, "trailers");
  inspector_.answered(std::as_bytes(std::span(refusal)));
  EXPECT_TRUE(admits(rest));
  EXPECT_FALSE(inspector_.paced());
}

TEST_F(InspectorTest, MessagesFollowEachOtherAndAreCountedUntilTheyAreComplete) {
  ASSERT_TRUE(admits(kPreface + frame(kHeaders, kEndsHeaders, 1) + frame(kHeaders, kEndsHeaders, 3)));
  ASSERT_TRUE(admits(frame(kData, 0, 1, message_of(0) + message_of(3) + "abc" + message_of(10) + "abcd")));
  EXPECT_EQ(inspector_.incomplete_bytes(), 4u);
  ASSERT_TRUE(admits(frame(kData, 0, 3, message_of(100) + "12345678")));
  EXPECT_EQ(inspector_.incomplete_bytes(), 12u);
  ASSERT_TRUE(admits(frame(kData, 0, 1, "efghij")));
  EXPECT_EQ(inspector_.incomplete_bytes(), 8u);
  ASSERT_TRUE(admits(frame(kData, 0, 1, message_of(10) + "abc")));
  ASSERT_TRUE(admits(frame(kData, kEndsStream, 3, "9")));
  EXPECT_EQ(inspector_.incomplete_bytes(), 3u);
  ASSERT_TRUE(admits(frame(kReset, 0, 1, "1234")));
  EXPECT_EQ(inspector_.incomplete_bytes(), 0u);
  ASSERT_TRUE(admits(frame(kData, 0, 1, message_of(10) + "abc"))) << "of a call that has ended: nobody keeps it";
  EXPECT_EQ(inspector_.incomplete_bytes(), 0u);
}

TEST_F(InspectorTest, ACallThatGrpcEndsKeepsNothing) {
  ASSERT_TRUE(admits(kPreface + frame(kHeaders, kEndsHeaders, 1) + frame(kHeaders, kEndsHeaders, 3)));
  ASSERT_TRUE(admits(frame(kData, 0, 1, message_of(100) + "abc") + frame(kData, 0, 3, message_of(100) + "abc")));
  const std::string answers = frame(kHeaders, kEndsHeaders | kEndsStream, 1, "trailers") + frame(kReset, 0, 3, "1234");
  inspector_.answered(std::as_bytes(std::span(answers)));
  EXPECT_EQ(inspector_.incomplete_bytes(), 0u);
}

TEST_F(InspectorTest, WhatGrpcResetsCounts) {
  ASSERT_TRUE(admits(kPreface + frame(kSettings, kAcknowledges, 0)));
  std::string answers;
  for (int call = 0; call < Http2Inspector::kResetsMax; ++call)
    answers += frame(kHeaders, kEndsHeaders, 1, "answer") + frame(kReset, 0, 1, "1234");
  for (std::size_t at = 0; at < answers.size(); at += 7)  // as it may be cut
    inspector_.answered(std::as_bytes(std::span(answers)).subspan(at, std::min<std::size_t>(7, answers.size() - at)));
  EXPECT_EQ(admit(frame(kHeaders, kEndsHeaders, 1)), 0u);
  EXPECT_TRUE(inspector_.paced());
  EXPECT_TRUE(admits(frame(kPing, 0, 0, "12345678")));
  now_ = now_ + Http2Inspector::kResetPeriod;
  EXPECT_TRUE(admits(frame(kHeaders, kEndsHeaders, 1)));
}

}  // namespace
}  // namespace terrace::front

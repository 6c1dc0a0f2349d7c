// SPDX-License-Identifier: Apache-2.0
// Shows that a token opens its own session, to its own tenant, until it is forgotten, and that use keeps it fresh.
#include "front/gateway/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace terrace::front {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr SessionId kOne{1};
constexpr SessionId kTwo{2};
constexpr Duration kMinute = std::chrono::minutes(1);

class TokensTest : public testing::Test {
 protected:
  void SetUp() override {
    tokens_.add(one_, kOne, mine_, begin_);
    tokens_.add(two_, kTwo, mine_, begin_);
  }

  const Tenant mine_{.socket = 0, .uid = 1000};
  const Tenant others_{.socket = 0, .uid = 1001};
  const Token one_{1};
  const Token two_{2};
  const Time begin_ = Time{} + std::chrono::hours(1);
  Tokens tokens_;
};

TEST_F(TokensTest, OpensItsSessionToItsTenantAlone) {
  EXPECT_EQ(tokens_.authenticate(one_, mine_, begin_), kOne);
  EXPECT_EQ(tokens_.authenticate(two_, mine_, begin_), kTwo);
  EXPECT_EQ(tokens_.authenticate(one_, others_, begin_).error().code, ErrorCode::kUnauthenticated);
  EXPECT_EQ(tokens_.authenticate(Token{3}, mine_, begin_).error().code, ErrorCode::kUnauthenticated);
}

TEST_F(TokensTest, OpensNothingOnceItIsForgotten) {
  tokens_.forget(one_);
  tokens_.forget(one_);
  EXPECT_FALSE(tokens_.authenticate(one_, mine_, begin_).has_value());
  EXPECT_THAT(tokens_.unused_for(Duration::zero(), begin_), ElementsAre(kTwo));
}

TEST_F(TokensTest, UseKeepsItFreshAndARefusalDoesNot) {
  EXPECT_THAT(tokens_.unused_for(kMinute, begin_ + kMinute / 2), IsEmpty());
  EXPECT_TRUE(tokens_.authenticate(one_, mine_, begin_ + kMinute / 2).has_value());
  EXPECT_FALSE(tokens_.authenticate(two_, others_, begin_ + kMinute / 2).has_value());
  EXPECT_THAT(tokens_.unused_for(kMinute, begin_ + kMinute), ElementsAre(kTwo));
}

TEST_F(TokensTest, NoTwoSessionsHaveTheSame) {
  EXPECT_DEATH(tokens_.add(one_, SessionId{3}, mine_, begin_), "check failed");
}

}  // namespace
}  // namespace terrace::front

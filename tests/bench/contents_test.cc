// SPDX-License-Identifier: Apache-2.0
// Shows that samples of content are told from those of another version and another place.
#include "bench/contents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"

namespace terrace::bench {
namespace {

TEST(Contents, SamplesAreAPartOfTheWhole) {
  std::vector<std::byte> bytes(200 * kKiB);
  fill(bytes, 3, 4);
  EXPECT_TRUE(check_samples(bytes, 3, 4));
  fill_samples(bytes, 3, 5);
  EXPECT_TRUE(check_samples(bytes, 3, 5));
  EXPECT_FALSE(check_samples(bytes, 3, 4));
  EXPECT_FALSE(check(bytes, 3, 5));
}

TEST(Contents, SamplesKnowTheirPlace) {
  std::vector<std::byte> bytes(200 * kKiB);
  fill_samples(bytes, 3, 4);
  std::copy_n(bytes.begin(), 64, bytes.begin() + 128 * kKiB);
  const auto wrong = check_samples(bytes, 3, 4);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kDataLoss);
  EXPECT_NE(wrong.error().message.find("wrong bytes at 131072 of"), std::string::npos) << wrong.error().message;
}

}  // namespace
}  // namespace terrace::bench

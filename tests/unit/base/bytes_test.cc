// SPDX-License-Identifier: Apache-2.0
// Shows that sizes are read and printed as documented, and that nonsense is refused by name.
#include "base/bytes.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(Bytes, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("64GiB"), 64 * kGiB);
  EXPECT_EQ(parse_bytes("512 MiB"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536u);
  EXPECT_EQ(parse_bytes("2GB"), 2000000000u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
}

TEST(Bytes, RefusesNonsenseByName) {
  for (const char* text : {"", "GiB", "-1GiB", "12 parsecs", "1e400GiB", "99999999TiB", "nan"}) {
    const auto bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.has_value()) << text;
    EXPECT_EQ(bytes.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(bytes.error().message.find("64GiB"), std::string::npos) << "the message shows the right form";
  }
}

TEST(Bytes, PrintsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(64 * kGiB), "64 GiB");
}

TEST(Bytes, Rounds) {
  EXPECT_EQ(align_up(1, kPageBytes), kPageBytes);
  EXPECT_EQ(align_up(kPageBytes, kPageBytes), kPageBytes);
  EXPECT_EQ(align_down(kPageBytes + 1, kPageBytes), kPageBytes);
}

}  // namespace
}  // namespace terrace

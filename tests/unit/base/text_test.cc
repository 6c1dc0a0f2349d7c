// SPDX-License-Identifier: Apache-2.0
// Shows what is taken for UTF-8, and that nothing else and no control character reaches people's terminals.
#include "base/text.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(Text, IsUtf8) {
  for (const char* text : {"", "rank 3", "\n", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "gr\xC3\xBC\xC3\x9F"})
    EXPECT_TRUE(is_utf8(text)) << text;
  EXPECT_TRUE(is_utf8(std::string_view("\0", 1)));
}

TEST(Text, IsNotUtf8) {
  for (const char* text : {"\x80", "a\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x82",
                           "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

TEST(Text, PrintableLeavesWhatCanBePrinted) {
  EXPECT_EQ(printable("rank 3 gr\xC3\xBC\xC3\x9F"), "rank 3 gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(printable("a\nb\x1B[2Jc\x7F"), "a?b?[2Jc?");
  EXPECT_EQ(printable("\xC2\x9B\xC2\xA0"), "?\xC2\xA0");
  EXPECT_EQ(printable("cut \xE2\x82"), "cut ??");
}

}  // namespace
}  // namespace terrace

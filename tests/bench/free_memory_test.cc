// SPDX-License-Identifier: Apache-2.0
// Shows that memory in huge pages counts for a tier, and for nothing else.
#include "bench/free_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "base/bytes.h"

namespace terrace::bench {
namespace {

TEST(Memory, IsReadWithItsHugePages) {
  std::istringstream said(
      "MemTotal:       24666264 kB\nMemAvailable:   13631488 kB\nShmemHugePages:        0 kB\n"
      "HugePages_Total:    4700\nHugePages_Free:     4200\nHugePages_Rsvd:        0\nHugepagesize:       2048 kB\n");
  const FreeMemory memory = free_memory(said);
  EXPECT_EQ(memory.ordinary_bytes, 13 * kGiB);
  EXPECT_EQ(memory.huge_bytes, 4200 * 2 * kMiB);
  std::istringstream without("MemAvailable:   1024 kB\n");
  EXPECT_EQ(free_memory(without).huge_bytes, 0U);
}

TEST(Memory, OfHugePagesIsTheTiers) {
  EXPECT_EQ(lack_of_memory({.ordinary_bytes = 2 * kGiB, .huge_bytes = 8 * kGiB}, 8 * kGiB, 2 * kGiB), "");
  EXPECT_EQ(lack_of_memory({.ordinary_bytes = 10 * kGiB}, 8 * kGiB, 2 * kGiB), "");
  EXPECT_EQ(lack_of_memory({.ordinary_bytes = 7 * kGiB, .huge_bytes = 3 * kGiB}, 8 * kGiB, 2 * kGiB), "");
  EXPECT_THAT(lack_of_memory({.ordinary_bytes = 10 * kGiB - 1}, 8 * kGiB, 2 * kGiB), testing::HasSubstr("needed"));
  EXPECT_EQ(lack_of_memory({.ordinary_bytes = kGiB, .huge_bytes = 64 * kGiB}, 8 * kGiB, 2 * kGiB),
            "1 GiB of memory are available beside 64 GiB in free huge pages, 2 GiB are needed");
}

}  // namespace
}  // namespace terrace::bench

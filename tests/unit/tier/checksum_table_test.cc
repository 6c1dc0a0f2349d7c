// SPDX-License-Identifier: Apache-2.0
// Shows that a chunk's checksum is of its bytes and of its name, and stays the same from release to release.
#include "tier/block/checksum_table.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

namespace terrace::tier {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(ChecksumTest, IsBoundToEveryPartOfItsName) {
  const auto bytes = bytes_of("the same bytes");
  std::set<std::uint64_t> sums;
  for (const ChunkName& name : {ChunkName{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {0, 0, 0}}) {
    EXPECT_TRUE(sums.insert(checksum(name, bytes)).second);
    EXPECT_EQ(checksum(name, bytes), checksum(name, bytes));
  }
}

TEST(ChecksumTest, SeesEveryBit) {
  std::vector<std::byte> bytes(5000);
  const std::uint64_t sum = checksum({1, 2, 3}, bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += 7) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= mask;
    EXPECT_NE(checksum({1, 2, 3}, bytes), sum) << bit;
    bytes[bit / 8] ^= mask;
  }
  EXPECT_NE(checksum({1, 2, 3}, std::span(bytes).first(4999)), sum);
}

// docs/reference/formats-block.md gives this example: whoever changes the number changes the format.
TEST(ChecksumTest, KeepsItsFormat) { EXPECT_EQ(checksum({1, 2, 3}, bytes_of("terrace")), 0xD9F9CB9B68F78545ULL); }

// XXH3 has ways of its own for what is long, and some for each kind of processor: this is what the plain one gives.
TEST(ChecksumTest, KeepsItsFormatForAWholeChunk) {
  std::vector<std::byte> bytes(std::size_t{1} << 20U);
  for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(31 * at);
  EXPECT_EQ(checksum({1, 2, 3}, bytes), 0x66DAFEB03DD1C540ULL);
}

TEST(ChecksumTableTest, RemembersEachEntry) {
  auto made = ChecksumTable::create(1000);
  ASSERT_TRUE(made) << made.error().message;
  ChecksumTable table = std::move(*made);
  EXPECT_EQ(table.size(), 1000U);
  EXPECT_EQ(table.get(999), 0U);
  for (std::uint64_t entry = 0; entry < 1000; ++entry) table.set(entry, entry * entry);
  for (std::uint64_t entry = 0; entry < 1000; ++entry) EXPECT_EQ(table.get(entry), entry * entry);
}

TEST(ChecksumTableDeathTest, HasNoEntryBeyondItsEnd) {
  auto table = ChecksumTable::create(3);
  EXPECT_DEATH(table->set(3, 1), "check failed");
  EXPECT_DEATH((void)table->get(3), "check failed");
}

}  // namespace
}  // namespace terrace::tier

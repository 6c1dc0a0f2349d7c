// SPDX-License-Identifier: Apache-2.0
// Shows, against random use, that the arena's blocks never overlap, are large enough, and coalesce when all are back.
#include "arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "shm/layout.h"

namespace terrace::client {
namespace {

TEST(Arena, HandsOutDisjointBlocksAndTakesThemAllBack) {
  const std::uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  Arena arena(shm::kArenaBytes);
  std::map<std::uint64_t, Arena::Block> held;  // by offset
  for (int i = 0; i < 20'000; ++i) {
    if (!held.empty() && random() % 2 == 0) {
      auto any = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
      arena.give_back(any->second);
      held.erase(any);
      continue;
    }
    const std::uint64_t bytes = 1ull << random() % 24;
    const auto block = arena.take(bytes);
    if (!block) continue;
    ASSERT_GE(block->bytes, bytes) << "seed " << seed;
    ASSERT_GE(block->bytes, shm::kBlockBytesMin);
    ASSERT_LE(block->offset + block->bytes, shm::kArenaBytes);
    const auto after = held.lower_bound(block->offset);
    if (after != held.end()) {
      ASSERT_LE(block->offset + block->bytes, after->first) << "seed " << seed;
    }
    if (after != held.begin()) {
      const Arena::Block& before = std::prev(after)->second;
      ASSERT_LE(before.offset + before.bytes, block->offset) << "seed " << seed;
    }
    held.emplace(block->offset, *block);
  }
  for (const auto& [offset, block] : held) arena.give_back(block);
  EXPECT_EQ(arena.free_bytes(), shm::kArenaBytes);
  EXPECT_TRUE(arena.take(shm::kArenaBytes).has_value());
  EXPECT_FALSE(arena.take(1).has_value());
  EXPECT_FALSE(arena.take(shm::kArenaBytes + 1).has_value());
}

}  // namespace
}  // namespace terrace::client

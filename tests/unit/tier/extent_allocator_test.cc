// SPDX-License-Identifier: Apache-2.0
// Shows that extents never overlap, that best fit and joining do what they say, and, over random operations, that the
// allocator agrees with a map that knows the state of every unit of the space.
#include "tier/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <vector>

namespace terrace::tier {
namespace {

TEST(ExtentAllocator, TakesTheSmallestThatFitsAndTheLowestOfEquals) {
  ExtentAllocator space(4096);
  space.extend(10 * 4096);
  const auto a = space.allocate(3 * 4096);
  const auto b = space.allocate(1);
  const auto c = space.allocate(2 * 4096);
  const auto d = space.allocate(4096);
  ASSERT_TRUE(a && b && c && d);
  EXPECT_EQ(b->bytes, 4096u) << "rounded up to the unit";
  space.free(*a);
  space.free(*c);
  EXPECT_EQ(space.allocate(2 * 4096), *c) << "the hole of two, not the hole of three";
  EXPECT_EQ(space.largest_free_bytes(), 3u * 4096);
  EXPECT_EQ(space.allocate(3 * 4096), *a) << "the lower of two holes of three";
  space.check_invariants();
}

TEST(ExtentAllocator, SaysOfAnyNumbersWhetherTheyCanBeTaken) {
  constexpr std::uint64_t kMax = UINT64_MAX;
  constexpr std::uint64_t kUnit = 4096;
  ExtentAllocator space(kUnit);
  EXPECT_FALSE(space.is_free({0, kUnit})) << "there is no space";
  space.extend(10 * kUnit);
  space.take({4 * kUnit, kUnit});
  for (const Extent free : {Extent{0, kUnit}, {0, 4 * kUnit}, {5 * kUnit, 5 * kUnit}, {9 * kUnit, kUnit}})
    EXPECT_TRUE(space.is_free(free)) << free.offset;
  for (const Extent taken : {Extent{0, 0},
                             {kUnit, 0},
                             {1, kUnit},
                             {0, 1},
                             {0, 5 * kUnit},
                             {4 * kUnit, kUnit},
                             {3 * kUnit, 2 * kUnit},
                             {9 * kUnit, 2 * kUnit},
                             {10 * kUnit, kUnit},
                             {kMax - kUnit + 1, kUnit},
                             {kUnit, kMax - kUnit + 1},
                             {kMax, kMax}})
    EXPECT_FALSE(space.is_free(taken)) << taken.offset << ", " << taken.bytes;
}

TEST(ExtentAllocator, JoinsNeighboursAndReportsFragmentation) {
  ExtentAllocator space(1);
  space.extend(30);
  EXPECT_EQ(space.fragmentation(), 0.0);
  const auto a = space.allocate(10);
  const auto b = space.allocate(10);
  const auto c = space.allocate(10);
  EXPECT_EQ(space.fragmentation(), 0.0) << "nothing is free";
  space.free(*a);
  space.free(*c);
  EXPECT_DOUBLE_EQ(space.fragmentation(), 0.5);
  EXPECT_FALSE(space.allocate(20));
  space.free(*b);
  EXPECT_EQ(space.largest_free_bytes(), 30u);
  EXPECT_EQ(space.fragmentation(), 0.0);
}

TEST(ExtentAllocator, GivesPiecesWhenNoExtentSuffices) {
  ExtentAllocator space(1);
  space.extend(40);
  std::vector<Extent> tens;
  for (int i = 0; i < 4; ++i) tens.push_back(*space.allocate(10));
  space.free(tens[0]);
  space.free(tens[2]);
  const auto pieces = space.allocate_pieces(15);
  ASSERT_TRUE(pieces);
  EXPECT_EQ(pieces->size(), 2u);
  EXPECT_EQ(pieces->bytes(), 15u);
  EXPECT_FALSE(space.allocate_pieces(6)) << "only five are free";
  EXPECT_EQ(space.free_bytes(), 5u) << "a refusal keeps nothing";
  space.check_invariants();
}

TEST(ExtentAllocator, NoMorePiecesThanTheBound) {
  ExtentAllocator space(1);
  space.extend(40);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(space.allocate(1));
  for (std::uint64_t i = 0; i < 40; i += 2) space.free({i, 1});
  EXPECT_TRUE(space.allocate_pieces(kPiecesMax));
  EXPECT_FALSE(space.allocate_pieces(kPiecesMax + 1));
  EXPECT_EQ(space.free_bytes(), 20u - kPiecesMax);
}

TEST(ExtentAllocator, ShrinksOnlyOverFreeBytes) {
  ExtentAllocator space(1);
  space.extend(20);
  const auto a = space.allocate(5);
  EXPECT_EQ(space.free_tail_offset(), 5u);
  EXPECT_FALSE(space.shrink(16));
  EXPECT_TRUE(space.shrink(15));
  EXPECT_EQ(space.capacity_bytes(), 5u);
  EXPECT_EQ(space.free_tail_offset(), 5u);
  space.free(*a);
  EXPECT_EQ(space.free_tail_offset(), 0u);
  EXPECT_TRUE(space.shrink(5));
  EXPECT_EQ(space.capacity_bytes(), 0u);
}

TEST(ExtentAllocator, RetiredBytesAreNeitherFreeNorUsed) {
  ExtentAllocator space(1);
  space.extend(30);
  space.retire({10, 10});
  EXPECT_EQ(space.retired_bytes(), 10u);
  EXPECT_EQ(space.free_bytes(), 20u);
  EXPECT_EQ(space.used_bytes(), 0u);
  EXPECT_FALSE(space.allocate(11));
  space.check_invariants();
}

TEST(ExtentAllocatorDeathTest, AbortsOnWhatIsFreeAlready) {
  ExtentAllocator space(1);
  space.extend(10);
  const auto a = space.allocate(6);
  space.free(*a);
  EXPECT_DEATH(space.free({2, 2}), "check failed");
  EXPECT_DEATH(space.free({8, 4}), "check failed") << "beyond the end";
}

// The model: one state per unit.
class Model {
 public:
  enum State : char { kFree, kUsed, kRetired };
  std::vector<State> units;

  std::uint64_t count(State state) const {
    return static_cast<std::uint64_t>(std::count(units.begin(), units.end(), state));
  }
  bool all(Extent extent, State state) const {
    for (std::uint64_t at = extent.offset; at < extent.end(); ++at)
      if (units[at] != state) return false;
    return true;
  }
  void set(Extent extent, State state) {
    for (std::uint64_t at = extent.offset; at < extent.end(); ++at) units[at] = state;
  }
  // Free runs, as (offset, length).
  std::vector<Extent> runs() const {
    std::vector<Extent> found;
    for (std::uint64_t at = 0; at < units.size(); ++at) {
      if (units[at] != kFree) continue;
      if (!found.empty() && found.back().end() == at)
        ++found.back().bytes;
      else
        found.push_back({at, 1});
    }
    return found;
  }
  std::optional<Extent> best_fit(std::uint64_t bytes) const {
    std::optional<Extent> best;
    for (const Extent& run : runs())
      if (run.bytes >= bytes && (!best || run.bytes < best->bytes)) best = run;
    if (best) best->bytes = bytes;
    return best;
  }
};

class RandomExtents : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomExtents, AgreesWithTheModel) {
  std::cout << "seed " << GetParam() << '\n';
  std::mt19937_64 random(GetParam());
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  ExtentAllocator space(1);
  Model model;
  std::vector<Extent> given;
  for (int step = 0; step < 20'000; ++step) {
    switch (below(10)) {
      case 0: {
        if (model.units.size() > 400) break;
        const std::uint64_t bytes = below(40);
        space.extend(bytes);
        model.units.resize(model.units.size() + bytes, Model::kFree);
        break;
      }
      case 1: {
        const std::uint64_t bytes = below(std::min<std::uint64_t>(model.units.size() + 1, 40));
        const Extent tail{model.units.size() - bytes, bytes};
        ASSERT_EQ(space.shrink(bytes), model.all(tail, Model::kFree));
        if (model.all(tail, Model::kFree)) model.units.resize(tail.offset);
        break;
      }
      case 2: {
        const auto pieces = space.allocate_pieces(1 + below(60));
        if (!pieces) break;
        for (const Extent& piece : pieces->span()) {
          ASSERT_TRUE(model.all(piece, Model::kFree));
          model.set(piece, Model::kUsed);
          given.push_back(piece);
        }
        break;
      }
      case 3: {
        const auto runs = model.runs();
        if (runs.empty()) break;
        const Extent run = runs[below(runs.size())];
        const std::uint64_t skip = below(run.bytes);
        const Extent part{run.offset + skip, 1 + below(run.bytes - skip)};
        if (below(50) == 0) {
          space.retire(part);
          model.set(part, Model::kRetired);
        } else {
          space.take(part);
          model.set(part, Model::kUsed);
          given.push_back(part);
        }
        break;
      }
      case 4:
      case 5:
      case 6: {
        const std::uint64_t bytes = 1 + below(30);
        const auto expected = model.best_fit(bytes);
        const auto extent = space.allocate(bytes);
        ASSERT_EQ(extent, expected);
        if (!extent) break;
        model.set(*extent, Model::kUsed);
        given.push_back(*extent);
        break;
      }
      default: {
        if (given.empty()) break;
        const std::size_t at = below(given.size());
        Extent extent = given[at];
        if (extent.bytes > 1 && below(4) == 0) {  // a part of it
          const std::uint64_t keep = 1 + below(extent.bytes - 1);
          given[at].bytes = keep;
          extent = {extent.offset + keep, extent.bytes - keep};
        } else {
          given[at] = given.back();
          given.pop_back();
        }
        space.free(extent);
        model.set(extent, Model::kFree);
      }
    }
    space.check_invariants();
    ASSERT_EQ(space.capacity_bytes(), model.units.size());
    ASSERT_EQ(space.free_bytes(), model.count(Model::kFree));
    ASSERT_EQ(space.used_bytes(), model.count(Model::kUsed));
    ASSERT_EQ(space.retired_bytes(), model.count(Model::kRetired));
    std::uint64_t largest = 0;
    for (const Extent& run : model.runs()) largest = std::max(largest, run.bytes);
    ASSERT_EQ(space.largest_free_bytes(), largest);
    ASSERT_EQ(space.free_within({0, model.units.size()}), model.runs());
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomExtents, ::testing::Range(1u, 5u));

}  // namespace
}  // namespace terrace::tier

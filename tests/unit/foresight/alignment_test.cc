// SPDX-License-Identifier: Apache-2.0
// Two sequences are aligned by as much as they have in common: exactly in short ones, and nearly in long ones of which
// a part was changed.
#include "foresight/alignment.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace terrace::foresight {
namespace {

using Keys = std::vector<std::uint64_t>;

// How many elements are aligned; the edits must make one sequence of the other.
std::size_t aligned(const Keys& first, const Keys& second) {
  std::size_t x = 0;
  std::size_t y = 0;
  std::size_t both = 0;
  for (const Edit edit : align(first, second)) {
    if (edit == Edit::kBoth) {
      EXPECT_EQ(first.at(x), second.at(y));
      ++both;
    }
    x += edit != Edit::kSecond ? 1 : 0;
    y += edit != Edit::kFirst ? 1 : 0;
  }
  EXPECT_EQ(x, first.size());
  EXPECT_EQ(y, second.size());
  return both;
}

// The length of the longest common subsequence, by the textbook's table.
std::size_t in_common(const Keys& first, const Keys& second) {
  std::vector<std::size_t> row(second.size() + 1, 0);
  for (const std::uint64_t key : first) {
    std::size_t diagonal = 0;
    for (std::size_t y = 0; y < second.size(); ++y) {
      const std::size_t above = row[y + 1];
      row[y + 1] = key == second[y] ? diagonal + 1 : std::max(above, row[y]);
      diagonal = above;
    }
  }
  return row.back();
}

Keys drawn(Random& random, std::size_t length, std::uint64_t letters) {
  Keys keys(length);
  for (std::uint64_t& key : keys) key = random.below(letters);
  return keys;
}

TEST(Alignment, OfShortSequencesIsTheBestThereIs) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const Keys first = drawn(random, random.below(40), 2 + random.below(10));
    const Keys second = drawn(random, random.below(40), 2 + random.below(10));
    EXPECT_EQ(aligned(first, second), in_common(first, second)) << "seed " << seed;
  }
}

TEST(Alignment, FindsWhatWasNotChangedInLongSequences) {
  Random random(7);
  const Keys first = drawn(random, 20'000, 1'000);
  Keys second;
  std::size_t kept = 0;
  for (const std::uint64_t key : first) {
    if (random.one_in(15)) second.push_back(random.below(1'000));
    if (random.one_in(15)) continue;
    second.push_back(key);
    ++kept;
  }
  EXPECT_GE(aligned(first, second), kept * 99 / 100);
}

TEST(Alignment, ABlockThatWasLeftOutIsFoundAgainBehind) {
  Keys first(10'000);
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = i;
  Keys second = first;
  second.erase(second.begin() + 5'000, second.begin() + 5'000 + kAlignedMax / 2);
  EXPECT_EQ(aligned(first, second), second.size());
  EXPECT_EQ(aligned(second, first), second.size());
}

TEST(Alignment, SequencesWithNothingInCommonAreToldApart) {
  const Keys first(3'000, 1);
  const Keys second(1'000, 2);
  EXPECT_EQ(aligned(first, second), 0u);
  EXPECT_EQ(aligned(first, {}), 0u);
  EXPECT_EQ(aligned({}, second), 0u);
}

}  // namespace
}  // namespace terrace::foresight

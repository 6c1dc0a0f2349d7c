// SPDX-License-Identifier: Apache-2.0
// The tree of maxima agrees with an array.
#include "foresight/occupancy.h"

#include <gtest/gtest.h>

#include <random>

namespace terrace::foresight {
namespace {

TEST(Occupancy, FindsTheFirstGroupFromWhichThereIsRoomAsAnArrayDoes) {
  std::mt19937 random(3);
  std::vector<std::int64_t> bytes(37);
  for (auto& number : bytes) number = static_cast<std::int64_t>(random() % 100);
  Occupancy tree(bytes);
  for (int round = 0; round < 500; ++round) {
    const auto end = static_cast<std::uint32_t>(random() % (bytes.size() + 1));
    const auto earliest = static_cast<std::uint32_t>(random() % (end + 1));
    const auto limit = static_cast<std::int64_t>(random() % 150);
    std::uint32_t expected = end;
    while (expected > earliest && bytes[expected - 1] <= limit) --expected;
    ASSERT_EQ(tree.first_below(earliest, end, limit), expected) << "round " << round;
    const auto more = static_cast<std::int64_t>(random() % 5);
    tree.add(earliest, end, more);
    for (std::uint32_t at = earliest; at < end; ++at) bytes[at] += more;
  }
}

}  // namespace
}  // namespace terrace::foresight

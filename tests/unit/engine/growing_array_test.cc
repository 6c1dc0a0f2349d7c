// SPDX-License-Identifier: Apache-2.0
// Shows that elements stay where they are and what they are while there are more of them, and that each ends once.
#include "base/growing_array.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

namespace terrace::engine {
namespace {

TEST(GrowingArray, KeepsElementsWhereTheyAre) {
  constexpr std::size_t kCount = 10'000;  // of several blocks, the last one not full
  GrowingArray<std::size_t> array;
  std::vector<std::size_t*> places;
  for (std::size_t at = 0; at < kCount; ++at) {
    std::size_t& element = array.add();
    ASSERT_EQ(element, 0U);
    element = at;
    places.push_back(&element);
    ASSERT_EQ(array.size(), at + 1);
  }
  for (std::size_t at = 0; at < kCount; ++at) {
    ASSERT_EQ(&array[at], places[at]) << at;
    ASSERT_EQ(array[at], at);
  }
  EXPECT_EQ(std::set(places.begin(), places.end()).size(), kCount);
}

TEST(GrowingArray, EndsEachElement) {
  const auto owned = std::make_shared<int>(1);
  {
    GrowingArray<std::shared_ptr<int>> array;
    for (int i = 0; i < 200; ++i) array.add() = owned;
    EXPECT_EQ(owned.use_count(), 201);
  }
  EXPECT_EQ(owned.use_count(), 1);
}

}  // namespace
}  // namespace terrace::engine

// SPDX-License-Identifier: Apache-2.0
// Shows that a map of what is under way has what a map has, through growth, collisions and whatever goes.
#include "base/id_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "base/ids.h"
#include "base/random.h"

namespace terrace::engine {
namespace {

TEST(IdMap, HasWhatAMapHas) {
  constexpr std::uint64_t kSeed = 11;
  constexpr std::uint64_t kIds = 300;
  Random random(kSeed);
  IdMap<RequestId, std::string> map;
  std::map<RequestId, std::string> expected;
  for (int round = 0; round < 50'000; ++round) {
    const RequestId id{random.below(kIds) << random.below(2) * 40};
    if (expected.contains(id)) {
      ASSERT_EQ(map.take(id), expected.at(id)) << "seed " << kSeed << ", round " << round;
      expected.erase(id);
    } else {
      ASSERT_EQ(map.take(id), std::nullopt) << "seed " << kSeed << ", round " << round;
      map.add(id, std::to_string(round));
      expected.emplace(id, std::to_string(round));
    }
    ASSERT_EQ(map.size(), expected.size());
    ASSERT_EQ(map.empty(), expected.empty());
    const RequestId other{random.below(kIds)};
    ASSERT_EQ(map.contains(other), expected.contains(other)) << "seed " << kSeed << ", round " << round;
    const std::string* const found = map.find(other);
    ASSERT_EQ(found == nullptr ? "" : *found, expected.contains(other) ? expected.at(other) : "");
  }
}

TEST(IdMap, IsFilledAgainAfterItWasLargeAndGivesItsMemoryBack) {
  constexpr std::uint64_t kIds = 5'000;
  IdMap<TransferId, std::uint64_t> map;
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1'000'000}}) {
    for (std::uint64_t id = first; id < first + kIds; ++id) map.add(TransferId{id}, id);
    ASSERT_EQ(map.size(), kIds);
    ASSERT_GE(map.capacity(), 2 * kIds);
    for (std::uint64_t id = first; id < first + kIds; ++id) ASSERT_EQ(map.take(TransferId{id}), id);
    ASSERT_TRUE(map.empty());
    ASSERT_EQ(map.capacity(), 0u);
    ASSERT_FALSE(map.contains(TransferId{first}));
  }
}

TEST(IdMapDeathTest, TakesNoNumberTwice) {
  IdMap<TransferId, int> map;
  map.add(TransferId{7}, 1);
  EXPECT_DEATH(map.add(TransferId{7}, 2), "check failed");
}

}  // namespace
}  // namespace terrace::engine

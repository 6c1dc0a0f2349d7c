// SPDX-License-Identifier: Apache-2.0
// Shows that an index of names finds what is in it and nothing else, through growth, collisions and erasures.
#include "engine/residency/name_index.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/random.h"

namespace terrace::engine {
namespace {

TEST(NameIndex, FindsWhatIsThereAsAMapDoes) {
  constexpr std::uint64_t kSeed = 5;
  constexpr std::uint32_t kSlots = 400;
  Random random(kSeed);
  NameIndex index;
  std::vector<std::string> names(kSlots);
  std::map<std::string, Slot> expected;
  const auto name_of = [&](Slot slot) -> std::string_view { return names[terrace::index(slot)]; };
  for (int round = 0; round < 20'000; ++round) {
    const Slot slot{static_cast<std::uint32_t>(random.below(kSlots))};
    std::string& name = names[terrace::index(slot)];
    if (name.empty()) {
      name = std::to_string(random.below(2 * kSlots));
      const bool fresh = expected.emplace(name, slot).second;
      ASSERT_EQ(index.insert(slot, name_of), fresh) << "seed " << kSeed << ", round " << round;
      if (!fresh) name.clear();
    } else {
      index.erase(slot, name_of);
      expected.erase(name);
      name.clear();
    }
    ASSERT_EQ(index.size(), expected.size());
    const std::string other = std::to_string(random.below(2 * kSlots));
    const auto found = expected.find(other);
    ASSERT_EQ(index.find(other, name_of), found == expected.end() ? std::nullopt : std::optional(found->second))
        << "seed " << kSeed << ", round " << round;
  }
  for (const auto& [name, slot] : expected) EXPECT_EQ(index.find(name, name_of), slot);
}

}  // namespace
}  // namespace terrace::engine

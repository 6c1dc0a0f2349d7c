// SPDX-License-Identifier: Apache-2.0
// Shows, over every interleaving of two trainer threads, their deaths and the engine on one lease word: no released
// write is lost by cleaning or eviction, a leased copy does not move, wanted refuses new leases, and the release that
// reaches zero under wanted rings. And that the explorer would notice: each law is broken by a rule planted wrong.
#include <gtest/gtest.h>

#include <cstdio>

#include "unit/shm/word_model.h"

namespace terrace::shm::model {
namespace {

std::string told(const Violation& violation) {
  std::string text = "broken: " + violation.law + "\n";
  for (const std::string& step : violation.steps) text += "  " + step + "\n";
  return text;
}

TEST(WordInterleaving, HoldsInEveryReachableState) {
  const Exploration found = explore({}, 2, 2);
  std::printf("%lu states, %lu steps\n", static_cast<unsigned long>(found.states),
              static_cast<unsigned long>(found.steps));
  ASSERT_FALSE(found.violation.has_value()) << told(*found.violation);
  EXPECT_GT(found.states, 10'000u);
}

TEST(WordInterleaving, CleaningWithoutTheWriterCountLosesAReleasedWrite) {
  const Exploration found = explore({.begin_clean_counts_writers = false, .finish_clean_counts_writers = false}, 2, 2);
  ASSERT_TRUE(found.violation.has_value());
  std::printf("%s", told(*found.violation).c_str());
  EXPECT_EQ(found.violation->law, "a released write is not lost");
  EXPECT_LE(found.violation->steps.size(), 9u);  // seven on the word, and the drop that follows
}

TEST(WordInterleaving, CountingWritersOnlyAtTheEndLosesAReleasedWrite) {
  const Exploration found = explore({.begin_clean_counts_writers = false}, 2, 2);
  ASSERT_TRUE(found.violation.has_value());
  EXPECT_EQ(found.violation->law, "a released write is not lost") << told(*found.violation);
}

TEST(WordInterleaving, AReleaseThatDoesNotRingLeavesTheEngineWaiting) {
  const Exploration found = explore({.release_rings = false}, 2, 2);
  ASSERT_TRUE(found.violation.has_value());
  EXPECT_EQ(found.violation->law, "the last release rings") << told(*found.violation);
}

TEST(WordInterleaving, AClaimThatDoesNotCountMovesALeasedCopy) {
  const Exploration found = explore({.claim_counts_leases = false}, 2, 2);
  ASSERT_TRUE(found.violation.has_value());
  EXPECT_EQ(found.violation->law, "a leased copy does not move") << told(*found.violation);
}

TEST(WordInterleaving, LeasesPastWantedAreNoticed) {
  const Exploration found = explore({.want_refuses_new_leases = false}, 2, 2);
  ASSERT_TRUE(found.violation.has_value());
  EXPECT_EQ(found.violation->law, "a wanted copy takes no new leases") << told(*found.violation);
}

}  // namespace
}  // namespace terrace::shm::model

// SPDX-License-Identifier: Apache-2.0
// A template keeps what steps have in common through insertions, deletions and reorderings.
#include "foresight/template.h"

#include <gtest/gtest.h>

namespace terrace::foresight {
namespace {

constexpr std::int64_t kStepNs = 1'000'000;

std::vector<TemplateUse> step_of(const std::vector<std::uint32_t>& slots) {
  std::vector<TemplateUse> uses;
  for (const std::uint32_t slot : slots) {
    TemplateUse use;
    use.slot = Slot{slot};
    use.at_ns = static_cast<std::int64_t>(uses.size()) * 10'000;
    use.bytes = 4096;
    uses.push_back(use);
  }
  return uses;
}

std::vector<std::uint32_t> trusted(const Template& known) {
  std::vector<std::uint32_t> slots;
  for (const TemplateUse& use : known.uses)
    if (use.trust >= kTrusted) slots.push_back(static_cast<std::uint32_t>(use.slot));
  return slots;
}

TEST(Template, TheFirstStepIsBelieved) {
  Template known;
  known.learn(step_of({1, 2, 3}), kStepNs);
  EXPECT_EQ(trusted(known), (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(known.period_ns, kStepNs);
}

TEST(Template, TheSameStepAgainChangesNothing) {
  Template known;
  known.learn(step_of({1, 2, 3, 1}), kStepNs);
  const auto version = known.version;
  const Match match = known.learn(step_of({1, 2, 3, 1}), kStepNs);
  EXPECT_EQ(match.matched, 4u);
  EXPECT_EQ(match.missed + match.added, 0u);
  EXPECT_EQ(known.version, version);
}

TEST(Template, AnInsertionIsNotBelievedUntilItCameAgain) {
  Template known;
  known.learn(step_of({1, 2, 3, 4}), kStepNs);
  EXPECT_EQ(known.learn(step_of({1, 2, 9, 3, 4}), kStepNs).added, 1u);
  EXPECT_EQ(trusted(known), (std::vector<std::uint32_t>{1, 2, 3, 4}));
  known.learn(step_of({1, 2, 9, 3, 4}), kStepNs);
  EXPECT_EQ(trusted(known), (std::vector<std::uint32_t>{1, 2, 9, 3, 4}));
}

TEST(Template, OneDeletionIsForgivenOfWhatIsOld) {
  Template known;
  for (int i = 0; i < 4; ++i) known.learn(step_of({1, 2, 3, 4}), kStepNs);
  EXPECT_EQ(known.learn(step_of({1, 3, 4}), kStepNs).missed, 1u);
  EXPECT_EQ(trusted(known), (std::vector<std::uint32_t>{1, 2, 3, 4}));
  for (int i = 0; i < 4; ++i) known.learn(step_of({1, 3, 4}), kStepNs);
  EXPECT_EQ(trusted(known), (std::vector<std::uint32_t>{1, 3, 4}));
}

TEST(Template, AReorderingLeavesTheRestKnown) {
  Template known;
  known.learn(step_of({1, 2, 3, 4, 5, 6, 7, 8}), kStepNs);
  const Match match = known.learn(step_of({1, 2, 4, 3, 5, 6, 7, 8}), kStepNs);
  EXPECT_GE(match.matched, 7u);
}

TEST(Template, WhatWasLeftOutAndComesLaterAgainTakesNothingWithIt) {
  Template known;
  known.learn(step_of({1, 2, 3, 4, 5, 1, 6, 7}), kStepNs);
  const Match match = known.learn(step_of({9, 2, 3, 4, 5, 1, 6, 7}), kStepNs);
  EXPECT_EQ(match.matched, 7u);
  EXPECT_EQ(match.missed, 1u);
  EXPECT_EQ(match.added, 1u);
}

TEST(Template, OneMissInTheSecondStepIsForgivenAndTwoAreNot) {
  Template known;
  known.learn(step_of({1, 2, 3}), kStepNs);
  known.learn(step_of({1, 3}), kStepNs);
  EXPECT_EQ(trusted(known), (std::vector<std::uint32_t>{1, 2, 3}));
  known.learn(step_of({1, 3}), kStepNs);
  EXPECT_EQ(trusted(known), (std::vector<std::uint32_t>{1, 3}));
}

TEST(Template, TimesNeverGoBackwards) {
  Template known;
  known.learn(step_of({1, 2, 3}), kStepNs);
  auto slow = step_of({1, 7, 2, 3});
  for (auto& use : slow) use.at_ns *= 10;
  known.learn(std::move(slow), kStepNs);
  for (std::size_t i = 1; i < known.uses.size(); ++i) EXPECT_GE(known.uses[i].at_ns, known.uses[i - 1].at_ns);
}

}  // namespace
}  // namespace terrace::foresight

// SPDX-License-Identifier: Apache-2.0
// A plan of a cyclic sweep keeps as much as there is room for and moves the rest, in time where the links allow it.
#include "foresight/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace terrace::foresight {
namespace {

constexpr std::uint32_t kHost = 0;
constexpr std::uint32_t kDevice = 1;
constexpr std::int64_t kRunNs = 1'000'000;

Template loop(std::uint32_t tensors, std::uint64_t bytes, std::uint32_t place, shm::Mode mode) {
  Template known;
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    TemplateUse use;
    use.slot = Slot{tensor};
    use.place = place;
    use.mode = mode;
    use.bytes = bytes;
    use.at_ns = tensor * kRunNs;
    use.trust = kTrusted;
    known.uses.push_back(use);
  }
  known.period_ns = tensors * kRunNs;
  return known;
}

std::uint64_t given_up(const Plan& plan) {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(plan.uses, [](const PlannedUse& use) { return use.give_up; }));
}

TEST(Planner, ALoopIsKeptButForWhatHasNoRoom) {
  // 100 tensors of 1 MB, room for 80: 20 of them have to come again in each step, and one more has to be there at once.
  Machine machine;
  machine.devices.push_back({kDevice, 80'000'000, {10e9, 0}, {10e9, 0}});
  const Template known = loop(100, 1'000'000, kDevice, shm::Mode::kRead);
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  EXPECT_GE(given_up(made), 20u);
  EXPECT_LE(given_up(made), 22u);
  const auto come_back = std::ranges::count_if(made.uses, &PlannedUse::comes_back);
  EXPECT_GE(come_back, 20);
  EXPECT_LE(come_back, 22);
  EXPECT_EQ(made.fetches.size(), 100u) << "what is to be there is brought if it is not";
  EXPECT_TRUE(made.cleans.empty()) << "nobody writes";
  for (const PlannedFetch& fetch : made.fetches) EXPECT_LE(fetch.from * kRunNs, fetch.due_ns);
}

TEST(Planner, WhatTheLastStepHadBeyondItsTemplateHasRoom) {
  // As above; of the uses of the last step, one in ten was not expected.
  Machine machine;
  machine.devices.push_back({kDevice, 80'000'000, {10e9, 0}, {10e9, 0}});
  Template known = loop(100, 1'000'000, kDevice, shm::Mode::kRead);
  known.last_match = {.matched = 90, .added = 10};
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  EXPECT_GE(given_up(made), 28u);
  EXPECT_LE(given_up(made), 30u);
}

TEST(Planner, WhereALinkIsTooSlowTheStepIsPlannedAsLongAsItWillTake) {
  // Of 100 MB, 50 fit, and the rest takes 1 ms each: the runs of 1 ms hide it just so; at a tenth of the speed they do
  // not.
  Machine machine;
  machine.devices.push_back({kDevice, 50'000'000, {0.1e9, 0}, {0.1e9, 0}});
  const Template known = loop(100, 1'000'000, kDevice, shm::Mode::kWrite);
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  EXPECT_GT(made.period_ns, 400 * kRunNs);
  EXPECT_LT(made.period_ns, 700 * kRunNs);
  EXPECT_LE(given_up(made), 55u);
}

TEST(Planner, WaitsThatHaveNothingToDoWithEachOtherAddUp) {
  // Twice a step 20 MB are written in 20 runs of 1 ms, with a second before, in which the link is free, and room for
  // half of them. The other half takes 10 ms each.
  Machine machine;
  machine.devices.push_back({kDevice, 11'000'000, {0.1e9, 0}, {0.1e9, 0}});
  Template known = loop(40, 1'000'000, kDevice, shm::Mode::kOverwrite);
  for (std::size_t use = 20; use < known.uses.size(); ++use) known.uses[use].at_ns += 1000 * kRunNs;
  known.period_ns = 2000 * kRunNs;
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  EXPECT_GT(made.period_ns, 2130 * kRunNs);
  EXPECT_LT(made.period_ns, 2250 * kRunNs);
}

TEST(Planner, MemoryAboveBlocksIsPlannedToo) {
  Machine machine;
  machine.has_memory = true;
  machine.memory = {kHost, 51'600'000, {10e9, 0}, {10e9, 0}};  // 50 MB, and what extents do not fill
  const Template known = loop(100, 1'000'000, kHost, shm::Mode::kWrite);
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  EXPECT_GE(made.fetches.size(), 50u);
  EXPECT_LE(made.fetches.size(), 53u);
  EXPECT_GE(made.cleans.size(), 50u);
  for (const PlannedFetch& fetch : made.fetches) EXPECT_EQ(fetch.place, kHost);
}

TEST(Planner, WhatGoesFromMemoryLiesEvenlyOverTheStepAndIsTheSameInEach) {
  // Of 100 MB, 60 fit, and the way out takes 2 ms for a tensor: 40 that are used one after the other would take 80 ms
  // of the 100, and be written down in 40.
  Machine machine;
  machine.has_memory = true;
  machine.memory = {kHost, 61'900'000, {1e9, 0}, {0.5e9, 0}};  // and what extents do not fill
  const Template known = loop(100, 1'000'000, kHost, shm::Mode::kWrite);
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  EXPECT_GE(given_up(made), 40u);
  EXPECT_LE(given_up(made), 43u);
  std::size_t row = 0;
  std::size_t longest = 0;
  int changed = 0;
  for (const PlannedUse& use : made.uses) {
    row = use.give_up ? row + 1 : 0;
    longest = std::max(longest, row);
    changed += use.give_up != use.comes_back ? 1 : 0;
  }
  EXPECT_LE(longest, 3u);
  EXPECT_LE(changed, 8) << "what came back goes again";
  EXPECT_LE(made.period_ns, 100 * kRunNs) << "nobody waits";
}

TEST(Planner, AllOfADeviceIsPlannedWithWhereMemoryAloneIsShort) {
  // Of 100 MB, the device has 60 and 4 more where extents do not pack, and memory 30: 10 go to the drives, at 0.1 of
  // the speed that the runs would hide, or 6.
  Machine machine;
  machine.devices.push_back({kDevice, 60'000'000, {10e9, 0}, {10e9, 0}, 0, 4'000'000});
  machine.has_memory = true;
  machine.memory = {kHost, 31'000'000, {0.1e9, 0}, {0.1e9, 0}};  // 30 MB, and what extents do not fill
  const Template known = loop(100, 1'000'000, kDevice, shm::Mode::kWrite);
  const auto given_up_by = [&] { return given_up(plan(machine, {&known, &known, &known, &known}, 2)); };
  const std::uint64_t all = given_up_by();
  machine.devices.front().left_bytes = 0;
  EXPECT_LE(all + 3, given_up_by());
  machine.devices.front().left_bytes = 4'000'000;
  machine.memory.in = machine.memory.out = {10e9, 0};
  EXPECT_LE(all + 3, given_up_by()) << "nobody waits";
  machine.devices.front().in = machine.devices.front().out = machine.memory.in = machine.memory.out = {0.1e9, 0};
  EXPECT_LE(all + 3, given_up_by()) << "the device's link is short, too";
}

TEST(Planner, SaysOfWhatADeviceGivesUpWhetherMemoryKeepsIt) {
  // Of 100 MB, the device has 10 and memory 50.
  Machine machine;
  machine.devices.push_back({kDevice, 10'000'000, {10e9, 0}, {10e9, 0}});
  machine.has_memory = true;
  machine.memory = {kHost, 51'600'000, {2e9, 0}, {2e9, 0}};  // likewise
  const Template known = loop(100, 1'000'000, kDevice, shm::Mode::kWrite);
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  const auto go_on = std::ranges::count_if(made.uses, &PlannedUse::give_up_below);
  EXPECT_GE(go_on, 40);
  EXPECT_LE(go_on, 46);
  EXPECT_TRUE(std::ranges::all_of(made.uses, [](const PlannedUse& use) { return use.give_up || !use.give_up_below; }));
}

TEST(Planner, ACleanSaysWhatWritesItLast) {
  Machine machine;
  machine.devices.push_back({kDevice, 50'000'000, {10e9, 0}, {10e9, 0}});
  const Template known = loop(100, 1'000'000, kDevice, shm::Mode::kWrite);
  const Plan made = plan(machine, {&known, &known, &known, &known}, 2);
  ASSERT_FALSE(made.cleans.empty());
  for (const PlannedClean& clean : made.cleans) {
    EXPECT_EQ(clean.overdue, clean.write == kNoUse && clean.after == 0) << "it was to be done in the step before";
    if (clean.write == kNoUse) continue;  // of the step before
    EXPECT_EQ(made.uses[clean.write].slot, clean.slot);
    EXPECT_LT(clean.write, clean.after) << "and it is sooner than when the next set has begun";
  }
  EXPECT_GE(std::ranges::count_if(made.cleans, [](const PlannedClean& clean) { return clean.write != kNoUse; }), 48);
}

// A tensor that is born, read, and dead, for one run each; what comes between leaves no doubt about the order.
Template life() {
  Template known = loop(3, 1'000'000, kDevice, shm::Mode::kRead);
  for (TemplateUse& use : known.uses) use.slot = Slot{0};
  known.uses[0].mode = shm::Mode::kOverwrite;
  known.uses[2].dies = true;
  return known;
}

Plan plan_of(const Template& known) {
  Machine machine;
  machine.devices.push_back({kDevice, 80'000'000, {10e9, 0}, {10e9, 0}});
  return plan(machine, {&known, &known, &known, &known}, 2);
}

TEST(Planner, WhatDiesIsNotUsedAgain) {
  const Plan made = plan_of(life());
  ASSERT_EQ(made.uses.size(), 3u);
  EXPECT_EQ(made.uses[1].next_ns, 2 * kRunNs);
  EXPECT_EQ(made.uses[2].next_ns, kBeyond);
}

TEST(Planner, WhatDiedWhereItIsStillReadDiedBecauseThatReadWasLeftOut) {
  Template known = life();
  known.uses[1].dies = true;
  const Plan made = plan_of(known);
  ASSERT_EQ(made.uses.size(), 3u);
  EXPECT_EQ(made.uses[1].next_ns, 2 * kRunNs);
}

TEST(Planner, WhatDiedAfterAUseThatIsNotBelievedDiesAfterTheOneBefore) {
  Template known = life();
  known.uses[2].trust = kTrusted - 1;
  const Plan made = plan_of(known);
  ASSERT_EQ(made.uses.size(), 2u);
  EXPECT_EQ(made.uses[1].next_ns, kBeyond);
}

TEST(Planner, EmptyTemplatesGiveEmptyPlans) {
  Template none;
  none.period_ns = 1;
  EXPECT_TRUE(plan({}, {&none, &none}, 0).uses.empty());
}

}  // namespace
}  // namespace terrace::foresight

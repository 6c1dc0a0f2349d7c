// SPDX-License-Identifier: Apache-2.0
// What has to go, goes by the farthest next use, when the links have time for it; what comes back has its room.
#include "foresight/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace terrace::foresight {
namespace {

constexpr double kOneByteANs = 1e9;

// With what it looks at.
struct Input : SweepInput {
  std::vector<std::int64_t> begins;
  std::vector<std::uint64_t> sizes;
};

// Groups of 100 ns each.
Input input_of(std::uint64_t capacity, std::uint32_t groups, std::vector<SweepUse> uses,
               std::vector<std::uint64_t> bytes) {
  Input input;
  input.capacity_bytes = capacity;
  for (std::uint32_t group = 0; group <= groups; ++group) input.begins.push_back(group * 100);
  input.group_begin_ns = input.unwaited_ns = input.begins;
  input.uses = std::move(uses);
  input.sizes = std::move(bytes);
  input.bytes = input.sizes;
  input.in = input.out = {kOneByteANs, 0};
  return input;
}

SweepUse read(std::uint32_t tensor, std::uint32_t group) { return {.tensor = tensor, .group = group, .reads = true}; }
SweepUse written(std::uint32_t tensor, std::uint32_t group) {
  return {.tensor = tensor, .group = group, .writes = true};
}

SweepUse passing(std::uint32_t tensor, std::uint32_t group) {
  return {.tensor = tensor, .group = group, .writes = true, .dies = true};
}

// The groups that wait, and for how long.
std::map<std::size_t, std::int64_t> waits_of(const SweepResult& result) {
  std::map<std::size_t, std::int64_t> waits;
  for (std::size_t group = 0; group < result.waits_ns.size(); ++group)
    if (result.waits_ns[group] > 0) waits[group] = result.waits_ns[group];
  return waits;
}

TEST(Sweep, MovesNothingWhereAllFits) {
  const auto result = sweep(input_of(100, 3, {written(0, 0), written(1, 1), read(0, 2)}, {50, 50}));
  EXPECT_TRUE(result.outs.empty());
  EXPECT_TRUE(result.ins.empty());
}

TEST(Sweep, GivesUpTheFarthestNextUseAndWritesItDownEarly) {
  // 0 and 1 are born and used again; 2 needs the room of one of them for a while. 1 is used later.
  const auto result =
      sweep(input_of(100, 8, {written(0, 0), written(1, 1), passing(2, 4), read(0, 5), read(1, 7)}, {50, 50, 50}));
  ASSERT_EQ(result.outs.size(), 1u);
  EXPECT_EQ(result.outs[0].tensor, 1u);
  EXPECT_EQ(result.outs[0].when.begin_ns, 200) << "as soon as it is written";
  EXPECT_TRUE(result.given_up[1]);
  EXPECT_FALSE(result.given_up[0]);
  ASSERT_EQ(result.ins.size(), 1u);
  EXPECT_EQ(result.ins[0].use, 4u);
  EXPECT_LE(result.ins[0].when.end_ns, 700) << "in time";
}

TEST(Sweep, WhatIsOverwrittenNextGoesForNothing) {
  // 1 is used later than 0; but 0 is overwritten then, and there is a copy of it below.
  const auto result =
      sweep(input_of(100, 8, {read(0, 0), read(1, 1), passing(2, 4), written(0, 5), read(1, 7)}, {50, 50, 50}));
  EXPECT_TRUE(result.given_up[0]);
  EXPECT_FALSE(result.given_up[1]);
  EXPECT_TRUE(result.outs.empty());
  EXPECT_TRUE(result.ins.empty());
}

TEST(Sweep, WhatIsWrittenMustGoDownAlthoughItIsOverwrittenNext) {
  const auto result =
      sweep(input_of(100, 8, {written(0, 0), read(1, 1), passing(2, 4), written(0, 5), read(1, 7)}, {50, 50, 50}));
  EXPECT_FALSE(result.given_up[0]);
  EXPECT_TRUE(result.given_up[1]) << "it is clean, and used later";
}

TEST(Sweep, LeavesFreeWhatIsToBeSpare) {
  Input input = input_of(100, 8, {read(0, 0), read(1, 1), read(0, 4), read(1, 7)}, {50, 50});
  EXPECT_FALSE(sweep(input).given_up[1]);
  const std::vector<std::uint64_t> spare = {0, 0, 0, 0, 50, 0, 0, 0};
  input.spare_bytes = spare;
  EXPECT_TRUE(sweep(input).given_up[1]);
}

TEST(Sweep, PrefersWhatALinkHasTimeFor) {
  // Tensor 1 is used later, but was written only just now: it cannot be down in time. Tensor 0 can.
  const auto result =
      sweep(input_of(150, 8, {written(0, 0), written(1, 2), passing(2, 3), read(0, 5), read(1, 7)}, {50, 100, 50}));
  ASSERT_EQ(result.outs.size(), 1u);
  EXPECT_EQ(result.outs[0].tensor, 0u);
  EXPECT_TRUE(waits_of(result).empty());
}

TEST(Sweep, OneWayTakesItsTollOfTheOther) {
  // In each group one tensor goes and another comes, 80 ns each of the 100: there is time for both at once alone.
  std::vector<SweepUse> uses;
  for (std::uint32_t group = 0; group < 40; ++group)
    uses.push_back({.tensor = group % 6, .group = group, .reads = true, .writes = true});
  const auto late = [&](double toll) {
    Input input = input_of(200, 40, uses, {50, 50, 50, 50, 50, 50});
    input.in = input.out = {kOneByteANs * 50 / 80, 0};
    input.toll = toll;
    return !waits_of(sweep(input)).empty();
  };
  EXPECT_FALSE(late(0));
  EXPECT_FALSE(late(0.1));
  EXPECT_TRUE(late(1));
}

TEST(Sweep, WhatHasNoTimeToComeBackIsNotWrittenDownEither) {
  // Tensor 1 is used later than 0, and could be down in time; but its way back takes longer than it would be away.
  Input input = input_of(150, 10, {written(0, 0), written(1, 1), passing(2, 4), read(0, 8), read(1, 9)}, {50, 100, 50});
  input.in.bytes_per_s = kOneByteANs / 4;
  const auto result = sweep(input);
  ASSERT_EQ(result.outs.size(), 1u);
  EXPECT_EQ(result.outs[0].tensor, 0u);
}

TEST(Sweep, WhereALinkBoundsTheStepWhatIsUsedSoonerIsNotMovedInPlaceOfTheFarthest) {
  // As above; tensor 0 is used 22 groups ahead, and tensor 1 27 and 57.
  const auto first_out = [](std::uint32_t next_use_of_1, bool link_bound) {
    Input input = input_of(150, 61, {written(0, 0), written(1, 2), passing(2, 3), read(0, 25), read(1, next_use_of_1)},
                           {50, 100, 50});
    input.link_bound = link_bound;
    const auto result = sweep(input);
    EXPECT_EQ(result.outs.size(), 1u);
    EXPECT_EQ(waits_of(result).empty(), !result.given_up[1]) << "somebody waits for the farthest's way out";
    return result.outs.at(0).tensor;
  };
  EXPECT_EQ(first_out(60, false), 0u);
  EXPECT_EQ(first_out(30, true), 0u);
  EXPECT_EQ(first_out(60, true), 1u);
}

TEST(Sweep, SaysWhatWillBeLate) {
  const auto result = sweep(input_of(100, 2, {written(0, 0), written(1, 1)}, {100, 100}));
  EXPECT_EQ(waits_of(result), (std::map<std::size_t, std::int64_t>{{1, 101}}))
      << "its way out begins when it is written";
}

TEST(Sweep, AWaitThatIsPlannedWithIsAWaitStill) {
  // What goes takes 150 ns, of which group 1 hides 100. With the rest planned, nothing is late.
  Input input = input_of(150, 3, {written(0, 0), written(1, 2)}, {150, 150});
  const std::map<std::size_t, std::int64_t> waits = {{2, 51}};
  EXPECT_EQ(waits_of(sweep(input)), waits);
  const std::vector<std::int64_t> waited = {0, 100, 251, 351};
  input.group_begin_ns = waited;
  EXPECT_EQ(waits_of(sweep(input)), waits);
}

TEST(Sweep, NobodyIsLateForWhatIsDueLater) {
  // Both go for tensor 2. The one that is used later goes first, and has the link until group 7; of the time that the
  // other one needs before group 6, 1 ns is taken.
  const auto result =
      sweep(input_of(200, 9, {written(0, 0), written(1, 1), passing(2, 4), read(1, 6), read(0, 7)}, {100, 100, 200}));
  EXPECT_EQ(waits_of(result), (std::map<std::size_t, std::int64_t>{{6, 1}, {7, 1}}));
}

TEST(Sweep, WhatIsDeadNeedsNoWayOut) {
  SweepUse last = read(0, 1);
  last.dies = true;
  const auto result = sweep(input_of(100, 3, {written(0, 0), last, written(1, 2)}, {100, 100}));
  EXPECT_TRUE(result.outs.empty());
}

TEST(Sweep, CleanCopiesGoForNothing) {
  // Read alone: a copy below is there from before.
  const auto result = sweep(input_of(100, 6, {read(0, 0), written(1, 1), read(0, 5)}, {100, 100}));
  EXPECT_TRUE(result.outs.empty() || result.outs[0].tensor == 1u);
  EXPECT_TRUE(result.given_up[0]);
}

TEST(Sweep, WhatIsLateBeginsAheadOfItsUseWhereRoomIsLeftForThat) {
  // Three tensors go round, of which two fit; each comes back in 150 ns, and is used after 100.
  std::vector<SweepUse> uses;
  for (std::uint32_t group = 0; group < 12; ++group) uses.push_back(read(group % 3, group));
  const auto early = [&](std::uint64_t ahead_bytes) {
    auto input = input_of(100, 12, uses, {50, 50, 50});
    input.ahead_bytes = ahead_bytes;
    input.in = {kOneByteANs / 3, 0};
    input.link_bound = true;
    input.lead_ns = 1;
    const auto result = sweep(input);
    EXPECT_FALSE(waits_of(result).empty());
    for (const SweepIn& in : result.ins) EXPECT_LE(in.from_ns, input.begins[input.uses[in.use].group]) << in.use;
    const auto ahead = std::ranges::count_if(
        result.ins, [&](const SweepIn& in) { return in.from_ns < input.begins[input.uses[in.use].group]; });
    return static_cast<double>(ahead) / static_cast<double>(result.ins.size());
  };
  EXPECT_LT(early(0), 0.9);
  EXPECT_EQ(early(50), 1.0);
}

TEST(Sweep, NothingComesBackBeforeItsOwnLateWriteBackIsOver) {
  // 0 has 100 ns to go in and takes 300, so that it is out when it is used again. There is room from 300 on.
  SweepUse dies = read(1, 2);
  dies.dies = true;
  Input input = input_of(100, 6, {written(0, 0), written(1, 2), dies, read(0, 4)}, {50, 100});
  input.out = {kOneByteANs / 6, 0};
  input.lead_ns = 10'000;
  const auto result = sweep(input);
  ASSERT_EQ(result.outs.size(), 1u);
  EXPECT_GE(result.outs[0].when.end_ns, 400);
  ASSERT_EQ(result.ins.size(), 1u);
  EXPECT_GE(result.ins[0].from_ns, result.outs[0].when.end_ns);
}

TEST(Sweep, FetchesBeginEarlierWhereThereIsRoomButNeverBeforeWhatIsYetToBeBorn) {
  // 0 leaves for 1, which fills all until group 4; only then is there room for its return, due in group 9.
  SweepUse dies = read(1, 4);
  dies.dies = true;
  Input input = input_of(100, 10, {written(0, 0), written(1, 2), dies, read(0, 9)}, {50, 100});
  input.lead_ns = 10'000;
  const auto result = sweep(input);
  ASSERT_EQ(result.ins.size(), 1u);
  EXPECT_EQ(result.ins[0].from_ns, 500);
  EXPECT_EQ(result.ins[0].when.begin_ns, 849);
}

}  // namespace
}  // namespace terrace::foresight

// SPDX-License-Identifier: Apache-2.0
// How long groups wait for copies that come and go.
#include "foresight/run_through.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace terrace::foresight {
namespace {

using Waits = std::vector<std::int64_t>;

// Groups of 100 ns each.
Waits waits(std::uint32_t groups, std::uint64_t capacity, std::vector<Coming> comings, std::vector<Going> goings,
            double toll = 0) {
  std::vector<std::int64_t> begins;
  for (std::uint32_t group = 0; group <= groups; ++group) begins.push_back(group * 100);
  Transfers transfers{.capacity_bytes = capacity, .group_begin_ns = begins, .comings = {}, .goings = {}, .toll = toll};
  transfers.comings = std::move(comings);
  transfers.goings = std::move(goings);
  return run_through(transfers);
}

Coming born(std::uint32_t group, std::uint64_t bytes) { return {.group = group, .bytes = bytes}; }
Coming brought(std::uint32_t group, std::uint64_t bytes, std::int64_t work_ns, std::uint32_t after) {
  return {.group = group, .bytes = bytes, .work_ns = work_ns, .after = after};
}
Going dropped(std::uint32_t group, std::uint32_t used, std::uint64_t bytes) {
  return {.group = group, .used = used, .released = used, .bytes = bytes};
}
Going written_down(std::uint32_t group, std::uint32_t used, std::uint64_t bytes, std::int64_t work_ns) {
  return {.group = group, .used = used, .released = used, .bytes = bytes, .work_ns = work_ns};
}

TEST(RunThrough, NobodyWaitsWhereThereIsRoom) {
  EXPECT_EQ(waits(3, 30, {born(0, 10), born(1, 10), born(2, 10)}, {}), (Waits{0, 0, 0}));
  EXPECT_EQ(waits(0, 30, {}, {}), Waits{});
}

TEST(RunThrough, WhatIsBornWaitsUntilItsRoomIsWrittenDown) {
  EXPECT_EQ(waits(3, 10, {born(0, 10), born(2, 10)}, {written_down(2, 0, 10, 100)}), (Waits{0, 0, 0}))
      << "it has all of group 1 for that";
  EXPECT_EQ(waits(3, 10, {born(0, 10), born(1, 10)}, {written_down(1, 0, 10, 130)}), (Waits{0, 130, 0}));
  EXPECT_EQ(waits(3, 10, {born(0, 10), born(2, 10)}, {written_down(2, 0, 10, 130)}), (Waits{0, 0, 30}));
}

TEST(RunThrough, WhatIsReadAfterItWasWrittenDownLeavesItsRoomThen) {
  EXPECT_EQ(
      waits(3, 10, {born(0, 10), born(2, 10)}, {{.group = 2, .used = 1, .released = 0, .bytes = 10, .work_ns = 20}}),
      (Waits{0, 0, 0}));
}

TEST(RunThrough, WritesAreInTheOrderInWhichTheirRoomIsNeeded) {
  // Both are released with group 0. Group 2 needs the first one's room, and group 3 the second one's.
  EXPECT_EQ(waits(4, 20, {born(0, 10), born(0, 10), born(2, 10), born(3, 10)},
                  {written_down(2, 0, 10, 100), written_down(3, 0, 10, 150)}),
            (Waits{0, 0, 0, 50}));
}

TEST(RunThrough, AWaitIsTimeForAllThatIsDueLater) {
  // Group 1 waits for 150 ns, group 2 begins so much later, and what it needs is there then.
  EXPECT_EQ(waits(3, 20, {born(0, 10), born(0, 10), born(1, 10), born(2, 10)},
                  {written_down(1, 0, 10, 150), written_down(2, 0, 10, 100)}),
            (Waits{0, 150, 0}));
}

TEST(RunThrough, WhatIsBroughtWaitsForRoomAndThenForTheLink) {
  // Tensor of group 0 goes for that of group 1, and comes again for group 3 once that one is dropped.
  const std::vector<Going> goings = {dropped(1, 0, 10), dropped(3, 1, 10)};
  EXPECT_EQ(waits(4, 10, {born(0, 10), born(1, 10), brought(3, 10, 100, 0)}, goings), (Waits{0, 0, 0, 0}));
  EXPECT_EQ(waits(4, 10, {born(0, 10), born(1, 10), brought(3, 10, 170, 0)}, goings), (Waits{0, 0, 0, 70}));
}

TEST(RunThrough, OneAfterTheOtherIsBrought) {
  const std::vector<Going> goings = {dropped(1, 0, 10), dropped(1, 0, 10), dropped(2, 1, 20)};
  EXPECT_EQ(waits(4, 20, {born(0, 10), born(0, 10), born(1, 20), brought(2, 10, 60, 0), brought(3, 10, 60, 1)}, goings),
            (Waits{0, 0, 60, 0}));
}

TEST(RunThrough, OneWayTakesItsTollOfTheOther) {
  const std::vector<Coming> comings = {born(0, 10), born(1, 10), brought(3, 10, 100, 0)};
  const std::vector<Going> goings = {dropped(1, 0, 10), written_down(2, 1, 10, 80)};
  EXPECT_EQ(waits(4, 10, comings, goings)[3], 80) << "it comes once the other is down";
  EXPECT_EQ(waits(4, 30, comings, goings, 0.5)[3], 0) << "there is time for both";
}

}  // namespace
}  // namespace terrace::foresight

// SPDX-License-Identifier: Apache-2.0
// Shows that a lane finds the stretches that are free, that a room finds when bytes fit, and which gaps a workload has.
#include <gtest/gtest.h>

#include "timetable/gaps.h"
#include "timetable/lane.h"
#include "timetable/room.h"

namespace terrace::timetable {
namespace {

TEST(Lane, FindsTheEarliestAndTheLatestStretchThatIsFree) {
  Lane lane;
  lane.take(10, 10);
  lane.take(30, 10);
  EXPECT_EQ(lane.earliest(0, 10), 0);
  EXPECT_EQ(lane.earliest(0, 11), 40) << "too long for what is free before 30";
  EXPECT_EQ(lane.earliest(15, 10), 20);
  EXPECT_EQ(lane.latest(0, 60, 10), 50);
  EXPECT_EQ(lane.latest(0, 45, 10), 20);
  EXPECT_EQ(lane.latest(0, 25, 6), 4);
  EXPECT_LT(lane.latest(12, 18, 6), 12) << "there is none";
  lane.take(20, 10);  // joins both
  EXPECT_EQ(lane.earliest(5, 6), 40);
}

TEST(Room, FindsWhenBytesFitForGoodOrForAWhile) {
  Room room(100);
  room.add(10, 80);
  room.add(20, -50);  // 80 in [10, 20), 30 after
  room.add(40, 60);   // 90 in [40, 50)
  room.add(50, -60);
  EXPECT_EQ(room.fits_for_good(0, 10), 0);
  EXPECT_EQ(room.fits_for_good(0, 20), 50);
  EXPECT_EQ(room.fits_for_good(60, 20), 60);
  EXPECT_EQ(room.fits_for_good(0, 71), kNever);
  EXPECT_EQ(room.fits_until(0, 10, 100), 0);
  EXPECT_EQ(room.fits_until(0, 40, 30), 20) << "not while 80 are there";
  EXPECT_EQ(room.fits_until(25, 40, 30), 25);
  EXPECT_EQ(room.fits_until(0, 45, 30), 45) << "at no time before";
}

TEST(Gaps, AreBetweenTheUsesOfATensorAndGoAroundTheEnd) {
  workload::Workload workload{.name = "gaps",
                              .source = "a test",
                              .tensors = {{.bytes = 7, .home = true}, {.bytes = 5}},
                              .runs = {},
                              .steps = {}};
  workload.runs.push_back({.name = "a", .read = {0}, .write = {1}, .free = {}});
  workload.runs.push_back({.name = "b", .place = workload::Place::kHost, .read = {0, 1}, .write = {0}, .free = {1}});
  const Gaps gaps = gaps_of(workload);
  ASSERT_EQ(gaps.gaps.size(), 4u);
  const Gap& down = gaps.gaps[0];
  EXPECT_EQ(down.tensor, 0u);
  EXPECT_EQ(down.from, Tier::kHbm);
  EXPECT_EQ(down.to, Tier::kHost);
  EXPECT_TRUE(down.live);
  EXPECT_TRUE(down.to_write);
  EXPECT_FALSE(down.around);
  const Gap& around = gaps.gaps[1];
  EXPECT_TRUE(around.live);
  EXPECT_TRUE(around.around);
  EXPECT_EQ(around.next, 0u);
  EXPECT_TRUE(gaps.gaps[2].live);
  EXPECT_FALSE(gaps.gaps[3].live) << "it was freed";
}

}  // namespace
}  // namespace terrace::timetable

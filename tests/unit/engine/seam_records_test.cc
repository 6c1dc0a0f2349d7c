// SPDX-License-Identifier: Apache-2.0
// Shows which records of seams are given out: each to one at a time, the lowest first, and as many as there are.
#include "engine/residency/seam_records.h"

#include <gtest/gtest.h>

#include <set>

namespace terrace::engine {
namespace {

TEST(SeamRecords, EachIsGivenToOneAtATime) {
  SeamRecords records;
  std::set<std::uint32_t> taken;
  while (records.free() > 0) EXPECT_TRUE(taken.insert(records.take()).second);
  EXPECT_EQ(taken.size(), kSeamPiecesMax);
  EXPECT_EQ(*taken.rbegin(), kSeamPiecesMax - 1);
  records.give_back(40);
  EXPECT_EQ(records.free(), 1u);
  EXPECT_EQ(records.take(), 40u);
}

TEST(SeamRecords, OfASessionThatWasRestoredTheOthersAreFree) {
  SeamRecords records;
  records.take_this(3);
  records.take_this(5);
  EXPECT_EQ(records.free(), kSeamPiecesMax - 2);
  std::set<std::uint32_t> taken{3, 5};
  while (records.free() > 0) EXPECT_TRUE(taken.insert(records.take()).second);
  EXPECT_EQ(taken.size(), kSeamPiecesMax);
}

TEST(SeamRecordsDeathTest, NoneIsTakenWhereNoneIsFree) {
  SeamRecords records;
  while (records.free() > 0) records.take();
  EXPECT_DEATH(records.take(), "free");
}

}  // namespace
}  // namespace terrace::engine

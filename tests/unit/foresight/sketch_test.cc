// SPDX-License-Identifier: Apache-2.0
// Two steps are as alike as the share of their uses that both have, whatever their order.
#include "foresight/sketch.h"

#include <gtest/gtest.h>

namespace terrace::foresight {
namespace {

Sketch of(std::uint32_t begin, std::uint32_t end) {
  Sketch sketch;
  for (std::uint32_t slot = end; slot-- > begin;) sketch.add({.slot = Slot{slot}, .place = 1});
  return sketch;
}

TEST(Sketch, SaysHowAlikeTwoStepsAre) {
  EXPECT_EQ(of(0, 10'000).likeness(of(0, 10'000)), 1);
  EXPECT_EQ(of(0, 10'000).likeness(of(20'000, 30'000)), 0);
  EXPECT_NEAR(of(0, 10'000).likeness(of(5'000, 15'000)), 1.0 / 3, 0.1);
  EXPECT_NEAR(of(0, 10'000).likeness(of(500, 10'500)), 0.905, 0.06);
}

TEST(Sketch, OfFewUsesToo) {
  EXPECT_EQ(of(0, 2).likeness(of(0, 2)), 1);
  EXPECT_EQ(of(0, 2).likeness(of(2, 4)), 0);
  EXPECT_EQ(Sketch().likeness(Sketch()), 1);
  EXPECT_EQ(Sketch().likeness(of(0, 2)), 0);
}

TEST(Sketch, ReadingIsNotWriting) {
  Sketch read;
  Sketch written;
  read.add({.slot = Slot{1}, .place = 1, .mode = shm::Mode::kRead});
  written.add({.slot = Slot{1}, .place = 1, .mode = shm::Mode::kWrite});
  EXPECT_EQ(read.likeness(written), 0);
}

}  // namespace
}  // namespace terrace::foresight

// SPDX-License-Identifier: Apache-2.0
// How long drives last under what is written to them.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace terrace::forecast {

// The drives of one node. Endurance is rated as JEDEC (JESD218) and data sheets do it: whole capacities written a day,
// every day of the warranty. What is written is taken as what the flash sees: large writes in whole extents leave a
// drive little to amplify.
struct Drives {
  std::uint64_t count = 0;                           // 0: none
  std::uint64_t capacity_bytes = 7'680'000'000'000;  // of each
  double writes_a_day = 1;                           // rated
  double rated_years = 5;

  // What all of them may be written before their endurance is spent.
  double rated_bytes() const;
  // So fast they may be written, day and night, to last as long as they are rated.
  double rated_bytes_per_s() const;
};

// So many drives of this kind as hold `bytes`, at least one.
std::uint64_t drives_for(std::uint64_t bytes, const Drives& drives);

struct Wear {
  double bytes_a_day = 0;
  double writes_a_day = 0;  // of each drive's capacity
  double years = 0;         // until the rated endurance is spent; infinite where nothing is written
  double drives = 0;        // of this kind, with which it lasts the rated years
  bool lasts(const Drives& those) const { return years >= those.rated_years; }
};

// Under `written_bytes` to all drives in each `step`, day and night. The step takes time, and there are drives.
Wear wear(const Drives& drives, std::uint64_t written_bytes, Duration step);

}  // namespace terrace::forecast

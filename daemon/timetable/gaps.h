// SPDX-License-Identifier: Apache-2.0
// A workload by the gaps between two uses of a tensor, over a period that repeats. Internal to timetable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "timetable/schedule.h"
#include "workload/workload.h"

namespace terrace::timetable {

using GapId = std::uint32_t;
inline constexpr GapId kNoGap = UINT32_MAX;

// From one use of a tensor to the next, which may be in the next period.
struct Gap {
  workload::TensorId tensor = 0;
  std::uint32_t from_run = 0;
  std::uint32_t to_run = 0;
  Tier from = Tier::kHbm;  // the places of the two uses
  Tier to = Tier::kHbm;
  bool live = false;      // the next use reads what is there after this one
  bool written = false;   // the use before writes
  bool freed = false;     // after the use before
  bool to_write = false;  // the next use writes
  bool around = false;    // the next use is in the next period
  std::uint64_t bytes = 0;
  GapId next = 0;  // of the same tensor
};

// What a run does with one tensor: the gap that ends there, and the one that begins.
struct Use {
  workload::TensorId tensor = 0;
  GapId before = 0;
  GapId after = 0;
  bool read = false;
  bool write = false;
  bool free = false;
};

struct Gaps {
  std::vector<Gap> gaps;
  std::vector<Use> uses;                 // by run
  std::vector<std::uint32_t> first_use;  // of each run, and one past the last
};

Gaps gaps_of(const workload::Workload& workload);

}  // namespace terrace::timetable

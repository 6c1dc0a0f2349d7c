// SPDX-License-Identifier: Apache-2.0
// What the learner foresees of one step, and what is to be done meanwhile: a value, handed to the engine as an input.
// It speaks of slots as they were in former steps. All of it is advice: whatever it says, no law may break.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "foresight/template.h"

namespace terrace::foresight {

// Not within what the plan can see.
inline constexpr std::int64_t kBeyond = std::numeric_limits<std::int64_t>::max();

inline constexpr std::uint32_t kNoUse = std::numeric_limits<std::uint32_t>::max();

// A use that is to come. Times count compute alone, in nanoseconds from the beginning of the step.
struct PlannedUse {
  Slot slot{};
  std::uint32_t place = 0;
  bool give_up = false;        // its copy there goes before its next use
  bool give_up_below = false;  // and so does the one in memory
  bool comes_back = false;     // it went after the use before this one
  bool writes = false;         // copies below are stale afterwards
  std::int64_t at_ns = 0;
  std::int64_t next_ns = kBeyond;  // of the same tensor; may lie in a later step
};

// The copy at `place` is written down to the tier below it, and stays.
struct PlannedClean {
  std::uint32_t after = 0;  // uses of this step that are over by then
  Slot slot{};
  std::uint32_t place = 0;
  std::uint32_t write = kNoUse;  // of this step: what writes it; once that has been, it need not wait for `after`
  bool overdue = false;          // it should have been done in a former step: only if the copy is to go as it is
};

// The tensor is brought to `place`.
struct PlannedFetch {
  std::uint32_t from = 0;  // uses of this step that have begun by then: there is room from here on
  Slot slot{};
  std::uint32_t place = 0;
  std::int64_t due_ns = 0;
  bool returns = false;  // it went although it was to stay
};

struct Plan {
  std::uint64_t number = 0;  // of the template
  std::uint32_t kind = 0;    // of its steps: 0 train, 1 accumulate, 2 eval
  Match match{};             // of the last such step with what was expected of it
  bool evenly = false;       // what goes from memory lies evenly over the step
  std::int64_t period_ns = 0;
  std::vector<PlannedUse> uses;       // in order
  std::vector<PlannedClean> cleans;   // in the order in which they are to be done
  std::vector<PlannedFetch> fetches;  // likewise
};

}  // namespace terrace::foresight

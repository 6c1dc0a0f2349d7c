// SPDX-License-Identifier: Apache-2.0
// What is foreseen of a session: its plan, and how far the session has come in it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "foresight/plan.h"

namespace terrace::engine {

inline constexpr std::uint32_t kNoLeap = UINT32_MAX;
inline constexpr std::uint32_t kPassMax = 1024;  // uses passed at a time
inline constexpr std::size_t kDueMax = 4096;     // transfers that are due and not begun, of each kind

// How much of the step that is being declared was heard.
struct Declared {
  std::uint32_t sets = 0;
  Duration compute{};  // of them
};

struct Foreseen {
  std::shared_ptr<const foresight::Plan> plan;  // none: nothing is foreseen
  std::int64_t base_ns = 0;                     // the compute of all steps before this one
  std::uint32_t cursor = 0;                     // uses of the plan that have begun
  std::uint32_t passed = 0;                     // those whose slots were told their next use
  std::vector<bool> met;                        // by use of the plan
  std::uint32_t strays = 0;                     // accesses in a row that the plan does not have near by
  std::uint32_t leap = kNoLeap;                 // an access far ahead, of which one alone is not believed
  std::uint32_t expected = 0;                   // uses whose slots were told to the policies when the plan came
  std::uint32_t cleared = 0;                    // slots that were looked at for what a former plan said of them
  bool fresh = false;                           // it came where there was none
  std::vector<bool> goes_below;                 // by slot: its copy in memory goes on, before its next use
  std::vector<bool> told;                       // by slot that there was when the plan came: this plan speaks of it
  std::size_t next_clean = 0;                   // of the plan
  std::size_t next_fetch = 0;                   // likewise
  std::deque<foresight::PlannedClean> cleans;   // due, and not begun
  std::deque<foresight::PlannedFetch> fetches;  // likewise; due_ns counts from the first step
  std::uint64_t matched = 0;                    // accesses that a plan had
  std::uint64_t strayed = 0;                    // those that none had
  std::uint64_t planned_bytes = 0;              // as in ForesightStatus
  std::uint64_t demanded_bytes = 0;

  // Of its copy in memory, as the plan has it.
  bool goes_on(Slot slot) const { return index(slot) < goes_below.size() && goes_below[index(slot)]; }
  std::int64_t now_ns() const {
    if (!plan || plan->uses.empty()) return base_ns;
    return base_ns + (cursor == 0 ? 0 : plan->uses[cursor - 1].at_ns);
  }
};

}  // namespace terrace::engine

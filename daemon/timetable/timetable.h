// SPDX-License-Identifier: Apache-2.0
// Plans one period over three tiers together, offline: where each tensor rests in each gap between two uses, and when
// each move begins (docs/internals/timetable.md).
#pragma once

#include <cstdint>

#include "terrace/error.h"
#include "timetable/schedule.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::timetable {

struct PlanOptions {
  std::uint64_t evaluations = 1;  // times that a choice of places is laid out: with 1 what is found at once, with more
                                  // the best of first choices, and then of a search from it
  std::uint64_t seed = 1;         // of the search
};

// The same workload, node and options give the same schedule, which is valid (check.h). Latencies count; what two ways
// of a link take of each other, and the drain of what is read, do not. FailedPrecondition names the run and the tier
// where there is no room; InvalidArgument a node without a link that is needed.
Result<Schedule> plan(const workload::Workload& workload, const workload::Node& node, const PlanOptions& options);

}  // namespace terrace::timetable

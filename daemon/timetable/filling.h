// SPDX-License-Identifier: Apache-2.0
// A first choice of places, by how long each gap is. Internal to timetable.
#pragma once

#include <cstdint>
#include <span>

#include "timetable/gaps.h"
#include "timetable/layout.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::timetable {

// What of a tier is not filled: room for what streams through.
struct Spare {
  double hbm = 0;
  double host = 0;
};

// When each run begins, as far as is known, and when the next period does.
struct Clock {
  std::span<const std::int64_t> begins_ns;
  std::int64_t period_ns = 0;
};

// Of all gaps the shortest first, whose content stays where it is used: in HBM between two uses there, else in host
// memory. Where that is full it stays in the other, and where both are it goes down. What is chosen fits beside what
// the runs lease, at every run and between any two. O(gaps log runs).
Rests fill(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps, const Clock& clock,
           const Spare& spare);

}  // namespace terrace::timetable

// SPDX-License-Identifier: Apache-2.0
// Makes one period of what was laid out a schedule that repeats exactly. Internal to timetable.
#pragma once

#include <optional>

#include "timetable/gaps.h"
#include "timetable/layout.h"
#include "timetable/schedule.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::timetable {

// The order of events on each link, and of copies that begin and end in each tier, is kept as it was laid out; the
// times are the earliest of the shortest period that this order has. Nothing where it has none: the period that was
// laid out is not the same as the one before.
std::optional<Schedule> close(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps,
                              const Record& record, std::int64_t period_ns);

}  // namespace terrace::timetable

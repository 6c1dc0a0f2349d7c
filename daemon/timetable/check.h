// SPDX-License-Identifier: Apache-2.0
// Whether a schedule can be: links, room, operands, content and a steady state. It knows nothing of how one is made.
#pragma once

#include <optional>
#include <string>

#include "timetable/schedule.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::timetable {

// What is wrong with it, and when; nothing if nothing is. The rules:
// - Each direction of each link carries one move at a time. Its copy is complete the link's latency after that.
// - A copy takes its room from the begin of the move or run that makes it, until it is dropped, overwritten or dead.
// - Runs compute in order, one at a time. What one reads is complete in its place; what it writes, nothing moves.
// - The last copy of what is still to be read is not dropped.
// - What is there at the end of the period is what was there at its beginning.
std::optional<std::string> violation(const workload::Workload& workload, const workload::Node& node,
                                     const Schedule& schedule);

}  // namespace terrace::timetable

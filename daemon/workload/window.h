// SPDX-License-Identifier: Apache-2.0
// How long a repetition takes at least, by the window in which most must come or leave. Internal to workload.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "workload/bound.h"
#include "workload/items.h"

namespace terrace::workload {

// For each window of consecutive runs, around the end too: what is computed outside of it, and inside the longer of
// what is computed there and the time to move what counts there, over the capacity. What comes in is there before the
// last of them begins, and what goes out is born when the first ends: that run is outside. The longest of these, or a
// time of 0 where no window says more than the compute time. `demands` are sorted by run. O((runs + demands) log runs).
Window longest_window(std::span<const Run> runs, const std::vector<Demand>& demands, std::uint64_t capacity_bytes,
                      std::uint64_t bytes_per_s, Direction direction);

}  // namespace terrace::workload

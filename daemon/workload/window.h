// SPDX-License-Identifier: Apache-2.0
// How long a repetition takes at least, by the window in which most must leave memory. Internal to workload.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/time.h"
#include "workload/items.h"

namespace terrace::workload {

// For each window of consecutive runs, around the end too: what is computed outside of it, and inside the longer of
// what is computed there and the time to move out what is born there and still needed at its end, over the capacity.
// The longest of these, or 0 where no window says more than the compute time. `born` is sorted by birth. O((runs +
// versions) log runs).
Duration longest_window(std::span<const Run> runs, const std::vector<Version>& born, std::uint64_t capacity_bytes,
                        std::uint64_t out_bytes_per_s);

}  // namespace terrace::workload

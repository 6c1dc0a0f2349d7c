// SPDX-License-Identifier: Apache-2.0
// How fast this machine's links are as a trainer sees them, through a daemon of their own.
#pragma once

#include <cstdint>

#include "bench/bench.h"
#include "workload/node.h"

namespace terrace::bench {

// What calibrate() takes of the machine for as long as it runs.
inline constexpr std::uint64_t kCalibrationDiskBytes = 6ull << 30;

// The speeds, latencies and name of a node; its capacities are left 0. Each direction of each link moves a set of large
// tensors at once, and small and large ones one at a time, in memory that was touched before; a line through the
// medians of the set and the small ones is bandwidth and latency, and what a large one takes beyond it to be read is
// the drain. Then both directions at once, and requests that move nothing. Takes about ten seconds. Errors are those of
// moving, kDataLoss for bytes that came back wrong among them.
Result<workload::Node> calibrate(const Bench& bench);

}  // namespace terrace::bench

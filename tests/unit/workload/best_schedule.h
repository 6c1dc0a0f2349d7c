// SPDX-License-Identifier: Apache-2.0
// The best of all schedules of a tiny workload, by trying them all.
#pragma once

#include <cstdint>

#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::workload {

// The fewest bytes that any schedule moves in `direction` between an HBM of `hbm_bytes` and the host, on average over
// endless repetitions. Whole tensors are moved. For workloads of at most five tensors: the states of memory are three
// to their power, and the time grows with the cube of that.
double best_bytes(const Workload& workload, std::uint64_t hbm_bytes, Direction direction);

}  // namespace terrace::workload

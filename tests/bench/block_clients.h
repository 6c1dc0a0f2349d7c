// SPDX-License-Identifier: Apache-2.0
// Rows of the suite `block`: eight clients that bring tensors from one disk at the same time.
#pragma once

#include "bench/bench.h"

namespace terrace::bench {

Result<void> measure_clients(Bench& bench);

// Jain's index of fairness: 1 where all have the same, 1/n where one has everything (Jain, Chiu, Hawe 1984).
double jain(const std::vector<double>& parts);

}  // namespace terrace::bench

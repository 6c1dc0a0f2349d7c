// SPDX-License-Identifier: Apache-2.0
// How soon a daemon with much memory serves: from its start, and after its death.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace terrace::bench {

// That this machine has less memory than is taken, if so.
std::vector<std::string> lacks_memory(const Settings& settings);

// scale.start: until all of a DRAM tier is prefaulted and leased, against mmap and touch by every core.
Result<void> run_start(Bench& bench);

// scale.restart: from a daemon's death to its successor's first answer, with that tier full and with it empty.
Result<void> run_restart(Bench& bench);

}  // namespace terrace::bench

// SPDX-License-Identifier: Apache-2.0
// The suites: each measures some rows, in a file of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench.h"

namespace terrace::bench {

// What a suite's files take on the disk at a time, at most.
struct DiskBytes {
  std::uint64_t full = 0;
  std::uint64_t quick = 0;
};

struct Suite {
  std::string_view name;
  std::string_view what;               // in a line, for --help
  std::vector<std::string_view> rows;  // what it adds, in order
  DiskBytes disk{};                    // not kept to: an error of the suite
  // What it needs and does not have here, each with what to install or name; may be null.
  std::vector<std::string> (*lacks)(const Settings& settings);
  // Adds its rows. An error is one of measuring: a call that failed, a byte that was wrong.
  Result<void> (*run)(Bench& bench);
};

// All of them, in the order of `all`.
std::span<const Suite> suites();

// The suites' own (NAME_suite.cc).
Suite engine_suite();
Suite lease_suite();
Suite miss_suite();
Suite block_suite();
Suite copy_suite();
Suite pipeline_suite();
Suite scale_suite();
Suite train_suite();

}  // namespace terrace::bench

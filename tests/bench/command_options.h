// SPDX-License-Identifier: Apache-2.0
// What the commands are told alike: where to measure, with which daemon, and whether the machine must be quiet.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::bench {

class CommandOptions {
 public:
  // Adds its options to `app`, and must stay where it is until the command line is parsed.
  explicit CommandOptions(CLI::App& app);
  CommandOptions(const CommandOptions&) = delete;
  CommandOptions& operator=(const CommandOptions&) = delete;
  ~CommandOptions() = default;

  // Settings for who takes at most so much of the disk at a time. Errors: there is no daemon or too little room, or the
  // machine is busy and that was not allowed; each with what to do.
  Result<Settings> settings(std::uint64_t disk_bytes);

 private:
  Settings settings_{};
  bool force_ = false;
};

// Before anything is measured: makes the folder's path absolute, removes what benchmarks left there that were killed,
// and finds the daemon. Errors: there is none.
Result<void> prepare(Settings& settings);

// What is at work here beside which measuring says little, and what to do about it; none where all is quiet, or, with
// `force`, after it was said. Takes a second.
std::vector<std::string> too_busy(const Settings& settings, bool force);

// A line on standard error; the exit status 1.
int refuse(const Error& error);

}  // namespace terrace::bench

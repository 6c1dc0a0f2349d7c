// SPDX-License-Identifier: Apache-2.0
// `terrace-sim schedule`: the timetable of a workload's period on a node, as a file.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace terrace::sim {

inline constexpr std::uint64_t kEvaluationsMax = 10'000'000;

class ScheduleCommand {
 public:
  explicit ScheduleCommand(CLI::App& program);

  bool chosen() const;
  // Returns the process's exit status; messages go to standard error.
  int run() const;

 private:
  CLI::App* command_;
  std::string workload_;
  std::string node_;
  std::string output_;
  std::uint64_t evaluations_ = 20'000;
  std::uint64_t seed_ = 1;
  bool json_ = false;
};

}  // namespace terrace::sim

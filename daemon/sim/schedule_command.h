// SPDX-License-Identifier: Apache-2.0
// `terrace-sim schedule`: the timetable of a workload's period on a node, as a file.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::sim {

inline constexpr std::uint64_t kEvaluationsMax = 10'000'000;

class ScheduleCommand {
 public:
  // Adds itself to the program; must stay where it is until the command line is parsed.
  explicit ScheduleCommand(CLI::App& program);
  ScheduleCommand(const ScheduleCommand&) = delete;
  ScheduleCommand& operator=(const ScheduleCommand&) = delete;
  ~ScheduleCommand() = default;

  // Whether the command line asked for it.
  bool chosen() const;
  // The exit status, after what is wrong went to standard error: 0, 1 if there is no such schedule or it cannot be
  // written, 2 if something that was given is refused.
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

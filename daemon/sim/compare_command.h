// SPDX-License-Identifier: Apache-2.0
// terrace-sim compare: one workload under several policies, side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::sim {

class CompareCommand {
 public:
  // Adds itself to the program; must stay where it is until the command line is parsed.
  explicit CompareCommand(CLI::App& program);
  CompareCommand(const CompareCommand&) = delete;
  CompareCommand& operator=(const CompareCommand&) = delete;
  ~CompareCommand() = default;

  // Whether the command line asked for it.
  bool chosen() const;
  // The exit status, after what is wrong went to standard error: 0, 1 if the workload cannot be run on the node or the
  // picture not be drawn, 2 if something that was given is refused.
  int run() const;

 private:
  CLI::App* command_;
  std::string workload_;
  std::string node_;
  std::vector<std::string> policies_;
  std::uint64_t steps_ = 0;
  std::uint64_t timetable_ = 0;  // evaluations
  bool json_ = false;
  std::string picture_;
  std::string python_;
};

}  // namespace terrace::sim

// SPDX-License-Identifier: Apache-2.0
// terrace-sim run: a workload's steps under a policy, as lines for people or as JSON.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::sim {

inline constexpr std::uint64_t kStepsMax = 1'000'000;  // of one command

class RunCommand {
 public:
  // Adds the command to `program`, which outlives it.
  explicit RunCommand(CLI::App& program);

  // Whether the command line asked for it.
  bool chosen() const;
  // The exit status, after what is wrong went to standard error: 0, 1 if the workload cannot be run on the node, 2 if a
  // file is refused.
  int run();

 private:
  CLI::App* command_;
  std::string workload_;
  std::string node_;
  std::string policy_ = "next-use";
  std::uint64_t steps_ = 3;
  std::size_t jobs_ = 1;
  double noise_ = 0;
  double perturb_ = 0;
  std::uint64_t seed_ = 1;
  bool declare_ = false;
  bool json_ = false;
};

}  // namespace terrace::sim

// SPDX-License-Identifier: Apache-2.0
// terrace-sim generate: writes a workload made from a model's shape.
#pragma once

#include <cstdint>
#include <string>

#include "forecast/recipe_options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::sim {

class GenerateCommand {
 public:
  // Adds itself to the program; must stay where it is until the command line is parsed.
  explicit GenerateCommand(CLI::App& program);
  GenerateCommand(const GenerateCommand&) = delete;
  GenerateCommand& operator=(const GenerateCommand&) = delete;
  ~GenerateCommand() = default;

  // Whether it was asked for.
  bool chosen() const;
  // Writes the workload, and to standard error what it holds. The exit status: 0, 1 where the file cannot be written, 2
  // where there can be no such workload.
  int run();

 private:
  CLI::App* command_;
  forecast::RecipeOptions options_;
  std::uint64_t steps_ = 1;
  std::string output_ = "-";
};

}  // namespace terrace::sim

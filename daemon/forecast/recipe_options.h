// SPDX-License-Identifier: Apache-2.0
// The recipe of one step on a command line: the options of every program that makes a model's workload
// (docs/reference/workloads-made.md, "Made workloads").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workload/generator.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::forecast {

class RecipeOptions {
 public:
  // Adds the options to the command; must stay where it is until the command line is parsed.
  explicit RecipeOptions(CLI::App& command);
  RecipeOptions(const RecipeOptions&) = delete;
  RecipeOptions& operator=(const RecipeOptions&) = delete;
  ~RecipeOptions() = default;

  // What was asked for; whether there can be such a workload is for generate() to say.
  workload::Recipe recipe() const;

 private:
  workload::Recipe recipe_;
  std::string model_;
  std::string optimizer_place_ = "hbm";
  std::vector<std::string> offload_ = {"param", "grad", "optim", "act"};
  std::uint64_t sequence_ = 0;
};

}  // namespace terrace::forecast

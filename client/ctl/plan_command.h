// SPDX-License-Identifier: Apache-2.0
// terracectl plan: what a model takes of a node. It asks no daemon.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forecast/plan.h"
#include "forecast/recipe_options.h"
#include "terrace/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::ctl {

class PlanCommand {
 public:
  // Adds its options to the command `plan`; must stay where it is until the command line is parsed.
  explicit PlanCommand(CLI::App& command);
  PlanCommand(const PlanCommand&) = delete;
  PlanCommand& operator=(const PlanCommand&) = delete;
  ~PlanCommand() = default;

  // The plan as text or JSON, after its picture was drawn if one was asked for.
  Result<std::string> run(bool json) const;

 private:
  Result<forecast::PlanOptions> options() const;

  forecast::RecipeOptions recipe_;
  std::string node_;
  std::vector<std::string> dram_;
  std::string by_ = "auto";
  std::uint64_t drives_ = 0;
  std::string drive_capacity_ = "7.68TB";
  double drive_writes_a_day_ = 1;
  double drive_years_ = 5;
  std::string picture_;
  std::string python_;
};

}  // namespace terrace::ctl

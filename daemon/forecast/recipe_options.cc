// SPDX-License-Identifier: Apache-2.0
#include "forecast/recipe_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace terrace::forecast {
namespace {

using workload::kClassNames;

// What a GPU's share of a host's memory gives to an optimizer on the CPU: two thirds of an eighth of two sockets with
// eight channels of DDR5-4800 each.
constexpr double kHostBytesPerS = 50e9;

}  // namespace

RecipeOptions::RecipeOptions(CLI::App& command) {
  std::vector<std::string> names;
  for (const workload::Model& model : workload::models()) names.push_back(model.name);
  command.add_option("--model", model_, "which one")->required()->check(CLI::IsMember(names));
  command.add_option("--gpus", recipe_.gpus, "of the whole job; they shard weights, gradients and optimizer (ZeRO-3)")
      ->capture_default_str();
  command.add_option("--batch", recipe_.batch, "sequences of a rank's micro-batch")->capture_default_str();
  command.add_option("--micro-batches", recipe_.micro_batches, "in a step; their gradients are accumulated")
      ->capture_default_str();
  command.add_option("--sequence", sequence_, "tokens of a sequence (default: the model's)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--offload", offload_, "classes that the daemon has; the trainer keeps the others")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"param", "grad", "optim", "act"}))
      ->capture_default_str();
  command.add_flag("--recompute", recipe_.recompute, "compute activations again for the backward pass");
  command.add_option("--grad-bytes", recipe_.grad_bytes, "of a gradient: 2 (bf16) or 4 (fp32)")->capture_default_str();
  auto* const experts =
      command.add_option("--experts", recipe_.experts, "feed-forward layers of a mixture; 0: no mixture")
          ->capture_default_str();
  command.add_option("--experts-active", recipe_.experts_active, "that each token goes through")
      ->capture_default_str()
      ->needs(experts);
  command.add_option("--experts-idle", recipe_.experts_idle, "share of a rank's experts that no token chooses")
      ->capture_default_str()
      ->needs(experts);
  command.add_option("--stages", recipe_.stages, "of a pipeline, scheduled 1F1B")->capture_default_str();
  command.add_option("--stage", recipe_.stage, "the one of this rank, from 0")->capture_default_str();
  command.add_option("--optimizer", optimizer_place_, "where it works")
      ->check(CLI::IsMember({"hbm", "host"}))
      ->capture_default_str();
  command.add_option("--mfu", recipe_.mfu, "share of an H100's peak that is reached")->capture_default_str();
  command.add_option("--seed", recipe_.seed, "of a mixture's routes")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, INT64_MAX));
}

workload::Recipe RecipeOptions::recipe() const {
  workload::Recipe recipe = recipe_;
  recipe.model = workload::model(model_).value_or(workload::Model{});
  if (sequence_ > 0) recipe.model.sequence = sequence_;
  for (const std::string& name : offload_) {
    recipe.offload[static_cast<std::size_t>(std::ranges::find(kClassNames, name) - kClassNames.begin())] = true;
  }
  if (optimizer_place_ == "host") {
    recipe.optimizer_place = workload::Place::kHost;
    recipe.optimizer_bytes_per_s = kHostBytesPerS;
  }
  return recipe;
}

}  // namespace terrace::forecast

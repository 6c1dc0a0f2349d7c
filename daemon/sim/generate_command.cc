// SPDX-License-Identifier: Apache-2.0
#include "sim/generate_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>

#include "workload/writer.h"

namespace terrace::sim {
namespace {

using workload::kClassNames;

// What a GPU's share of a host's memory gives to an optimizer on the CPU: two thirds of an eighth of two sockets with
// eight channels of DDR5-4800 each.
constexpr double kHostBytesPerS = 50e9;

std::string summary(const workload::Generated& generated) {
  const workload::Workload& made = generated.workload;
  std::array<std::uint64_t, kClassNames.size()> held{};
  std::array<std::uint64_t, kClassNames.size()> born{};
  for (const workload::Tensor& tensor : made.tensors) {
    (tensor.home ? held : born)[static_cast<std::size_t>(tensor.tensor_class)] += tensor.bytes;
  }
  std::string text = fmt::format("{}: {} tensors, {} runs, {:.3f} s of compute, {:.3f}e9 parameters held\n", made.name,
                                 made.tensors.size(), made.runs.size(),
                                 std::chrono::duration<double>(workload::compute_time(made.runs)).count(),
                                 static_cast<double>(generated.held_parameters) / 1e9);
  for (std::size_t index = 0; index < held.size(); ++index) {
    if (held[index] + born[index] == 0) continue;
    text += fmt::format("  {:5} {:9.2f} GB held, {:9.2f} GB born in a step\n", kClassNames[index],
                        static_cast<double>(held[index]) / 1e9, static_cast<double>(born[index]) / 1e9);
  }
  if (generated.kept_bytes > 0) {
    text += fmt::format("  {:.2f} GB are the trainer's own, and not in the file\n",
                        static_cast<double>(generated.kept_bytes) / 1e9);
  }
  return text;
}

}  // namespace

GenerateCommand::GenerateCommand(CLI::App& program)
    : command_(
          program.add_subcommand("generate", "writes the workload of one rank that trains a model of a given shape")) {
  std::vector<std::string> names;
  for (const workload::Model& model : workload::models()) names.push_back(model.name);
  CLI::App& command = *command_;
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
  command.add_option("--experts", recipe_.experts, "feed-forward layers of a mixture; 0: no mixture")
      ->capture_default_str();
  command.add_option("--experts-active", recipe_.experts_active, "that each token goes through")->capture_default_str();
  command.add_option("--experts-idle", recipe_.experts_idle, "share of a rank's experts that no token chooses")
      ->capture_default_str();
  command.add_option("--stages", recipe_.stages, "of a pipeline, scheduled 1F1B")->capture_default_str();
  command.add_option("--stage", recipe_.stage, "the one of this rank, from 0")->capture_default_str();
  command.add_option("--optimizer", optimizer_place_, "where it works")
      ->check(CLI::IsMember({"hbm", "host"}))
      ->capture_default_str();
  command.add_option("--mfu", recipe_.mfu, "share of an H100's peak that is reached")->capture_default_str();
  command.add_option("--steps", recipe_.steps, "in the file; a mixture's differ from each other")
      ->capture_default_str();
  command.add_option("--seed", recipe_.seed, "of a mixture's routes")->capture_default_str();
  command.add_option("--output", output_, "file to write; - for standard output")->capture_default_str();
}

bool GenerateCommand::chosen() const { return command_->parsed(); }

int GenerateCommand::run() {
  recipe_.model = workload::model(model_).value_or(workload::Model{});
  if (sequence_ > 0) recipe_.model.sequence = sequence_;
  for (const std::string& name : offload_) {
    recipe_.offload[static_cast<std::size_t>(std::ranges::find(kClassNames, name) - kClassNames.begin())] = true;
  }
  if (optimizer_place_ == "host") {
    recipe_.optimizer_place = workload::Place::kHost;
    recipe_.optimizer_bytes_per_s = kHostBytesPerS;
  }
  const Result<workload::Generated> generated = workload::generate(recipe_);
  if (!generated) {
    std::cerr << generated.error().message << "\n";
    return 2;
  }
  std::ofstream file;
  if (output_ != "-") file.open(output_, std::ios::trunc);
  std::ostream& out = output_ == "-" ? std::cout : file;
  workload::write(generated->workload, out);
  out.flush();
  if (!out) {
    std::cerr << output_ << ": cannot be written; name a file in a folder that can be written to\n";
    return 1;
  }
  std::cerr << summary(*generated);
  return 0;
}

}  // namespace terrace::sim

// SPDX-License-Identifier: Apache-2.0
#include "sim/generate_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>

#include "workload/writer.h"

namespace terrace::sim {
namespace {

using workload::kClassNames;

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
          program.add_subcommand("generate", "writes the workload of one rank that trains a model of a given shape")),
      options_(*command_) {
  command_->add_option("--steps", steps_, "in the file; a mixture's differ from each other")->capture_default_str();
  command_->add_option("--output", output_, "file to write; - for standard output")->capture_default_str();
}

bool GenerateCommand::chosen() const { return command_->parsed(); }

int GenerateCommand::run() {
  workload::Recipe recipe = options_.recipe();
  recipe.steps = steps_;
  const Result<workload::Generated> generated = workload::generate(recipe);
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

// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <fstream>
#include <iostream>

#include "sim/json.h"
#include "timetable/timetable.h"
#include "workload/bound.h"
#include "workload/node_file.h"
#include "workload/reader.h"

namespace terrace::sim {
ScheduleCommand::ScheduleCommand(CLI::App& program)
    : command_(program.add_subcommand(
          "schedule", "a plan of a workload's period over all tiers, and how it compares with what is possible")) {
  CLI::App& command = *command_;
  command.add_option("--workload", workload_, "a file (docs/reference/workloads.md)")->required();
  command.add_option("--node", node_, "a configuration with link speeds, or a name from docs/reference/workloads.md")
      ->required();
  command.add_option("--output", output_, "file to write the schedule to; - for standard output");
  command.add_option("--evaluations", evaluations_, "how often a choice of places is tried; 1 for a plan at once")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, kEvaluationsMax));
  command.add_option("--seed", seed_, "of the search")->capture_default_str();
  command.add_flag("--json", json_, "the figures as a JSON object");
}

bool ScheduleCommand::chosen() const { return command_->parsed(); }

int ScheduleCommand::run() const {
  const auto refuse = [](const std::string& why, int status) {
    std::cerr << why << '\n';
    return status;
  };
  const auto node = workload::load_node(node_);
  if (!node) return refuse(node.error().message, 2);
  const auto workload = workload::load(workload_, &*node);
  if (!workload) return refuse(workload.error().message, 2);
  const auto bound = workload::lower_bound(*workload, *node);
  if (!bound) return refuse(bound.error().message, 2);
  std::ofstream file;  // before the search, which may take minutes
  if (!output_.empty() && output_ != "-") {
    file.open(output_);
    if (!file) return refuse(fmt::format("--output: cannot write {}", output_), 2);
  }
  const std::clock_t began = std::clock();
  const auto schedule = timetable::plan(*workload, *node, {.evaluations = evaluations_, .seed = seed_});
  const double cpu_s = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  if (!schedule) return refuse(schedule.error().message, 1);
  std::ostream& out = output_ == "-" ? std::cout : file;
  if (!output_.empty()) timetable::write(out, *schedule, workload->name, node->name, bound->total.count());
  if (!out.flush()) return refuse(fmt::format("--output: writing {} failed", output_), 1);
  const double makespan = static_cast<double>(schedule->makespan_ns);
  const double share = static_cast<double>(bound->total.count()) / makespan;
  std::ostream& said = output_ == "-" ? std::cerr : std::cout;
  if (json_) {
    const nlohmann::ordered_json figures = {{"workload", workload->name},
                                            {"node", node->name},
                                            {"makespan_us", makespan / 1e3},
                                            {"compute_us", microseconds(bound->compute)},
                                            {"lower_bound_us", microseconds(bound->total)},
                                            {"bound_by", workload::name(bound->limit)},
                                            {"share", share},
                                            {"moves", schedule->moves.size()},
                                            {"cpu_s", cpu_s}};
    said << figures.dump() << '\n';
  } else {
    said << fmt::format("{}: {:.3f} ms, {:.2f} % of it the bound's ({}), {} moves, planned in {:.2f} s of CPU\n",
                        workload->name, makespan / 1e6, 100 * share, workload::name(bound->limit),
                        schedule->moves.size(), cpu_s);
  }
  return 0;
}

}  // namespace terrace::sim

// SPDX-License-Identifier: Apache-2.0
#include "sim/compare_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "forecast/outlook.h"
#include "picture/picture.h"
#include "sim/json.h"
#include "sim/run_command.h"
#include "sim/schedule_command.h"
#include "timetable/timetable.h"
#include "workload/node_file.h"
#include "workload/reader.h"

namespace terrace::sim {
namespace {

using Json = nlohmann::ordered_json;

int refuse(const std::string& why, int status) {
  std::cerr << why << '\n';
  return status;
}

Json links(const rehearsal::Traffic& traffic) { return by_link(traffic.hbm_bytes, traffic.block_bytes); }

// Each kind of bound of a repetition, and where the largest is.
Json bounds(const workload::Bound& bound) {
  return {{"compute", microseconds(bound.compute)},
          {"links", microseconds(bound.by_links())},
          {"windows", microseconds(bound.by_windows())}};
}

std::string explained(const workload::Bound& bound, const workload::Workload& workload) {
  std::string where{workload::name(bound.limit)};
  if (const workload::Window* window = bound.window())
    where += fmt::format(", {} to {}", workload.runs[window->first].name, workload.runs[window->last].name);
  return fmt::format("{:14} {:10.3f} {:10.3f}  {}; links alone {:.3f}, windows {:.3f}\n", "bound",
                     microseconds(bound.total) / 1e3, microseconds(bound.compute) / 1e3, where,
                     microseconds(bound.by_links()) / 1e3, microseconds(bound.by_windows()) / 1e3);
}

forecast::Outlook planned(const timetable::Schedule& schedule, const workload::Workload& workload) {
  forecast::Outlook outlook{
      .step = Duration(schedule.makespan_ns), .compute = workload::compute_time(workload.runs), .traffic = {}};
  for (const timetable::Move& move : schedule.moves) {
    const bool of_block = move.from == timetable::Tier::kBlock || move.to == timetable::Tier::kBlock;
    auto& bytes = of_block ? outlook.traffic.block_bytes : outlook.traffic.hbm_bytes;
    bytes[move.to < move.from ? 0 : 1] += workload.tensors[move.tensor].bytes;
  }
  return outlook;
}

// As `run --json` names its fields, of a repetition.
Json row(const std::string& policy, const forecast::Outlook& outlook, const forecast::Outlook& bound) {
  return {{"policy", policy},
          {"makespan_us", microseconds(outlook.step)},
          {"compute_us", microseconds(outlook.compute)},
          {"stall_us", microseconds(outlook.step - outlook.compute)},
          {"lower_bound_us", microseconds(bound.step)},
          {"share", outlook.step > Duration::zero() ? microseconds(bound.step) / microseconds(outlook.step) : 1},
          {"bytes", links(outlook.traffic)},
          {"fewest_bytes", links(bound.traffic)}};
}

std::string line(const std::string& policy, const forecast::Outlook& outlook, const forecast::Outlook& bound) {
  const auto gigabytes = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  return fmt::format("{:14} {:10.3f} {:10.3f} {:10.3f} {:8.2f} % {:10.3f} {:10.3f} {:10.3f} {:10.3f}\n", policy,
                     microseconds(outlook.step) / 1e3, microseconds(outlook.compute) / 1e3,
                     microseconds(outlook.step - outlook.compute) / 1e3,
                     100 * microseconds(bound.step) / std::max(1e-3, microseconds(outlook.step)),
                     gigabytes(outlook.traffic.hbm_bytes[0]), gigabytes(outlook.traffic.hbm_bytes[1]),
                     gigabytes(outlook.traffic.block_bytes[0]), gigabytes(outlook.traffic.block_bytes[1]));
}

constexpr const char* kTitles =
    "policy            step ms    compute      stall  of bound  hbm in GB    hbm out   block in  block out\n";

constexpr const char* kScript = R"py(
import json, sys
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot

compared = json.load(sys.stdin)
rows = compared["policies"]
names = [row["policy"] for row in rows]
figure, (times, moved) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
compute = [row["compute_us"] / 1e6 for row in rows]
times.bar(names, compute, label="compute")
times.bar(names, [row["stall_us"] / 1e6 for row in rows], bottom=compute, color="tab:red", label="stall")
times.axhline(rows[0]["lower_bound_us"] / 1e6, color="black", linestyle=":", label="least possible")
times.axhline(rows[0]["bounds_us"]["links"] / 1e6, color="grey", linestyle=":", label="by links alone")
times.set(ylabel="seconds", title="%s on %s" % (compared["workload"], compared["node"]))
links = [(link, way) for link in ("hbm", "block") for way in ("in", "out")]
for at, (link, way) in enumerate(links):
    places = [place + 0.2 * (at - 1.5) for place in range(len(rows))]
    bars = moved.bar(places, [row["bytes"][link][way] / 1e9 for row in rows], 0.2, label="%s %s" % (link, way))
    for place, row in zip(places, rows):
        fewest = row["fewest_bytes"][link][way] / 1e9
        moved.plot([place - 0.1, place + 0.1], [fewest, fewest], color="black", linewidth=1)
moved.set_xticks(range(len(rows)), names)
moved.set(ylabel="GB moved (line: fewest possible)")
for axes in (times, moved):
    axes.tick_params(axis="x", labelsize=8)
    axes.legend(fontsize=8)
figure.savefig(sys.argv[1], dpi=80)
)py";

}  // namespace

CompareCommand::CompareCommand(CLI::App& program)
    : command_(program.add_subcommand("compare", "a workload under several policies, side by side")),
      policies_(rehearsal::kPolicyNames.begin(), rehearsal::kPolicyNames.end()),
      python_(picture::default_python()) {
  CLI::App& command = *command_;
  command.add_option("--workload", workload_, "a file (docs/reference/workloads.md)")->required();
  command.add_option("--node", node_, "a configuration with link speeds, or a name from docs/reference/workloads.md")
      ->required();
  command.add_option("--policies", policies_, "which ones")
      ->delimiter(',')
      ->check(CLI::IsMember(policies_))
      ->capture_default_str();
  command.add_option("--steps", steps_, "how many of each, whole repetitions of the file (default: five repetitions)")
      ->check(CLI::Range(std::uint64_t{1}, kStepsMax));
  command.add_option("--timetable", timetable_, "beside the policies a plan over all tiers, of so many evaluations")
      ->check(CLI::Range(std::uint64_t{1}, kEvaluationsMax));
  command.add_flag("--json", json_, "a JSON object a policy, each on its own line");
  command.add_option("--plot", picture_, "draw times and bytes into this PNG, by a Python with matplotlib");
  command.add_option("--python", python_, "for --plot")->capture_default_str();
}

bool CompareCommand::chosen() const { return command_->parsed(); }

int CompareCommand::run() const {
  for (auto at = policies_.begin(); at != policies_.end(); ++at)
    if (std::find(policies_.begin(), at, *at) != at)
      return refuse(fmt::format("--policies: {} is named twice", *at), 2);
  if (!picture_.empty()) {
    if (const std::string lack = picture::cannot_draw(python_); !lack.empty()) return refuse(lack, 2);
    if (const std::string lack = picture::cannot_write(picture_); !lack.empty()) return refuse("--plot: " + lack, 2);
  }
  const auto node = workload::load_node(node_);
  if (!node) return refuse(node.error().message, 2);
  const auto workload = workload::load(workload_, &*node);
  if (!workload) return refuse(workload.error().message, 2);
  if (steps_ % workload->steps.size() != 0)
    return refuse(
        fmt::format("--steps {}: {} has {} steps; give a multiple of that", steps_, workload_, workload->steps.size()),
        2);
  const auto limits = workload::lower_bound(*workload, *node);
  if (!limits) return refuse(limits.error().message, 2);
  const forecast::Outlook bound = forecast::bounded(*limits);
  Json compared = {{"workload", workload->name}, {"node", node->name}, {"policies", Json::array()}};
  const auto add = [&](const std::string& policy, const forecast::Outlook& outlook) {
    Json& added = compared["policies"].emplace_back(row(policy, outlook, bound));
    added["bound_by"] = workload::name(limits->limit);
    added["bounds_us"] = bounds(*limits);
    std::cout << (json_ ? added.dump() + '\n' : line(policy, outlook, bound)) << std::flush;
  };
  if (!json_) std::cout << kTitles << std::flush;
  for (const std::string& policy : policies_) {
    forecast::RehearseOptions options{.policy = *rehearsal::policy_of(policy)};
    if (steps_ > 0) options.repetitions = steps_ / workload->steps.size();
    if (isatty(STDERR_FILENO) != 0)
      options.progress = [&](std::uint64_t step, std::uint64_t steps) {
        std::cerr << fmt::format("\r\033[K{}: step {} of {}\r", policy, step, steps) << std::flush;
      };
    const auto outlook = forecast::rehearse(*workload, *node, options);
    if (!outlook) return refuse(fmt::format("{}: {}", policy, outlook.error().message), 1);
    add(policy, *outlook);
  }
  if (timetable_ > 0) {
    const auto schedule = timetable::plan(*workload, *node, {.evaluations = timetable_});
    if (!schedule) return refuse(schedule.error().message, 1);
    add("timetable", planned(*schedule, *workload));
  }
  if (!json_) std::cout << explained(*limits, *workload) << std::flush;
  if (picture_.empty()) return 0;
  const auto drawn =
      picture::draw(kScript, compared.dump(-1, ' ', false, Json::error_handler_t::replace), picture_, python_);
  return drawn ? 0 : refuse(drawn.error().message, 1);
}

}  // namespace terrace::sim

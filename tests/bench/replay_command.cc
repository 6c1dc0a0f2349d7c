// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/calibration.h"
#include "bench/command_options.h"
#include "bench/commands.h"
#include "bench/replay.h"
#include "workload/bound.h"
#include "workload/node_file.h"
#include "workload/reader.h"
#include "workload/scaled.h"

namespace terrace::bench {
namespace {

// Before it the daemon learns the step, and memory is touched for the first time.
constexpr std::uint64_t kFirstCompared = 3;
constexpr std::uint64_t kDiskSpareBytes = 64 << 20;

struct ReplayArguments {
  std::string workload;
  std::string like = "g10";
  std::string node;
  std::string policy = "next-use";
  double scale = 1;
  double time_scale = 0;
  std::uint64_t steps = 5;
  bool every_byte = false;
  bool json = false;
};

// As CLI::Range, which takes what is not a number.
CLI::Validator scale_between(double least, double most) {
  return {[least, most](const std::string& given) {
            double number = 0;
            const bool is_right = CLI::detail::lexical_cast(given, number) && number >= least && number <= most;
            return is_right ? std::string() : fmt::format("'{}' is not a number from {} to {}", given, least, most);
          },
          "NUMBER"};
}

double microseconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; }
double milliseconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e6; }

double quotient(const ReplayedStep& step) {
  return milliseconds(step.predicted.makespan) / milliseconds(step.measured.makespan);
}

nlohmann::ordered_json heading(const ReplayArguments& arguments, const Replay& replay) {
  return {{"workload", replay.workload.name},
          {"like", arguments.like},
          {"policy", arguments.policy},
          {"scale", arguments.scale},
          {"time_scale", arguments.time_scale}};
}

void print_json(const ReplayArguments& arguments, const Replay& replay, const std::vector<ReplayedStep>& steps,
                const workload::Bound& bound) {
  for (const ReplayedStep& step : steps) {
    nlohmann::ordered_json line = heading(arguments, replay);
    line.update({{"step", step.measured.number},
                 {"kind", workload::name(step.measured.kind)},
                 {"measured_us", microseconds(step.measured.makespan)},
                 {"predicted_us", microseconds(step.predicted.makespan)},
                 {"predicted_over_measured", quotient(step)},
                 {"measured_compute_us", microseconds(step.measured.compute)},
                 {"compute_us", microseconds(step.predicted.compute)},
                 {"tensors_checked", step.measured.tensors_checked}});
    fmt::print("{}\n", line.dump());
  }
  const Agreement sum = agreement(steps, kFirstCompared);
  nlohmann::ordered_json line = heading(arguments, replay);
  line.update({{"from_step", kFirstCompared},
               {"measured_us", microseconds(sum.measured)},
               {"predicted_us", microseconds(sum.predicted)},
               {"predicted_over_measured", sum.quotient},
               {"lower_bound_us", microseconds(bound.total)},
               {"bound_by", workload::name(bound.limit)}});
  fmt::print("{}\n", line.dump());
}

void print_table(const Replay& replay, const std::vector<ReplayedStep>& steps, const workload::Bound& bound) {
  fmt::print("{}: bound by {}, a repetition takes at least {:.1f} ms\n", replay.workload.name,
             workload::name(bound.limit), milliseconds(bound.total));
  fmt::print("{:>4}  {:5}  {:>12}  {:>12}  {:>10}  {:>16}  {:>15}\n", "step", "kind", "measured ms", "predicted ms",
             "predicted/", "computed ms, of", "tensors checked");
  for (const ReplayedStep& step : steps)
    fmt::print("{:>4}  {:5}  {:>12.1f}  {:>12.1f}  {:>10.3f}  {:>7.1f} {:>8.1f}  {:>15}\n", step.measured.number,
               workload::name(step.measured.kind), milliseconds(step.measured.makespan),
               milliseconds(step.predicted.makespan), quotient(step), milliseconds(step.measured.compute),
               milliseconds(step.predicted.compute), step.measured.tensors_checked);
  const Agreement sum = agreement(steps, kFirstCompared);
  if (sum.measured.count() > 0)
    fmt::print("from step {} on: measured {:.1f} ms, predicted {:.1f} ms; predicted over measured {:.3f}\n",
               kFirstCompared, milliseconds(sum.measured), milliseconds(sum.predicted), sum.quotient);
}

// The workload and the node on which it runs: the tiers of the node that it is like, the links of this machine.
Result<Replay> prepared(const workload::Node& here, ReplayArguments& arguments) {
  const auto like = workload::load_node(arguments.like);
  if (!like) return std::unexpected(like.error());
  auto workload = workload::load(arguments.workload, &*like);
  if (!workload) return std::unexpected(workload.error());
  if (arguments.time_scale == 0) {
    if (like->host_bytes == 0)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{} has no link between HBM and host to keep in proportion; give --time-scale", arguments.like));
    arguments.time_scale = workload::time_scale(*like, here, arguments.scale);
  }
  const workload::Scale scale{.bytes = arguments.scale, .time = arguments.time_scale};
  Replay replay{.workload = workload::scaled(*workload, scale),
                .node = {},
                .policy = *rehearsal::policy_of(arguments.policy),
                .steps = arguments.steps,
                .touch = arguments.every_byte ? Touch::kEveryByte : Touch::kSamples};
  replay.node = workload::scaled(*like, scale, replay.workload);
  replay.node.hbm = here.hbm;
  if (replay.node.block_bytes > 0) replay.node.block = here.block;
  replay.node.hbm_within_bytes_per_s = here.hbm_within_bytes_per_s;
  replay.node.host_within_bytes_per_s = here.host_within_bytes_per_s;
  replay.node.request_latency = here.request_latency;
  return replay;
}

int run(ReplayArguments& arguments, CommandOptions& options) {
  auto settings = options.settings(kCalibrationDiskBytes);
  if (!settings) return refuse(settings.error());
  const auto here = arguments.node.empty() ? calibrate(Bench(*settings)) : workload::load_node(arguments.node);
  if (!here) return refuse(here.error());
  const auto what = prepared(*here, arguments);
  if (!what) return refuse(what.error());
  const auto bound = workload::lower_bound(what->workload, what->node);
  if (!bound) return refuse(bound.error());
  settings->disk_bytes_max = what->node.block_bytes + kDiskSpareBytes;
  const auto steps = replay(Bench(*settings), *what);
  if (!steps) return refuse(steps.error());
  arguments.json ? print_json(arguments, *what, *steps, *bound) : print_table(*what, *steps, *bound);
  return 0;
}

}  // namespace

int replay_command(int argc, char** argv) {
  ReplayArguments arguments;
  CLI::App app(
      "Runs a workload on a live daemon of its own with real bytes, checks what it reads, and compares the makespans "
      "with those of the same steps in virtual time.",
      "terrace-bench replay");
  CommandOptions options(app);
  app.add_option("--workload", arguments.workload, "A file (docs/reference/workloads.md)")->required();
  app.add_option("--scale", arguments.scale, "What sizes and tiers are divided by")
      ->capture_default_str()
      ->check(scale_between(1.0, 1e9));
  app.add_option("--time-scale", arguments.time_scale,
                 "What compute times are multiplied by (default: so that they keep their proportion to the HBM link)")
      ->check(scale_between(1e-9, 1e9));
  app.add_option("--like", arguments.like,
                 "The node that the workload is for, whose tiers are scaled: a file or a name")
      ->capture_default_str();
  app.add_option("--node", arguments.node,
                 "This machine's links, as terrace-bench calibrate wrote them (default: they are measured first)");
  app.add_option("--policy", arguments.policy, "The daemon's")
      ->capture_default_str()
      ->check(CLI::IsMember({"next-use", "lru", "s3-fifo"}));
  app.add_option("--steps", arguments.steps, "How many")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_flag("--every-byte", arguments.every_byte,
               "Write and check every byte, and not 64 of each 64 KiB: it takes the time that it takes");
  app.add_flag("--json", arguments.json, "A JSON object a step and one of the sum, each on its own line");
  CLI11_PARSE(app, argc, argv);
  return run(arguments, options);
}

}  // namespace terrace::bench

// SPDX-License-Identifier: Apache-2.0
#include "sim/run_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "base/check.h"
#include "rehearsal/rehearsal.h"
#include "sim/json.h"
#include "workload/bound.h"
#include "workload/node_file.h"
#include "workload/perturb.h"
#include "workload/reader.h"

namespace terrace::sim {
namespace {

constexpr std::size_t kPerturbedRunsMax = 50'000'000;  // all are made before the first
constexpr std::size_t kJobsMax = 256;                  // sessions of an engine

// The part of a repetition's bound that falls to one of its steps: by its compute time.
double part(const workload::Workload& workload, std::uint64_t step) {
  if (workload.steps.size() == 1) return 1;
  const auto all = static_cast<double>(workload::compute_time(workload.runs).count());
  return all == 0 ? 1.0 / static_cast<double>(workload.steps.size())
                  : static_cast<double>(workload::compute_time(workload.runs_of(step)).count()) / all;
}

nlohmann::ordered_json links(const std::array<double, 4>& bytes) {
  return by_link<double>({bytes[0], bytes[1]}, {bytes[2], bytes[3]});
}

// Of repetitions: no schedule is shorter than the bound, once what may lie in memory before the first one, and be owed
// after the last, is counted.
class BoundCheck {
 public:
  // The bound of a window counts the compute time outside of it, which with noise is another.
  BoundCheck(const workload::Bound& bound, const workload::Workload& workload, const workload::Node& node, bool noisy)
      : bound_(bound), by_link_(bound.limit != workload::Limit::kCompute && !(noisy && bound.window() != nullptr)) {
    const auto time = [](std::uint64_t bytes, const workload::LinkSpeed& link) {
      const std::uint64_t slowest = std::min(link.in_bytes_per_s, link.out_bytes_per_s);
      if (slowest == 0 || bytes == workload::kUnlimited) return Duration::zero();
      const double ways = 1 + link.both_ways().toll();
      return Duration(
          static_cast<std::int64_t>(ways * static_cast<double>(bytes) / static_cast<double>(slowest) * 1e9));
    };
    std::uint64_t content = 0;
    for (const workload::Tensor& tensor : workload.tensors) content = workload::add_capacity(content, tensor.bytes);
    slack_ = std::max(time(std::min(content, node.hbm_bytes), node.hbm),
                      time(std::min(content, workload::add_capacity(node.hbm_bytes, node.host_bytes)), node.block));
  }
  void ended(const rehearsal::StepReport& report, bool repetition) {
    TERRACE_CHECK(report.makespan >= report.compute);
    sum_ += report.makespan;
    repetitions_ += repetition ? 1 : 0;
    if (by_link_ && repetition) TERRACE_CHECK(sum_ + slack_ >= bound_.total * repetitions_);
  }

 private:
  const workload::Bound& bound_;
  bool by_link_;
  Duration slack_{};
  Duration sum_{};
  std::int64_t repetitions_ = 0;
};

struct Heading {
  std::string workload;
  std::string node;
  std::string policy;
  std::size_t jobs = 1;
};

void print(const Heading& heading, bool json, const workload::Workload& workload, const workload::Bound& bound,
           const rehearsal::StepReport& report) {
  const double share_of_bound = part(workload, (report.step - 1) % workload.steps.size());
  // With noise the step's own compute time is what nobody beats.
  const double compute = microseconds(report.compute);
  const double lower = bound.limit == workload::Limit::kCompute
                           ? compute
                           : std::max(compute, microseconds(bound.total) * share_of_bound);
  const double makespan = microseconds(report.makespan);
  const std::array<double, 4> bytes = {
      static_cast<double>(report.traffic.hbm_bytes[0]), static_cast<double>(report.traffic.hbm_bytes[1]),
      static_cast<double>(report.traffic.block_bytes[0]), static_cast<double>(report.traffic.block_bytes[1])};
  std::array<double, 4> fewest = {
      static_cast<double>(bound.hbm.fewest_in_bytes), static_cast<double>(bound.hbm.fewest_out_bytes),
      static_cast<double>(bound.block.fewest_in_bytes), static_cast<double>(bound.block.fewest_out_bytes)};
  for (double& number : fewest) number *= share_of_bound;
  if (json) {
    nlohmann::ordered_json line = {{"workload", heading.workload},
                                   {"node", heading.node},
                                   {"policy", heading.policy},
                                   {"job", report.job + 1},
                                   {"step", report.step},
                                   {"kind", workload::name(report.kind)},
                                   {"makespan_us", makespan},
                                   {"compute_us", compute},
                                   {"stall_us", makespan - compute},
                                   {"lower_bound_us", lower},
                                   {"share", makespan > 0 ? lower / makespan : 1},
                                   {"bound_by", workload::name(bound.limit)},
                                   {"bytes", links(bytes)},
                                   {"fewest_bytes", links(fewest)},
                                   {"prefetch_late", report.prefetch_late},
                                   {"prefetch_wasted", report.prefetch_wasted},
                                   {"foreseen", report.foreseen}};
    if (const workload::Window* window = bound.window())
      line["bound_window"] = {{"first", workload.runs[window->first].name}, {"last", workload.runs[window->last].name}};
    std::cout << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
    return;
  }
  std::cout
      << fmt::format(
             "{}step {:3} {:5}  {:10.3f} ms, {:6.2f} % of it the bound's  hbm in {:8.3f} out {:8.3f} GB  block in "
             "{:8.3f} out {:8.3f} GB  late {} wasted {}",
             heading.jobs > 1 ? fmt::format("job {} ", report.job + 1) : "", report.step, workload::name(report.kind),
             makespan / 1e3, makespan > 0 ? lower / makespan * 100 : 100, bytes[0] / 1e9, bytes[1] / 1e9,
             bytes[2] / 1e9, bytes[3] / 1e9, report.prefetch_late, report.prefetch_wasted)
      << std::endl;
}

}  // namespace

RunCommand::RunCommand(CLI::App& program)
    : command_(program.add_subcommand(
          "run", "a workload's steps on the engine, in virtual time, and how they compare with what is possible")) {
  CLI::App& command = *command_;
  command.add_option("--workload", workload_, "a file (docs/reference/workloads.md)")->required();
  command.add_option("--node", node_, "a configuration with link speeds, or a name from docs/reference/workloads.md")
      ->required();
  command.add_option("--policy", policy_, "what decides what moves")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(rehearsal::kPolicyNames.begin(), rehearsal::kPolicyNames.end())));
  command.add_option("--steps", steps_, "how many")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, kStepsMax));
  command
      .add_option(
          "--jobs", jobs_,
          "so many trainers do the same at once, on links that they share, each guaranteed an equal part of the "
          "tiers; --steps are each one's")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, kJobsMax));
  const auto is_share = [](const std::string& given) {
    double share = -1;
    const bool number = CLI::detail::lexical_cast(given, share) && share >= 0 && share <= 1;
    return number ? std::string() : "'" + given + "' is not a number from 0 to 1";
  };
  command.add_option("--noise", noise_, "compute times are off by up to this share of them, either way")
      ->capture_default_str()
      ->check(is_share);
  command
      .add_option("--perturb", perturb_,
                  "this share of the accesses is changed in each step: a third each is replaced by a read of a random "
                  "tensor, gets such a read beside it, or is dropped (docs/reference/workloads.md)")
      ->capture_default_str()
      ->check(is_share);
  command.add_flag("--declare", declare_,
                   "the trainers say before their first step what their steps are going to lease");
  command.add_option("--seed", seed_, "of the noise, and of what --perturb changes")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, INT64_MAX));
  command.add_flag("--json", json_, "a JSON object a step, each on its own line");
}

bool RunCommand::chosen() const { return command_->parsed(); }

int RunCommand::run() {
  const auto refuse = [](const Error& error, int status) {
    std::cerr << error.message << '\n';
    return status;
  };
  const auto node = workload::load_node(node_);
  if (!node) return refuse(node.error(), 2);
  auto workload = workload::load(workload_, &*node);
  if (!workload) return refuse(workload.error(), 2);
  if (perturb_ > 0) {
    const std::size_t repetitions = (steps_ - 1) / workload->steps.size() + 1;
    if (repetitions > kPerturbedRunsMax / std::max<std::size_t>(workload->runs.size(), 1))
      return refuse({ErrorCode::kInvalidArgument,
                     fmt::format("--perturb: {} repetitions of {} runs are more than {} runs together; fewer --steps",
                                 repetitions, workload->runs.size(), kPerturbedRunsMax)},
                    2);
    workload = workload::perturbed(*workload, *node, {.share = perturb_, .seed = seed_, .repetitions = repetitions});
  }
  const bool watched = isatty(STDERR_FILENO) != 0;
  if (watched) std::cerr << fmt::format("what {} runs take at least ...\r", workload->runs.size()) << std::flush;
  const auto bound = workload::lower_bound(*workload, *node);
  if (watched) std::cerr << fmt::format("{:60}\r", "") << std::flush;
  if (!bound) return refuse(bound.error(), 2);
  auto rehearsal = rehearsal::Rehearsal::create({.workload = *workload,
                                                 .node = *node,
                                                 .policy = *rehearsal::policy_of(policy_),
                                                 .noise = noise_,
                                                 .seed = seed_,
                                                 .declare = declare_,
                                                 .jobs = jobs_});
  if (!rehearsal) return refuse(rehearsal.error(), 1);
  std::vector<BoundCheck> checks(jobs_, BoundCheck(*bound, *workload, *node, noise_ > 0));
  const std::uint64_t all = steps_ * jobs_;
  for (std::uint64_t done = 0; done < all;) {
    if (watched) std::cerr << fmt::format("\rstep {} of {}\r", done + 1, all) << std::flush;
    const auto report = (*rehearsal)->step();
    if (!report) return refuse(report.error(), 1);
    checks[report->job].ended(*report, report->step % workload->steps.size() == 0);
    if (report->step > steps_) continue;  // until the slowest has done its own, nobody has the links alone
    ++done;
    print({workload->name, node_, policy_, jobs_}, json_, *workload, *bound, *report);
  }
  return 0;
}

}  // namespace terrace::sim

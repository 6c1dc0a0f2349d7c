// SPDX-License-Identifier: Apache-2.0
#include "forecast/outlook.h"

#include <algorithm>

#include "base/check.h"
#include "forecast/ledger.h"
#include "rehearsal/rehearsal.h"

namespace terrace::forecast {
namespace {

using workload::Direction;
using workload::Limit;

constexpr std::uint64_t kUnsettled = 2;  // repetitions that fill memory, and that are learned from

Duration time_of(std::uint64_t bytes, std::uint64_t bytes_per_s) {
  if (bytes == 0) return {};
  return Duration(static_cast<std::int64_t>(static_cast<double>(bytes) / static_cast<double>(bytes_per_s) * 1e9));
}

void add(const rehearsal::StepReport& report, Outlook& sum) {
  sum.step += report.makespan;
  sum.compute += report.compute;
  sum.traffic += report.traffic;
}

void divide(std::uint64_t by, Outlook& sum) {
  sum.step /= static_cast<std::int64_t>(by);
  sum.compute /= static_cast<std::int64_t>(by);
  sum.traffic /= by;
  for (ClassOutlook& of_class : sum.classes) of_class.traffic /= by;
}

}  // namespace

std::array<Busy, 5> busy(const Outlook& outlook, const workload::Node& node) {
  const auto link = [](const std::array<std::uint64_t, 2>& bytes, const workload::LinkSpeed& speed, Direction way) {
    return time_of(bytes[static_cast<std::size_t>(way)], speed.bytes_per_s(way));
  };
  return {{{Limit::kCompute, outlook.compute},
           {Limit::kHbmIn, link(outlook.traffic.hbm_bytes, node.hbm, Direction::kIn)},
           {Limit::kHbmOut, link(outlook.traffic.hbm_bytes, node.hbm, Direction::kOut)},
           {Limit::kBlockIn, link(outlook.traffic.block_bytes, node.block, Direction::kIn)},
           {Limit::kBlockOut, link(outlook.traffic.block_bytes, node.block, Direction::kOut)}}};
}

Busy busiest(const Outlook& outlook, const workload::Node& node) {
  const std::array<Busy, 5> all = busy(outlook, node);
  return *std::ranges::max_element(all, {}, &Busy::time);
}

workload::Limit limit(const Outlook& outlook, const workload::Bound& bound, const workload::Node& node) {
  const Busy most = busiest(outlook, node);
  return bound.total > most.time ? bound.limit : most.what;
}

Result<Outlook> rehearse(const workload::Workload& workload, const workload::Node& node,
                         const RehearseOptions& options) {
  TERRACE_CHECK(options.repetitions >= 1);
  const std::uint64_t counted = options.repetitions > kUnsettled ? options.repetitions - kUnsettled : 1;
  const std::uint64_t steps = options.repetitions * workload.steps.size();
  const std::uint64_t uncounted = steps - counted * workload.steps.size();
  Ledger ledger(workload);
  auto rehearsal = rehearsal::Rehearsal::create(
      {.workload = workload, .node = node, .policy = options.policy, .spectator = &ledger});
  if (!rehearsal) return std::unexpected(rehearsal.error());
  Outlook outlook;
  for (std::uint64_t step = 0; step < steps; ++step) {
    if (options.progress) options.progress(step + 1, steps);
    if (step == uncounted) ledger.begin();
    const auto report = (*rehearsal)->step();
    if (!report) return std::unexpected(report.error());
    if (step >= uncounted) add(*report, outlook);
  }
  TERRACE_CHECK(outlook.step >= outlook.compute);
  outlook.classes = ledger.classes();
  divide(counted, outlook);
  return outlook;
}

Outlook bounded(const workload::Bound& bound) {
  Outlook outlook{.source = Source::kBound, .step = bound.total, .compute = bound.compute, .traffic = {}};
  outlook.traffic.hbm_bytes = {bound.hbm.fewest_in_bytes, bound.hbm.fewest_out_bytes};
  outlook.traffic.block_bytes = {bound.block.fewest_in_bytes, bound.block.fewest_out_bytes};
  return outlook;
}

Result<Outlook> bounded(const workload::Workload& workload, const workload::Node& node) {
  const auto bound = workload::lower_bound(workload, node);
  if (!bound) return std::unexpected(bound.error());
  return bounded(*bound);
}

std::uint64_t uses_of(const workload::Workload& workload) {
  std::uint64_t uses = 0;
  for (const workload::Run& run : workload.runs) uses += workload::leased(run).size();
  return uses;
}

}  // namespace terrace::forecast

// SPDX-License-Identifier: Apache-2.0
#include "bench/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/bytes.h"
#include "rehearsal/rehearsal.h"
#include "workload/node_file.h"

namespace terrace::bench {
namespace {

// Leases nearly all of a tier at once, and gives it back. A session's memory is zeroed when the session comes to have
// it, which takes many times as long as to copy into it, and would be in the first steps that need it.
Result<void> touch(Client& client, Place place, std::uint64_t capacity) {
  constexpr std::uint64_t kPieces = 128;  // of the tier, of which a sixteenth is left alone
  std::vector<TensorSpec> specs;
  for (std::uint64_t i = 0; i < kPieces * 15 / 16 && capacity > kPieces * kPageBytes; ++i)
    specs.push_back({.name = fmt::format("touched {}", i), .bytes = capacity / kPieces / kPageBytes * kPageBytes});
  if (specs.empty()) return {};
  const auto pieces = client.create(specs);
  if (!pieces) return std::unexpected(pieces.error());
  if (const auto leases = client.acquire(*pieces, {.place = place, .mode = Mode::kOverwrite}); !leases)
    return std::unexpected(leases.error());
  return client.destroy(*pieces);
}

Result<std::vector<LiveStep>> measure(const Bench& bench, const Replay& what) {
  std::ostringstream links;
  workload::write_links(what.node, links);
  auto daemon = bench.start_daemon({.device_bytes = what.node.hbm_bytes,
                                    .memory_bytes = what.node.host_bytes,
                                    .block_bytes = what.node.block_bytes,
                                    .policy = std::string(name(what.policy)),
                                    .links = links.str()});
  if (!daemon) return std::unexpected(daemon.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  bench.say("memory is touched");
  // All tensors have a home: they take no more of a tier than there are homes.
  const std::uint64_t homes = what.node.block_bytes > 0 ? what.node.block_bytes : what.node.host_bytes;
  for (const auto& [place, capacity] :
       {std::pair(Place::host(), what.node.host_bytes), std::pair(Place::device(0), what.node.hbm_bytes)})
    if (const auto touched = touch(*client, place, homes > 0 ? std::min(capacity, homes) : capacity); !touched)
      return std::unexpected(touched.error());
  auto trainer = LiveTrainer::make(*client, what.workload, what.touch);
  if (!trainer) return std::unexpected(trainer.error());
  std::vector<LiveStep> steps;
  for (std::uint64_t done = 0; done < what.steps; ++done) {
    bench.say(fmt::format("step {} of {}", done + 1, what.steps));
    auto step = trainer->step();
    if (!step) return std::unexpected(step.error());
    steps.push_back(*step);
  }
  return steps;
}

Result<std::vector<rehearsal::StepReport>> predict(const Replay& what) {
  auto rehearsal = rehearsal::Rehearsal::create({.workload = what.workload, .node = what.node, .policy = what.policy});
  if (!rehearsal) return std::unexpected(rehearsal.error());
  std::vector<rehearsal::StepReport> steps;
  while (steps.size() < what.steps) {
    auto step = (*rehearsal)->step();
    if (!step) return std::unexpected(step.error());
    steps.push_back(*step);
  }
  return steps;
}

}  // namespace

Agreement agreement(const std::vector<ReplayedStep>& steps, std::uint64_t first) {
  Agreement sum;
  for (const ReplayedStep& step : steps) {
    if (step.measured.number < first) continue;
    sum.measured += step.measured.makespan;
    sum.predicted += step.predicted.makespan;
  }
  if (sum.measured.count() > 0)
    sum.quotient = static_cast<double>(sum.predicted.count()) / static_cast<double>(sum.measured.count());
  return sum;
}

Result<std::vector<ReplayedStep>> replay(const Bench& bench, const Replay& what) {
  const auto measured = measure(bench, what);
  if (!measured) return std::unexpected(measured.error());
  bench.say("the same steps in virtual time");
  const auto predicted = predict(what);
  if (!predicted) return std::unexpected(predicted.error());
  std::vector<ReplayedStep> steps;
  for (std::size_t at = 0; at < measured->size(); ++at) steps.push_back({(*measured)[at], (*predicted)[at]});
  return steps;
}

}  // namespace terrace::bench

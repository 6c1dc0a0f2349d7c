// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/oracle_planner.h"

#include <utility>

#include "base/bytes.h"
#include "rehearsal/trainer.h"

namespace terrace::rehearsal {
namespace {

constexpr std::uint64_t kAround = 2;  // steps before and after the one that is planned

// As the learner would have it, of a step without a wait.
foresight::Template template_of(const workload::Workload& workload, std::size_t step) {
  foresight::Template known{.version = step + 1, .period_ns = 0, .uses = {}};
  std::vector<std::size_t> last(workload.tensors.size(), SIZE_MAX);
  for (const workload::Run& run : workload.runs_of(step)) {
    for (const workload::TensorId tensor : workload::leased(run)) {
      last[tensor] = known.uses.size();
      known.uses.push_back({.slot = Slot{tensor},
                            .place = place_of(run),
                            .mode = mode_of(run, tensor),
                            .trust = foresight::kTrustMax,
                            .bytes = align_up(workload.tensors[tensor].bytes, kPageBytes),
                            .at_ns = known.period_ns});
    }
    for (const workload::TensorId tensor : run.free)
      if (last[tensor] != SIZE_MAX) known.uses[last[tensor]].dies = true;
    known.period_ns += run.compute.count();
  }
  return known;
}

}  // namespace

OraclePlanner::OraclePlanner(const workload::Workload& workload, foresight::Machine machine)
    : machine_(std::move(machine)) {
  for (std::size_t step = 0; step < workload.steps.size(); ++step) steps_.push_back(template_of(workload, step));
}

foresight::Plan OraclePlanner::plan(std::uint64_t step) const {
  std::vector<const foresight::Template*> horizon;
  const std::uint64_t first = step % steps_.size() + steps_.size() * kAround - kAround;
  for (std::uint64_t at = 0; at <= 2 * kAround; ++at) horizon.push_back(&steps_[(first + at) % steps_.size()]);
  return foresight::plan(machine_, horizon, kAround);
}

}  // namespace terrace::rehearsal

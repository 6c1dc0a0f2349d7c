// SPDX-License-Identifier: Apache-2.0
// A workload on a live daemon beside its rehearsal on a node of the same tiers and links: measured against predicted.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/bench.h"
#include "bench/live_trainer.h"
#include "rehearsal/job.h"
#include "rehearsal/policies.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::bench {

struct Replay {
  workload::Workload workload;
  workload::Node node;  // whose tiers the daemon gets, and whose links the rehearsal and the daemon's planner count on
  rehearsal::PolicyKind policy = rehearsal::PolicyKind::kNextUse;  // kNextUse, kLru or kS3Fifo, which the daemon has
  std::uint64_t steps = 1;
  Touch touch = Touch::kSamples;
};

struct ReplayedStep {
  LiveStep measured;
  rehearsal::StepReport predicted;
};

// The makespans' sum of the steps from the number `first` on, and predicted over measured; zeros if there are none.
struct Agreement {
  std::chrono::nanoseconds measured{};
  std::chrono::nanoseconds predicted{};
  double quotient = 0;
};
Agreement agreement(const std::vector<ReplayedStep>& steps, std::uint64_t first);

// Both, the daemon's steps first. Errors name the run that cannot be done, or the bytes that came back wrong.
Result<std::vector<ReplayedStep>> replay(const Bench& bench, const Replay& what);

}  // namespace terrace::bench

// SPDX-License-Identifier: Apache-2.0
// One of the trainers of a rehearsal: its session, what is learned of it, and how far it has come.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "foresight/learner.h"
#include "rehearsal/links.h"
#include "rehearsal/trainer.h"
#include "terrace/error.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

// One step, from its mark to the end of its last run.
struct StepReport {
  std::size_t job = 0;
  std::uint64_t step = 0;  // of the job, from 1
  workload::StepKind kind{};
  Duration makespan{};
  Duration compute{};
  Traffic traffic;                  // of the job
  std::uint64_t prefetch_late = 0;  // of all jobs, meanwhile
  std::uint64_t prefetch_wasted = 0;
  double foreseen = 0;  // share of the job's uses that its plan had
};

struct Job {
  enum class Phase : std::uint8_t { kIdle, kLeasing, kComputing, kAsking, kEnded };

  Job(std::size_t which, std::size_t slots, std::uint64_t seed) : number(which), trainer(slots), random(seed) {}

  std::size_t number;  // from 0
  Trainer trainer;
  Random random;
  SessionId session{};
  std::optional<foresight::Learner> learner;

  Phase phase = Phase::kIdle;
  std::span<const workload::Run> runs;  // that are to be done, the one under way first
  std::optional<RequestId> asked;       // kLeasing: for the run's set, which it did not find in its table
  bool missed = false;                  // so it was
  Time busy_until{};                    // kComputing, kAsking: when that will be over

  std::uint64_t steps = 0;  // begun
  Time step_began{};
  StepReport report;  // of the step under way; its counters are what they were when it began, until it ends
  std::uint64_t matched = 0;
  std::uint64_t strayed = 0;
};

}  // namespace terrace::rehearsal

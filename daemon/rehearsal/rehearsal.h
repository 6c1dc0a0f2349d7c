// SPDX-License-Identifier: Apache-2.0
// A workload's steps on the daemon's very engine, in virtual time: links of the node's speeds, a trainer that computes,
// and, under the policy next-use, the daemon's learner. No bytes are kept: what is measured is when things happen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/engine.h"
#include "foresight/learner.h"
#include "rehearsal/links.h"
#include "rehearsal/oracle.h"
#include "rehearsal/oracle_planner.h"
#include "rehearsal/policies.h"
#include "rehearsal/trainer.h"
#include "terrace/error.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

struct Options {
  workload::Workload workload;
  workload::Node node;
  PolicyKind policy = PolicyKind::kNextUse;
  double noise = 0;  // compute times are off by up to this share of them, either way
  std::uint64_t seed = 1;
  bool check_laws = false;  // the engine's, after every step: slow
};

// One step, from its mark to the end of its last run.
struct StepReport {
  std::uint64_t step = 0;  // from 1
  workload::StepKind kind{};
  Duration makespan{};
  Duration compute{};
  Traffic traffic;
  std::uint64_t prefetch_late = 0;
  std::uint64_t prefetch_wasted = 0;
  double foreseen = 0;  // share of the uses that the plan had
};

class Rehearsal {
 public:
  // InvalidArgument: the tiers cannot hold the workload.
  static Result<std::unique_ptr<Rehearsal>> create(Options options);

  // The next step. An error says which run cannot be done on this node, and why.
  Result<StepReport> step();
  engine::Status status() const { return engine_->status(); }

 private:
  explicit Rehearsal(Options options);
  Result<void> start();
  Result<void> fill();
  Result<void> do_run(const workload::Run& run, Duration compute);
  Duration noisy(Duration compute);

  Result<engine::ReplyBody> ask(engine::Body body);
  RequestId send(engine::Body body);
  void settle();
  Time next_event() const;  // kNever: nothing is under way
  void turn(Time until);
  void pump();
  void drain_log();
  void plan_later(foresight::Plan plan);

  Options options_;
  Oracle oracle_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<engine::TierOptions> tiers_;
  Links links_;
  Trainer trainer_;
  std::optional<foresight::Learner> learner_;
  std::optional<OraclePlanner> oracle_planner_;
  std::multimap<Time, std::shared_ptr<const foresight::Plan>> plans_;  // when they are ready
  SessionId session_{};
  Time now_{1'000};
  Time log_due_ = kNever;
  std::uint64_t next_request_ = 1;
  std::uint64_t steps_ = 0;
  Random random_;
  std::map<RequestId, Result<engine::ReplyBody>> replies_;
};

}  // namespace terrace::rehearsal

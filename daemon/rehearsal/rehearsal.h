// SPDX-License-Identifier: Apache-2.0
// A workload's steps on the daemon's very engine, in virtual time: links of the node's speeds, trainers that compute,
// and, under the policy next-use, the daemon's learner. No bytes are kept: what is measured is when things happen.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "engine/engine.h"
#include "rehearsal/job.h"
#include "rehearsal/links.h"
#include "rehearsal/oracle.h"
#include "rehearsal/oracle_planner.h"
#include "rehearsal/policies.h"
#include "rehearsal/spectator.h"
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
  bool declare = false;            // the trainers say before their first step what their steps are going to lease
  std::size_t jobs = 1;            // trainers that do the same at once, each guaranteed its part of the tiers
  bool check_laws = false;         // the engine's, after every step: slow
  Spectator* spectator = nullptr;  // borrowed, of one job; none: nobody looks on
};

class Rehearsal {
 public:
  // InvalidArgument: the tiers cannot hold the workload, or the policy is for one job alone.
  static Result<std::unique_ptr<Rehearsal>> create(Options options);

  // The next step that ends, of any job: each begins its next one when its last one has ended. An error says which run
  // cannot be done on this node, and why.
  Result<StepReport> step();
  engine::Status status() const { return engine_->status(); }

 private:
  explicit Rehearsal(Options options);
  Result<void> start();
  Result<void> fill(Job& job);
  Duration noisy(Job& job, Duration compute);

  void declare(const Job& job);
  void begin_step(Job& job);
  StepReport end_step(Job& job);
  void begin_run(Job& job);
  void end_run(Job& job);
  void next_run(Job& job);
  Result<bool> advance(Job& job);
  Result<void> advance_all();
  Result<void> wait();

  Result<engine::ReplyBody> ask(const Job& job, engine::Body body);
  RequestId send(const Job& job, engine::Body body);
  void settle();
  Time next_event() const;  // kNever: nothing is under way
  void turn();
  void pump();
  void drain_logs();
  void observe(const foresight::Observation& seen);
  void plan_later(const Job& job, foresight::Plan plan);
  engine::SessionStatus status_of(const Job& job) const;

  Options options_;
  Oracle oracle_;
  AddressRange catalog_range_;
  std::optional<engine::CatalogMemory> catalog_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<engine::TierOptions> tiers_;
  Links links_;
  std::deque<Job> jobs_;
  std::optional<OraclePlanner> oracle_planner_;
  std::multimap<Time, std::pair<SessionId, std::shared_ptr<const foresight::Plan>>> plans_;  // when they are ready
  Time now_{1'000};
  Time log_due_ = kNever;
  std::uint64_t next_request_ = 1;
  std::map<RequestId, Result<engine::ReplyBody>> replies_;
};

}  // namespace terrace::rehearsal

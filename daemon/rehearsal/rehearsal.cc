// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/rehearsal.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "rehearsal/tiers.h"

namespace terrace::rehearsal {
namespace {

// How often the reactor looks into access logs, and how long the learner's thread takes for a use.
constexpr Duration kLogPeriod = std::chrono::milliseconds(1);
constexpr Duration kPlanningPerUse = std::chrono::microseconds(1);
constexpr std::size_t kCreateMax = 4096;
constexpr int kTriesMax = 3;  // of a run whose sets did not fit beside one another

}  // namespace

Rehearsal::Rehearsal(Options options)
    : options_(std::move(options)),
      oracle_(options_.workload),
      tiers_(tiers_of(options_.node, options_.workload)),
      links_(options_.node),
      trainer_(options_.workload.tensors.size() + 1),
      random_(options_.seed) {}

Result<std::unique_ptr<Rehearsal>> Rehearsal::create(Options options) {
  std::unique_ptr<Rehearsal> made(new Rehearsal(std::move(options)));
  if (const auto started = made->start(); !started) return std::unexpected(started.error());
  return made;
}

Result<void> Rehearsal::start() {
  engine::Options options;
  options.tiers = tiers_;
  options.transfers_in_flight_max = 2;
  options.observe = options_.policy == PolicyKind::kNextUse;
  switch (options_.policy) {
    case PolicyKind::kNextUse:
      options.make_policy = engine::make_next_use_policy;
      learner_.emplace(machine_of(options_.node, tiers_));
      break;
    case PolicyKind::kLru:
      break;
    case PolicyKind::kS3Fifo:
      options.make_policy = engine::make_s3_fifo_policy;
      break;
    case PolicyKind::kDemandMin:
      options.make_policy = [this] { return make_demand_min_policy(oracle_); };
      break;
    case PolicyKind::kOracle:
      options.make_policy = engine::make_next_use_policy;
      oracle_planner_.emplace(options_.workload, machine_of(options_.node, tiers_));
      break;
  }
  auto engine = engine::Engine::create(std::move(options));
  if (!engine) return std::unexpected(engine.error());
  engine_ = std::move(*engine);
  engine::OpenSession open;
  open.table = trainer_.table();
  const auto opened = ask(open);
  if (!opened) return std::unexpected(opened.error());
  session_ = std::get<engine::SessionOpened>(*opened).session;
  return fill();
}

// The tensors, and the content that they have before the first step.
Result<void> Rehearsal::fill() {
  const auto& tensors = options_.workload.tensors;
  for (std::size_t at = 0; at < tensors.size();) {
    engine::CreateTensors create;
    for (; at < tensors.size() && create.tensors.size() < kCreateMax; ++at) {
      create.tensors.emplace_back();
      create.tensors.back().name = fmt::format("{}", at);
      create.tensors.back().bytes = tensors[at].bytes;
    }
    const auto created = ask(std::move(create));
    if (!created) return std::unexpected(created.error());
    trainer_.created(std::get<engine::Handles>(*created).tensors);
  }
  const bool has_host = options_.node.host_bytes > 0;
  for (std::size_t at = 0; at < tensors.size(); ++at) {
    if (!tensors[at].home) continue;
    workload::Run write;
    write.place = has_host ? workload::Place::kHost : workload::Place::kHbm;
    write.write.push_back(static_cast<workload::TensorId>(at));
    if (const auto written = do_run(write, Duration::zero()); !written) return written;
  }
  settle();
  return {};
}

Duration Rehearsal::noisy(Duration compute) {
  if (options_.noise == 0) return compute;
  const double off = random_.part() * 2 - 1;
  return Duration(static_cast<std::int64_t>(static_cast<double>(compute.count()) * (1 + options_.noise * off)));
}

Result<StepReport> Rehearsal::step() {
  const workload::Workload& workload = options_.workload;
  const std::size_t within = steps_ % workload.steps.size();
  StepReport report;
  report.step = ++steps_;
  report.kind = workload.steps[within].kind;
  const Traffic before = links_.traffic();
  const engine::Status then = engine_->status();
  const Time began = now_;
  drain_log();
  send(engine::MarkStep{static_cast<std::uint32_t>(report.kind)});
  if (oracle_planner_) plan_later(oracle_planner_->plan(within));
  for (const workload::Run& run : workload.runs_of(within)) {
    const Duration compute = noisy(run.compute);
    report.compute += compute;
    if (const auto done = do_run(run, compute); !done)
      return fail(done.error().code, fmt::format("run '{}': {}", run.name, done.error().message));
    ++oracle_.run;
  }
  report.makespan = now_ - began;
  report.traffic = links_.traffic() - before;
  drain_log();
  const engine::Status after = engine_->status();
  report.prefetch_late = after.prefetches.late - then.prefetches.late;
  report.prefetch_wasted = after.prefetches.wasted - then.prefetches.wasted;
  const std::uint64_t matched = after.sessions.front().matched - then.sessions.front().matched;
  const std::uint64_t strayed = after.sessions.front().strayed - then.sessions.front().strayed;
  if (matched + strayed > 0) report.foreseen = static_cast<double>(matched) / static_cast<double>(matched + strayed);
  if (options_.check_laws) engine_->check_invariants();
  return report;
}

Result<void> Rehearsal::do_run(const workload::Run& run, Duration compute) {
  for (int tries = 1;; ++tries) {
    const auto asks = trainer_.lease(now_, run);
    if (trainer_.has_log()) log_due_ = std::min(log_due_, now_ + kLogPeriod);
    if (asks.empty()) break;
    drain_log();
    std::map<RequestId, const Trainer::Ask*> open;
    for (const Trainer::Ask& wanted : asks)
      open.emplace(send(engine::Acquire{place_of(run), wanted.mode, wanted.tensors}), &wanted);
    std::optional<Error> refused;
    while (!open.empty()) {
      for (auto at = open.begin(); at != open.end();) {
        const auto reply = replies_.find(at->first);
        if (reply == replies_.end()) {
          ++at;
          continue;
        }
        if (reply->second)
          trainer_.granted(*at->second);
        else
          refused = reply->second.error();
        replies_.erase(reply);
        at = open.erase(at);
      }
      if (open.empty()) break;
      if (next_event() == kNever)
        return fail(ErrorCode::kResourceExhausted,
                    "what it uses does not fit at once: part of it is leased, and the rest waits for room; use a node "
                    "with more memory at its place");
      turn(kNever);
    }
    if (!refused) break;
    if (tries == kTriesMax) return std::unexpected(*refused);
    if (trainer_.release()) engine_->lease_ended(now_, session_);
    pump();
  }
  const Time end = now_ + compute;
  while (now_ < end) turn(end);
  if (trainer_.release()) {
    drain_log();
    engine_->lease_ended(now_, session_);
    pump();
  }
  if (run.free.empty()) return {};
  engine::DontNeed dead;
  for (const workload::TensorId tensor : run.free) dead.tensors.push_back(trainer_.handles()[tensor]);
  drain_log();
  const auto dropped = replies_.extract(send(std::move(dead)));
  TERRACE_CHECK(!dropped.empty());
  if (!dropped.mapped()) return std::unexpected(dropped.mapped().error());
  return {};
}

RequestId Rehearsal::send(engine::Body body) {
  const RequestId id{next_request_++};
  engine_->submit(now_, engine::Request{id, session_, kNever, std::move(body)});
  pump();
  return id;
}

Result<engine::ReplyBody> Rehearsal::ask(engine::Body body) {
  const RequestId id = send(std::move(body));
  while (!replies_.contains(id)) turn(kNever);
  return std::move(replies_.extract(id).mapped());
}

// Until nothing is under way.
void Rehearsal::settle() {
  while (links_.next() != kNever) turn(kNever);
}

Time Rehearsal::next_event() const {
  const Time planned = plans_.empty() ? kNever : plans_.begin()->first;
  return std::min({links_.next(), engine_->next_deadline(), log_due_, planned});
}

// On to the next thing that happens, or to `until`.
void Rehearsal::turn(Time until) {
  const Time planned = plans_.empty() ? kNever : plans_.begin()->first;
  const Time next = std::min(until, next_event());
  TERRACE_CHECK(next != kNever);  // else nobody will ever go on: the engine forgot a request
  now_ = std::max(now_, next);
  if (log_due_ <= now_) drain_log();
  if (planned <= now_) {
    engine_->plan(now_, session_, plans_.begin()->second);
    plans_.erase(plans_.begin());
  }
  if (links_.next() <= now_)
    engine_->transfer_done(now_, {links_.take(), {}, {}});
  else if (engine_->next_deadline() <= now_)
    engine_->tick(now_);
  pump();
}

// Takes what the engine puts out, until there is nothing.
void Rehearsal::pump() {
  while (true) {
    engine::Output output = engine_->take_output();
    for (const mover::Transfer& transfer : output.transfers) {
      const bool in = transfer.link.kind == mover::LinkKind::kBlockRead;
      const TierId other = in ? transfer.to.tier : transfer.from.tier;
      links_.start(now_, transfer, terrace::index(other) == 0);
    }
    for (engine::Reply& reply : output.replies) {
      engine_->answered(reply.id);
      replies_.emplace(reply.id, std::move(reply.result));
    }
    for (const foresight::Observation& seen : output.observations)
      if (auto plan = learner_->observe(seen)) plan_later(std::move(*plan));
    for (const mover::SegmentOrder& order : output.segment_orders) engine_->segment_done(now_, {order, {}});
    if (output.segment_orders.empty()) return;
  }
}

void Rehearsal::plan_later(foresight::Plan plan) {
  const Time ready = now_ + kPlanningPerUse * static_cast<std::int64_t>(plan.uses.size());
  plans_.emplace(ready, std::make_shared<const foresight::Plan>(std::move(plan)));
}

void Rehearsal::drain_log() {
  log_due_ = kNever;
  const auto log = trainer_.take_log();
  if (log.empty()) return;
  engine_->accessed(now_, session_, log, log.size());
  pump();
}

}  // namespace terrace::rehearsal

// SPDX-License-Identifier: Apache-2.0
// The jobs of a rehearsal, side by side: each leases a run's set, computes, releases, and goes on to the next.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "rehearsal/rehearsal.h"

namespace terrace::rehearsal {
namespace {

constexpr Duration kLogPeriod = std::chrono::milliseconds(1);  // how often the reactor looks into access logs
constexpr int kTriesMax = 3;                                   // of a run whose sets did not fit beside one another
constexpr Duration kPatience = std::chrono::seconds(60);       // a client's deadline, where it is given none

}  // namespace

Duration Rehearsal::noisy(Job& job, Duration compute) {
  if (options_.noise == 0 || compute == Duration::zero()) return compute;
  const double off = job.random.part() * 2 - 1;
  return Duration(static_cast<std::int64_t>(static_cast<double>(compute.count()) * (1 + options_.noise * off)));
}

Result<StepReport> Rehearsal::step() {
  for (Job& job : jobs_)
    if (job.phase == Job::Phase::kIdle) begin_step(job);
  while (true) {
    if (const auto advanced = advance_all(); !advanced) return std::unexpected(advanced.error());
    for (Job& job : jobs_)
      if (job.phase == Job::Phase::kEnded) return end_step(job);
    if (const auto waited = wait(); !waited) return std::unexpected(waited.error());
  }
}

engine::SessionStatus Rehearsal::status_of(const Job& job) const {
  const auto sessions = engine_->status().sessions;
  return *std::ranges::find(sessions, job.session, &engine::SessionStatus::session);
}

// Each kind of step, as the first one of the kind is.
void Rehearsal::declare(const Job& job) {
  const workload::Workload& workload = options_.workload;
  std::set<workload::StepKind> kinds;
  for (std::size_t step = 0; step < workload.steps.size(); ++step) {
    const workload::StepKind kind = workload.steps[step].kind;
    if (!kinds.insert(kind).second) continue;
    engine::DeclareStep declared{.kind = static_cast<std::uint32_t>(kind), .position = 0, .sets = {}};
    for (const workload::Run& run : workload.runs_of(step)) {
      for (Trainer::Ask& ask : job.trainer.asks_of(run))
        declared.sets.push_back({place_of(run), ask.mode, Duration::zero(), std::move(ask.tensors)});
      if (!declared.sets.empty()) declared.sets.back().compute += run.compute;
    }
    send(job, std::move(declared));
  }
}

void Rehearsal::begin_step(Job& job) {
  const workload::Workload& workload = options_.workload;
  const std::size_t within = job.steps % workload.steps.size();
  const engine::PrefetchStatus prefetches = engine_->status().prefetches;
  const engine::SessionStatus then = status_of(job);
  job.report = {.job = job.number,
                .step = ++job.steps,
                .kind = workload.steps[within].kind,
                .traffic = links_.traffic(job.session),
                .prefetch_late = prefetches.late,
                .prefetch_wasted = prefetches.wasted};
  job.matched = then.matched;
  job.strayed = then.strayed;
  job.step_began = now_;
  drain_logs();
  if (options_.declare && job.steps == 1) declare(job);
  send(job, engine::MarkStep{static_cast<std::uint32_t>(job.report.kind)});
  if (oracle_planner_) plan_later(job, oracle_planner_->plan(within));
  job.runs = workload.runs_of(within);
  begin_run(job);
}

StepReport Rehearsal::end_step(Job& job) {
  job.phase = Job::Phase::kIdle;
  StepReport& report = job.report;
  report.makespan = now_ - job.step_began;
  report.traffic = links_.traffic(job.session) - report.traffic;
  drain_logs();
  const engine::PrefetchStatus prefetches = engine_->status().prefetches;
  const engine::SessionStatus now = status_of(job);
  report.prefetch_late = prefetches.late - report.prefetch_late;
  report.prefetch_wasted = prefetches.wasted - report.prefetch_wasted;
  const std::uint64_t matched = now.matched - job.matched;
  const std::uint64_t strayed = now.strayed - job.strayed;
  if (matched + strayed > 0) report.foreseen = static_cast<double>(matched) / static_cast<double>(matched + strayed);
  if (options_.check_laws) engine_->check_invariants();
  return report;
}

void Rehearsal::begin_run(Job& job) {
  job.tries = 0;
  lease(job);
}

void Rehearsal::lease(Job& job) {
  ++job.tries;
  job.phase = Job::Phase::kLeasing;
  auto asks = job.tries == 1 ? job.trainer.lease(now_, job.runs.front()) : job.trainer.asks_of(job.runs.front());
  if (job.tries % 2 == 0) std::ranges::reverse(asks);  // what is read moves for what is written, where it lies badly
  job.asked = !asks.empty();
  if (job.trainer.has_log()) log_due_ = std::min(log_due_, now_ + kLogPeriod);
  if (asks.empty()) return;
  drain_logs();
  for (const Trainer::Ask& wanted : asks)
    job.open.emplace_back(send(job, engine::Acquire{place_of(job.runs.front()), wanted.mode, wanted.tensors}), wanted);
}

// Whether it moved on, without any time passing.
Result<bool> Rehearsal::advance(Job& job) {
  if (job.phase == Job::Phase::kIdle || job.phase == Job::Phase::kEnded) return false;
  if (job.phase == Job::Phase::kComputing || job.phase == Job::Phase::kAsking) {
    if (now_ < job.busy_until) return false;
    job.phase == Job::Phase::kComputing ? end_run(job) : next_run(job);
    return true;
  }
  std::erase_if(job.open, [&](const auto& asked) {
    const auto reply = replies_.extract(asked.first);
    if (reply.empty()) return false;
    if (reply.mapped())
      job.trainer.granted(asked.second);
    else
      job.refused = reply.mapped().error();
    return true;
  });
  if (!job.open.empty()) return false;
  if (job.refused) return lease_again(job);
  const Duration compute = noisy(job, job.runs.front().compute);
  job.report.compute += compute;
  job.busy_until = now_ + compute + (job.asked ? options_.node.request_latency : Duration());
  job.phase = Job::Phase::kComputing;
  return true;
}

// Its sets did not fit beside one another: what it got of them goes back.
Result<bool> Rehearsal::lease_again(Job& job) {
  const Error refused = *std::exchange(job.refused, std::nullopt);
  if (job.tries == kTriesMax)
    return fail(refused.code, fmt::format("run '{}': {}", job.runs.front().name, refused.message));
  if (job.trainer.release()) engine_->lease_ended(now_, job.session);
  pump();
  lease(job);
  return true;
}

void Rehearsal::end_run(Job& job) {
  const workload::Run& run = job.runs.front();
  if (job.trainer.release()) {
    drain_logs();
    engine_->lease_ended(now_, job.session);
    pump();
  }
  if (!run.free.empty()) {
    engine::DontNeed dead;
    for (const workload::TensorId tensor : run.free) dead.tensors.push_back(job.trainer.handles()[tensor]);
    drain_logs();
    const auto dropped = replies_.extract(send(job, std::move(dead)));
    TERRACE_CHECK(!dropped.empty() && dropped.mapped());
  }
  if (job.steps > 0) {  // not while it fills its tensors
    if (options_.spectator != nullptr) options_.spectator->ran(run, now_, job.trainer);
    ++oracle_.run;
  }
  job.runs = job.runs.subspan(1);
  if (run.free.empty() || options_.node.request_latency == Duration()) return next_run(job);
  job.busy_until = now_ + options_.node.request_latency;
  job.phase = Job::Phase::kAsking;
}

void Rehearsal::next_run(Job& job) {
  if (job.runs.empty())
    job.phase = Job::Phase::kEnded;
  else
    begin_run(job);
}

// As far as they come before time passes, or one of them ends its step.
Result<void> Rehearsal::advance_all() {
  for (bool moved = true; moved;) {
    moved = false;
    for (Job& job : jobs_) {
      const auto advanced = advance(job);
      if (!advanced) return std::unexpected(advanced.error());
      moved |= *advanced;
    }
  }
  return {};
}

Result<void> Rehearsal::wait() {
  if (next_event() == kNever) return pass_deadlines();
  turn();
  return {};
}

// Nothing is under way: what a run has leased lies so that the rest of it has no room side by side. Its trainer waits
// until its deadline, and is refused.
Result<void> Rehearsal::pass_deadlines() {
  now_ = now_ + kPatience;
  for (Job& job : jobs_) {
    if (job.phase != Job::Phase::kLeasing) continue;
    if (job.tries == kTriesMax)
      return fail(
          ErrorCode::kResourceExhausted,
          fmt::format("run '{}': what it uses does not fit at once: part of it is leased, and the rest waits for "
                      "room; use a node with more memory at its place",
                      job.runs.front().name));
    for (const auto& [request, ask] : job.open) engine_->cancel(now_, request);
    ++job.report.deadlines;
  }
  pump();
  return {};
}

}  // namespace terrace::rehearsal

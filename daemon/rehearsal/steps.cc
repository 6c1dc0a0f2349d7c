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
      const Trainer::Set set = job.trainer.set_of(run);
      for (const shm::Mode mode : {shm::Mode::kRead, shm::Mode::kWrite, shm::Mode::kOverwrite}) {
        std::vector<Handle> tensors;
        for (std::size_t i = 0; i < set.tensors.size(); ++i)
          if (set.modes[i] == mode) tensors.push_back(set.tensors[i]);
        if (!tensors.empty()) declared.sets.push_back({place_of(run), mode, Duration::zero(), std::move(tensors)});
      }
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
  const workload::Run& run = job.runs.front();
  job.phase = Job::Phase::kLeasing;
  Trainer::Set set = job.trainer.set_of(run);
  job.missed = !job.trainer.lease(now_, set, place_of(run));
  if (job.trainer.has_log()) log_due_ = std::min(log_due_, now_ + kLogPeriod);
  if (job.missed) {
    drain_logs();
    job.asked = send(job, engine::Acquire{place_of(run), set.modes, set.tensors});
  }
  job.trainer.hold(std::move(set));
}

// Whether it moved on, without any time passing.
Result<bool> Rehearsal::advance(Job& job) {
  if (job.phase == Job::Phase::kIdle || job.phase == Job::Phase::kEnded) return false;
  if (job.phase == Job::Phase::kComputing || job.phase == Job::Phase::kAsking) {
    if (now_ < job.busy_until) return false;
    job.phase == Job::Phase::kComputing ? end_run(job) : next_run(job);
    return true;
  }
  if (job.asked) {
    const auto reply = replies_.extract(*job.asked);
    if (reply.empty()) return false;
    job.asked.reset();
    if (const auto& granted = reply.mapped(); !granted)
      return fail(granted.error().code, fmt::format("run '{}': {}", job.runs.front().name, granted.error().message));
  }
  const Duration compute = noisy(job, job.runs.front().compute);
  job.report.compute += compute;
  job.busy_until = now_ + compute + (job.missed ? options_.node.request_latency : Duration());
  job.phase = Job::Phase::kComputing;
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
  if (next_event() != kNever) {
    turn();
    return {};
  }
  const auto waits = std::ranges::find(jobs_, Job::Phase::kLeasing, &Job::phase);
  TERRACE_CHECK(waits != jobs_.end());
  return fail(ErrorCode::kResourceExhausted,
              fmt::format("run '{}': what it uses does not fit at once; use a node with more memory at its place",
                          waits->runs.front().name));
}

}  // namespace terrace::rehearsal
